"""Define the project's own backends, the simulator and the integer reference, and read and write ports in a region's DRAM."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from quant.fixed_point.core.device_arrays import Array, is_foreign
from simulator import DramRange, DramRangeKind, Observe, PreparedProgram, prepare_program
from simulator.zero_bytes import zero_bytes
from toolchain.codegen import Port, Region
from toolchain.errors import CompileError, ProgramError, first_line
from toolchain.foundation.garbage_collection import pause_collection
from toolchain.ir.graph import Node
from toolchain.machine import memory_type
from toolchain.ops.kit.operator import NpuOp, operator_of
from toolchain.runtime.backend import Execution, LoadedProgram, Program, Progress
from toolchain.runtime.ports import arrange_codes, restore_codes

if TYPE_CHECKING:
    from simulator import MergedProgram


class ArrayLibrary(Protocol):
    """A library of arrays on a device, such as the module cupy."""

    def asarray(self, a: Any) -> Any:
        """Return the array on the device."""
        ...

    def asnumpy(self, a: Any) -> np.ndarray:
        """Return a copy on the host, as a numpy array."""
        ...


class Simulator:
    """The backend that decodes the program's bytes and runs them bit by bit, with cycles, and refuses what breaks the machine's
    rules.

    `merges`: from a program's second run on, tiles of a layer run as one operation where that is proved to give the same bits.
    """

    observes = True
    concurrent = True
    reads_constants = False  # it writes them itself, where a run reads them

    def __init__(self, merges: bool = True):
        self.merges = merges

    def load(self, program: Program, *, timing: bool, check: bool) -> LoadedProgram:
        """Return the program ready to run. Its first run raises ProgramError where `check` finds a broken rule."""
        return _Simulated(program, timing, check, self.merges)


class _Simulated:
    """A loaded program of the simulator, prepared at its first run. Threads may run it at once."""

    def __init__(self, program: Program, timing: bool, check: bool, merges: bool):
        self._program, self._timing, self._check = program, timing, check
        self._prepared: PreparedProgram | None = None
        self._merged: MergedProgram | None = None
        self._merges = merges and check  # only a program that keeps all rules has one value for each byte
        self._runs = 0
        self._preparing = threading.Lock()

    def run(
        self, dram: np.ndarray, *, until: int | None = None, observe: Observe | None = None, progress: Progress | None = None
    ) -> Execution:
        """Run the program on `dram`, which is changed, and return the result."""
        with self._preparing:  # once, whichever thread comes first
            prepared = self._prepared = self._prepared or self._prepare(progress)
            plain = until is not None or observe is not None
            merged = None if plain else self._find_merged(prepared)
        if merged is not None:
            if merged.reads_constants:
                self._write_constants(dram)
            if merged.run(dram):
                done = prepared.result({"dram": dram})
                return Execution({"dram": dram}, simulation=done, start=done.start, end=done.end)
        self._write_constants(dram)
        done = prepared.run(dram, in_place=True, until=until, observe=observe, progress=progress)
        return Execution(done.memory, done.start, done.end, {}, done)

    def _write_constants(self, dram: np.ndarray) -> None:
        """Put the constants in place; bytes of inputs and states stay as they are."""
        region = self._program.region
        ports = [port_bytes(dram, p) for p in (*region.inputs, *(s.port for s in region.states))]
        raw_ports = [raw.copy() for raw in ports]
        write_constants(dram, region)
        for port, raw in zip(ports, raw_ports):
            port[:] = raw

    def _find_merged(self, prepared: PreparedProgram) -> MergedProgram | None:
        """Return the merged program from the second run on, None before it and where merging is off or not possible.

        Merging takes longer than a run, which only repeated runs repay.
        """
        self._runs += 1
        if self._merges and self._runs == 2:
            from simulator import merge_program

            region, legal = self._program.region, prepared.order.legal
            constants = zero_bytes(region.dram_bytes)
            write_constants(constants, region)
            with pause_collection():
                self._merged = merge_program(prepared.chip, prepared.flow, legal, dram_parts(region), constants)
        return self._merged

    def _prepare(self, progress: Progress | None) -> PreparedProgram:
        """Decode, check and time the program."""
        program = self._program
        with pause_collection():  # a tenth of the first run of ResNet-50
            return prepare_program(
                program.machine.chip,
                program.flow,
                program.flow.words,
                program.region.dram_bytes,
                (),
                word_bytes=program.machine.isa.word_bytes,
                timing=self._timing,
                check=self._check,
                parts=dram_parts(program.region),
                progress=progress,
            )


class Reference:
    """The backend that evaluates the integer graph with numpy: the bits that programs must give.

    It knows tensors and no operations, so it gives no times and cannot be observed.
    """

    observes = False
    concurrent = True
    reads_constants = False

    def load(self, program: Program, *, timing: bool, check: bool) -> LoadedProgram:
        """Return the program ready to run; `timing` and `check` have no effect."""
        return ReferenceProgram(program)


class ReferenceProgram:
    """A loaded program whose integer graph is evaluated: with numpy, or with the arrays of a library on its device."""

    def __init__(self, program: Program, library: ArrayLibrary | None = None):
        """Take the region's nodes. library: the device's arrays; None: numpy."""
        self._program, self._library = program, library
        region_nodes = set(program.region.nodes)
        self._nodes = [n for n in program.graph.nodes if n.name in region_nodes]
        self._device_constants: dict[str, Array] = {}

    def run(
        self, dram: np.ndarray, *, until: int | None = None, observe: Observe | None = None, progress: Progress | None = None
    ) -> Execution:
        """Evaluate the graph on the inputs and states in `dram`, write outputs and next states into it, and return it.

        With numpy the codes of all tensors are returned too.
        Raise CompileError where `until` is given. Raise ProgramError where a node that was read from a file cannot be computed.
        """
        if until is not None:
            name = "reference" if self._library is None else "cuda"
            raise CompileError(f"backend {name}: computes tensors, so that it stops behind no operation; take simulator")
        region = self._program.region
        codes = {p.tensor: read_port(dram, p) for p in (*region.inputs, *(s.port for s in region.states))}
        for node in self._nodes:
            codes[node.outputs[0]] = self._compute_node(node, codes)
        for port, tensor in (*((p, p.tensor) for p in region.outputs), *((s.port, s.present_tensor) for s in region.states)):
            port_codes = self._as_numpy(codes[tensor])
            if port_codes.size != math.prod(port.shape):
                raise ProgramError(
                    f"graph: makes {port.model!r} as {list(port_codes.shape)}, its port has {list(port.shape)}; build it again"
                )
            write_port(dram, port, port_codes)
        if self._library is None:
            return Execution({"dram": dram}, tensors=codes)
        return Execution({"dram": dram}, on_cpu=tuple(n.name for n in self._nodes if not self._runs_on_device(n)))

    def _runs_on_device(self, node: Node) -> bool:
        return self._library is not None and operator_of(node, NpuOp).takes_device_arrays

    def _compute_node(self, node: Node, codes: dict[str, Array]) -> Array:
        """Return the node's output. Its inputs are moved to the side that computes it, and stay there in `codes` for later
        nodes."""
        try:
            place = self._as_device_array if self._runs_on_device(node) else self._as_numpy
            inputs = list[Array]()
            for name in (n for n in node.inputs if n):
                if name in codes:
                    codes[name] = place(codes[name])
                inputs.append(codes[name] if name in codes else self._constant(name, node))
            return operator_of(node, NpuOp).reference(inputs)
        except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as fault:
            if self._program.is_in_process:
                raise
            raise ProgramError(f"graph: node {node.name!r} cannot be computed: {first_line(fault)}; build it again") from None

    def _constant(self, name: str, node: Node) -> Array:
        """Return a constant where the node needs it; on the device it is kept between runs."""
        constants = self._program.graph.constants
        if not self._runs_on_device(node):
            return constants[name]
        if name not in self._device_constants:
            self._device_constants[name] = self._as_device_array(constants[name])
        return self._device_constants[name]

    def _as_device_array(self, codes: Array) -> Array:
        assert self._library is not None
        return codes if is_foreign(codes) else self._library.asarray(codes)

    def _as_numpy(self, codes: Array) -> np.ndarray:
        if self._library is None or not is_foreign(codes):
            return codes
        return self._library.asnumpy(codes)


def read_port(dram: np.ndarray, port: Port) -> np.ndarray:
    """Return a copy of the codes of a port, in its shape."""
    return unpack_codes(port_bytes(dram, port), port)


def write_port(dram: np.ndarray, port: Port, codes: np.ndarray) -> None:
    """Write a port's codes where the program reads them; `dram` is changed."""
    raw = pack_codes(codes, port)
    dram[port.address : port.address + raw.size] = raw


