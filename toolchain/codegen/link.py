"""Link one planned region: from the region's plan to a `Region` of `model.npu`, with program words and all DRAM
addresses.

This is the step after planning (`schedule`) and before outlining (`codegen.outline`). It lays out DRAM in this order:
ports, spilled tensors, constants. It lowers the plan to machine operations, inserts signals and waits, assigns base
registers and encodes the words. A port is a tensor that the host or another segment writes or reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from toolchain.codegen.dram_areas import AddressStep, DramPiece, make_dram_areas, use_base_registers
from toolchain.codegen.lower import BaseAddresses, lower_region
from toolchain.codegen.model import AreaContent, LayerInfo, LayerResult, MemoryUse, Port, Region, state_of
from toolchain.codegen.place_states import ELSEWHERE, StatePlace, write_states_in_place
from toolchain.codegen.synchronise import synchronise
from toolchain.errors import CompileError, InternalError
from toolchain.hw.chip import Chip
from toolchain.hw.chip_sections import FeatureMaps
from toolchain.input_limits import DRAM_BYTES
from toolchain.ir.graph import INNER, Graph
from toolchain.isa import Machine, encode
from toolchain.machine import MachineOp, Signal, Space, Wait, find_unsupported, may_be_unsupported
from toolchain.memory import Buffer, DoesNotFit, Placement, place
from toolchain.ops.kit.operator import NpuOp, operator_of
from toolchain.ops.kit.tile import ConstantBlock, round_up
from toolchain.passes.extract_sample import SampleGraph
from toolchain.passes.partition import Segment
from toolchain.schedule.copies import Location, dram_alignment
from toolchain.schedule.hoisted_constants import NOT_HOISTED, ConstantHoister
from toolchain.schedule.nodes import Fetch
from toolchain.schedule.plan import PlannedRegion


def link_region(
    graph: Graph,
    segment: Segment,
    plan: PlannedRegion,
    machine: Machine,
    samples: SampleGraph | None = None,
    hoist: bool = True,
) -> Region:
    """Return the region's program, constants, ports, states, DRAM areas and the description of its layers.

    `graph`: the integer graph. `segment`: the part of it that the plan is for. No argument is changed. `samples`: the
    plan is of one sample, and the program repeats it over the batch. None: the plan is of the whole batch. `hoist`:
    constants that several layers read are loaded once, where their memory has room (`schedule.hoisted_constants`).

    Raise DramTooSmall or another CompileError where DRAM, semaphores or base registers do not suffice. Raise StillRead
    where a state's next value would overwrite bytes that are read later: plan again with a copy of it. Raise
    InternalError where an emitted operation is one that the machine cannot run or encode.
    """
    chip = machine.chip
    layout = _Layout(graph, segment, plan, samples, dram_alignment(chip), chip)
    constants = _Constants(layout.end, layout.align)
    hoisted = ConstantHoister([planned.layer for planned in plan.layers]).hoist(plan) if hoist else NOT_HOISTED
    plan = replace(plan, placements=hoisted.extend(plan.placements))
    placed = lower_region(plan, BaseAddresses(layout.roots, constants.address, constants.together), chip, hoisted.by_layer)
    require_dram(constants.end, chip)
    placed, roots = write_states_in_place(placed, layout.states, chip), layout.settle_states()
    lasting = {n for state in graph.states for n in (state.past, state.present_tensor)}
    inputs, outputs = (
        tuple(_port(n, graph, plan, roots) for n in names if n not in lasting) for names in (segment.inputs, segment.outputs)
    )
    states = tuple(state_of(s, _port(s.past, graph, plan, roots)) for s in graph.states if s.present_tensor in segment.outputs)
    stepping = tuple(layout.stepping.values())
    pieces = layout.pieces(
        [("input", inputs), ("output", outputs), ("state", [replace(s.port, model=s.name) for s in states])], constants.end
    )
    areas, repeat = make_dram_areas(pieces, chip, stepping, samples.count if samples is not None else None, placed)
    program = synchronise(use_base_registers(placed, areas, repeat, stepping, chip), chip, layout.end, repeat)
    return Region(
        program=_encode(program.ops, machine),
        constants=tuple(constants.blocks),
        inputs=inputs,
        outputs=outputs,
        dram_bytes=constants.end,
        nodes=tuple(n.name for n in segment.nodes),
        layers=tuple(_layers(plan, roots, 1 if samples is None else samples.count, layout.stepping)),
        op_layers=program.layers,
        sram_bound_bytes=plan.placements[Space.SRAM].bound_bytes,
        sram_peak_bytes=plan.placements[Space.SRAM].peak_bytes,
        areas=areas,
        buffers=tuple(
            MemoryUse(chip.spaces[space].name, placement.peak_bytes, placement.bound_bytes)
            for space, placement in sorted(plan.placements.items())
            if space != Space.SRAM
        ),
        states=states,
    )


class DramTooSmall(CompileError):
    """A refusal: the network needs more bytes of DRAM than the machine's file says it has (`memories.dram.size`)."""

    def __init__(self, size_bytes: int, chip: Chip, at_least: bool = False) -> None:
        """Make the error message.

        `size_bytes`: what the network needs; with `at_least` no plan needs less, and this one may need more.
        """
        self.size_bytes = size_bytes
        size = round_up(size_bytes, chip.dram.size_step_bytes)  # that the machine's file may have
        requirement = f"the network needs {'at least ' if at_least else ''}{size:,} bytes of DRAM"
        super().__init__(
            f"{chip.name}: {requirement}, memories.dram.size is {chip.dram.size:,}: raise it, or take a smaller model or inputs"
        )


