"""Read the graph of a stage from the files that `npu-build --dump-after` wrote, for `--start-from`."""

from __future__ import annotations

import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from quant.array_files import read_array_headers
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from toolchain.errors import CompileError, ConfigError, ToolchainError, first_line, is_out_of_memory
from toolchain.foundation.atomic_files import read_limited
from toolchain.frontend.infer import is_onnx_operator
from toolchain.input_limits import LISTING_BYTES
from toolchain.ir.graph import Graph, Node, OnnxOp, Operator, TensorType
from toolchain.ir.parse_text import StageGraph, classes_of, parse_graph
from toolchain.ops.kit.operator import NpuOp

ARRAYS = "constants.npz"  # beside the texts of all stages
_DUMP_AGAIN = f"dump the stage again with npu-build --dump-after, and take the {ARRAYS} of that build"
STARTS = ("compose", "select", "clamps", "quantize", "fuse")  # stages that a build can begin behind


def read_stage(path: Path) -> StageGraph:
    """Return the graph of a stage. The arrays that its text names are read from `constants.npz` in the same folder.

    Raise OSError, and CompileError where the text is not understood or no build can begin behind its stage.
    Nodes of integer operators are run on zeros once, to see that their fields fit their tensors.
    """
    try:
        text = read_limited(path, LISTING_BYTES).decode()
    except UnicodeDecodeError:
        raise CompileError(f"{path}: is no text in UTF-8; npu-build --dump-after writes one") from None
    stage = parse_graph(text, str(path), classes_of(Operator), read_arrays(path.parent / ARRAYS))
    if stage.stage not in STARTS:
        named = f"stage {stage.stage}" if stage.stage else "no stage"
        raise CompileError(f"{path}: is the graph of {named}; a build can begin behind {', '.join(STARTS)}")
    for node in stage.graph.nodes:
        if fault := _find_fault(node, stage.graph):
            raise CompileError(f"{stage.places[node.name]}: {fault}")
    return stage


def _find_fault(node: Node[Any], graph: Graph[Any]) -> str | None:
    """Return why a node's operator cannot be computed from its inputs; None: it can."""
    op, name = node.op, type(node.op).__name__
    if isinstance(op, OnnxOp):
        is_operator = op.domain != "" or is_onnx_operator(op.op_type)
        return None if is_operator else f"onnx.{op.op_type}: is no operator of ONNX"
    types = [graph.types.get(n) for n in (*node.inputs, *node.outputs) if n]
    if not isinstance(op, NpuOp) or None in types:
        return None
    read = [graph.types[n] for n in node.inputs if n]
    words = ", ".join(map(_describe, read)) or "no inputs"
    try:  # of zeros, which show how many inputs of what shapes it takes
        codes = op.reference([graph.constants[n] if n in graph.constants else _zeros(graph.types[n]) for n in node.inputs if n])
    except FixedPointError as error:
        return f"{name}: cannot be computed of {words}: {first_line(error)}"
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return f"{name}: cannot be computed of {words}, which do not fit its fields or each other"
    output = graph.types[node.outputs[0]]
    if (codes.shape, codes.dtype) != (output.shape, np.dtype(output.dtype)):
        return f"{name}: gives {codes.dtype}{list(codes.shape)} of {words}, the output is {_describe(output)}"
    return None


def _zeros(kind: TensorType) -> np.ndarray:
    return np.zeros(kind.shape, kind.dtype)


def _describe(kind: TensorType) -> str:
    return f"{kind.dtype}{list(kind.shape)}"


def list_stage_files(path: Path) -> list[Path]:
    """Return the files that `read_stage` reads."""
    return [path, path.parent / ARRAYS]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by their digests; none where there is no such file.

    Raise CompileError where it is damaged.
    """
    if not path.exists():
        return {}
    return {name: stored.read() for name, stored in read_array_headers(path, lone=False, way_out=_DUMP_AGAIN).items()}


@contextmanager
def blame_start(start: StageGraph | None) -> Generator[None]:
    """Turn unexpected faults inside into a CompileError that blames the edited graph.

    CompileError, ConfigError, OSError and lack of memory pass unchanged. Without a start all faults pass.
    """
    try:
        yield
    except (CompileError, ConfigError, OSError, MemoryError):
        raise
    except Exception as error:
        if start is None or is_out_of_memory(error):
            raise
        words = f": {first_line(error)}" if isinstance(error, ToolchainError) else f" ({_locate(error)})"
        fault = f"the graph behind {start.stage} cannot be compiled as it is edited"
        raise CompileError(f"--start-from: {fault}{words}; undo edits one by one until it is") from error


def _locate(error: Exception) -> str:
    """Return the file and line of the toolchain at which an exception was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}, does not expect it"
