"""Pause Python's search for reference cycles while many objects are made that live on."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager


class _Pauses:
    """Counts the blocks of all threads. `resumes`: whether the search is to be on again behind the last of them."""

    lock = threading.Lock()
    count = 0
    resumes = False


@contextmanager
def pause_collection() -> Generator[None]:
    """Disable Python's garbage collection inside the block; behind it it is as it was before.

    Blocks of several threads may overlap: the last to end enables it again.
    """
    with _Pauses.lock:
        if not _Pauses.count:
            _Pauses.resumes = gc.isenabled()
            gc.disable()
        _Pauses.count += 1
    try:
        yield
    finally:
        with _Pauses.lock:
            _Pauses.count -= 1
            if not _Pauses.count and _Pauses.resumes:
                gc.enable()
