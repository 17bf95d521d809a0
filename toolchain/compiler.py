"""Compile a quantized network to programs: integers, regions and host subgraphs, plans, instructions.

A build first calls `select_model`, then calibrates, then calls `compile_model`. Each region is planned and linked, also in
variants that are timed against each other. Programs are timed here (`time_region`) and never run on values.
`make_cycle_counter` plans a network without building it, for repair, which chooses between several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from quant.repair.choices import Quantization
from simulator import Simulation, simulate
from toolchain.codegen import (
    Container,
    DramTooSmall,
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
from toolchain.ir.graph import Graph
from toolchain.ir.text import GraphDump
from toolchain.isa import Machine, decode, disassemble
from toolchain.machine import dispatch_program
from toolchain.ops.kit.array_choice import require_usable_units
from toolchain.ops.kit.operator import Layer
from toolchain.ops.matrix_product import batch_variants
from toolchain.passes.extract_sample import SampleGraph, extract_sample
from toolchain.passes.match_nodes import match_nodes
from toolchain.passes.partition import Segment, partition_graph
from toolchain.passes.pass_options import EVERY_PASS, PassOptions
from toolchain.passes.pipeline import (
    PIPELINE,
    STATE_PASSES,
    Dump,
    PassContext,
    quantize_selection,
    require,
    run_passes,
    select_graph,
)
from toolchain.passes.select import Selection
from toolchain.passes.select_states import find_states_to_copy, insert_state_copies
from toolchain.repair.network import CycleCounter, Network
from toolchain.report.bounds.dram import min_dram_bytes
from toolchain.report.traffic import count_traffic, sum_traffic, traffic_figures
from toolchain.schedule.bind_region import resolve_level, split_regions
from toolchain.schedule.equal_regions import EqualRegions
from toolchain.schedule.goals import BALANCED, CYCLES, Goal, Objective, candidate_plans
from toolchain.schedule.nodes import RegionTree
from toolchain.schedule.notes import annotate_plan
from toolchain.schedule.options import LEVELS, RegionInput, SearchSteps
from toolchain.schedule.plan import PlannedRegion
from toolchain.schedule.text import print_schedule
from toolchain.schedule.user_schedule import plan_user_schedule

STAGES = ("normal", *(one.stage for one in PIPELINE if one.stage), "schedule", "program")
# What follows the pipeline, for each region; alternatives are compared, so these are no passes that could be left out.
REGION_STEPS = (
    ("partition", "The graph is cut into regions of the chip and subgraphs of the host."),
    ("plan", "Residency, tilings, cascades, prefetch and places of a region: its schedule (stage schedule)."),
    ("link", "Machine operations in order, with signals, waits and addresses: the program (stage program)."),
    ("outline", "Equal sequences of operations become calls, where the machine has them."),
)
_QUICK_LAYERS = 100  # of a network that is planned before its DRAM is judged: YOLOv5n has 82 and takes 3.2 CPU s
Progress = Callable[[str, int, int | None], None]  # stage, done, total


class ProgramCost(NamedTuple):
    """The cost of a program: cycles, bytes to and from DRAM, and energy in pJ, None where the machine does not state it."""

    cycles: int
    dram_bytes: int
    energy_pj: float | None

    @property
    def energy_or_bytes(self) -> float:
        """Return the energy in pJ, or the DRAM bytes where the machine states none."""
        return self.dram_bytes if self.energy_pj is None else self.energy_pj


class CompiledRegion(NamedTuple):
    """A region's plan and program.

    `level`: the optimization level whose options planned it.
    `rounds`: how often the program of the plan is repeated, once for each sample.
    `fastest`: cost of another plan, which takes fewer cycles and more energy; None: this one is the fastest.
    """

    plan: PlannedRegion
    region: Region
    level: int
    rounds: int
    fastest: ProgramCost | None = None

    def tree(self, index: int, chip: Chip) -> RegionTree:
        """Return the region's schedule as a tree, with notes.

        `index`: place of the region among the segments of its network.
        """
        within = 0 if self.sram_bytes in (0, chip.sram.size) else self.sram_bytes
        tree = annotate_plan(self.plan, chip)
        return replace(tree, region=index, level=self.level, sample=self.rounds > 1, within=within)

    @property
    def sram_bytes(self) -> int:
        """Return the SRAM for which the region was planned, in bytes; 0 for a region without layers."""
        return self.plan.layers[0].layer.chip.sram.size if self.plan.layers else 0


_Segments = tuple[list[Region | HostSubgraph], dict[int, CompiledRegion]]  # what is compiled, and by its place what is planned


@dataclass(frozen=True)
class CompiledNetwork:
    """The content of a compiled file, and how it came about.

    `container`: segments, machine, and the integer graph after fusion.
    `planned`: each region's plan by the place of the region among the segments.
    `unfused`: the integer graph before epilogues are fused.
    """

    container: Container
    planned: Mapping[int, CompiledRegion]
    unfused: Graph

    @property
    def plans(self) -> tuple[PlannedRegion, ...]:
        """Return the plans of the regions in order."""
        return tuple(compiled_region.plan for compiled_region in self.planned.values())

    @property
    def expected_cycles(self) -> int:
        """Return the expected cycles of all regions, those by which their plans were chosen, repeats included. Calls are left
        out."""
        return round(sum(compiled_region.rounds * compiled_region.plan.cycles for compiled_region in self.planned.values()))

    @property
    def fastest(self) -> dict[str, Any] | None:
        """Return what `--optimize cycles` would have cost, as in the JSON report; None where no plan of less energy was
        taken."""
        if all(compiled_region.fastest is None for compiled_region in self.planned.values()):
            return None
        machine, costs = self.container.machine, list[ProgramCost]()
        for compiled_region in self.planned.values():
            region = compiled_region.region
            costs.append(compiled_region.fastest or _program_cost(machine.chip, region, time_region(machine, region)))
        return {
            "cycles": sum(cost.cycles for cost in costs),
            "dram_bytes": sum(cost.dram_bytes for cost in costs),
            "energy_pj": None if machine.chip.energy is None else sum(cost.energy_or_bytes for cost in costs),
        }

    @property
    def schedule(self) -> tuple[RegionTree, ...]:
        """Return the schedule of each region, in order."""
        return tuple(compiled_region.tree(index, self.container.machine.chip) for index, compiled_region in self.planned.items())


def ignore_progress(*_: Any) -> None:
    """Do nothing with any arguments; it is the default of callbacks."""


def select_model(
    model: NormalModel,
    machine: Machine,
    dump: Dump = ignore_progress,
    host_nodes: Sequence[str] = (),
    passes: PassOptions = EVERY_PASS,
) -> Selection:
    """Decide what runs on the chip and what on the host, with reasons, and return the selection. No calibration is needed.

    `dump`: is called with each graph stage that is reached.
    `host_nodes`: nodes, operators or patterns that stay on the host.
    Raise CompileError where `host_nodes` names no node or operator, or the machine has no usable unit.
    """
    requested_nodes = match_nodes(model.nodes, host_nodes)
    require_usable_units(machine.chip)
    dump("normal", GraphDump("normal", to_graph(model)))
    return select_graph(model, machine.chip, requested_nodes, passes, dump)


def compile_model(
    name: str,
    model: NormalModel,
    selection: Selection,
    machine: Machine,
    quantization: Quantization,
    level: int,
    dump: Dump = ignore_progress,
    progress: Progress = ignore_progress,
    schedule: Sequence[RegionTree] = (),
    goal: Goal = BALANCED,
    rings: bool = True,
    steps: SearchSteps | None = None,
) -> CompiledNetwork:
    """Compile a quantized network to programs, without running them.

    States become circular buffers where that costs less.

    `selection`: as `select_model` returned it, perhaps selected anew by repair.
    `level`: optimization level, 0 to 3.
    `schedule`: trees of regions, which are planned as they say; other regions are searched.
    `goal`: what is minimized, and the SRAM to plan within.
    `rings`: states may be circular buffers.
    `steps`: counter of the searches, with their limit; None: without limit.
    Raise CompileError where the machine cannot express the quantization, a layer does not fit, DRAM is too small, or a schedule
    is not possible.
    """
    goal.require(machine.chip, level)
    steps = steps or SearchSteps()
    lowered = quantize_selection(model, selection, machine.chip, quantization, LEVELS[level].fuse, dump)
    graph, unfused = lowered.graph, require(lowered.unfused, "an integer graph")

    def parts(graph: Graph) -> _Segments:
        return _parts(model, graph, machine, level, dump, progress, schedule, goal, steps)

    def compile_graph(graph: Graph) -> CompiledNetwork:
        graph, (compiled, planned) = _programs(graph, machine, schedule, parts)
        return CompiledNetwork(build_container(name, model, selection, machine, graph, compiled), planned, unfused)

    context = PassContext(machine.chip, options=selection.pass_options, dump=dump)
    circular_graph = run_passes(STATE_PASSES, lowered, context).graph if rings else graph
    if circular_graph is graph:
        return compile_graph(graph)
    try:
        going_round = compile_graph(circular_graph)
    except CompileError:
        if not schedule:
            raise
        return compile_graph(graph)  # the schedule may be of a program whose states move
    if schedule or steps.over:
        return going_round
    return min(going_round, compile_graph(graph), key=lambda network: _worth_of_all(machine, network, goal.objective))


def _programs(
    graph: Graph, machine: Machine, schedule: Sequence[RegionTree], parts: Callable[[Graph], _Segments]
) -> tuple[Graph, _Segments]:
    """Return the graph and its segments, with a copy of each state whose next value cannot be made in place.

    `parts`: compiles a graph; it may raise StillRead for states that are still read when they are written. Raise CompileError
    where copies do not help.
    """
    while True:
        try:
            return graph, parts(graph)
        except StillRead as found:
            graph = _with_copies(graph, found, machine)
        except CompileError:  # the schedule may be of a program whose states are copied
            named = [alloc.buffer.name for tree in schedule for alloc in tree.tensors]
            copied = insert_state_copies(graph, find_states_to_copy(graph, named))
            if copied == graph:
                raise
            graph = copied


def _worth_of_all(machine: Machine, compiled: CompiledNetwork, objective: Objective) -> list[float]:
    """Return the worth of all regions together; of two networks the one of less is taken."""
    regions = [compiled_region.region for compiled_region in compiled.planned.values()]
    each = [_worth(machine.chip, region, time_region(machine, region), objective) for region in regions]
    return [sum(parts) for parts in zip(*each)]


def _with_copies(graph: Graph, still_read: StillRead, machine: Machine) -> Graph:
    """Return the graph with copies of these states. Raise InternalError where it has them already."""
    copied = insert_state_copies(graph, still_read.present_tensors)
    if copied == graph:
        raise InternalError(f"{machine.chip.name}: a copy of {still_read} at the end of its run is still too early")
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
    steps: SearchSteps,
) -> _Segments:
    """Partition the integer graph and compile each segment.

    Raise StillRead where a state is written too early. Raise CompileError otherwise; of several regions with too small a DRAM,
    the largest need is told.
    """
    compiled: list[Region | HostSubgraph] = []
    planned: dict[int, CompiledRegion] = {}
    parts = partition_graph(graph)
    refusals: list[DramTooSmall] = []
    equal_regions = EqualRegions()
    tree_by_region = split_regions(schedule, [i for i, part in enumerate(parts) if part.on_chip])
    for done, segment in enumerate(parts):
        progress("compile", done, len(parts))
        if not segment.on_chip:
            compiled.append(build_host_subgraph(model, segment))
            continue
        try:
            if len(graph.nodes) > _QUICK_LAYERS:
                _require_dram(graph, segment, machine.chip)
            planned[done] = _region(graph, segment, machine, level, tree_by_region.get(done), goal, steps, equal_regions)
        except DramTooSmall as fault:  # the largest need of all regions is told, so that who follows it is not refused again
            refusals.append(fault)
            continue
        _dump_region(done, planned[done], machine, dump)
        compiled.append(planned[done].region)
    if refusals:
        raise max(refusals, key=lambda refusal: refusal.size_bytes)
    return compiled, planned


def _require_dram(graph: Graph, segment: Segment, chip: Chip) -> None:
    """Raise CompileError where the DRAM is too small for constants and ports alone, before minutes are spent on a plan."""
    ports, lasting = {*segment.inputs, *segment.outputs}, {state.present_tensor for state in graph.states}
    if sum(a.nbytes for a in graph.constants.values()) + sum(graph.types[n].size_bytes for n in ports) <= chip.dram.size:
        return
    layers = [Layer(node, graph.types, graph.constants, chip) for node in segment.nodes]
    outputs = [n for n in segment.outputs if n not in lasting]
    require_dram(min_dram_bytes(layers, segment.inputs, outputs), chip, at_least=True)


def _region(
    graph: Graph,
    segment: Segment,
    machine: Machine,
    level: int,
    region_tree: RegionTree | None,
    goal: Goal,
    steps: SearchSteps,
    equal_regions: EqualRegions,
) -> CompiledRegion:
    """Plan a region at a level, link its program, and return the best variant.

    Variants are a batch sample by sample, and equal sequences as calls. The highest level compares the programs of all levels
    from 1 up by simulated cycles.

    `region_tree`: a schedule of the region, which says its level; None: it is searched.
    `equal_regions`: plans of the network's regions so far; this one's are added.
    """
    lasting = any(state.present_tensor in segment.outputs for state in graph.states)
    samples = extract_sample(graph, segment, machine.chip) if machine.chip.control.repeat and not lasting else None

    def plan_region(of: RegionInput) -> Sequence[PlannedRegion]:
        if region_tree is not None:
            return [plan_user_schedule(of, region_tree)]
        return equal_regions.plan(of, goal, candidate_plans)

    def linked(number: int, samples: SampleGraph | None) -> CompiledRegion:
        source, part = (graph, segment) if samples is None else (samples.graph, samples.segment)
        size, candidates = goal.limit_chip(machine.chip), list[CompiledRegion]()
        if region_tree is not None and region_tree.within:
            size = size.with_sram(region_tree.within)
        for chip in batch_variants(size, part.nodes) if region_tree is None else (size,):
            if candidates and steps.over:
                break
            of = RegionInput(source, part.nodes, part.inputs, part.outputs, chip, goal.options(number), steps=steps)
            for plan in plan_region(of):
                region = link_region(graph, segment, plan, machine, samples, of.options.hoist)
                candidates.append(CompiledRegion(plan, region, number, samples.count if samples is not None else 1))
        return _choose_region(candidates, machine, goal) if len(candidates) > 1 else candidates[0]

    def compile_level(number: int) -> CompiledRegion:
        compiled_region = batched(number) if region_tree is None else linked(number, samples if region_tree.sample else None)
        shorter = outline_region(compiled_region.region, machine) if machine.chip.control.call else None
        if shorter is None or not within(LEVELS[number].call_cycles, shorter, compiled_region.region):
            return compiled_region
        if compiled_region.fastest and time_region(machine, shorter).cycles > goal.most * compiled_region.fastest.cycles:
            return compiled_region
        return compiled_region._replace(region=shorter)

    def batched(number: int) -> CompiledRegion:
        if samples is None:
            return linked(number, None)
        try:
            repeated = linked(number, samples)
        except CompileError:  # its control or its semaphores are too few for the repeat, or a sample fits no more than a batch
            return linked(number, None)
        if LEVELS[number].repeat_cycles == math.inf or steps.over:
            return repeated
        flat = linked(number, None)
        most = LEVELS[number].repeat_cycles * _fewest_cycles(machine, flat)
        return repeated if _fewest_cycles(machine, repeated) <= most else flat

    def within(times: float, one: Region, other: Region) -> bool:
        return times == math.inf or time_region(machine, one).cycles <= times * time_region(machine, other).cycles

    if region_tree is not None:
        return compile_level(resolve_level(region_tree, level, samples is not None, goal.limit_chip(machine.chip).sram.size))
    if level < len(LEVELS) - 1:
        return compile_level(level)
    compiled_levels = [compile_level(level)]
    compiled_levels += (compile_level(number) for number in range(level - 1, 0, -1) if not steps.over)
    return _choose_region(compiled_levels, machine, goal)


def _choose_region(candidates: Sequence[CompiledRegion], machine: Machine, goal: Goal) -> CompiledRegion:
    """Return the program that the goal prefers. A balanced one costs least of those within the tolerance of the fewest cycles."""
    runs = [time_region(machine, candidate.region) for candidate in candidates]
    worths = [_worth(machine.chip, f.region, run, goal.objective) for f, run in zip(candidates, runs)]
    order = sorted(range(len(candidates)), key=lambda k: (*worths[k], len(candidates[k].region.program)))
    if goal.objective != "balanced":
        return candidates[order[0]]
    costs = [_program_cost(machine.chip, f.region, run) for f, run in zip(candidates, runs)]
    fastest = min([costs[order[0]], *(f.fastest for f in candidates if f.fastest is not None)], key=lambda cost: cost.cycles)
    allowed = [k for k in order if costs[k].cycles <= goal.most * fastest.cycles]
    best = min(allowed, key=lambda k: (costs[k].energy_or_bytes, order.index(k)))
    return candidates[best]._replace(fastest=fastest if costs[best].cycles > fastest.cycles else None)


def _program_cost(chip: Chip, region: Region, run: Simulation) -> ProgramCost:
    """Return the cost of a program by a timed run of it."""
    energy_pj = traffic_figures(chip, 0, sum_traffic([count_traffic(region, run)], chip))["energy_pj"]
    return ProgramCost(run.cycles, run.dram_read_bytes + run.dram_write_bytes, energy_pj and energy_pj["total"])


def _fewest_cycles(machine: Machine, compiled: CompiledRegion) -> int:
    """Return the cycles of a region, or those of its fastest plan where another was taken."""
    return time_region(machine, compiled.region).cycles if compiled.fastest is None else compiled.fastest.cycles


def time_region(machine: Machine, region: Region) -> Simulation:
    """Simulate a region's program for its times and return the run; values are not computed and rules not checked."""
    decoded = decode(region.program, machine.isa)
    flow = dispatch_program(machine.chip, decoded.ops, decoded.words, region.bases)
    dram = np.zeros(region.dram_bytes, np.uint8)
    width = machine.isa.word_bytes
    return simulate(machine.chip, flow, flow.words, dram, (), word_bytes=width, values=False, check=False)


