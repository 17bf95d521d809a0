"""numba is an extra: where it does not load, or may not write its cache, plans are the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.numba_faults import refuse_cache, refuse_import
from toolchain.memory.place.numba_support import compiler


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    compiler.cache_clear()
    yield
    compiler.cache_clear()


def test_a_numba_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_import(monkeypatch)
    assert compiler() is None


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_cache(monkeypatch)
    compile_function = compiler()
    assert compile_function is not None and compile_function(lambda: 7)() == 7
