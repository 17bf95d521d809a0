"""numba is an extra: where it does not load, or may not write its cache, plans are the same."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from toolchain.memory.place.numba_support import compiler


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    compiler.cache_clear()
    yield
    compiler.cache_clear()


def test_a_numba_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "numba":
            raise ImportError("Numba needs NumPy 2.2 or less. Got NumPy 2.3.")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert compiler() is None


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(function: Callable[[], int] | None = None, cache: bool = False) -> Any:
        if function is not None:
            return function

        def refuse(function: Callable[[], int]) -> Any:
            raise RuntimeError("cannot cache function: no locator available")

        return refuse if cache else njit

    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(njit=njit))  # type: ignore[arg-type]
    compile_function = compiler()
    assert compile_function is not None and compile_function(lambda: 7)() == 7