def port_bytes(dram: np.ndarray, port: Port) -> np.ndarray:
    """Return a view of the bytes of a port."""
    return dram[port.address : port.address + port.size_bytes]


def pack_codes(codes: np.ndarray, port: Port) -> np.ndarray:
    """Return the codes of a port as memory holds them, uint8[size_bytes]."""
    return np.frombuffer(arrange_codes(codes, port).astype(memory_type(port.dtype)).tobytes(), np.uint8)


def unpack_codes(raw: np.ndarray, port: Port) -> np.ndarray:
    """Return the codes of a port from its bytes, in its shape; the inverse of `pack_codes`. The result is a copy."""
    return restore_codes(raw.view(memory_type(port.dtype)).astype(port.dtype), port)


def dram_image(region: Region) -> np.ndarray:
    """Return a new DRAM of the region, uint8, with the constants in place and states of real zeros."""
    dram = zero_bytes(region.dram_bytes)
    write_constants(dram, region)
    for port in (s.port for s in region.states):
        write_port(dram, port, zero_codes(port))
    return dram


def write_constants(dram: np.ndarray, region: Region) -> None:
    """Write the region's constants where its program reads them; `dram` is changed."""
    for address, data in region.constants:
        dram[address : address + len(data)] = np.frombuffer(data, np.uint8)


def zero_codes(port: Port) -> np.ndarray:
    """Return the codes of real zeros in a port."""
    return np.full(port.shape, port.zero_point, port.dtype)


def dram_parts(region: Region) -> list[DramRange]:
    """Return the DRAM ranges that the program may only read, must write, or keeps, and with base registers those between its
    areas."""
    parts = [DramRange(DramRangeKind.CONSTANT, "", address, address + len(data)) for address, data in region.constants]
    states = [s.port for s in region.states]
    for kind, ports in (
        (DramRangeKind.INPUT, region.inputs),
        (DramRangeKind.OUTPUT, region.outputs),
        (DramRangeKind.STATE, states),
    ):
        parts += [DramRange(kind, p.model, p.address, p.address + p.size_bytes) for p in ports]
    if region.bases:
        ends = [0, *(area.end for area in sorted(region.areas, key=lambda a: a.base))]
        starts = [*(area.base for area in sorted(region.areas, key=lambda a: a.base)), region.dram_bytes]
        parts += [DramRange(DramRangeKind.FOREIGN, "", end, start) for end, start in zip(ends, starts) if end < start]
    return parts