def require_dram(size_bytes: int, chip: Chip, at_least: bool = False) -> None:
    """Raise where the network's `size_bytes` do not fit: DramTooSmall for the machine's DRAM, CompileError for the
    simulator's.

    `at_least`: the message says that no plan needs less than `size_bytes`.
    """
    if size_bytes > DRAM_BYTES:
        requirement = f"the network needs {'at least ' if at_least else ''}{size_bytes:,} bytes of DRAM"
        raise CompileError(f"{requirement}, the simulator holds {DRAM_BYTES:,}: take a smaller model or inputs")
    if size_bytes > chip.dram.size:
        raise DramTooSmall(size_bytes, chip, at_least)


class _Layout:
    """A DRAM layout of ports and spilled tensors, from address 0 on. A root is a tensor with storage of its own; views
    lie inside one.

    `roots`: location of each root, those in SRAM too. `stepping`: addresses that advance with each sample of a repeated
    batch, by root. `states`: next values, which lie at `elsewhere` in `roots` until `settle_states`. `end`: first
    address behind the spilled tensors, where the constants begin.
    """

    def __init__(
        self, graph: Graph, segment: Segment, plan: PlannedRegion, samples: SampleGraph | None, align: int, chip: Chip
    ) -> None:
        self.align = align
        self.roots = {name: plan.root(name) for name in plan.resident}
        self.stepping: dict[str, AddressStep] = {}
        self._ports: list[tuple[int, int]] = []
        at = 0
        lasting = {s.present_tensor: s.past for s in graph.states}
        pasts = [
            s.past for s in graph.states if s.present_tensor in segment.outputs
        ]  # first: at one place in all entries of a file
        for name in dict.fromkeys((*pasts, *segment.inputs, *(n for n in segment.outputs if n not in lasting))):
            root = plan.views[name].root if name in plan.views else name
            if root not in self.roots:
                self.roots[root] = Location(Space.DRAM, at)
                if samples is not None and root in samples.counted:
                    self.stepping[root] = AddressStep(at, at + _get_stored_bytes(root, samples.graph, plan))
                end = at + round_up(_get_stored_bytes(root, graph, plan), align)
                self._ports.append((at, end))
                at = end
        self.states, elsewhere = list[StatePlace](), ELSEWHERE
        for present_tensor in (n for n in segment.outputs if n in lasting):
            size = _get_stored_bytes(present_tensor, graph, plan)
            self.roots[present_tensor] = Location(Space.DRAM, elsewhere)
            self.states.append(StatePlace(present_tensor, elsewhere, self.roots[lasting[present_tensor]].address, size))
            elsewhere += round_up(size, align)
        self._spilled = at
        if plan.spilled:
            spilled = _place_spills([Buffer(s.name, s.start, s.end, s.size_bytes, align) for s in plan.spilled], at, chip)
            for name, address in spilled.addresses.items():
                self.roots[name] = Location(Space.DRAM, at + address)
            at += round_up(spilled.peak_bytes, align)
        self.end = at

    def settle_states(self) -> dict[str, Location]:
        """Return the roots, with each state's next value at the address where the next run reads the state."""
        return {**self.roots, **{s.present_tensor: Location(Space.DRAM, s.address) for s in self.states}}

    def pieces(self, ports: Iterable[tuple[str, Iterable[Port]]], end: int) -> list[DramPiece]:
        """Return what DRAM holds, in the order of addresses and without empty pieces.

        `ports`: (kind of the area, ports) for each kind. `end`: end of the constants after everything else.
        """
        kinds = [(kind, p) for kind, area_ports in ports for p in area_ports]
        dram_pieces = [
            DramPiece(tuple(AreaContent(kind, p.model) for kind, p in kinds if first <= p.address < last), first, last)
            for first, last in self._ports
        ]
        dram_pieces += [
            DramPiece((AreaContent("activations"),), self._spilled, self.end),
            DramPiece((AreaContent("constants"),), self.end, end),
        ]
        return [piece for piece in dram_pieces if piece.first < piece.last]


