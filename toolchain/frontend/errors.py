"""Make the frontend's errors in one form: the thing, the reason, the way out. The functions return errors, callers raise them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from toolchain.errors import CompileError
from toolchain.ir.graph import OnnxNode


def refuse(thing: str, reason: str, way_out: str = "") -> CompileError:
    """Return an error that reads `thing: reason`, then a line `help: way_out` when there is one."""
    return CompileError(f"{thing}: {reason}" + (f"\n  help: {way_out}" if way_out else ""))


class NodeFault(CompileError):
    """An error about one node or several: each fault, then each way out once.

    `faults`: (sentence, way out) of each, without repetitions.
    """

    def __init__(self, faults: Iterable[tuple[str, str]]):
        """Make the error message from the faults.

        `faults`: pairs of the sentence and the way out, "" for none.
        """
        self.faults = tuple(dict.fromkeys(faults))
        ways_out = dict.fromkeys(f"  help: {way_out}" for _, way_out in self.faults if way_out)
        super().__init__("\n".join([*(reason for reason, _ in self.faults), *ways_out]))


def refuse_node(node: OnnxNode, reason: str, way_out: str = "") -> NodeFault:
    """Return an error about this node."""
    return NodeFault([(f"node {node.name} ({node.op.op_type}): {reason}", way_out)])


def all_of(faults: Iterable[NodeFault]) -> NodeFault:
    """Return one error with the faults of all these."""
    return NodeFault(fault_pair for fault in faults for fault_pair in fault.faults)


def unusable(name: str, value: np.ndarray, bad: np.ndarray, kind: str) -> CompileError:
    """Return the error for a constant with unusable values.

    `bad`: mask of the places where `value`, a constant, holds `kind`, which is NaN or Inf.
    """
    reason = f"holds {kind} in {np.count_nonzero(bad)} of its {value.size} values"
    return refuse(f"weight {name}", reason, "train or export the model again")
