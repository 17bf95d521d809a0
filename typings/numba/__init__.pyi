"""The type of the one decorator that this project takes of numba, which is an extra and ships no types."""

from collections.abc import Callable
from typing import Any

def njit(*, cache: bool = ..., nogil: bool = ...) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
