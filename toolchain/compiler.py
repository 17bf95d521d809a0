"""From what runs where, and how it is quantized, to programs: integers, regions and islands, plans, instructions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from quant.repair.choices import Quantization
from simulator import Simulation, simulate
from toolchain.codegen import (
    Container,
    HostSubgraph,
    Region,
    StillRead,
    build_container,
    build_host_subgraph,
    link_region,
    outline_region,
    require_dram,
)
from toolchain.errors import CompileError, InternalError
from toolchain.frontend import NormalModel, to_graph
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, verify
from toolchain.ir.text import print_graph
from toolchain.isa import Machine, decode, disassemble
from toolchain.machine import dispatch_program
from toolchain.ops.kit.array_choice import require_usable_units
from toolchain.ops.kit.operator import Layer
from toolchain.ops.matrix_product import batch_choices
from toolchain.passes.circular_states import use_circular_states
from toolchain.passes.extract_sample import SampleGraph, extract_sample
from toolchain.passes.fold_qdq import fuse_selected_clamps, select_graph
from toolchain.passes.fuse import fuse_residuals, fuse_scales, fuse_tables
from toolchain.passes.match_nodes import match_nodes
from toolchain.passes.partition import Segment, partition_graph
from toolchain.passes.quantize import quantize
from toolchain.passes.select import Selection
from toolchain.passes.select_states import drop_states, insert_state_copies
from toolchain.report.bounds.dram import held_bytes
from toolchain.report.traffic import count_traffic, together, traffic_figures
from toolchain.schedule.bind_region import resolve_level, split_regions
from toolchain.schedule.goals import CYCLES, Goal, Objective, candidate_plans
from toolchain.schedule.nodes import RegionTree, Tensor, tensors_of
from toolchain.schedule.options import LEVELS, Options, RegionInput
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.plan_to_tree import plan_to_tree, region_note
from toolchain.schedule.text import print_schedule
from toolchain.schedule.user_schedule import plan_user_schedule

STAGES = ("normal", "compose", "select", "clamps", "quantize", "fuse", "schedule", "program")
Dump = Callable[[str, Callable[[], str]], None]  # stage, and what makes its text
Progress = Callable[[str, int, int | None], None]  # stage, done, total


class CompiledRegion(NamedTuple):
    """A region's plan and program, with the level whose options it has. rounds: how often the program of the plan is repeated,
    once for each sample."""

    plan: RegionPlan
    region: Region
    level: int
    rounds: int

    def tree(self, index: int, chip: Chip) -> RegionTree:
        """Its schedule. index: of the region among the parts of its network."""
        body, note = plan_to_tree(self.plan, chip), region_note(self.plan, chip)
        within = 0 if self.sram_bytes in (0, chip.sram.size) else self.sram_bytes
        return RegionTree(index, body, self.level, self.rounds > 1, within=within, note=note)

    @property
    def sram_bytes(self) -> int:
        """For which it was planned; 0 of no layers."""
        return self.plan.layers[0].layer.chip.sram.size if self.plan.layers else 0


_Segments = tuple[list[Region | HostSubgraph], dict[int, CompiledRegion]]  # what is compiled, and by its place what is planned


@dataclass(frozen=True)
class CompiledNetwork:
    """What an .npu file holds, by the place in its network each region's plan, and the integer graph before anything was fused in
    it."""

    container: Container
    planned: Mapping[int, CompiledRegion]
    unfused: Graph

    @property
    def plans(self) -> tuple[RegionPlan, ...]:
        return tuple(made.plan for made in self.planned.values())

    @property
    def expected_cycles(self) -> int:
        """Of all regions, by what their plans were chosen by; what calls and repeats take themselves is not in it."""
        return round(sum(made.rounds * made.plan.cycles for made in self.planned.values()))

    @property
    def schedule(self) -> tuple[RegionTree, ...]:
        """Of its regions in order."""
        return tuple(made.tree(index, self.container.machine.chip) for index, made in self.planned.items())


def ignore_progress(*_: Any) -> None:
    return None


def select_model(model: NormalModel, machine: Machine, dump: Dump = ignore_progress, host_nodes: Sequence[str] = ()) -> Selection:
    """What runs where, and why: enough for --explain without calibration. Raises CompileError: no such node or operator."""
    asked = match_nodes(model.nodes, host_nodes)
    require_usable_units(machine.chip)
    dump("normal", lambda: print_graph(to_graph(model)))
    selection = select_graph(model, machine.chip, asked, lambda composed: dump("compose", partial(print_graph, composed)))
    dump("select", partial(print_graph, selection.graph))
    return selection


def _integer(selection: Selection, machine: Machine, level: Options, given: Quantization, dump: Dump) -> tuple[Graph, Graph]:
    """The integer graph as it runs, and before anything was fused in it: the bits are the same."""
    chip = machine.chip
    float_graph = fuse_selected_clamps(selection, chip)
    dump("clamps", partial(print_graph, float_graph))
    integer = quantize(float_graph, chip, given)
    dump("quantize", partial(print_graph, integer))
    fused = fuse_residuals(fuse_tables(fuse_scales(integer), chip), chip) if level.fuse else integer
    dump("fuse", partial(print_graph, fused))
    if faults := verify(fused):
        raise InternalError(f"the integer graph is broken: {'; '.join(faults)}")
    return fused, integer


def compile_model(
    name: str,
    model: NormalModel,
    selection: Selection,
    machine: Machine,
    given: Quantization,
    level: int,
    dump: Dump = ignore_progress,
    progress: Progress = ignore_progress,
    schedule: Sequence[RegionTree] = (),
    goal: Goal = CYCLES,
    rings: bool = True,
) -> CompiledNetwork:
    """From what runs where, and how it is quantized, to programs, without running them. schedule: of regions, as they are to be
    planned; rings: states may be such. Raises CompileError."""
    goal.require(machine.chip, level)
    graph, unfused = _integer(selection, machine, LEVELS[level], given, dump)

    def parts(graph: Graph) -> _Segments:
        return _parts(model, graph, machine, level, dump, progress, schedule, goal)

    def made(graph: Graph) -> CompiledNetwork:
        graph, (compiled, planned) = _programs(graph, machine, schedule, parts)
        return CompiledNetwork(build_container(name, model, selection, machine, graph, compiled), planned, unfused)

    turned = use_circular_states(graph, machine.chip) if rings else graph
    if turned is graph:
        return made(graph)
    try:
        going_round = made(turned)
    except CompileError:
        if not schedule:
            raise
        return made(graph)  # the schedule may be of a program whose states move
    if schedule:
        return going_round
    return min(going_round, made(graph), key=lambda found: _worth_of_all(machine, found, goal.objective))


def _programs(
    graph: Graph, machine: Machine, schedule: Sequence[RegionTree], parts: Callable[[Graph], _Segments]
) -> tuple[Graph, _Segments]:
    """The graph, with a copy of each state whose next value cannot be made in place, and its `parts`. Raises CompileError."""
    while True:
        try:
            return graph, parts(graph)
        except StillRead as found:
            graph = _with_copies(graph, found, machine)
        except CompileError:  # the schedule may be of a program whose states are copied
            held = [alloc.buffer for tree in schedule for alloc in tensors_of(tree.body)[0]]
            named = [buffer.name for buffer in held if isinstance(buffer, Tensor)]
            copied = insert_state_copies(graph, drop_states(graph, named))
            if copied == graph:
                raise
            graph = copied


def _worth_of_all(machine: Machine, compiled: CompiledNetwork, objective: Objective) -> list[float]:
    """Of two networks the one of less is taken."""
    regions = [made.region for made in compiled.planned.values()]
    each = [_worth(machine.chip, region, time_region(machine, region), objective) for region in regions]
    return [sum(parts) for parts in zip(*each)]


def _with_copies(graph: Graph, found: StillRead, machine: Machine) -> Graph:
    copied = insert_state_copies(graph, found.made)
    if copied == graph:
        raise InternalError(f"{machine.chip.name}: a copy of {found} at the end of its run is still too early")
    return copied


def _parts(
    model: NormalModel,
    graph: Graph,
    machine: Machine,
    level: int,
    dump: Dump,
    progress: Progress,
    schedule: Sequence[RegionTree],
    goal: Goal,
) -> _Segments:
    """The segments of the integer graph. Raises CompileError, StillRead."""
    compiled: list[Region | HostSubgraph] = []
    planned: dict[int, CompiledRegion] = {}
    parts = partition_graph(graph)
    wanted = split_regions(schedule, [i for i, part in enumerate(parts) if part.on_chip])
    for done, segment in enumerate(parts):
        progress("compile", done, len(parts))
        if not segment.on_chip:
            compiled.append(build_host_subgraph(model, segment))
            continue
        _require_dram(graph, segment, machine.chip)
        planned[done] = _region(graph, segment, machine, level, wanted.get(done), goal)
        _dump_region(done, planned[done], machine, dump)
        compiled.append(planned[done].region)
    return compiled, planned


def _require_dram(graph: Graph, segment: Segment, chip: Chip) -> None:
    """Raises CompileError where the DRAM is too small for constants and ports alone: before minutes are spent on a plan."""
    ports, lasting = {*segment.inputs, *segment.outputs}, {state.made for state in graph.states}
    if sum(a.nbytes for a in graph.constants.values()) + sum(graph.types[n].size_bytes for n in ports) <= chip.dram.size:
        return
    layers = [Layer(node, graph.types, graph.constants, chip) for node in segment.nodes]
    outputs = [n for n in segment.outputs if n not in lasting]
    require_dram(held_bytes(layers, segment.inputs, outputs), chip, at_least=True)


def _region(graph: Graph, segment: Segment, machine: Machine, level: int, given: RegionTree | None, goal: Goal) -> CompiledRegion:
    """The plan of a level and its program. The highest takes the best by what it is simulated to take, of the plans of the levels
    below it too. given: a schedule of the region, which says its level."""
    lasting = any(state.made in segment.outputs for state in graph.states)
    samples = extract_sample(graph, segment, machine.chip) if machine.chip.control.repeat and not lasting else None

    def linked(number: int, samples: SampleGraph | None) -> CompiledRegion:
        source, part = (graph, segment) if samples is None else (samples.graph, samples.segment)
        size, found = goal.planned_on(machine.chip), list[CompiledRegion]()
        if given is not None and given.within:
            size = size.with_sram(given.within)
        for chip in batch_choices(size, part.nodes) if given is None else (size,):
            of = RegionInput(source, part.nodes, part.inputs, part.outputs, chip, goal.options(number))
            for plan in candidate_plans(of, goal.objective) if given is None else [plan_user_schedule(of, given)]:
                keep = LEVELS[number].residency and goal.objective != "memory"
                region = link_region(graph, segment, plan, machine, samples, keep)
                found.append(CompiledRegion(plan, region, number, samples.count if samples is not None else 1))
        return min(found, key=lambda f: (*worth(f.region), len(f.region.program))) if len(found) > 1 else found[0]

    def made(number: int) -> CompiledRegion:
        found = batched(number) if given is None else linked(number, samples if given.sample else None)
        shorter = outline_region(found.region, machine) if machine.chip.control.call else None
        if shorter is None or not within(LEVELS[number].call_cycles, shorter, found.region):
            return found
        return found._replace(region=shorter)

    def batched(number: int) -> CompiledRegion:
        if samples is None:
            return linked(number, None)
        try:
            repeated = linked(number, samples)
        except CompileError:  # its control or its semaphores are too few for the repeat, or a sample fits no more than a batch
            return linked(number, None)
        if LEVELS[number].repeat_cycles == math.inf:
            return repeated
        flat = linked(number, None)
        return repeated if within(LEVELS[number].repeat_cycles, repeated.region, flat.region) else flat

    def within(times: float, one: Region, other: Region) -> bool:
        return times == math.inf or time_region(machine, one).cycles <= times * time_region(machine, other).cycles

    def worth(region: Region) -> tuple[float, ...]:
        return _worth(machine.chip, region, time_region(machine, region), goal.objective)

    if given is not None:
        return made(resolve_level(given, level, samples is not None, goal.planned_on(machine.chip).sram.size))
    if level < len(LEVELS) - 1:
        return made(level)
    return min((made(number) for number in range(len(LEVELS) - 1, 0, -1)), key=lambda found: worth(found.region))


def time_region(machine: Machine, region: Region) -> Simulation:
    """A program's times, without its values."""
    found = decode(region.program, machine.isa)
    flow = dispatch_program(machine.chip, found.ops, found.words, region.bases)
    dram = np.zeros(region.dram_bytes, np.uint8)
    width = machine.isa.word_bytes
    return simulate(machine.chip, flow, flow.words, dram, (), word_bytes=width, values=False, check=False)


def _worth(chip: Chip, region: Region, run: Simulation, objective: Objective) -> tuple[float, ...]:
    """Of two programs the one of less is taken."""
    moved_bytes = run.dram_read_bytes + run.dram_write_bytes
    if objective == "cycles":
        return run.cycles, moved_bytes
    if objective == "energy":
        energy = traffic_figures(chip, 0, together([count_traffic(region, run)], chip))["energy_pj"]
        return energy["total"], run.cycles
    if objective == "memory":
        return run.dram_write_bytes, region.sram_peak_bytes, run.cycles
    return moved_bytes, run.cycles


def _dump_region(index: int, made: CompiledRegion, machine: Machine, dump: Dump) -> None:
    dump("schedule", lambda: print_schedule([made.tree(index, machine.chip)]))
    dump("program", lambda: f"region {index}\n" + disassemble(made.region.program, machine.isa))
