"""Record when each segment of a session's runs ran, for Perfetto or Chrome's trace viewer."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolchain.foundation.atomic_files import write_atomically

if TYPE_CHECKING:
    from toolchain.runtime.session import SegmentRun


class SessionProfile:
    """A profile of a session's runs in the JSON of Chrome's traces, which onnxruntime writes too. Times are of the host, in us.

    Threads may add events at once.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._begin_s, self._lock = path, time.perf_counter(), threading.Lock()
        self._events: list[dict[str, Any]] = []

    def add(self, index: int, ran: SegmentRun, start_s: float, end_s: float) -> None:
        """Add one segment of a run.

        `index`: its index; `ran`: what ran it.
        `start_s`, `end_s`: times of `time.perf_counter`.
        """
        cycles = {} if ran.simulation is None else {"cycles": int(ran.simulation.cycles)}
        event = {
            "ph": "X", "cat": "Node", "pid": os.getpid(), "tid": threading.get_ident(), "name": f"segment {index}",
            "ts": round(1e6 * (start_s - self._begin_s)), "dur": round(1e6 * (end_s - start_s)),
            "args": {"provider": ran.where, "nodes": list(ran.nodes), **cycles},
        }  # fmt: skip
        with self._lock:
            self._events.append(event)

    def write(self) -> str:
        """Write the events so far, in the place of an earlier file, and return the file's name. Raise OSError where it cannot
        be written."""
        with self._lock:
            text = json.dumps(self._events, indent=1) + "\n"
        write_atomically(self._path, text.encode())
        return str(self._path)
