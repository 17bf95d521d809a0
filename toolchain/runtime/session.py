"""Run a compiled model as a session with the interface of onnxruntime's.

A compiled model is a list of segments. Regions run on a backend (the simulator by default), host subgraphs (islands) in
onnxruntime. `Session` opens a file, checks feeds, quantizes inputs, runs the segments in order, dequantizes outputs, and takes
states from one run to the next.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from quant.float_session import CheckedSession, open_session
from simulator import Observe, Simulation, wrap_measured_run
from simulator.zero_bytes import zero_bytes
from toolchain.codegen import (
    Container,
    HostSubgraph,
    IoType,
    Port,
    Region,
    State,
    container_from_bytes,
    read_container,
    reading_layers,
)
from toolchain.errors import CompileError, ProgramError, fault_text
from toolchain.foundation.garbage_collection import pause_collection
from toolchain.foundation.inference import CPU, PROVIDER_OPTIONS, InferenceError, host_providers, session_options, use_custom_ops
from toolchain.hw import timing_terms as timing_terms
from toolchain.isa import machine_digest
from toolchain.machine import InstructionStream
from toolchain.plugin_loading import load_plugins
from toolchain.runtime.backend import Backend, CheckedBackend, LoadedProgram, Program, Progress, SessionBackend, backend_named
from toolchain.runtime.binding import IoBinding
from toolchain.runtime.builtin_backends import (
    Reference,
    Simulator,
    port_bytes,
    read_port,
    unpack_codes,
    write_constants,
    write_port,
    zero_codes,
)
from toolchain.runtime.context_model import open_context_model
from toolchain.runtime.cuda_reference import CudaReference
from toolchain.runtime.dead_store_warnings import find_dead_stores
from toolchain.runtime.feeds import check_feeds, check_states, convert_feeds
from toolchain.runtime.geometry import geometry_warnings
from toolchain.runtime.ports import in_type, make_host_feeds, model_shape, to_codes, to_real
from toolchain.runtime.profile import SessionProfile
from toolchain.runtime.state_io import StateValues, make_initial_states, read_state, write_state

CompiledModel = str | os.PathLike[str] | bytes | Container | Any  # or a build of toolchain.api, which has `data`
BACKENDS: Mapping[str, SessionBackend] = MappingProxyType(
    {"simulator": Simulator(), "reference": Reference(), "cuda": CudaReference()}
)
Watch = Callable[[Region, InstructionStream], Observe]


@dataclass(frozen=True)
class SegmentRun:
    """The record of one segment's run.

    `where`: "npu (simulator)", "npu (reference)", another backend's name in brackets, or the execution provider of onnxruntime.
    `nodes`: nodes of the segment.
    `simulation`: results and cycles, where the backend has them; else None.
    `warnings`: findings of the simulator that no rule forbids, in sentences.
    `on_cpu`: nodes that fell back to the CPU, where `where` is another provider.
    """

    where: str
    nodes: tuple[str, ...]
    simulation: Simulation | None
    warnings: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """All results of a run.

    `outputs`: real outputs of the model by name.
    `segments`: one record a segment, in order.
    `codes`: codes by chip tensor, at least of the regions' inputs, outputs and states; of the reference, of all tensors.
    `real`: real values by model tensor, of inputs and of all that crossed a border between segments.
    """

    outputs: dict[str, np.ndarray]
    segments: tuple[SegmentRun, ...]
    codes: dict[str, np.ndarray]
    real: dict[str, np.ndarray]


@dataclass
class _RunValues:
    """The values that one run has computed so far.

    `real`, `codes`: as in `Run`.
    `states`: states that it begins with.
    `next_parts`: bytes of the parts of the states after it.
    """

    real: dict[str, np.ndarray]
    codes: dict[str, np.ndarray]
    states: StateValues
    next_parts: list[np.ndarray]


@dataclass(frozen=True)
class ModelMetadata:
    """The fields of onnxruntime's model metadata.

    `custom_metadata_map`: the machine that the programs are for, and its digest.
    """

    graph_name: str
    custom_metadata_map: Mapping[str, str]
    producer_name: str = "npu_toolchain"
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    version: int = 0


class Session:
    """A session of a compiled model: `Session("model.npu").run(None, {"x": x})`.

    `model`: a path, bytes, or what `build` returns; also an ONNX model with EPContext nodes of this toolchain.
    `backend`: runs the programs; others than the following are found by name (docs/backends.md).
    "simulator" decodes and runs their bytes, "reference" evaluates the integer graph with numpy, "cuda" on a GPU.
    `timing`, `check`: cycles, and the machine's rules, where the backend has them.
    `host`: where host subgraphs run.
    `bases`: addresses of areas of DRAM, where the machine's host sets them (docs/image.md).
    An example is `{"constants": 0x100000, "input:x": 0x8000}`.
    `entry`: which of a file's programs for several sets of input shapes, None: the only one.
    `without`: terms of the simulator's time that are ideal (`toolchain.hw.timing_terms`).
    `profile`: a file that `end_profiling` writes, with the time of each segment of each run.
    `plugins`: files of plug-ins that the model needs; a model names them, and loads none by itself.
    `custom_ops`: libraries of onnxruntime's custom operators, for host subgraphs.

    A session can be pickled, with the states that its runs have left.
    Raise ProgramError for a file that is missing or not sound.
    Raise CompileError for a backend, a host, an entry or a term that does not exist, and for bases that cannot be.

    States stay in the session's memory of the chip from run to run, zero at first.
    `state` reads one, `reset` sets them; a run that is given one begins with that.

    Any number of threads may use a session. Each run has a memory of its own and is atomic.
    Runs of a model with states are served one after another, each from the states that the run before left.
    Runs of a backend of another package are served one after another, too.
    """

    def __init__(
        self,
        model: CompiledModel,
        *,
        backend: str | Backend = "simulator",
        host: Literal["cpu", "cuda"] = "cpu",
        timing: bool = False,
        check: bool = True,
        bases: Mapping[str, int] = MappingProxyType({}),
        entry: str | None = None,
        without: Sequence[str] = (),
        profile: str | Path | None = None,
        plugins: Sequence[str] = (),
        custom_ops: Sequence[str] = (),
    ):
        """Open the model and check the options. Programs are decoded and host subgraphs opened at the first run."""
        load_plugins(plugins)
        use_custom_ops(custom_ops)
        self._options: dict[str, Any] = {
            "backend": backend, "host": host, "timing": timing, "check": check, "bases": dict(bases),
            "without": tuple(without), "profile": profile, "plugins": tuple(plugins),
            "custom_ops": tuple(custom_ops),
        }  # fmt: skip
        self.backend_name = backend if isinstance(backend, str) else type(backend).__name__
        self._backend: SessionBackend = (
            backend_named(backend, BACKENDS) if isinstance(backend, str) else CheckedBackend(self.backend_name, backend)
        )
        self._providers = host_providers(host)
        self._is_in_process = isinstance(model, Container)  # made here, not read: what it cannot compute is our bug
        with pause_collection():
            self._compiled = _container(model, entry)
        self.container = _idealize_timing(_move_areas(self._compiled, bases), without)
        self._profile = None if profile is None else SessionProfile(Path(profile))
        self._timing, self._check = timing, check
        self._loading = threading.RLock()  # what all runs share is made once
        self._programs, self._loaded, self._islands = cache(self._program), cache(self._load), cache(self._island)
        self._parts = self.container.states  # (segment, state)
        self._states: dict[str, list[int]] = {}  # the parts of each, in order
        for place, (_, state) in enumerate(self._parts):
            self._states.setdefault(state.port.model, []).append(place)
            self._states[state.port.model].sort(key=lambda place: self._parts[place][1].part or (0, 0))
        self._state_values = make_initial_states([state for _, state in self._parts])
        self.concurrent = self._backend.concurrent and not self._parts
        self._turn: AbstractContextManager[Any] = nullcontext() if self.concurrent else threading.RLock()
        self._warnings: dict[int, tuple[str, ...]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how pickle makes the session again: the compiled file, the options, and the states."""
        from toolchain.codegen import container_to_bytes

        return self._restore, (container_to_bytes(self._compiled), self._options, self._state_values)

    @classmethod
    def _restore(cls, data: bytes, options: Mapping[str, Any], states: StateValues) -> Session:
        """Return a session of pickled bytes and options, with the states that its runs had left."""
        session = cls(data, **options)
        session._state_values = states
        return session

    @property
    def observes(self) -> bool:
        """Return whether a run can be watched operation by operation."""
        return self._backend.observes

    def get_inputs(self) -> tuple[IoType, ...]:
        """Return the inputs of the model with shape and type, without states and inputs that are bound to a value."""
        return self.container.inputs

    def get_outputs(self) -> tuple[IoType, ...]:
        """Return the outputs of the model with shape and type, states left out."""
        return self.container.outputs

    def get_providers(self) -> list[str]:
        """Return what runs the segments: `npu (simulator)`, and the execution providers of onnxruntime where host subgraphs
        run."""
        here = [f"npu ({self.backend_name})"] if any(isinstance(s, Region) for s in self.container.segments) else []
        return here + (list(self._providers) if any(isinstance(s, HostSubgraph) for s in self.container.segments) else [])

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options with which each of `get_providers` runs, as onnxruntime has them: text by name."""
        options_here = {"timing": str(int(self._timing)), "check": str(int(self._check))}
        return {
            name: dict(options_here) if name.startswith("npu (") else dict(PROVIDER_OPTIONS.get(name, {}))
            for name in self.get_providers()
        }

    def get_session_options(self) -> Any:
        """Return a copy of the options of onnxruntime with which host subgraphs are opened: one thread, nothing logged."""
        return session_options(optimized=True)

    def end_profiling(self) -> str:
        """Write the profile of all runs so far and return its file's name.

        Raise CompileError for a session without `profile`, OSError where the file cannot be written.
        """
        if self._profile is None:
            raise CompileError("end_profiling: nothing was recorded; open the session with profile=FILE")
        return self._profile.write()

    def run_async(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        callback: Callable[[list[np.ndarray], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run as `run` does, in a thread of its own, and return at once.

        `callback`: is called in that thread with the outputs, `user_data` and an empty text, or with no outputs, `user_data`
        and the fault as text.
        Raise CompileError where `callback` cannot be called.
        """
        if not callable(callback):
            raise CompileError(f"callback: is {type(callback).__name__}; give a function of the outputs, user_data and the fault")

        def run() -> None:
            try:
                outputs, fault = self.run(output_names, feeds, run_options), ""
            except Exception as raised:  # the callback is told of it, whatever it is
                outputs, fault = list[np.ndarray](), fault_text(raised) or type(raised).__name__
            callback(outputs, user_data, fault)

        threading.Thread(target=run, name="npu-toolchain run_async").start()

    def get_modelmeta(self) -> ModelMetadata:
        """Return the name of the model, and the machine that it was built for."""
        machine = self.container.machine
        return ModelMetadata(self.container.name, {"machine": machine.chip.name, "machine_digest": machine_digest(machine)})

    def io_binding(self) -> IoBinding:
        """Return a new binding of arrays to inputs and outputs, for `run_with_iobinding`."""
        return IoBinding(self)

    def run_with_iobinding(self, iobinding: IoBinding, run_options: Any = None) -> None:
        """Run on the bound inputs and write the bound outputs.

        Raise CompileError for a binding of another session, and as `run` does.
        """
        if iobinding.session is not self:
            raise CompileError("io_binding: is of another session; make one with this session's io_binding()")
        iobinding.run(run_options)

    def get_states(self) -> tuple[IoType, ...]:
        """Return the states with shape and type, by their names as inputs of the model."""
        return tuple(IoType(name, _whole_shape(self._parts[p[0]][1]), "float32") for name, p in self._states.items())

    def state(self, name: str) -> np.ndarray:
        """Return the value of a state that the next run begins with, float32 in the model's order of dimensions.

        Raise CompileError where there is no such state.
        """
        state_values, parts = self._state_values, [(place, self._parts[place][1]) for place in self._state(name)]
        values = [
            to_real(read_state(state_values.parts[place], state, state_values.ring_numbers), state.alone)
            for place, state in parts
        ]
        return values[0] if len(values) == 1 else np.concatenate(values)

    def reset(self, values: Mapping[str, np.ndarray] = MappingProxyType({})) -> None:
        """Set the states that the next run begins with; those that are not given become zero.

        Raise CompileError where there is no such state, or a value has another shape or type.
        """
        check_states(self.get_states(), values)
        with self._turn:
            parts, numbers = list(self._state_values.parts), self._state_values.ring_numbers
            for place, (_, state) in enumerate(self._parts):
                port, value = state.alone, values.get(state.port.model)
                codes = zero_codes(port) if value is None else to_codes(_part_of(np.asarray(value), state), port)
                parts[place] = write_state(parts[place], state, codes, numbers)
            self._state_values = StateValues(tuple(parts), numbers)

    def take_states(self, other: Session) -> None:
        """Take over the states that `other`, a session of another entry of the file, has left. Those without the same form in
        both stay."""
        theirs, places = other._state_values, {state.name: place for place, (_, state) in enumerate(other._parts)}
        with self._turn:
            parts, numbers = list(self._state_values.parts), dict(self._state_values.ring_numbers)
            for place, (_, state) in enumerate(self._parts):
                source = places.get(state.name)
                if source is not None and state.holds_as(other._parts[source][1]):
                    parts[place] = theirs.parts[source]
                    if state.ring is not None:
                        numbers[state.ring.number] = theirs.ring_numbers[state.ring.number]
            self._state_values = StateValues(tuple(parts), numbers)

    def _state(self, name: str) -> list[int]:
        """Return the places of a state's parts in `_parts`. Raise CompileError where there is no such state."""
        if name not in self._states:
            raise CompileError(f"no state {name!r}; the model's states are {', '.join(self._states) or 'none'}")
        return self._states[name]

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, np.ndarray], run_options: Any = None
    ) -> list[np.ndarray]:
        """Run the model and return arrays in the order of `output_names`.

        `output_names`: names of outputs, among them those that states leave; None or empty: all outputs but those of states.
        `feeds`: an array for each input. A state that is fed begins this run; others go on from the run before.
        `run_options`: onnxruntime's, for host subgraphs.
        Raise CompileError for wrong names, shapes or types, where a host subgraph cannot run, and where `run_options` ask to
        end. Raise ProgramError where a program breaks a rule of the machine.
        """
        known_outputs = {*(t.name for t in self.container.outputs), *(state.output for _, state in self._parts)}
        if isinstance(output_names, str):  # a sequence too, of its letters
            raise CompileError(f"output_names: is text; give a list of names, [{output_names!r}]")
        names = list(output_names) if output_names else [t.name for t in self.container.outputs]
        unknown = [n for n in names if n not in known_outputs]
        if unknown:
            raise CompileError(f"no output {unknown[0]!r}; the model's outputs are {', '.join(sorted(known_outputs))}")
        run = self.run_detailed(feeds, run_options=run_options)
        value_by_output = {**{state.output: run.real[state.output] for _, state in self._parts}, **run.outputs}
        return [value_by_output[n] for n in names]

    def run_detailed(
        self,
        feeds: Mapping[str, np.ndarray],
        progress: Progress | None = None,
        watch: Watch | None = None,
        run_options: Any = None,
    ) -> Run:
        """Run the model and return all results; it raises as `run` does.

        `progress`: called with a stage, how much is done, and how much there is.
        `watch`: called with each region and its operations in the order of dispatch; it returns the observer of that region's
        run. Raise CompileError for a backend that does not observe.
        """
        if watch is not None and not self.observes:
            raise CompileError(f"backend {self.backend_name}: tells nothing of its operations, so that none can be watched")
        feeds = self._accept_feeds(feeds)
        with self._turn:
            values = self._begin(feeds)
            ran = self._run_segments(len(self.container.segments), values, progress, watch, run_options)
            self._state_values = StateValues(tuple(values.next_parts), self._advance_ring_numbers(values.states))
        real = values.real
        return Run({t.name: in_type(real[t.name], t.dtype) for t in self.container.outputs}, tuple(ran), values.codes, real)

    def memory_behind(
        self, index: int, until: int, feeds: Mapping[str, np.ndarray], progress: Progress | None = None
    ) -> Mapping[str, np.ndarray]:
        """Run the program of segment `index` up to operation `until`, and return its memories as uint8 by name. The states
        stay.

        Raise CompileError where the backend cannot stop there.
        """
        feeds = self._accept_feeds(feeds)
        with self._turn:
            values = self._begin(feeds)
            self._run_segments(index, values, progress, None)
            dram = self._make_dram(index, values)
            with self._naming(index):
                memory = self._load_once(index).run(dram, until=until, progress=progress).memory
            # a backend of another package may use its arrays again
            return memory if self._backend.concurrent else {name: data.copy() for name, data in memory.items()}

    def _accept_feeds(self, feeds: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        """Return feeds as arrays of the model's types. Raise CompileError with every fault."""
        container, states = self.container, self.get_states()
        bound = [IoType(name, value.shape, value.dtype.name) for name, value in container.bound.items()]
        feeds = convert_feeds([*container.inputs, *states, *bound], feeds)
        check_feeds(container.inputs, feeds, states, container.bound, container.host_inputs)
        return feeds

    def _advance_ring_numbers(self, states: StateValues) -> dict[str, int]:
        """Return the numbers of rings in the run behind the one that begins with these."""
        rings = [state.ring for _, state in self._parts if state.ring is not None]
        return {ring.number: ring.get_next_row(states.ring_numbers[ring.number]) for ring in rings}

    def _begin(self, feeds: Mapping[str, np.ndarray]) -> _RunValues:
        """Return the values of a run before its first segment: feeds, states and the numbers of rings."""
        states = self._state_values
        numbers = {name: np.full(1, number, np.float32) for name, number in states.ring_numbers.items()}
        fed_inputs = {n: np.asarray(feeds[n]) for n in feeds if n not in self.container.bound}
        return _RunValues({**fed_inputs, **numbers}, {}, states, list(states.parts))

    def place(self, index: int) -> str:
        """Return `segment 2: ` to stand before an operation's index; empty where the model has only one program."""
        several = sum(isinstance(s, Region) for s in self.container.segments) > 1
        return f"segment {index}: " if several else ""

    @contextmanager
    def _naming(self, index: int) -> Generator[None]:
        """Put the segment before the text of a ProgramError from the block."""
        try:
            yield
        except ProgramError as fault:
            raise ProgramError(f"{self.place(index)}{fault}") from fault.__cause__

    def _run_segments(
        self,
        count: int,
        values: _RunValues,
        progress: Progress | None,
        watch: Watch | None,
        run_options: Any = None,
    ) -> list[SegmentRun]:
        """Run the first `count` segments, add what they make to `values`, and return a record of each."""
        ran: list[SegmentRun] = []
        for index, segment in enumerate(self.container.segments[:count]):
            if getattr(run_options, "terminate", False):
                raise CompileError("run_options: terminate is set, so that nothing runs; make new ones, or set it to False")
            start_s = time.perf_counter()
            if isinstance(segment, HostSubgraph):
                ran.append(self._run_island(index, segment, values.real, run_options))
            else:
                ran.append(self._run_region(index, segment, values, progress, watch))
            if self._profile is not None:
                self._profile.add(index, ran[-1], start_s, time.perf_counter())
        return ran

    def _run_region(
        self, index: int, region: Region, values: _RunValues, progress: Progress | None, watch: Watch | None
    ) -> SegmentRun:
        """Run a region on the backend, add its codes and real outputs to `values`, and return its record."""
        program, dram = self.program(index), self._make_dram(index, values)
        observe = watch(region, program.flow) if watch else None
        with self._naming(index):
            done = self._load_once(index).run(dram, observe=observe, progress=progress)
        values.codes.update(done.tensors)
        for port in region.outputs:
            values.codes[port.tensor] = read_port(done.memory["dram"], port)
            values.real[port.model] = to_real(values.codes[port.tensor], port)
        self._take_next_states(index, done.memory["dram"], values)
        simulation = done.simulation
        if simulation is None and done.start.size:
            simulation = wrap_measured_run(program.machine.chip, program.flow, done.memory, done.start, done.end)
        if simulation is not None and index not in self._warnings:  # they do not depend on values
            with nullcontext() if self._is_in_process else reading_layers():
                warnings = find_dead_stores(self.container, region, program.flow, simulation.unread)
                warnings += geometry_warnings(self.container, region, program.flow) if self._check else ()
            self._warnings[index] = tuple(f"{self.place(index)}{sentence}" for sentence in warnings)
        return SegmentRun(f"npu ({self.backend_name})", region.nodes, simulation, self._warnings.get(index, ()), done.on_cpu)

    def _take_next_states(self, index: int, dram: np.ndarray, values: _RunValues) -> None:
        """Add the states that the region has left in its DRAM."""
        outputs, numbers = dict[str, np.ndarray](), self._advance_ring_numbers(values.states)
        for place, state in self._states_in(index):
            raw = values.next_parts[place] = port_bytes(dram, state.port).copy()
            values.codes[state.present_tensor] = unpack_codes(raw, state.port)
            full_state = outputs.setdefault(state.output, np.empty(_whole_shape(state), np.float32))
            _part_of(full_state, state)[...] = to_real(read_state(raw, state, numbers), state.alone)
        values.real |= outputs

    def _states_in(self, index: int) -> list[tuple[int, State]]:
        """Return the states of a segment, with their places in `_parts`."""
        return [(place, state) for place, (segment, state) in enumerate(self._parts) if segment == index]

    def _make_dram(self, index: int, values: _RunValues) -> np.ndarray:
        """Return a new DRAM of the region with constants, inputs and states in place; the codes of inputs are added."""
        region, real, codes = self.program(index).region, values.real, values.codes
        dram = zero_bytes(region.dram_bytes)
        if self._backend.reads_constants:
            write_constants(dram, region)
        for port in region.inputs:
            if port.tensor not in codes:
                codes[port.tensor] = to_codes(_fitting(real[port.model], port), port)
            write_port(dram, port, codes[port.tensor])
        for place, state in self._states_in(index):
            raw, port = values.states.parts[place], state.alone
            if port.model in real:
                input_codes = to_codes(_fitting(_part_of(real[port.model], state), port), port)
                raw = write_state(raw, state, input_codes, values.states.ring_numbers)
            port_bytes(dram, state.port)[:] = raw
            codes[port.tensor] = unpack_codes(raw, state.port)
        return dram

    def program(self, index: int) -> Program:
        """Return a region's program as backends take it, always the same one."""
        with self._loading:
            return self._programs(index)

    def _load_once(self, index: int) -> LoadedProgram:
        """Return the region's program loaded by the backend, at the first call of any thread."""
        with self._loading:
            return self._loaded(index)

    def _program(self, index: int) -> Program:
        """Return a region as a backend is given it."""
        region = self.container.segments[index]
        assert isinstance(region, Region)
        return Program(self.container.machine, region, self.container.graph, self._is_in_process)

    def _load(self, index: int) -> LoadedProgram:
        """Have the backend load a region's program."""
        return self._backend.load(self.program(index), timing=self._timing, check=self._check)

    def _run_island(self, index: int, island: HostSubgraph, real: dict[str, np.ndarray], run_options: Any) -> SegmentRun:
        """Run a host subgraph, add its outputs to `real`, and return its record. Raise CompileError where onnxruntime cannot
        run it."""
        with self._loading:
            session = self._islands(index)
        try:
            values = session.run(list(island.outputs), make_host_feeds(session, island.inputs, real), run_options)
        except InferenceError as fault:
            raise CompileError(f"{_island_name(island)}: onnxruntime cannot run them: {fault.reason}") from None
        real.update(zip(island.outputs, values))
        return _host_segment_run(session, island)

    def _island(self, index: int) -> Any:
        """Open the session of onnxruntime for a host subgraph; its runs may overlap.

        Raise ProgramError where a file's subgraph is not sound, CompileError where onnxruntime does not take it.
        """
        island = self.container.segments[index]
        assert isinstance(island, HostSubgraph)
        from toolchain.frontend import find_host_model_fault, find_way_out

        fault = None if self._is_in_process else find_host_model_fault(island.model)
        if fault is not None:
            raise ProgramError(f"{_island_name(island)}: cannot be run: {fault}; {find_way_out(island.model)}")
        return _host_session(island, self._providers)


def _whole_shape(state: State) -> tuple[int, ...]:
    """Return the shape of the complete state in the model's order."""
    shape = model_shape(state.alone)
    return shape if state.part is None else (state.part.total_rows, *shape[1:])


def _part_of(full_state: np.ndarray, state: State) -> np.ndarray:
    """Return a view of the rows of a state that one part holds."""
    return full_state if state.part is None else full_state[state.part.first : state.part.first + model_shape(state.port)[0]]


def _move_areas(container: Container, bases: Mapping[str, int]) -> Container:
    """Return the container with areas of DRAM at other addresses; itself where none is given."""
    if not bases:
        return container
    from toolchain.codegen import relocate_container  # and the compiler's code that places areas

    return relocate_container(container, bases)


def _idealize_timing(container: Container, terms: Sequence[str]) -> Container:
    """Return the container for a machine on which these terms of time cost nothing."""
    machine = container.machine
    return (
        replace(container, machine=replace(machine, chip=timing_terms.idealize_terms(machine.chip, terms)))
        if terms
        else container
    )


def get_compiled_bytes(model: Any) -> bytes | None:
    """Return the bytes of a compiled model that is in memory: bytes, or a build with `data`; None of another object."""
    is_build = isinstance(getattr(model, "container", None), Container)
    data: object = getattr(model, "data", None) if is_build else model
    if isinstance(data, memoryview):
        return data.tobytes()
    return bytes(data) if isinstance(data, bytes | bytearray) else None


def _container(model: CompiledModel, entry: str | None) -> Container:
    """Return the container of a model. Raise CompileError for another kind of object or an entry that it lacks, ProgramError
    for an unsound file."""
    data = get_compiled_bytes(model)
    file_or_bytes: str | bytes | None = os.fspath(model) if isinstance(model, str | os.PathLike) else data
    if file_or_bytes is not None and (opened := open_context_model(file_or_bytes, entry)) is not None:
        return opened
    if data is not None:
        return container_from_bytes(data, "model", entry)
    if not isinstance(model, Container):
        if not isinstance(model, str | os.PathLike):
            raise CompileError(f"model: is {type(model).__name__}; give a path, bytes, or what build() returns")
        return read_container(os.fspath(model), entry)
    if entry is not None:
        raise CompileError(f"entry {entry}: goes with a file; a Container holds the programs of one set of shapes")
    return model


def _host_session(island: HostSubgraph, providers: Sequence[str]) -> CheckedSession:
    """Open a session of onnxruntime with one thread. Raise CompileError where onnxruntime does not take the model."""
    try:
        return open_session(island.model, providers=providers)
    except InferenceError as fault:
        raise CompileError(f"{_island_name(island)}: onnxruntime cannot load them: {fault.reason}") from None


def _host_segment_run(session: CheckedSession, island: HostSubgraph) -> SegmentRun:
    """Return the provider that ran the island, the preferred one if it ran any node, and the nodes that the CPU ran instead."""
    providers, nodes = session.get_providers(), session.get_nodes_by_provider()
    where = next((provider for provider in providers if provider in nodes), providers[0])
    return SegmentRun(where, island.nodes, None, on_cpu=() if where == CPU[0] else nodes.get(CPU[0], ()))


def _fitting(value: np.ndarray, port: Port) -> np.ndarray:
    """Return a region's input as it is. Raise ProgramError where it does not have the port's number of elements."""
    if value.size != math.prod(port.shape) or (port.layout == "nhwc" and value.ndim != len(port.shape)):
        raise ProgramError(f"tensor {port.model!r} has shape {list(value.shape)}, its port {list(port.shape)}; build it again")
    return value


def _island_name(island: HostSubgraph) -> str:
    """Return what messages call a host subgraph: its first nodes."""
    shown = ", ".join(island.nodes[:3])
    return f"host nodes {shown}{f' and {len(island.nodes) - 3} more' if len(island.nodes) > 3 else ''}"
