"""Pause Python's search for reference cycles while many objects are made that live on."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def pause_collection() -> Generator[None]:
    """Let no search for reference cycles begin inside the block; it is on again behind it if it was before.

    Blocks of several threads may overlap: the first to begin is the one that switches it on again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
