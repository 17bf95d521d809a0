"""Run all checks of a plug-in on its examples and three shipped machines, cheapest first.

Each example is checked by itself: the type rule against the float function and the steps, then builds for each machine. A check
that fails ends those that rest upon it, and no other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from quant.fidelity import decibels
from quant.fixed_point.core.rounding import Rounding
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region, container_from_bytes, container_to_bytes
from toolchain.errors import InternalError, ProgramError, ToolchainError, first_line
from toolchain.hw import load_chip
from toolchain.ir.graph import TensorType
from toolchain.isa import Machine, assemble_words, decode, disassemble, load_machine
from toolchain.isa.default_table import make_default_table
from toolchain.machine import Space, accesses
from toolchain.plugin import LoadedPlugin, operator_name
from toolchain.plugin_check.access_check import executor_fault, spare_share, state_of
from toolchain.plugin_check.example_model import SAMPLES, ExampleModel, make_example_model
from toolchain.report.frontend_check import TOLERANCE, distance
from toolchain.runtime import Session
from toolchain.schedule.goals import BALANCED, Goal
from toolchain.schedule.text import print_schedule

MACHINES = ("edge16", "transformer64", "ws8_pow2")  # tables of 8 bits; interpolated functions and steps; powers of two alone
COST_ERROR = 0.03  # of the cycles that the simulator takes; those of golden programs are within 3.3 % (docs/design.md)
# Measured: codes that are rounded to nearest, halves to even, are 0.50 off at most and 0.005 in the mean; rounded down, 0.25.
BIAS_CODES = 0.1  # source: as measured above
LARGEST_CODES = 1.01  # source: two roundings to the nearest code, 0.5 each
CUT_CODES = 0.5  # source: added to both limits above on machines that round toward zero or down
# Share of claimed bytes that may go unread, as a clamp may hide a read; more fails. Measured of pools: none, with one row too
# many a quarter.
SPARE_SHARE = 0.1
PROGRAM_OPS = 12  # source: of each region, whose accesses are tried; layers have some tens
BUDGET_SHARES = (0.75, 0.5, 0.3)  # of the SRAM that the program takes, so that tiles become smaller


@dataclass(frozen=True)
class Finding:
    """A line of the check: what was checked, whether it passed, and what was seen.

    `is_note`: a remark, which cannot fail.
    """

    check: str
    passed: bool
    text: str
    is_note: bool = False

    @property
    def verdict(self) -> str:
        """Return the first word of the line: `note`, `FAIL`, or `ok` with two blanks."""
        return "note" if self.is_note else "ok  " if self.passed else "FAIL"


def check_plugin(loaded: LoadedPlugin) -> Iterator[Finding]:
    """Yield a finding for each check, on each example and each machine. Operators without an example fail.

    Machine operations without draws of test vectors get a note.
    Faults of the plug-in are findings; nothing is raised for them.
    """
    plugin = loaded.plugin
    for operator in plugin.operators:
        if not any(type(example.operator) is operator for example in plugin.examples):
            yield Finding("examples", False, f"{operator_name(operator)} has no Example in PLUGIN: nothing of it is checked")
    for owned in plugin.values:
        if owned not in plugin.draws:
            text = f"machine operation {owned.NAME} has no draws: npu-hw vectors --instructions writes no cases of it"  # type: ignore[attr-defined]
            yield Finding("draws", True, text, is_note=True)
    with tempfile.TemporaryDirectory() as folder:
        for index, example in enumerate(plugin.examples):
            name = f"example {index} ({operator_name(type(example.operator))})"
            yield from _check_example(name, loaded, index, Path(folder))


def _check_example(name: str, loaded: LoadedPlugin, index: int, folder: Path) -> Iterator[Finding]:
    """Yield the findings of one example; builds follow only where its definition passes."""
    example = loaded.plugin.examples[index]
    try:
        model = make_example_model(loaded, example)
        outputs = model.definition.infer(model.types)
        definition = [*_check_definition(name, model, outputs)]
    except ToolchainError as fault:
        yield Finding(f"{name}: definition", False, first_line(fault))
        return
    yield from definition
    if not all(finding.passed for finding in definition):
        return
    for machine_name in MACHINES:
        where = f"{name} on {machine_name}"
        try:
            yield from _check_builds(where, model, outputs, loaded, machine_name, folder)
        except ToolchainError as fault:
            check, text = _name_fault(fault)
            yield Finding(f"{where}: {check}", False, text)


def _name_fault(fault: ToolchainError) -> tuple[str, str]:
    """Return the check that a build's fault belongs to, and its text."""
    cause = fault.__cause__
    if not isinstance(cause, InternalError):
        return "build", first_line(fault)
    if isinstance(cause.__cause__, ProgramError):
        return "accesses", first_line(cause)
    return "bits", f"{first_line(cause)}: the machine operation computes or rounds otherwise, or tiles read other places"


