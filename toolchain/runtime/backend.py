"""What runs a program of the chip: the protocol, and how backends are found. docs/backends.md says what each must do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

import numpy as np

from simulator import Observe, Simulation
from toolchain.codegen import Region
from toolchain.errors import CompileError, ProgramError, ToolchainError, first_line
from toolchain.ir.graph import Graph
from toolchain.isa import Decoded, Machine, decode
from toolchain.machine import InstructionStream, dispatch_program

GROUP = "npu_toolchain.backends"
Progress = Callable[[str, int, int], None]  # stage, done, total
_NO_TIMES = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Program:
    """A region of a compiled model, as a backend is given it: its words, constants and ports, the machine, the integer graph.

    own: made in this process and not read from a file, so that what cannot be computed is a bug of ours.
    """

    machine: Machine
    region: Region
    graph: Graph
    own: bool = False

    @cached_property
    def decoded(self) -> Decoded:
        """The operations as their words say, repeats and calls among them. Raises ProgramError."""
        found, layers = decode(self.region.program, self.machine.isa), self.region.op_layers
        if len(found.ops) != len(layers):
            raise ProgramError(f"the program has {len(found.ops)} operations, its layer table {len(layers)}")
        return found

    @cached_property
    def flow(self) -> InstructionStream:
        """The operations as the front end dispatches them, by the one index that everything has of them. Raises ProgramError."""
        return dispatch_program(self.machine.chip, self.decoded.ops, self.decoded.words, self.region.bases)


@dataclass(frozen=True)
class Execution:
    """What a run left behind.

    memory: uint8 by the memory's name; `dram` always, others where the backend can read them.
    start, end: int64 cycles of each operation of `Program.flow`, by its index; empty where the backend measures none, or was not
    asked to.
    tensors: codes by tensor of the integer graph, where the backend knows others than the ports.
    simulation: what the simulator says besides.
    """

    memory: Mapping[str, np.ndarray]
    start: np.ndarray = field(default_factory=lambda: _NO_TIMES)
    end: np.ndarray = field(default_factory=lambda: _NO_TIMES)
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    simulation: Simulation | None = None


class LoadedProgram(Protocol):
    """A program that is ready to run, any number of times."""

    def run(
        self, dram: np.ndarray, *, until: int | None = None, observe: Observe | None = None, progress: Progress | None = None
    ) -> Execution:
        """dram: uint8[dram_bytes], constants and inputs in place; it is this run's alone, and the backend's to change. until: the
        last operation that runs, None for all; CompileError where the backend cannot stop there. observe: only given to a backend
        that observes."""
        ...


class Backend(Protocol):
    """observes: `run` calls `observe` behind each operation, so that a difference is told of the operation that makes it."""

    observes: bool

    def load(self, program: Program, *, timing: bool, check: bool) -> LoadedProgram:
        """timing: cycles are wanted. check: breaches of the machine's rules are to be refused. A backend that does neither
        ignores them."""
        ...


class SessionBackend(Backend, Protocol):
    """A backend as a session uses it. concurrent: its runs may overlap in several threads. reads_constants: its runs read the
    constants in `dram`, else they are left out."""

    concurrent: bool
    reads_constants: bool


def backend_named(name: str, own: Mapping[str, SessionBackend]) -> SessionBackend:
    """One of the project's `own`, or one that a package announces. Raises CompileError: there is none, two, or it cannot be
    loaded."""
    if name in own:
        return own[name]
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        names = ", ".join(sorted({*own, *(point.name for point in entry_points(group=GROUP))}))
        raise CompileError(f"backend {name}: must be one of {names}; a package adds one by an entry point of {GROUP}")
    if len({point.value for point in found}) > 1:
        packages = " and ".join(sorted(_package(point) for point in found))
        raise CompileError(f"backend {name}: {packages} both have one of this name; uninstall one of them")
    return CheckedBackend(name, _loaded(found[0]))


def _loaded(point: EntryPoint) -> Backend:
    try:
        return point.load()
    except Exception as fault:  # whatever the package does when it is imported
        raise CompileError(f"backend {point.name}: {_package(point)} cannot be loaded: {_said(fault)}") from fault


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _said(fault: Exception) -> str:
    return f"{type(fault).__name__}: {first_line(fault)}"


class CheckedBackend:
    """Another's backend, held to the protocol: what it raises or gives that is none becomes a CompileError with its name.

    A session runs it in one thread at a time, for a board has one memory.
    """

    concurrent = False
    reads_constants = True

    def __init__(self, name: str, backend: Backend):
        lacks = next((what for what in ("load", "observes") if not hasattr(backend, what)), None)
        if lacks is not None:
            raise CompileError(f"backend {name}: has no {lacks}; docs/backends.md says what it must have")
        self._name, self._backend = name, backend
        self.observes = bool(backend.observes)

    def load(self, program: Program, *, timing: bool, check: bool) -> LoadedProgram:
        with _named(self._name):
            return _Held(self._name, program, self._backend.load(program, timing=timing, check=check))


class _Held:
    def __init__(self, name: str, program: Program, loaded: LoadedProgram):
        self._name, self._program, self._loaded = name, program, loaded

    def run(
        self, dram: np.ndarray, *, until: int | None = None, observe: Observe | None = None, progress: Progress | None = None
    ) -> Execution:
        size = dram.size
        with _named(self._name):
            found = self._loaded.run(dram, until=until, observe=observe, progress=progress)
        reason = _fault(found, size, len(self._program.flow))
        if reason is not None:
            raise CompileError(f"backend {self._name}: {reason}; docs/backends.md says what it must give")
        return found


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except (ToolchainError, MemoryError):
        raise
    except Exception as fault:
        raise CompileError(f"backend {name}: {_said(fault)}") from fault


def _fault(found: Execution, dram_bytes: int, operations: int) -> str | None:
    if not isinstance(found, Execution):
        return f"gives {type(found).__name__}, not an Execution"
    for name, memory in found.memory.items():
        if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8 or memory.ndim != 1:
            return f"gives memory {name} that is no uint8 array of one dimension"
    if "dram" not in found.memory or found.memory["dram"].size != dram_bytes:
        return (
            f"gives {found.memory['dram'].size if 'dram' in found.memory else 'no'} bytes of dram, the program has {dram_bytes}"
        )
    times = (found.start, found.end)
    if not found.start.size and not found.end.size:
        return None
    if any(t.shape != (operations,) or t.dtype != np.int64 for t in times):
        return f"gives times that are not int64[{operations}], one for each operation"
    if (found.end < found.start).any() or found.start.min(initial=0) < 0:
        return "gives an operation that ends before it starts, or starts before cycle 0"
    return None
