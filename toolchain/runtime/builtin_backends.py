"""The project's own backends: the simulator, and the integer reference."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from simulator import DramRange, DramRangeKind, MergedProgram, Observe, PreparedProgram, merge_program, prepare_program
from toolchain.codegen import Port, Region
from toolchain.errors import CompileError, ProgramError, first_line
from toolchain.ir.graph import Node
from toolchain.machine import memory_type
from toolchain.ops.kit.operator import NpuOp, operator_of
from toolchain.runtime.backend import Execution, LoadedProgram, Program, Progress, SessionBackend
from toolchain.runtime.ports import arrange_codes, restore_codes


class Simulator:
    """Decodes the program's bytes and runs them: bits, cycles, and refusal of what would depend on timing.

    `merges`: from a program's second run on, tiles of a layer run as one operation where that is proved to give the same bits.
    """

    observes = True
    concurrent = True
    reads_constants = True

    def __init__(self, merges: bool = True):
        self.merges = merges

    def load(self, program: Program, *, timing: bool, check: bool) -> LoadedProgram:
        return _Simulated(program, timing, check, self.merges)


class _Simulated:
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
        with self._preparing:  # once, whichever thread comes first
            prepared = self._prepared = self._prepared or self._prepare(progress)
            plain = until is not None or observe is not None
            merged = None if plain else self._find_merged(prepared, dram)
        if merged is not None and merged.run(dram):
            return Execution({"dram": dram}, simulation=(done := prepared.result({"dram": dram})), start=done.start, end=done.end)
        done = prepared.run(dram, in_place=True, until=until, observe=observe, progress=progress)
        return Execution(done.memory, done.start, done.end, {}, done)

    def _find_merged(self, prepared: PreparedProgram, dram: np.ndarray) -> MergedProgram | None:
        """Return the merged program from the second run on: merging takes longer than a run, which only repeated runs repay."""
        self._runs += 1
        if self._merges and self._runs == 2:
            parts, legal = dram_parts(self._program.region), prepared.order.legal
            self._merged = merge_program(prepared.chip, prepared.flow, legal, parts, dram)
        return self._merged

    def _prepare(self, progress: Progress | None) -> PreparedProgram:
        program = self._program
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
    """Evaluates the integer graph with numpy: what the bits must be. It knows tensors, no operations, and takes no cycles."""

    observes = False
    concurrent = True
    reads_constants = False

    def load(self, program: Program, *, timing: bool, check: bool) -> LoadedProgram:
        return _Evaluated(program)


class _Evaluated:
    def __init__(self, program: Program):
        self._program = program
        region_nodes = set(program.region.nodes)
        self._nodes = [n for n in program.graph.nodes if n.name in region_nodes]

    def run(
        self, dram: np.ndarray, *, until: int | None = None, observe: Observe | None = None, progress: Progress | None = None
    ) -> Execution:
        if until is not None:
            raise CompileError("backend reference: computes tensors, so that it stops behind no operation; take simulator")
        region = self._program.region
        codes = {p.tensor: read_port(dram, p) for p in (*region.inputs, *(s.port for s in region.states))}
        for node in self._nodes:
            codes[node.outputs[0]] = self._compute_node(node, codes)
        for port, tensor in (*((p, p.tensor) for p in region.outputs), *((s.port, s.present_tensor) for s in region.states)):
            port_codes = codes[tensor]
            if port_codes.size != math.prod(port.shape):
                raise ProgramError(
                    f"graph: makes {port.model!r} as {list(port_codes.shape)}, its port has {list(port.shape)}; build it again"
                )
            write_port(dram, port, port_codes)
        return Execution({"dram": dram}, tensors=codes)

    def _compute_node(self, node: Node, codes: Mapping[str, np.ndarray]) -> np.ndarray:
        constants = self._program.graph.constants
        try:
            return operator_of(node, NpuOp).reference([codes[n] if n in codes else constants[n] for n in node.inputs if n])
        except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as fault:
            if self._program.is_in_process:
                raise
            raise ProgramError(f"graph: node {node.name!r} cannot be computed: {first_line(fault)}; build it again") from None


BACKENDS: Mapping[str, SessionBackend] = MappingProxyType({"simulator": Simulator(), "reference": Reference()})


def read_port(dram: np.ndarray, port: Port) -> np.ndarray:
    """Return a copy of the codes of a port."""
    return unpack_codes(port_bytes(dram, port), port)


def write_port(dram: np.ndarray, port: Port, codes: np.ndarray) -> None:
    """Put a port's codes where the program reads them."""
    raw = pack_codes(codes, port)
    dram[port.address : port.address + raw.size] = raw


def port_bytes(dram: np.ndarray, port: Port) -> np.ndarray:
    """Return a view of the bytes of a port."""
    return dram[port.address : port.address + port.size_bytes]


def pack_codes(codes: np.ndarray, port: Port) -> np.ndarray:
    """Return the codes of a port as memory holds them, uint8[size_bytes]."""
    return np.frombuffer(arrange_codes(codes, port).astype(memory_type(port.dtype)).tobytes(), np.uint8)


def unpack_codes(raw: np.ndarray, port: Port) -> np.ndarray:
    """Invert `pack_codes`; the result is a copy."""
    return restore_codes(raw.view(memory_type(port.dtype)).astype(port.dtype), port)


def dram_image(region: Region) -> np.ndarray:
    """Return the region's DRAM, uint8, with the constants in place and states of zeros."""
    dram = np.zeros(region.dram_bytes, np.uint8)
    write_constants(dram, region)
    for port in (s.port for s in region.states):
        write_port(dram, port, zero_codes(port))
    return dram


def write_constants(dram: np.ndarray, region: Region) -> None:
    """Put the region's constants where its program reads them."""
    for address, data in region.constants:
        dram[address : address + len(data)] = np.frombuffer(data, np.uint8)


def zero_codes(port: Port) -> np.ndarray:
    """Return the codes of zeros in a port."""
    return np.full(port.shape, port.zero_point, port.dtype)


def dram_parts(region: Region) -> list[DramRange]:
    """Return the DRAM ranges that the program may only read, must write, or keeps, and those between its areas."""
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
