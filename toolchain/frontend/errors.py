"""One form for every refusal: the thing, the reason, the way out."""

from __future__ import annotations

import numpy as np

from toolchain.errors import CompileError
from toolchain.ir.graph import Node


def refuse(thing: str, reason: str, way_out: str = "") -> CompileError:
    """`thing: reason`, then a line `help: way_out` when there is one."""
    return CompileError(f"{thing}: {reason}" + (f"\n  help: {way_out}" if way_out else ""))


def refuse_node(node: Node, reason: str, way_out: str = "") -> CompileError:
    return refuse(f"node {node.name} ({node.op.op_type})", reason, way_out)


def unusable(name: str, value: np.ndarray, bad: np.ndarray, kind: str) -> CompileError:
    """bad: where `value`, a constant, holds `kind`: NaN or Inf."""
    reason = f"holds {kind} in {np.count_nonzero(bad)} of its {value.size} values"
    return refuse(f"weight {name}", reason, "train or export the model again")
