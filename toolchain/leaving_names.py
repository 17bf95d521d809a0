"""Announce public names that leave in the next release: they work, and warn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LeavingName:
    """A public name that works for one more release.

    `load`: returns what the name stands for.
    `gone_in`: the version that no longer has it.
    `way_out`: what to use in its place.
    """

    load: Callable[[], Any]
    gone_in: str
    way_out: str


def get_leaving_name(module: str, name: str, leaving: Mapping[str, LeavingName]) -> Any:
    """Return what a module's leaving name stands for, with a DeprecationWarning; for the module's `__getattr__`.

    Raise AttributeError for every other name.
    """
    if name not in leaving:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    entry = leaving[name]
    warnings.warn(f"{module}.{name} leaves in {entry.gone_in}; {entry.way_out}", DeprecationWarning, stacklevel=3)
    return entry.load()
