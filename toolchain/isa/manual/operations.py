"""The section of operations: what each means, from its class, and where its parameters lie, from the table."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.isa.encoding import BitField, OperationPlan
from toolchain.isa.instruction_table import RegisterTable
from toolchain.isa.machine import Machine
from toolchain.isa.manual.bits import place_text, value_text
from toolchain.isa.manual.figures import Figure
from toolchain.machine.registry import OPERATIONS

_HEADER = "| parameter | bits | value | range | used | unit |\n|---|---|---|---|---|---|"


def operations(machine: Machine) -> Iterator[str | Figure]:
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
    units = machine.chip.of_kind(plan.operation.ENGINE) if plan.operation.ENGINE else ()
    if units and plan.operation.ENGINE != "dma":
        named = " or ".join(f"{i} {u.name}" for i, u in enumerate(units))
        return units[0].name if len(units) == 1 else f"the unit of the number in `unit`: {named}"
    if units:
        return f"the DMA queue of the number in `channel`: {', '.join(f'{i} {u.name}' for i, u in enumerate(units))}"
    return "the engine that its parameter `engine` names" if "engine" in plan.operation.parameters() else "the front end"


def _describe_placement(plan: OperationPlan, machine: Machine) -> Iterator[str]:
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