def _check_definition(name: str, model: ExampleModel, outputs: dict[str, TensorType]) -> Iterator[Finding]:
    """Yield whether the type rule, the float function and the steps agree; behind a wrong type nothing is computed."""
    feeds = model.draw(0)
    computed, by_steps = model.compute(feeds), model.run_steps(feeds)
    shown = [f"{v.dtype}{list(v.shape)}" for v in computed]
    if len(computed) != len(outputs) or [f"{t.dtype}{list(t.shape)}" for t in outputs.values()] != shown:
        inferred = ", ".join(f"{t.dtype}{list(t.shape)}" for t in outputs.values())
        yield Finding(f"{name}: shape rule", False, f"infer says {inferred}, compute returns {', '.join(shown)}")
        return
    step_types = [f"{v.dtype}{list(v.shape)}" for v in by_steps]
    if step_types != shown:
        yield Finding(
            f"{name}: shape rule", False, f"infer and compute say {', '.join(shown)}, steps make {', '.join(step_types)}"
        )
        return
    yield Finding(f"{name}: shape rule", True, ", ".join(shown))
    error = max(distance(a, b) for a, b in zip(computed, by_steps))
    text = f"compute and steps differ by {error:.2g} of the largest magnitude; {TOLERANCE:g} is the most"
    yield Finding(f"{name}: float function", error <= TOLERANCE, text)


def _check_builds(
    where: str, model: ExampleModel, outputs: dict[str, TensorType], loaded: LoadedPlugin, machine_name: str, folder: Path
) -> Iterator[Finding]:
    """Yield the findings of builds of the example for one machine.

    A plug-in with tiles of its own is built without its functions, which must go to the host, and with them.
    """
    proto = model.proto(outputs)
    calibration = [model.draw(seed) for seed in range(SAMPLES)]

    def built_for(machine: Machine, goal: Goal = BALANCED, schedule: Path | None = None) -> Build:
        file = None if schedule is None else str(schedule)
        return build(proto, BuildOptions(machine, calibration=calibration, repair="none", goal=goal, schedule=file))

    own_tiles = type(model.example.operator) in loaded.plugin.rules
    if not own_tiles:
        built = built_for(load_machine(machine_name))
        yield from _check_built(where, model, built, own_tiles=False)
        if _regions(built):
            yield _check_round_trips(where, built, folder, lambda file: built_for(load_machine(machine_name), schedule=file))
        return
    host = built_for(load_machine(machine_name))
    yield from _check_host(f"{where}, without the function", model, host)
    machine = machine_with_functions(machine_name, loaded, folder)
    built = built_for(machine)
    if not _regions(built):
        yield Finding(f"{where}: selection", False, f"stays on the host of a machine with the functions: {_reasons(built)}")
        return
    yield from _check_built(where, model, built, own_tiles=True)
    yield _check_round_trips(where, built, folder, lambda file: built_for(machine, schedule=file))
    yield from _check_rounding(where, model, built)
    yield from _check_accesses(where, built, loaded)
    yield _check_tilings(where, built, lambda budget: built_for(machine, Goal(sram_bytes=budget)))


def _regions(built: Build) -> list[Region]:
    """Return the parts of a build that run on the chip; empty where all is on the host."""
    return [s for s in built.container.segments if isinstance(s, Region)]


def _reasons(built: Build) -> str:
    """Return why nodes are on the host, as one text."""
    return "; ".join(dict.fromkeys(reason for _, _, reason in built.container.fallbacks)) or "no reason is given"


