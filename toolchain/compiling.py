"""From what runs where, and how it is quantized, to programs: integers, regions and islands, plans, instructions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from quant.repair.step import Quantization
from simulator import simulate
from toolchain.codegen import Container, Island, Region, container_of, island, link_region, shortened
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel, to_graph
from toolchain.ir.graph import Graph
from toolchain.ir.text import print_graph
from toolchain.isa import Machine, decode, disassemble
from toolchain.machine import dispatched
from toolchain.ops.kit.arrays import require_workers
from toolchain.ops.matrix_product import batch_choices
from toolchain.passes.fuse import fuse_residuals, fuse_tables
from toolchain.passes.given import clamped, selected
from toolchain.passes.named import named_nodes
from toolchain.passes.quantize import quantize
from toolchain.passes.samples import OneSample, one_sample
from toolchain.passes.segments import Segment, segments
from toolchain.passes.select import Selection
from toolchain.schedule.options import LEVELS, Options
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.region import plan_region
from toolchain.schedule.text import print_plan

STAGES = ("normal", "compose", "select", "clamps", "quantize", "fuse", "schedule", "program")
Dump = Callable[[str, Callable[[], str]], None]  # stage, and what makes its text
Progress = Callable[[str, int, int | None], None]  # stage, done, total


@dataclass(frozen=True)
class Compiled:
    """What an .npu file holds, the plan of each region in order, and the integer graph before anything was fused in it."""

    container: Container
    plans: tuple[RegionPlan, ...]
    unfused: Graph


def silent(*_: Any) -> None:
    return None


def select_model(model: NormalModel, machine: Machine, dump: Dump = silent, host_nodes: Sequence[str] = ()) -> Selection:
    """What runs where, and why: enough for --explain without calibration. Raises CompileError: no such node or operator."""
    asked = named_nodes(model.nodes, host_nodes)
    require_workers(machine.chip)
    dump("normal", lambda: print_graph(to_graph(model)))
    selection = selected(model, machine.chip, asked, lambda composed: dump("compose", partial(print_graph, composed)))
    dump("select", partial(print_graph, selection.graph))
    return selection


def _integer(selection: Selection, machine: Machine, level: Options, given: Quantization, dump: Dump) -> tuple[Graph, Graph]:
    """The integer graph as it runs, and before anything was fused in it: the bits are the same."""
    chip = machine.chip
    float_graph = clamped(selection, chip)
    dump("clamps", partial(print_graph, float_graph))
    integer = quantize(float_graph, chip, given)
    dump("quantize", partial(print_graph, integer))
    fused = fuse_residuals(fuse_tables(integer, chip), chip) if level.fuse else integer
    dump("fuse", partial(print_graph, fused))
    return fused, integer


def compile_model(
    name: str,
    model: NormalModel,
    selection: Selection,
    machine: Machine,
    given: Quantization,
    level: int,
    dump: Dump = silent,
    progress: Progress = silent,
) -> Compiled:
    """From what runs where, and how it is quantized, to programs, without running them."""
    graph, unfused = _integer(selection, machine, LEVELS[level], given, dump)
    compiled: list[Region | Island] = []
    plans: list[RegionPlan] = []
    parts = segments(graph)
    for done, segment in enumerate(parts):
        progress("compile", done, len(parts))
        if not segment.on_chip:
            compiled.append(island(model, segment))
            continue
        plan, region = _region(graph, segment, selection, machine, level)
        _dump_region(done, plan, region, machine, dump)
        compiled.append(region)
        plans.append(plan)
    container = container_of(name, model, selection, machine, graph, compiled)
    return Compiled(container, tuple(plans), unfused)


def _region(graph: Graph, segment: Segment, selection: Selection, machine: Machine, level: int) -> tuple[RegionPlan, Region]:
    """The plan of a level and its program. The highest also takes the plans of the levels below it into the race and keeps
    the fewest simulated cycles, so that more search never costs any."""
    samples = one_sample(graph, segment, machine.chip) if machine.chip.control.repeat else None

    def linked(options: Options, samples: OneSample | None) -> tuple[RegionPlan, Region]:
        source, part = (graph, segment) if samples is None else (samples.graph, samples.segment)
        found: list[tuple[RegionPlan, Region]] = []
        for chip in batch_choices(machine.chip, part.nodes):
            plan = plan_region(source, part.nodes, part.inputs, part.outputs, chip, options)
            found.append((plan, link_region(graph, segment, plan, machine, samples)))
        return min(found, key=lambda f: (cycles(f[1]), len(f[1].program))) if len(found) > 1 else found[0]

    def made(options: Options) -> tuple[RegionPlan, Region]:
        plan, region = batched(options)
        shorter = shortened(region, machine) if machine.chip.control.call else None
        if shorter is None or not within(options.call_cycles, shorter, region):
            return plan, region
        return plan, shorter

    def batched(options: Options) -> tuple[RegionPlan, Region]:
        if samples is None:
            return linked(options, None)
        try:
            repeated = linked(options, samples)
        except CompileError:  # its control or its semaphores are too few for the repeat, or a sample fits no more than a batch
            return linked(options, None)
        if options.repeat_cycles == math.inf:
            return repeated
        flat = linked(options, None)
        return repeated if within(options.repeat_cycles, repeated[1], flat[1]) else flat

    def within(times: float, one: Region, other: Region) -> bool:
        return times == math.inf or cycles(one) <= times * cycles(other)

    def cycles(region: Region) -> int:
        found = decode(region.program, machine.isa)
        flow = dispatched(machine.chip, found.ops, found.words, region.bases)
        dram = np.zeros(region.dram_bytes, np.uint8)
        width = machine.isa.word_bytes
        return simulate(machine.chip, flow, flow.words, dram, (), word_bytes=width, values=False, check=False).cycles

    if level < len(LEVELS) - 1:
        return made(LEVELS[level])
    return min((made(options) for options in LEVELS[:0:-1]), key=lambda found: cycles(found[1]))


def _dump_region(index: int, plan: RegionPlan, region: Region, machine: Machine, dump: Dump) -> None:
    dump("schedule", lambda: f"region {index}\n" + print_plan(plan, machine.chip))
    dump("program", lambda: f"region {index}\n" + disassemble(region.program, machine.isa))
