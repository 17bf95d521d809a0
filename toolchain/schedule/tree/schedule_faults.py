"""What is wrong with a schedule, all of it at once."""

from __future__ import annotations

from toolchain.errors import CompileError
from toolchain.ops.kit.operator import Layer
from toolchain.schedule.tree.nodes import RegionTree
from toolchain.schedule.tree.text import quote_name


class Faults:
    """Of one region's tree."""

    def __init__(self, tree: RegionTree):
        self._tree = tree
        self._found: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, line: int, fault: str) -> None:
        """line: where what it is about stands; 0: it was in no file."""
        self._found.append((line, fault))

    def of(self, layer: Layer, line: int, fault: str) -> None:
        """What is wrong with a layer."""
        self.add(line, f"layer {quote_name(layer.node.name)}: {fault}")

    def told(self) -> list[str]:
        """In the order of the file."""
        return [f"{self._place(line)}: {fault}" for line, fault in sorted(self._found, key=lambda f: f[0])]

    def end(self) -> None:
        """Raises CompileError where there are some."""
        if self._found:
            raise CompileError("\n".join(self.told()))

    def _place(self, line: int) -> str:
        return f"{self._tree.file}:{line}" if self._tree.file and line else f"region {self._tree.region} of the schedule"
