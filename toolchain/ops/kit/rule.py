"""How an operator's file declares which ONNX operator it takes, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from toolchain.ops.kit.scope import Scope


@dataclass(frozen=True)
class Rule:
    """How one ONNX operator becomes operators of the chip.

    select: emits the nodes, or refuses. layout: on which the operator works: "nhwc" where it slides over rows and columns,
    "any" where it takes its operands as they lie, "plain" where it needs the model's order. bools: whether it takes and makes
    bool tensors too, codes 0 and 1 at scale 1. indices: and whole numbers that the chip made, from 0 to a known one, in ones.
    numbers: inputs that are whole numbers whoever makes them, in codes that hold what counts of them.
    """

    select: Callable[[Scope], None]
    layout: Literal["nhwc", "any", "plain"] = "plain"
    bools: bool = False
    indices: bool = False
    numbers: tuple[int, ...] = ()
