"""Hand the graph of a stage to whoever dumps it: its text, and the arrays that the text names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from toolchain.ir.graph import Graph
from toolchain.ir.text import Arrays, print_graph


@dataclass(frozen=True)
class GraphDump:
    """A graph at the end of a stage; calling it gives its text. `head`: a line in front of the text."""

    stage: str
    graph: Graph[Any]
    head: str = ""

    def __call__(self) -> str:
        return self.print_text({})

    def print_text(self, arrays: Arrays) -> str:
        """Return the text. Its larger arrays are put into `arrays`."""
        return self.head + print_graph(self.graph, self.stage, arrays)


def dump_of(entry: str, dump: Callable[[str, Callable[[], str]], None]) -> Callable[[str, Callable[[], str]], None]:
    """Return a function that dumps a stage with the name of its entry in front."""
    head = f"entry {entry}\n"

    def dump_entry(stage: str, text: Callable[[], str]) -> None:
        dump(stage, replace(text, head=head) if isinstance(text, GraphDump) else lambda: head + text())

    return dump_entry
