"""Define the protocol of a program's backend, and find backends by name. docs/backends.md lists the duties of each.

A backend loads a region's `Program` once and runs it any number of times on a DRAM image. Packages add backends by an entry
point of the group GROUP.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

import numpy as np

from simulator import Observe, Simulation
from toolchain.codegen import Region
from toolchain.errors import CompileError, ProgramError, ToolchainError, first_line
from toolchain.foundation.type_guards import is_array, is_mapping
from toolchain.ir.graph import Graph
from toolchain.isa import Decoded, Machine, decode
from toolchain.machine import InstructionStream, dispatch_program

GROUP = "npu_toolchain.backends"
Progress = Callable[[str, int, int], None]  # stage, done, total
_NO_TIMES = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Program:
    """A region of a compiled model, as a backend gets it: its words, constants and ports, the machine, the integer graph.

    `is_in_process`: it was made in this process and not read from a file, so that a computation that fails is a bug of ours.
    """

    machine: Machine
    region: Region
    graph: Graph
    is_in_process: bool = False

    @cached_property
    def decoded(self) -> Decoded:
        """Return the operations as the program's words say, repeats and calls among them. Raise ProgramError where they are not
        sound."""
        decoded_program, layers = decode(self.region.program, self.machine.isa), self.region.op_layers
        if len(decoded_program.ops) != len(layers):
            raise ProgramError(f"the program has {len(decoded_program.ops)} operations, its layer table {len(layers)}")
        return decoded_program

    @cached_property
    def flow(self) -> InstructionStream:
        """Return the operations as the front end dispatches them, loops and calls written out; everything refers to them by
        this index.

        Raise ProgramError where the program is not sound.
        """
        return dispatch_program(self.machine.chip, self.decoded.ops, self.decoded.words, self.region.bases)


@dataclass(frozen=True)
class Execution:
    """The result of a run.

    `memory`: uint8[bytes] by the memory's name; `dram` always, others where the backend can read them.
    `start`, `end`: int64[op] cycles of each operation of `Program.flow`, by its index. They are empty where the backend
    measures none.
    `tensors`: codes by tensor of the integer graph, where the backend knows others than the ports.
    `simulation`: further results of the simulator; None of another backend.
    `on_cpu`: nodes of the integer graph that fell back to the CPU, where the backend computes on a device.
    """

    memory: Mapping[str, np.ndarray]
    start: np.ndarray = field(default_factory=lambda: _NO_TIMES)
    end: np.ndarray = field(default_factory=lambda: _NO_TIMES)
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    simulation: Simulation | None = None
    on_cpu: tuple[str, ...] = ()


class LoadedProgram(Protocol):
    """A program that is ready to run, any number of times."""

    def run(
        self, dram: np.ndarray, *, until: int | None = None, observe: Observe | None = None, progress: Progress | None = None
    ) -> Execution:
        """Run the program and return its results.

        `dram`: uint8[dram_bytes], constants and inputs in place; it is this run's alone, and the backend may change it.
        `until`: the last operation of the flow that runs, None for all. Raise CompileError where the backend cannot stop there.
        `observe`: is called after each operation with its index and all memories; only given to a backend that observes.
        """
        ...


class Backend(Protocol):
    """A backend for programs of the chip.

    `observes`: `run` calls `observe` after each operation, so that a difference is attributed to the operation that makes it.
    """

    observes: bool

    def load(self, program: Program, *, timing: bool, check: bool) -> LoadedProgram:
        """Return the program ready to run. A backend ignores `timing` or `check` where it does not support it.

        `timing`: cycles are requested.
        `check`: breaches of the machine's rules are to be refused.
        """
        ...


class SessionBackend(Backend, Protocol):
    """A backend as a session uses it.

    `concurrent`: its runs may overlap in several threads.
    `reads_constants`: its runs read the constants in `dram`; else the session does not write them.
    """

    concurrent: bool
    reads_constants: bool


def backend_named(name: str, backend_by_name: Mapping[str, SessionBackend]) -> SessionBackend:
    """Return a backend by name: one of these, or one that a package announces, held to the protocol.

    Raise CompileError where there is none, two packages have one, or it cannot be loaded.
    """
    if name in backend_by_name:
        return backend_by_name[name]
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    if not points:
        names = ", ".join(sorted({*backend_by_name, *(point.name for point in entry_points(group=GROUP))}))
        raise CompileError(f"backend {name}: must be one of {names}; a package adds one by an entry point of {GROUP}")
    if len({point.value for point in points}) > 1:
        packages = " and ".join(sorted(_package(point) for point in points))
        raise CompileError(f"backend {name}: {packages} both have one of this name; uninstall one of them")
    return CheckedBackend(name, _load_backend(points[0]))


def _load_backend(point: EntryPoint) -> Backend:
    """Import a package's backend. Raise CompileError for whatever the import raises."""
    try:
        return point.load()
    except Exception as fault:  # whatever the package does when it is imported
        raise CompileError(f"backend {point.name}: {_package(point)} cannot be loaded: {_format_fault(fault)}") from fault


