"""Test a value's type so that a type checker knows its elements as Any, where `isinstance` would leave them unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np


def is_array(value: object) -> TypeGuard[np.ndarray]:
    return isinstance(value, np.ndarray)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a dictionary, which is taken to have names as keys."""
    return isinstance(value, dict)


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value is a mapping, which is taken to have names as keys."""
    return isinstance(value, Mapping)
