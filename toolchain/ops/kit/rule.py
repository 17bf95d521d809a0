"""Declare how one ONNX operator is selected: each file in `toolchain/ops` has a table `RULES` of these by ONNX operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from toolchain.ir.graph import Node
from toolchain.ops.kit.selection_context import SelectionContext

Layout = Literal["nhwc", "any", "plain"]


@dataclass(frozen=True)
class Rule:
    """A rule that turns a node of one ONNX operator into nodes of the chip's float operators, or refuses it.

    `select`: adds the nodes to its context; it refuses by `SelectionContext.refuse`, with a reason.
    `layout`: layout on which the operator works, or a function that returns it for a node.
    "nhwc": it slides over rows and columns; "any": it takes its operands as they lie; "plain": it needs the model's order.
    `bools`: whether it takes and makes bool tensors too, as codes 0 and 1 at scale 1.
    `indices`: whether it takes and makes integer tensors too, if the chip made them and their maximum is known; they are at
    scale 1.
    `numbers`: positions of inputs that may be integers from anywhere; the rule chooses codes that hold what matters of them.
    """

    select: Callable[[SelectionContext], None]
    layout: Layout | Callable[[Node[Any]], Layout] = "plain"
    bools: bool = False
    indices: bool = False
    numbers: tuple[int, ...] = ()

    def layout_of(self, node: Node[Any]) -> Layout:
        """Return the layout on which the operator works for this node."""
        return self.layout(node) if callable(self.layout) else self.layout
