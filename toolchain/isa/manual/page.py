"""A manual as one page of HTML that needs nothing beside itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from markdown_it import MarkdownIt

from toolchain.isa.manual.figures import Figure

_STYLE = """
body { font: 15px/1.5 sans-serif; color: #223; max-width: 62em; margin: 2em auto; padding: 0 1em; }
h1, h2, h3 { line-height: 1.2; } h2 { border-bottom: 1px solid #ccd; margin-top: 2em; }
code, pre { font-family: monospace; font-size: 13px; } pre { background: #f4f6f9; padding: .7em 1em; overflow-x: auto; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; }
th, td { border: 1px solid #ccd; padding: .2em .6em; text-align: left; }
th { background: #eef1f6; } figure { margin: 1em 0; overflow-x: auto; } figcaption { font-size: 13px; color: #556; }
nav { columns: 2; font-size: 14px; } nav .h3 { padding-left: 1.2em; }
"""


def render_page(title: str, blocks: Iterable[str | Figure]) -> str:
    """HTML with a list of contents; headings have the anchors that Markdown readers give them."""
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