def _place_spills(buffers: Sequence[Buffer], first: int, chip: Chip) -> Placement:
    """Place tensors in DRAM behind address `first`, with addresses that count from there.

    Where they do not fit, return the smallest placement that the search knows. The caller then refuses with the whole
    size.
    """
    try:
        return place(buffers, max(chip.dram.size - first, 0))
    except DoesNotFit as fault:
        return place(buffers, fault.best_peak_bytes or sum(buffer.size_bytes + buffer.alignment_bytes for buffer in buffers))


def _get_stored_bytes(root: str, graph: Graph, plan: PlannedRegion) -> int:
    """Return the bytes of storage of a root, filled channel blocks included."""
    kind = graph.types[root]
    return plan.views[root].count_stored_bytes(kind.shape) if root in plan.views else kind.size_bytes


def _encode(ops: Sequence[MachineOp], machine: Machine) -> bytes:
    """Return the program's bytes. Raise InternalError for an operation that the machine cannot run or say: an operator's bug."""
    working = [op for op in ops if not isinstance(op, Signal | Wait)]
    for index in np.flatnonzero(may_be_unsupported(working, machine.chip)):
        reason = find_unsupported(working[index], machine.chip)
        if reason is not None:
            raise InternalError(f"{machine.chip.name}: {working[index].NAME} was emitted with {reason}")
    try:
        return encode(ops, machine.isa)
    except CompileError as fault:
        raise InternalError(f"{machine.chip.name}: an operation was emitted that it cannot say: {fault}") from fault


def _layers(plan: PlannedRegion, roots: Mapping[str, Location], count: int, stepping: Collection[str]) -> Sequence[LayerInfo]:
    """Return the description of each layer: its sources and where its result lies.

    `count`: samples of a repeated batch. Each iteration overwrites the one before in all roots but the stepping ones.
    """
    layer_infos: list[LayerInfo] = []
    for node in (p.layer.node for p in plan.layers):
        view = plan.views[node.outputs[0]]
        base = roots[view.root]
        samples = 1 if view.root in stepping else count
        lies = view.strides
        granule = lies.maps.granule if lies.maps is not None else 0
        place = base.space.name.lower(), base.address + view.offset_bytes
        result = LayerResult(node.outputs[0], *place, lies.along, samples, granule, lies.surface_bytes)
        layer_infos.append(LayerInfo(node.name, operator_of(node, NpuOp).NAME, node.sources, None if view.rows else result))
    return layer_infos


def _port(name: str, graph: Graph, plan: PlannedRegion, roots: Mapping[str, Location]) -> Port:
    """Return the port of a tensor at its place in these roots."""
    view = plan.views.get(name)
    base = roots[view.root if view else name]
    maps = view.strides.maps if view else None
    return port_at(base.address + (view.offset_bytes if view else 0), name, graph, maps)


def port_at(address: int, name: str, graph: Graph, maps: FeatureMaps | None = None) -> Port:
    """Return the port of tensor `name` at a DRAM address, with its name and layout in the model by `graph.origins`.

    The tensor must be quantized. `maps`: its channel blocks, None: channels are not in blocks.
    """
    kind = graph.types[name]
    assert kind.quant is not None
    model, layout = graph.origins.get(name, (name, INNER))
    if layout == INNER:  # what only regions exchange (a part rescaled for its Concat) is no tensor of the model
        model, layout = name, "plain"
    return Port(name, model, layout, address, kind.shape, kind.dtype, kind.quant.scale, kind.quant.zero_point, maps)


class _Constants:
    """Constant blocks laid one after the other in DRAM from `start`. `address` keeps equal bytes once, `together` does not.

    `end`: first free address. `blocks`: (address, bytes) of each, in the order of addresses.
    """

    def __init__(self, start: int, align: int):
        self.end, self._align = start, align
        self._address_by_key: dict[Hashable, int] = {}
        self._by_bytes: dict[bytes, int] = {}
        self.blocks: list[tuple[int, bytes]] = []

    def address(self, block: ConstantBlock) -> int:
        """Return the DRAM address of a block. A first call with its key stores it at `end`, unless equal bytes lie
        somewhere.
        """
        if block.key not in self._address_by_key:
            data = block.data()
            address = self._by_bytes.setdefault(hashlib.sha256(data).digest(), self.end)
            self._address_by_key[block.key] = address
            if address == self.end:
                self.blocks.append((address, data))
                self.end += round_up(len(data), self._align)
        return self._address_by_key[block.key]

    def together(self, part: Fetch) -> int:
        """Store the blocks of one prefetch one after the other, with zeros between them, and return the first address.

        Raise InternalError where a block is stored already or would not lie at its offset.
        """
        first = self.end
        for block in part.blocks:
            data = block.data()
            padded = data if block is part.blocks[-1] else data.ljust(round_up(len(data), self._align), b"\0")
            if self.end - first != part.offsets[block.key] or block.key in self._address_by_key:
                raise InternalError(f"constants {block.key} do not lie where they are fetched from")
            self._address_by_key[block.key] = self.end
            self.blocks.append((self.end, padded))
            self.end += round_up(len(data), self._align)
        return first