def _sqnr_db(expected: np.ndarray, got: np.ndarray) -> float:
    """Return the SQNR in dB of `got` against `expected`."""
    exact = expected.astype(np.float64)
    return decibels(float((exact**2).sum()), float(((exact - got) ** 2).sum()))


def _check_host(where: str, model: ExampleModel, built: Build) -> Iterator[Finding]:
    """Yield whether a machine that lacks the operation leaves it to the host with a reason, and has at least 80 dB there."""
    reasons = _reasons(built)
    feeds = model.draw(SAMPLES)
    got = Session(built.data).run(None, feeds)
    error = min(_sqnr_db(a, b) for a, b in zip(model.compute(feeds), got))
    is_told = bool(built.container.fallbacks) and not _regions(built)
    yield Finding(where, is_told and error >= 80, f"on the host, {error:.0f} dB: {reasons}" if is_told else "is not on the host")


def _check_built(where: str, model: ExampleModel, built: Build, *, own_tiles: bool) -> Iterator[Finding]:
    """Yield the findings of a build: equal bits, the distance from float, and the expected cycles.

    A build that ends has compared the bits of simulator and reference itself.
    `own_tiles`: whether the plug-in has tiles of its own, whose expected cycles must be near those of the simulator.
    """
    session = Session(built.data)
    pairs = [(model.compute(feeds), session.run(None, feeds)) for feeds in (model.draw(SAMPLES + i) for i in range(4))]
    sqnr = min(_sqnr_db(np.stack([a[i] for a, _ in pairs]), np.stack([b[i] for _, b in pairs])) for i in range(len(pairs[0][0])))
    if not _regions(built):
        yield Finding(f"{where}: float against chip", sqnr >= 80, f"on the host, {sqnr:.0f} dB: {_reasons(built)}")
        return
    yield Finding(f"{where}: bits", True, "simulator and integer reference are equal")
    least = model.example.least_db
    yield Finding(f"{where}: float against chip", sqnr >= least, f"{sqnr:.1f} dB; {least:g} dB are needed")
    cycles, expected = built.figures["cycles"], built.figures["expected_cycles"]
    is_near = abs(expected - cycles) <= COST_ERROR * cycles
    short = "" if is_near else "; of a short program a few cycles are much: try a larger example"
    yield Finding(f"{where}: cost", is_near or not own_tiles, f"{expected:,} cycles are expected, {cycles:,} are taken{short}")


def _check_round_trips(where: str, built: Build, folder: Path, by_schedule: Callable[[Path], Build]) -> Finding:
    """Return whether the listing, the schedule and the compiled file are read back as they were.

    `folder`: where the schedule is written.
    `by_schedule`: builds the example again with the schedule of a file.
    """
    isa, lost = built.container.machine.isa, list[str]()
    for region in _regions(built):
        listing = disassemble(region.program, isa, region.op_layers, [layer.name for layer in region.layers])
        if assemble_words(listing, isa, len(region.layers)).program != region.program:
            lost.append("the listing")
    schedule = folder / "schedule.txt"
    schedule.write_text(print_schedule(built.schedule))
    if _words(by_schedule(schedule)) != _words(built):
        lost.append("the schedule")
    if container_to_bytes(container_from_bytes(built.data, "model")) != built.data:
        lost.append("the compiled file")
    text = f"{', '.join(lost)} is read back as something else" if lost else "listing, schedule and file are read back"
    return Finding(f"{where}: round trips", not lost, text)


