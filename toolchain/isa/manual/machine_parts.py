"""The manual's sections on a machine's parts, runs, engines and operations.

An operation's meaning comes from its class, the places of its parameters from the instruction table.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.hw import Chip, write_bytes
from toolchain.hw.unit_map import Unit
from toolchain.isa.encoding import BitField, OperationPlan
from toolchain.isa.instruction_table import RegisterTable
from toolchain.isa.machine import Machine
from toolchain.isa.manual.figures import BlocksFigure, Figure
from toolchain.isa.manual.words import place_text, value_text
from toolchain.machine.registry import OPERATIONS

_HEADER = "| parameter | bits | value | range | used | unit |\n|---|---|---|---|---|---|"


def parts(machine: Machine) -> Iterator[str | Figure]:
    """Yield the sections on units and memories."""
    chip = machine.chip
    yield "## Parts"
    units = tuple((unit.name, f"queue of {unit.spec.queue_depth}", tuple(sorted(unit.reach))) for unit in chip.units)
    yield BlocksFigure(
        "Engines with their queues, and the memories that they reach.", units, tuple(space.name for space in chip.spaces)
    )
    yield "## Memories"
    rows = ["| code | memory | bytes | addresses |", "|---|---|---|---|"]
    for code, space in enumerate(chip.spaces):
        rows.append(
            f"| {code} | {space.name} | {space.memory.size:,} ({write_bytes(space.memory.size)}) | 0 to "
            f"{space.memory.size - 1:#x} |"
        )
    yield "\n".join(rows)
    yield (
        "Addresses count bytes; numbers of several bytes lie least significant byte first, at any address. Parameters that "
        "name a memory hold its code. The DRAM is given with constants and inputs in place; what other memories hold at the "
        "start is not known, and no program reads a byte that was not written. Each operand of an operation lies in the "
        "memory that its engine names for it:"
    )
    yield "\n".join(f"- {_describe_unit(unit, chip)}" for unit in chip.units)


def _describe_unit(unit: Unit, chip: Chip) -> str:
    """Return the sentence on the memories of a unit's operands."""
    if not unit.roles:
        return f"{unit.name} moves between {', '.join(chip.spaces[i].name for i in sorted(unit.reach))}"
    by_space: dict[int, list[str]] = {}
    for role, space in unit.roles.items():
        by_space.setdefault(space, []).append(role)
    return f"{unit.name}: " + "; ".join(f"{', '.join(roles)} in {chip.spaces[space].name}" for space, roles in by_space.items())


def run(machine: Machine) -> Iterator[str | Figure]:
    """Yield the section on what happens before and after a program."""
    bases = machine.chip.control.host_bases
    yield "## A run"
    base_text = f", base registers 1 to {bases} what the host gives them" if bases else ""
    yield (
        "Before a program starts its host has put constants and inputs where they belong in the DRAM; semaphores are 0, "
        f"queues and accumulators empty{base_text}. The front end then reads the program's words from the first on. When the "
        "operation `end` is over results are in the DRAM, and the program can be started again once its inputs are there: it "
        "has changed neither inputs nor constants. Where constants, inputs, results and the words themselves lie is said by "
        "what comes with a compiled program (`ports.json` of an image); how words come to the front end is the machine's own "
        "affair."
    )


