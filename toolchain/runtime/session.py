"""A compiled model as a session, in the shape of onnxruntime's: regions on the simulator, islands in onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from quant.float_session import open_session
from simulator import Observe, Simulation, measured
from toolchain.codegen import Container, IoType, Island, Port, Region, State, container_from_bytes, read_container, relocated
from toolchain.errors import CompileError, ProgramError, first_line
from toolchain.frontend import island_fault
from toolchain.hw import terms as timing_terms
from toolchain.isa import machine_digest
from toolchain.machine import Flow
from toolchain.runtime.backend import Backend, Foreign, Loaded, Program, Progress, backend_named
from toolchain.runtime.binding import IoBinding
from toolchain.runtime.builtin import BACKENDS, dram_image, read_port, write_port
from toolchain.runtime.feeds import check_feeds, check_states
from toolchain.runtime.ports import fed, in_type, model_shape, to_codes, to_real
from toolchain.runtime.states import read_state, write_state
from toolchain.runtime.unread import unread_warnings

Watch = Callable[[Region, Flow], Observe]


@dataclass(frozen=True)
class Ran:
    """Where a segment ran: "npu (simulator)", "npu (reference)", or the execution provider of onnxruntime.

    simulation: cycles, where the backend has them. warnings: what the simulator found that no rule forbids, in sentences.
    """

    where: str
    nodes: tuple[str, ...]
    simulation: Simulation | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """Outputs by name, one entry a segment; `codes` of the chip's tensors and `real` values of those that crossed a border."""

    outputs: dict[str, np.ndarray]
    segments: tuple[Ran, ...]
    codes: dict[str, np.ndarray]
    real: dict[str, np.ndarray]


@dataclass(frozen=True)
class ModelMetadata:
    """As onnxruntime's. custom_metadata_map: the machine that the programs are for, and its digest."""

    graph_name: str
    custom_metadata_map: Mapping[str, str]
    producer_name: str = "npu_toolchain"
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    version: int = 0


