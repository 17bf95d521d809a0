"""Installations of numba that do not work: one that cannot be imported, and one whose cache cannot be written."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


def refuse_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `import numba` raise ImportError, as where it refuses the installed numpy."""
    import_module = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "numba":
            raise ImportError("Numba needs NumPy 2.2 or less. Got NumPy 2.3.")
        return import_module(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)


def refuse_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a numba whose `njit(cache=True)` raises RuntimeError. Without a cache it returns the function itself."""

    def njit(function: Callable[..., Any] | None = None, cache: bool = False, nogil: bool = False) -> Any:
        if function is not None:
            return function

        def refuse(function: Callable[..., Any]) -> Any:
            raise RuntimeError("cannot cache function: no locator available")

        return refuse if cache else njit

    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(njit=njit))  # type: ignore[arg-type]
