"""Load numba where the extra `fast` is installed and works; without it the same code runs, slower."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def compiler() -> Callable[[Callable[..., Any]], Any] | None:
    """Return a decorator that compiles a function on its first call, or None.

    None: numba is not installed or refuses the installed numpy. Compiled code is cached on disk where a folder can be written.
    """
    try:
        import numba  # pyright: ignore[reportMissingModuleSource]
    except ImportError:
        return None

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True)(function)
        except RuntimeError:  # no folder for the cache can be written
            return numba.njit()(function)

    return compiled
