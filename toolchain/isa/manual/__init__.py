"""The manual of a machine, which alone is enough to build it: sections of Markdown and figures, one file a part."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.hw import write_bytes, write_hertz
from toolchain.isa.machine import Machine
from toolchain.isa.manual.arithmetic import arithmetic, codes
from toolchain.isa.manual.figures import Figure
from toolchain.isa.manual.layouts import layouts
from toolchain.isa.manual.machine_parts import engines, parts, run
from toolchain.isa.manual.operations import operations
from toolchain.isa.manual.page import render_page
from toolchain.isa.manual.timing import timing
from toolchain.isa.manual.words import words

SECTIONS = (parts, run, engines, codes, arithmetic, layouts, words, operations, timing)


def blocks(machine: Machine) -> Iterator[str | Figure]:
    """Paragraphs, tables and figures, in order."""
    chip = machine.chip
    yield f"# {chip.name}: instruction set"
    yield (
        f"{chip.description}. Clock {write_hertz(chip.clock.frequency)}, "
        f"{', '.join(f'{space.name} {write_bytes(space.memory.size)}' for space in chip.spaces)}."
    )
    yield f"Instruction table `{machine.isa.name}`, kind {machine.isa.kind}: {machine.isa.table.description}."
    for section in SECTIONS:
        yield from section(machine)


def manual(machine: Machine) -> str:
    """Markdown: parts, order, arithmetic, layouts, words and registers, each operation's meaning and bits, timing."""
    written = (block if isinstance(block, str) else f"```text\n{block.text()}\n```" for block in blocks(machine))
    return "\n\n".join(written) + "\n"


def manual_page(machine: Machine) -> str:
    """The same as one page of HTML, its figures drawn."""
    return render_page(f"{machine.chip.name}: instruction set", blocks(machine))