def _package(point: EntryPoint) -> str:
    """Return the name of the package that announces a backend; the module and attribute where no package is known."""
    return point.dist.name if point.dist is not None else point.value


def _format_fault(fault: Exception) -> str:
    return f"{type(fault).__name__}: {first_line(fault)}"


class CheckedBackend:
    """A backend of another package, held to the protocol: a fault of its own or a result of another form becomes a
    CompileError.

    A session runs it in one thread at a time, for a board has one memory.
    """

    concurrent = False
    reads_constants = True

    def __init__(self, name: str, backend: Backend):
        """Wrap the backend. Raise CompileError where it lacks `load` or `observes`."""
        lacks = next((what for what in ("load", "observes") if not hasattr(backend, what)), None)
        if lacks is not None:
            raise CompileError(f"backend {name}: has no {lacks}; docs/backends.md says what it must have")
        self._name, self._backend = name, backend
        self.observes = bool(backend.observes)

    def load(self, program: Program, *, timing: bool, check: bool) -> LoadedProgram:
        """Return the loaded program, held to the protocol too."""
        with _add_backend_name(self._name):
            return _CheckedProgram(self._name, program, self._backend.load(program, timing=timing, check=check))


class _CheckedProgram:
    """A loaded program of another package, whose results are checked."""

    def __init__(self, name: str, program: Program, loaded: LoadedProgram):
        self._name, self._program, self._loaded = name, program, loaded

    def run(
        self, dram: np.ndarray, *, until: int | None = None, observe: Observe | None = None, progress: Progress | None = None
    ) -> Execution:
        """Run the program and return its result. Raise CompileError where it raises or returns something else than the protocol
        says."""
        size = dram.size
        with _add_backend_name(self._name):
            execution = self._loaded.run(dram, until=until, observe=observe, progress=progress)
        reason = _fault(execution, size, len(self._program.flow))
        if reason is not None:
            raise CompileError(f"backend {self._name}: {reason}; docs/backends.md says what it must give")
        return execution


@contextmanager
def _add_backend_name(name: str) -> Generator[None]:
    """Turn exceptions of the block into a CompileError with the backend's name; those of the toolchain and MemoryError pass."""
    try:
        yield
    except (ToolchainError, MemoryError):
        raise
    except Exception as fault:
        raise CompileError(f"backend {name}: {_format_fault(fault)}") from fault


def _fault(execution: object, dram_bytes: int, operations: int) -> str | None:
    """Return in what a result breaks the protocol, None where it does not."""
    if not isinstance(execution, Execution):
        return f"gives {type(execution).__name__}, not an Execution"
    if not is_mapping(execution.memory):
        return f"gives memories as {type(execution.memory).__name__}, not by name"
    for name, memory in execution.memory.items():
        if not is_array(memory) or memory.dtype != np.uint8 or memory.ndim != 1:
            return f"gives memory {name} that is no uint8 array of one dimension"
    if "dram" not in execution.memory or execution.memory["dram"].size != dram_bytes:
        return (
            f"gives {execution.memory['dram'].size if 'dram' in execution.memory else 'no'} bytes of dram, the program has "
            f"{dram_bytes}"
        )
    times = (execution.start, execution.end)
    if not all(is_array(t) for t in times):
        return "gives times that are no arrays"
    if not execution.start.size and not execution.end.size:
        return None
    if any(t.shape != (operations,) or t.dtype != np.int64 for t in times):
        return f"gives times that are not int64[{operations}], one for each operation"
    if (execution.end < execution.start).any() or execution.start.min(initial=0) < 0:
        return "gives an operation that ends before it starts, or starts before cycle 0"
    return None
