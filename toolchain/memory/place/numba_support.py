"""numba, where the extra `fast` is installed and works; without it everything runs, slower."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def compiler() -> Callable[[Callable[..., Any]], Any] | None:
    """Compiles a function on its first call; None where numba is not installed or refuses the installed numpy."""
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