def _check_rounding(where: str, model: ExampleModel, built: Build) -> Iterator[Finding]:
    """Yield whether the output is the float function's, rounded once, for inputs that codes hold exactly.

    Largest and mean error are measured in codes of the output. Values beyond the output's codes are left out.
    """
    first, last = _regions(built)[0], _regions(built)[-1]
    errors = list[np.ndarray]()
    session = Session(built.data)
    for seed in range(4):
        feeds = model.draw(2 * SAMPLES + seed)
        for port in first.inputs:
            codes = np.round(feeds[port.model] / port.scale + port.zero_point)
            limits = np.iinfo(port.dtype)
            feeds[port.model] = ((np.clip(codes, limits.min, limits.max) - port.zero_point) * port.scale).astype(np.float32)
        got = dict(zip((t.name for t in session.get_outputs()), session.run(None, feeds)))
        expected = dict(zip(model.definition.node.outputs, model.compute(feeds)))
        for port in last.outputs:
            limits = np.iinfo(port.dtype)
            low, high = ((edge - port.zero_point) * port.scale for edge in (limits.min, limits.max))
            inside = (expected[port.model] > low) & (expected[port.model] < high)
            errors.append(((got[port.model] - expected[port.model]) / port.scale)[inside])
    error = np.concatenate(errors)
    bias, largest = float(error.mean()), float(np.abs(error).max(initial=0.0))
    cuts = Rounding(built.container.machine.chip.numerics.rounding) in (Rounding.TRUNCATE, Rounding.FLOOR)
    most, most_bias = (limit + CUT_CODES * cuts for limit in (LARGEST_CODES, BIAS_CODES))
    text = f"{largest:.2f} codes off at most, {bias:+.3f} in the mean; {most:g} and {most_bias:g} are allowed"
    yield Finding(f"{where}: rounding", largest <= most and abs(bias) <= most_bias, text)


def _check_accesses(where: str, built: Build, loaded: LoadedPlugin) -> Iterator[Finding]:
    """Yield whether operations of the plug-in touch the bytes that they claim, for the first twelve of each region.

    The finding fails where the build has no such operation.
    """
    chip, rng, count = built.container.machine.chip, np.random.default_rng(0), 0
    for region in _regions(built):
        ops = [op for op in decode(region.program, built.container.machine.isa).ops if type(op) in loaded.plugin.values]
        for op in dict.fromkeys(ops[:PROGRAM_OPS]):
            memories = {
                Space(code): rng.integers(0, 256, region.dram_bytes if code == 0 else s.memory.size, dtype=np.uint8)
                for code, s in enumerate(chip.spaces)
            }
            claimed = accesses(op, chip)
            fault = executor_fault(op, claimed, chip, state_of(chip, memories), rng)
            reads = [a for a in claimed if not a.write]
            if fault is None and count < 2 and any(spare_share(op, a, chip, memories, rng) > SPARE_SHARE for a in reads):
                fault = "claims bytes that it does not read"
            if fault is not None:
                yield Finding(f"{where}: accesses", False, f"{op.NAME} {fault}: {op}")
                return
            count += 1
    yield Finding(f"{where}: accesses", bool(count), f"{count} operations touch the bytes that they claim")


def _check_tilings(where: str, built: Build, within: Callable[[int], Build]) -> Finding:
    """Return whether builds for less SRAM, and so smaller tiles, succeed; each build compares the bits itself. One other
    program is needed."""
    peak, programs = max(r.sram_peak_bytes for r in _regions(built)), {_words(built)}
    for share in BUDGET_SHARES:
        try:
            programs.add(_words(within(max(1, int(share * peak)))))
        except ToolchainError as fault:
            if type(fault).__name__ != "CompileError":
                return Finding(f"{where}: tilings", False, f"within {share:.0%} of the SRAM: {first_line(fault)}")
    text = f"{len(programs)} programs of different tiles have equal bits"
    return Finding(f"{where}: tilings", len(programs) > 1, text)


def _words(built: Build) -> Sequence[bytes]:
    """Return the program of each region as bytes."""
    return tuple(r.program for r in _regions(built))


def machine_with_functions(name: str, loaded: LoadedPlugin, folder: Path) -> Machine:
    """Return a copy of a shipped machine whose vector engine has the plug-in's functions, with an instruction table for them.

    `folder`: where its two files are written.
    """
    machine: dict[str, Any] = yaml.safe_load(files("hw_configs").joinpath(f"{name}.yaml").read_text())
    engine = next(e for e in machine["engines"].values() if e["kind"] == "vector")
    engine["functions"] |= {function: dict(rate) for function, rate in loaded.plugin.rates.items()}
    isa = machine.pop("isa")
    file, table = folder / f"{name}.yaml", f"{name}_table.yaml"
    file.write_text(yaml.safe_dump(machine, sort_keys=False))
    (folder / table).write_text(make_default_table(load_chip(str(file), table=table)))
    file.write_text(yaml.safe_dump({**machine, "isa": {**isa, "file": table}}, sort_keys=False))
    return load_machine(str(file))
