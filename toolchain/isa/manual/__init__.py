"""Write the manual of a machine, from which alone it can be built: as Markdown, or as one page of HTML.

`blocks` yields its paragraphs and figures; each section is a function from the machine to blocks, in a file of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from markdown_it import MarkdownIt

from toolchain.hw import write_bytes, write_hertz
from toolchain.isa.machine import Machine
from toolchain.isa.manual.arithmetic import arithmetic, codes
from toolchain.isa.manual.figures import Figure
from toolchain.isa.manual.layouts import layouts
from toolchain.isa.manual.machine_parts import engines, operations, parts, run
from toolchain.isa.manual.timing import timing
from toolchain.isa.manual.words import words

_STYLE = """
body { font: 15px/1.5 sans-serif; color: #223; max-width: 62em; margin: 2em auto; padding: 0 1em; }
h1, h2, h3 { line-height: 1.2; } h2 { border-bottom: 1px solid #ccd; margin-top: 2em; }
code, pre { font-family: monospace; font-size: 13px; } pre { background: #f4f6f9; padding: .7em 1em; overflow-x: auto; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; }
th, td { border: 1px solid #ccd; padding: .2em .6em; text-align: left; }
th { background: #eef1f6; } figure { margin: 1em 0; overflow-x: auto; } figcaption { font-size: 13px; color: #556; }
nav { columns: 2; font-size: 14px; } nav .h3 { padding-left: 1.2em; }
"""


SECTIONS = (parts, run, engines, codes, arithmetic, layouts, words, operations, timing)


def render_page(title: str, blocks: Iterable[str | Figure]) -> str:
    """Return a page of HTML, with a table of contents, that needs no other file.

    `blocks`: Markdown, of which the first is the page's heading, and figures. Headings have the anchors that Markdown
    readers give them.
    """
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    body: list[str] = []
    contents: list[str] = []
    for block in blocks:
        if not isinstance(block, str):
            body.append(block.svg())
            continue
        heading = re.match(r"(##+) (.*)", block)
        if heading is None:
            body.append(renderer.render(block))
            continue
        level, anchor, text = len(heading[1]), _anchor(heading[2]), escape(heading[2])
        body.append(f'<h{level} id="{anchor}">{text}</h{level}>\n')
        contents.append(f'<div class="h{level}"><a href="#{anchor}">{text}</a></div>')
    first, *rest = body
    nav = f"<nav>{''.join(contents)}</nav>\n"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{first}{nav}{"".join(rest)}</body></html>\n'


def _anchor(text: str) -> str:
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def blocks(machine: Machine) -> Iterator[str | Figure]:
    """Yield the manual's paragraphs, tables and figures in order."""
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
    """Return the manual as Markdown, figures drawn as text."""
    written = (block if isinstance(block, str) else f"```text\n{block.text()}\n```" for block in blocks(machine))
    return "\n\n".join(written) + "\n"


def manual_page(machine: Machine) -> str:
    """Return the manual as one page of HTML, figures drawn as SVG."""
    return render_page(f"{machine.chip.name}: instruction set", blocks(machine))
