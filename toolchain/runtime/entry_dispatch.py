"""Run a compiled file of several entries as one session: each run takes the entry that its inputs' shapes fit.

An entry is one set of input shapes with its programs. States go from one entry to the next.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np

from toolchain.codegen import IoType, entries_from_bytes, read_entries
from toolchain.errors import CompileError
from toolchain.runtime.session import CompiledModel, Session, get_compiled_bytes


class EntriesSession:
    """A session of all entries of a file: `EntriesSession("model.npu").run(None, {"x": x})`.

    An example is a decoder whose entries are the prefill of a chunk and the step of one token. States of one shape, type and
    scale are shared by all entries; others are each entry's own.

    `options`: as `Session` takes them, but for `entry`; it raises as Session does.
    `entries`: attribute, a session each by name.

    Any number of threads may use `run`. With states, the runs of all entries are served one after another.
    """

    def __init__(self, model: CompiledModel, **options: Any) -> None:
        data = get_compiled_bytes(model)
        entries = read_entries(str(model)) if data is None else entries_from_bytes(data, "model")
        self.entries = {name: Session(model, entry=name, **options) for name in entries}
        self._last = next(iter(self.entries.values()))
        self.concurrent = all(session.concurrent for session in self.entries.values())
        self._turn: AbstractContextManager[Any] = nullcontext() if self.concurrent else threading.RLock()

    def session_for(self, feeds: Mapping[str, np.ndarray]) -> Session:
        """Return the first entry that has inputs of these shapes, with the states that the last run of any entry left.

        Another thread may run before its caller does.
        Raise CompileError where no entry has these shapes.
        """
        shapes = {name: np.shape(value) for name, value in feeds.items()}
        fitting = (s for s in self.entries.values() if all(shapes.get(t.name) == t.shape for t in s.get_inputs()))
        session = next(fitting, None)
        if session is None:
            entry_list = "; ".join(f"{name} ({_shapes(s.get_inputs())})" for name, s in self.entries.items())
            shape_text = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise CompileError(f"no entry takes {shape_text or 'nothing'}; entries are {entry_list}")
        with self._turn:
            if session is not self._last:
                session.take_states(self._last)
                self._last = session
        return session

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, np.ndarray], run_options: Any = None
    ) -> list[np.ndarray]:
        """Run the entry that fits and return its outputs, as `Session.run` does. Raise CompileError where none fits."""
        with self._turn:
            return self.session_for(feeds).run(output_names, feeds, run_options)

    def get_states(self) -> tuple[IoType, ...]:
        """Return the states of the last entry that ran, before any run those of the first."""
        return self._last.get_states()

    def state(self, name: str) -> np.ndarray:
        """Return the real values of a state of the last entry that ran, as `Session.state` does."""
        with self._turn:
            return self._last.state(name)

    def reset(self, values: Mapping[str, np.ndarray] = MappingProxyType({})) -> None:
        """Set the states that the next run begins with, whichever entry it is; those that are not given become zero."""
        with self._turn:
            self._last.reset(values)
            for session in self.entries.values():
                if session is not self._last:
                    session.reset()


def _shapes(inputs: Sequence[IoType]) -> str:
    return ", ".join(f"{t.name} {list(t.shape)}" for t in inputs)