class Session:
    """`Session("model.npu").run(None, {"x": x})`.

    backend: what runs the programs: "simulator" decodes and runs their bytes, "reference" evaluates the integer graph with
    numpy, others are found by name (docs/backends.md). timing, check: cycles, and the machine's rules, where the backend has
    them. host: where islands run. bases: addresses of areas of DRAM, where the machine's host sets them
    (`{"constants": 0x100000, "input:x": 0x8000}`, docs/image.md). entry: which of a file's programs for several sets of input
    shapes, None: the only one. without: terms of the simulator's time that are ideal (`toolchain.hw.terms`). Raises ProgramError
    for a file that is not there or not sound, CompileError for a backend, a host, an entry or a term that is not there, and for
    bases that cannot be.

    States stay in the session's memory of the chip from run to run, zero at first. `state` reads one, `reset` sets them; a run
    that is given one begins with that.
    """

    def __init__(
        self,
        model: str | Path | bytes | Container,
        *,
        backend: str | Backend = "simulator",
        host: Literal["cpu", "cuda"] = "cpu",
        timing: bool = False,
        check: bool = True,
        bases: Mapping[str, int] = MappingProxyType({}),
        entry: str | None = None,
        without: Sequence[str] = (),
    ):
        self.backend_name = backend if isinstance(backend, str) else type(backend).__name__
        self._backend = backend_named(backend, BACKENDS) if isinstance(backend, str) else Foreign(self.backend_name, backend)
        self._own = isinstance(model, Container)  # made here, not read: what it cannot compute is our bug
        self.container = _idealised(relocated(_container(model, entry), bases), without)
        self._timing, self._check = timing, check
        self._providers = host_providers(host)
        self._islands: dict[int, Any] = {}
        self.program, self._loaded = cache(self._program), cache(self._load)
        self._image = cache(lambda index: dram_image(self.program(index).region))
        self._states: dict[str, list[tuple[int, State]]] = {}  # the parts of each, in order
        for index, state in self.container.states:
            self._states.setdefault(state.port.model, []).append((index, state))
            self._states[state.port.model].sort(key=lambda part: part[1].part or (0, 0))
        self._numbers = {state.ring.number: 0 for _, state in self._parts if state.ring is not None}  # of rings, in the next run
        self._warnings: dict[int, tuple[str, ...]] = {}

    @property
    def observes(self) -> bool:
        """Whether a run can be watched operation by operation."""
        return self._backend.observes

    def get_inputs(self) -> tuple[IoType, ...]:
        return self.container.inputs

    def get_outputs(self) -> tuple[IoType, ...]:
        return self.container.outputs

    def get_providers(self) -> list[str]:
        """What runs the segments: `npu (simulator)`, and the execution providers of onnxruntime where islands run."""
        here = [f"npu ({self.backend_name})"] if any(isinstance(s, Region) for s in self.container.segments) else []
        return here + (self._providers if any(isinstance(s, Island) for s in self.container.segments) else [])

    def get_modelmeta(self) -> ModelMetadata:
        machine = self.container.machine
        return ModelMetadata(self.container.name, {"machine": machine.chip.name, "machine_digest": machine_digest(machine)})

    def io_binding(self) -> IoBinding:
        return IoBinding(self)

    def run_with_iobinding(self, iobinding: IoBinding, run_options: Any = None) -> None:
        """Raises CompileError: a binding of another session, and as `run`."""
        if iobinding.session is not self:
            raise CompileError("io_binding: is of another session; make one with this session's io_binding()")
        iobinding.run(run_options)

    def get_states(self) -> tuple[IoType, ...]:
        """What lasts from run to run, by the names that it has as inputs of the model."""
        return tuple(IoType(name, _whole_shape(parts[0][1]), "float32") for name, parts in self._states.items())

    def state(self, name: str) -> np.ndarray:
        """float32 in the model's order: what the next run begins with. Raises CompileError: there is no such state."""
        numbers = self._numbers
        found = [to_real(read_state(self._image(index), state, numbers), state.alone) for index, state in self._state(name)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def reset(self, values: Mapping[str, np.ndarray] = MappingProxyType({})) -> None:
        """The next run begins with these states, and with zeros for all others. Raises CompileError: no such state, another shape
        or type."""
        check_states(self.get_states(), values)
        for index, state in self._parts:
            port = state.alone
            zeros = np.full(port.shape, port.zero_point, port.dtype)
            given = to_codes(_part_of(np.asarray(values[port.model]), state), port) if port.model in values else zeros
            write_state(self._image(index), state, given, self._numbers)

    def take_states(self, other: Session) -> None:
        """States go on from where `other`, of another entry of the file, has left them: those that have one form in both."""
        known = {state.name: (index, state) for index, state in other._parts}
        for index, state in self._parts:
            there, found = known.get(state.name, (0, None))
            if found is not None and state.holds_as(found):
                _held(self._image(index), state)[:] = _held(other._image(there), found)
                if state.ring is not None:
                    self._numbers[state.ring.number] = other._numbers[state.ring.number]

    @property
    def _parts(self) -> list[tuple[int, State]]:
        """Of all states, with the segment of each."""
        return [part for parts in self._states.values() for part in parts]

    def _state(self, name: str) -> list[tuple[int, State]]:
        if name not in self._states:
            raise CompileError(f"no state {name!r}; the model's states are {', '.join(self._states) or 'none'}")
        return self._states[name]

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, np.ndarray], run_options: Any = None
    ) -> list[np.ndarray]:
        """Arrays in the order of output_names, among them what is left of states; None or empty: all but these. run_options:
        onnxruntime's, for islands. Raises CompileError for wrong names, shapes or types, and where run_options ask to end."""
        known = {*(t.name for t in self.container.outputs), *(state.output for _, state in self._parts)}
        names = list(output_names) if output_names else [t.name for t in self.container.outputs]
        unknown = [n for n in names if n not in known]
        if unknown:
            raise CompileError(f"no output {unknown[0]!r}; the model's outputs are {', '.join(sorted(known))}")
        run = self.run_detailed(feeds, run_options=run_options)
        found = {**{state.output: run.real[state.output] for _, state in self._parts}, **run.outputs}
        return [found[n] for n in names]

    def run_detailed(
        self,
        feeds: Mapping[str, np.ndarray],
        progress: Progress | None = None,
        watch: Watch | None = None,
        run_options: Any = None,
    ) -> Run:
        """watch: given each region with its operations in the order of dispatch, what is to observe its run, on a backend
        that `observes`."""
        if watch is not None and not self.observes:
            raise CompileError(f"backend {self.backend_name}: tells nothing of its operations, so that none can be watched")
        check_feeds(self.container.inputs, feeds, self.get_states())
        real, codes = self._given(feeds), {}
        with self._restored():
            ran = self._run_segments(len(self.container.segments), real, codes, progress, watch, run_options)
        self._numbers = self._behind()
        return Run({t.name: in_type(real[t.name], t.dtype) for t in self.container.outputs}, tuple(ran), codes, real)

    def memory_behind(
        self, index: int, until: int, feeds: Mapping[str, np.ndarray], progress: Progress | None = None
    ) -> Mapping[str, np.ndarray]:
        """uint8 by the memory's name, where the program of segment `index` has run to operation `until` and no further. Raises
        CompileError where the backend cannot stop there."""
        check_feeds(self.container.inputs, feeds, self.get_states())
        real, codes = self._given(feeds), {}
        with self._restored(whole=False):
            self._run_segments(index, real, codes, progress, None)
            dram = self._filled(index, real, codes).copy()
            with self._naming(index):
                return self._loaded(index).run(dram, until=until, progress=progress).memory

    def _behind(self) -> dict[str, int]:
        """The numbers of rings in the run behind this one."""
        rings = [state.ring for _, state in self._parts if state.ring is not None]
        return {ring.number: ring.behind(self._numbers[ring.number]) for ring in rings}

    def _given(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """With the numbers of rings."""
        numbers = {name: np.full(1, number, np.float32) for name, number in self._numbers.items()}
        return {**{n: np.asarray(feeds[n]) for n in feeds}, **numbers}

    def place(self, index: int) -> str:
        """`segment 2: ` in front of an operation's index, where the model has several programs."""
        several = sum(isinstance(s, Region) for s in self.container.segments) > 1
        return f"segment {index}: " if several else ""

    @contextmanager
    def _restored(self, *, whole: bool = True) -> Iterator[None]:
        """States are as they were where a run fails, or is not a whole one."""
        held = [_held(self._image(index), state) for index, state in self._parts]
        before, done = [found.copy() for found in held], False
        try:
            yield
            done = whole
        finally:
            for found, old in zip(held, before) if not done else ():
                found[:] = old

    @contextmanager
    def _naming(self, index: int) -> Iterator[None]:
        """A fault of the program inside says which one."""
        try:
            yield
        except ProgramError as fault:
            raise ProgramError(f"{self.place(index)}{fault}") from fault.__cause__

    def _run_segments(
        self,
        count: int,
        real: dict[str, np.ndarray],
        codes: dict[str, np.ndarray],
        progress: Progress | None,
        watch: Watch | None,
        run_options: Any = None,
    ) -> list[Ran]:
        """The first `count` of them; what they make is added to `real` and `codes`."""
        ran: list[Ran] = []
        for index, segment in enumerate(self.container.segments[:count]):
            if getattr(run_options, "terminate", False):
                raise CompileError("run_options: terminate is set, so that nothing runs; make new ones, or set it to False")
            if isinstance(segment, Island):
                ran.append(self._run_island(index, segment, real, run_options))
            else:
                ran.append(self._run_region(index, segment, real, codes, progress, watch))
        return ran

    def _run_region(
        self,
        index: int,
        region: Region,
        real: dict[str, np.ndarray],
        codes: dict[str, np.ndarray],
        progress: Progress | None,
        watch: Watch | None,
    ) -> Ran:
        program, dram = self.program(index), self._filled(index, real, codes)
        observe = watch(region, program.flow) if watch else None
        with self._naming(index):
            done = self._loaded(index).run(dram, observe=observe, progress=progress)
        codes.update(done.tensors)
        for port in region.outputs:
            codes[port.tensor] = read_port(done.memory["dram"], port)
            real[port.model] = to_real(codes[port.tensor], port)
        left = dict[str, np.ndarray]()
        for state in region.states:
            _held(dram, state)[:] = _held(done.memory["dram"], state)
            codes[state.made] = read_port(dram, state.port)
            whole = left.setdefault(state.output, np.empty(_whole_shape(state), np.float32))
            _part_of(whole, state)[...] = to_real(read_state(dram, state, self._behind()), state.alone)
        real |= left
        simulation = done.simulation
        if simulation is None and done.start.size:
            simulation = measured(program.machine.chip, program.flow, done.memory, done.start, done.end)
        if simulation is not None and index not in self._warnings:  # they do not depend on values
            unread = unread_warnings(self.container, region, program.flow, simulation.unread)
            self._warnings[index] = tuple(f"{self.place(index)}{sentence}" for sentence in unread)
        return Ran(f"npu ({self.backend_name})", region.nodes, simulation, self._warnings.get(index, ()))

    def _filled(self, index: int, real: Mapping[str, np.ndarray], codes: dict[str, np.ndarray]) -> np.ndarray:
        """The region's DRAM with constants and inputs in place; the codes of inputs are added.

        One image serves all runs: programs leave constants and inputs as they are, and the reference writes outputs and states
        only.
        """
        region, dram = self.program(index).region, self._image(index)
        for port in region.inputs:
            if port.tensor not in codes:
                codes[port.tensor] = to_codes(_fitting(real[port.model], port), port)
            write_port(dram, port, codes[port.tensor])
        for state in region.states:
            port = state.alone
            if port.model in real:
                given = to_codes(_fitting(_part_of(real[port.model], state), port), port)
                write_state(dram, state, given, self._numbers)
            codes[port.tensor] = read_port(dram, state.port)
        return dram

    def _program(self, index: int) -> Program:
        """A region as a backend is given it."""
        region = self.container.segments[index]
        assert isinstance(region, Region)
        return Program(self.container.machine, region, self.container.graph, self._own)

    def _load(self, index: int) -> Loaded:
        return self._backend.load(self.program(index), timing=self._timing, check=self._check)

    def _run_island(self, index: int, island: Island, real: dict[str, np.ndarray], run_options: Any) -> Ran:
        if index not in self._islands:
            fault = None if self._own else island_fault(island.model)
            if fault is not None:
                raise ProgramError(f"{_island_name(island)}: cannot be run: {fault}; build the file again")
            self._islands[index] = _host_session(island, self._providers)
        session = self._islands[index]
        try:
            values = session.run(list(island.outputs), fed(session, island.inputs, real), run_options)
        except Exception as fault:  # onnxruntime's exceptions have no common base but this
            raise CompileError(f"{_island_name(island)}: onnxruntime cannot run them: {first_line(fault)}") from None
        real.update(zip(island.outputs, values))
        return Ran(session.get_providers()[0], island.nodes, None)


def _whole_shape(state: State) -> tuple[int, ...]:
    """Of the state that it is a part of, in the model's order."""
    shape = model_shape(state.alone)
    return shape if state.part is None else (state.part.whole, *shape[1:])


def _part_of(whole: np.ndarray, state: State) -> np.ndarray:
    """A view."""
    return whole if state.part is None else whole[state.part.first : state.part.first + model_shape(state.port)[0]]


def _held(dram: np.ndarray, state: State) -> np.ndarray:
    """uint8: its bytes, a view."""
    return dram[state.port.address : state.port.address + state.port.size_bytes]


def _idealised(container: Container, terms: Sequence[str]) -> Container:
    machine = container.machine
    return replace(container, machine=replace(machine, chip=timing_terms.without(machine.chip, terms))) if terms else container


def _container(model: str | Path | bytes | Container, entry: str | None) -> Container:
    if isinstance(model, bytes):
        return container_from_bytes(model, "model", entry)
    if not isinstance(model, Container):
        return read_container(model, entry)
    if entry is not None:
        raise CompileError(f"entry {entry}: goes with a file; a Container holds the programs of one set of shapes")
    return model


def _host_session(island: Island, providers: Sequence[str]) -> Any:
    """An InferenceSession of one thread. Raises CompileError where onnxruntime does not take the model."""
    try:
        return open_session(island.model, providers=providers)
    except Exception as fault:
        raise CompileError(f"{_island_name(island)}: onnxruntime cannot load them: {first_line(fault)}") from None


def _fitting(value: np.ndarray, port: Port) -> np.ndarray:
    """A region's input as its port declares it. Raises ProgramError when what came before made something else."""
    if value.size != math.prod(port.shape) or (port.layout == "nhwc" and value.ndim != len(port.shape)):
        raise ProgramError(f"tensor {port.model!r} has shape {list(value.shape)}, its port {list(port.shape)}; build it again")
    return value


def _island_name(island: Island) -> str:
    shown = ", ".join(island.nodes[:3])
    return f"host nodes {shown}{f' and {len(island.nodes) - 3} more' if len(island.nodes) > 3 else ''}"


def host_providers(host: str) -> list[str]:
    """The providers of onnxruntime that islands run on. Raises CompileError where they are not installed."""
    if host == "cpu":
        return ["CPUExecutionProvider"]
    if host != "cuda":
        raise CompileError(f"host {host}: must be cpu or cuda")
    import onnxruntime as ort

    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise CompileError("host cuda: onnxruntime has no CUDAExecutionProvider here; install the extra 'cuda', or use cpu")
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]
