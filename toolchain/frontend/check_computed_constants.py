"""Refuse NaN that nodes make of constants alone, at the node that makes it.

Such nodes are computed at import. Calibration, which would meet the NaN first, would blame the samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from toolchain.errors import CompileError, format_count
from toolchain.frontend.errors import refuse
from toolchain.frontend.rewrite import eliminate_dead_code
from toolchain.ir.graph import OnnxGraph

_MEND = "change these constants, or train or export the model again"


class FileNode(NamedTuple):
    """A node of the model's file: its name, operator and inputs."""

    name: str
    op_type: str
    inputs: tuple[str, ...]


def check_computed_constants(graph: OnnxGraph, producers: Mapping[str, FileNode], constants: Mapping[str, np.ndarray]) -> None:
    """Raise CompileError where a node of ONNX reads a constant that holds NaN. The file's own constants hold none.

    Infinity passes: it may be a mask or a bound. Nodes of other domains pass too.
    `producers`: by tensor of the file, the node that makes it.
    `constants`: by tensor, values that were folded into the graph's constants.
    """
    nan_names = {n for n, value in {**constants, **graph.constants}.items() if value.dtype.kind == "f" and np.isnan(value).any()}
    if not nan_names:
        return
    for node in eliminate_dead_code(graph).nodes:
        for name in node.inputs:
            if name in nan_names and name in graph.constants and not node.op.domain:
                raise _refuse(name, f"node {node.name} ({node.op.op_type})", graph.constants[name], producers, nan_names)


def _refuse(name: str, reader: str, value: np.ndarray, producers: Mapping[str, FileNode], nan_names: set[str]) -> CompileError:
    """Return the error for NaN in the constant `name`, which names the node that made NaN of operands without it.

    `nan_names`: constants that hold NaN.
    """
    wrong = f"NaN in {np.count_nonzero(np.isnan(value)):,} of {format_count(value.size, 'value')}"
    first_name = name
    while first_name in producers and (earlier := [n for n in producers[first_name].inputs if n in nan_names]):
        first_name = earlier[0]
    if first_name not in producers:
        return refuse(f"constant {name}", f"is computed of constants and holds {wrong}, and {reader} reads it", _MEND)
    producer = producers[first_name]
    operands = ", ".join(f'"{n}"' for n in dict.fromkeys(producer.inputs) if n)
    reads = f'{reader} reads "{name}" with {wrong}'
    return refuse(f"node {producer.name} ({producer.op_type})", f"makes NaN of constants ({operands}); {reads}", _MEND)
