"""Declare in an operator's file which ONNX operator it takes, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from toolchain.ir.graph import Node
from toolchain.ops.kit.selection_context import SelectionContext

Layout = Literal["nhwc", "any", "plain"]


@dataclass(frozen=True)
class Rule:
    """A rule that turns one ONNX operator into operators of the chip.

    `select`: emits the nodes, or refuses.
    `layout`: layout on which the operator works, or a function that returns it for a node.
    "nhwc": it slides over rows and columns; "any": it takes its operands as they lie; "plain": it needs the model's order.
    `bools`: whether it takes and makes bool tensors too, codes 0 and 1 at scale 1.
    `indices`: and integers that the chip made, from 0 to a known one, in ones.
    `numbers`: inputs that are integers whoever makes them, in codes that hold what counts of them.
    """

    select: Callable[[SelectionContext], None]
    layout: Layout | Callable[[Node[Any]], Layout] = "plain"
    bools: bool = False
    indices: bool = False
    numbers: tuple[int, ...] = ()

    def layout_of(self, node: Node[Any]) -> Layout:
        return self.layout(node) if callable(self.layout) else self.layout