def engines(machine: Machine) -> Iterator[str | Figure]:
    """Yield the section on queues, semaphores, and what programs promise about their order."""
    chip = machine.chip
    yield "## Engines and semaphores"
    yield f"Engines by their numbers: {', '.join(f'{unit.queue} {unit.name}' for unit in chip.units)}."
    yield (
        "The front end takes operations in the order of the program and puts each into the queue of its engine; where that is "
        "full, it stops until there is room. Each engine runs its queue in order, one operation after the other, beside the "
        "others. Signals and waits stand in queues like any operation."
    )
    yield (
        f"There are {chip.sync.semaphores} semaphores, numbered from 0. Each is a counter from 0 to {chip.sync.max_count}, 0 "
        "when a program starts. `signal` adds one when everything before it in its queue has ended; `wait` holds its queue "
        "until the count is at least 1 and then takes one. Nothing else orders engines: not the order of the program, and not "
        "time."
    )
    yield (
        "What a program promises, so that its results do not hang on how fast anything is:\n\n- Of two operations on "
        "different engines that touch the same byte, one of them writing, one is ordered before the other by a chain of "
        "signals and waits.\n- Each semaphore is signalled by one engine and waited for by one. The k-th wait takes the k-th "
        f"signal. No count passes {chip.sync.max_count}, and all are 0 at the end.\n- It never waits for a signal that cannot "
        "come: run one by one, in the order of the program, with every wait passing, the operations give the same memories. A "
        "model of this machine may run them so.\n- No byte is read that was never written, and nothing outside of a memory is "
        "touched. Results lie over an operand of the same operation only where that is said."
    )


def operations(machine: Machine) -> Iterator[str | Figure]:
    """Yield the section on each operation: its meaning, and where its parameters lie; then operations that the machine
    lacks.
    """
    chip, isa = machine.chip, machine.isa
    yield "## Operations"
    yield (
        "Of each operation: what it does, by the names of its parameters; then where these lie. *range* is what the bits "
        "hold, *used* what programs of this machine have: beyond that nothing is defined. All indices count from 0. An "
        "operation reads all that it reads before anything of it is overwritten by itself."
    )
    for name, plan in isa.plans.items():
        yield f"### {name} (opcode {plan.opcode})"
        yield f"Runs on {_runner(plan, machine)}."
        yield from plan.operation.meaning(chip)
        yield from _describe_placement(plan, machine)
    absent = [name for name in OPERATIONS if not isa.supports(name)]
    if absent:
        yield "## Absent"
        yield f"This machine has no {', '.join(absent)}."


def _runner(plan: OperationPlan, machine: Machine) -> str:
    """Return the words for what runs an operation."""
    units = machine.chip.of_kind(plan.operation.ENGINE) if plan.operation.ENGINE else ()
    if units and plan.operation.ENGINE != "dma":
        named = " or ".join(f"{i} {u.name}" for i, u in enumerate(units))
        return units[0].name if len(units) == 1 else f"the unit of the number in `unit`: {named}"
    if units:
        return f"the DMA queue of the number in `channel`: {', '.join(f'{i} {u.name}' for i, u in enumerate(units))}"
    return "the engine that its parameter `engine` names" if "engine" in plan.operation.parameters() else "the front end"


def _describe_placement(plan: OperationPlan, machine: Machine) -> Iterator[str]:
    """Yield the table of an operation's parameters, and lists of its registers, constants and fixed values."""
    operation, described = plan.operation, plan.operation.get_descriptions()
    if plan.slots:
        rows = [_HEADER]
        for s in plan.slots:
            need = operation.need(s.name, machine.chip)
            step = f", multiples of {need.step}" if need.step > 1 else ""
            used = f"always {need.low}" if need.low == need.high else f"{need.low} to {min(need.high, s.highest)}{step}"
            rows.append(
                f"| {s.name} | {place_text(s)} | {value_text(s)} | {s.lowest} to {s.highest} | {used} | "
                f"{described[s.name].unit} |"
            )
        yield "\n".join(rows)
    typed = [s.name for s in plan.slots if described[s.name].names_type is not None]
    if typed:
        yield f"Types of codes by their numbers ([Codes](#codes)), each of the operand that its name has: {', '.join(typed)}."
    if plan.constants:
        yield (
            "Fields of its registers that must have one value: "
            + ", ".join(_constant(s, value) for s, value in plan.constants)
            + "."
        )
    if isinstance(machine.isa.table, RegisterTable) and plan.registers:
        yield f"Registers that it reads, all of which must have been written: {', '.join(plan.registers)}."
    if plan.fixed:
        yield (
            "Parameters of one value on this machine, which have no bits: "
            + ", ".join(f"{p} {value}" for p, value in plan.fixed)
            + "."
        )


def _constant(s: BitField, value: int) -> str:
    return f"{s.name} {value}"