def _worth(chip: Chip, region: Region, run: Simulation, objective: Objective) -> tuple[float, ...]:
    """Return a tuple by which the programs of one region compare under a goal; the lesser is better."""
    moved_bytes = run.dram_read_bytes + run.dram_write_bytes
    if objective in ("balanced", "cycles"):
        return run.cycles, moved_bytes
    if objective == "energy":
        energy = traffic_figures(chip, 0, sum_traffic([count_traffic(region, run)], chip))["energy_pj"]
        return energy["total"], run.cycles
    if objective == "memory":
        return run.dram_write_bytes, region.sram_peak_bytes, run.cycles
    return moved_bytes, run.cycles


def _dump_region(index: int, compiled_region: CompiledRegion, machine: Machine, dump: Dump) -> None:
    """Hand the schedule and the listing of a region to `dump`."""
    dump("schedule", lambda: print_schedule([compiled_region.tree(index, machine.chip)]))
    dump("program", lambda: f"region {index}\n" + disassemble(compiled_region.region.program, machine.isa))


def make_cycle_counter(level: int) -> CycleCounter:
    """Return a function that compiles a network with a quantization at this level and returns its expected cycles.

    It raises CompileError where that is not possible.
    """
    return partial(_count_cycles, level)


def _count_cycles(level: int, network: Network, quantization: Quantization) -> int:
    """Compile the network and return its expected cycles."""
    plan = compile_model("trial", network.model, network.selection, network.machine, quantization, level, goal=CYCLES)
    return plan.expected_cycles
