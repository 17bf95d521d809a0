"""Write the graph of a stage: its text, the arrays that the text names, and an ONNX file to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from toolchain.ir.graph import Graph
from toolchain.ir.onnx_view import onnx_view
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

    def onnx_bytes(self) -> bytes:
        """Return an ONNX model of the graph, for viewers."""
        return onnx_view(self.graph, self.stage).SerializeToString(deterministic=True)


def dump_of(entry: str, dump: Callable[[str, Callable[[], str]], None]) -> Callable[[str, Callable[[], str]], None]:
    """Return a function that dumps a stage with the name of its entry in front."""
    head = f"entry {entry}\n"

    def dump_entry(stage: str, text: Callable[[], str]) -> None:
        dump(stage, replace(text, head=head) if isinstance(text, GraphDump) else lambda: head + text())

    return dump_entry
