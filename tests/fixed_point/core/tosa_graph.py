"""Run graphs of independent TOSA operators in one call of the TOSA reference model (tests and vector writer).

`graph = TosaGraph()`.
`y = graph.add("MATMUL", [a, b, zero_a, zero_b], (1, 4, 5), "INT32")`.
`outputs = graph.run()` returns [y's array, ...] in the order of add.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {"int8": "INT8", "uint8": "INT8", "int16": "INT16", "uint16": "INT16", "int32": "INT32", "int64": "INT48"}
_NUMPY = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT48": np.int64}


def missing() -> str | None:
    """The reason why the reference model cannot run here, or None."""
    if importlib.util.find_spec("serializer") is None or _program() is None:
        return "tosa-tools is not installed (pip install --no-deps tosa-tools)"
    return None


def _program() -> str | None:
    return shutil.which("tosa_reference_model", path=str(Path(sys.executable).parent)) or shutil.which("tosa_reference_model")


@dataclass(frozen=True)
class Constant:
    """A constant of a TOSA type ("INT8", ..., "SHAPE")."""

    values: np.ndarray
    kind: str


@dataclass(frozen=True)
class Enumerator:
    """An entry of an enumeration of the schema, looked up when the graph is written."""

    enumeration: str
    name: str

    def number(self) -> int:
        module: Any = importlib.import_module(f"tosa.{self.enumeration}")
        return getattr(getattr(module, self.enumeration)(), self.name)


@dataclass(frozen=True)
class Operator:
    """An operator of a TOSA graph.

    `inputs`: arrays (fed from files; int64 as 48 bits) or constants.
    `kind`: "INT8", ... of the output.
    """

    op: str
    inputs: Sequence[Any]
    shape: Sequence[int]
    kind: str
    attributes: tuple[Any, ...]


class TosaGraph:
    """Operators of one graph; every output is an output of the graph. Only `run` needs tosa-tools."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []

    def shape(self, values: Sequence[int]) -> Constant:
        """A constant of the type shape."""
        return Constant(np.array(values, np.int64), "SHAPE")

    def constant(self, values: Any, kind: str) -> Constant:
        """A constant tensor."""
        return Constant(np.atleast_1d(np.asarray(values)), kind)

    def add(self, op: str, inputs: Sequence[Any], shape: Sequence[int], kind: str, *attributes: Any) -> None:
        """Appends an operator; attributes in the order of its table."""
        self.operators.append(Operator(op, inputs, shape, kind, attributes))

    def run(self) -> list[np.ndarray]:
        """The outputs, in the order of add."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module: Any = importlib.import_module("serializer.tosa_serializer")
        with tempfile.TemporaryDirectory(prefix="tosa") as name:
            graph = module.TosaSerializer(name)
            for operator in self.operators:
                _write(module, graph, operator)
            folder = Path(name)
            (folder / "test.tosa").write_bytes(graph.serialize())
            (folder / "desc.json").write_text(graph.writeJson("test.tosa"))
            done = subprocess.run(
                [str(_program()), f"--test_desc={folder / 'desc.json'}", "--tosa_level=NONE"],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"tosa_reference_model: {done.stdout}{done.stderr}")
            names = [t for block in graph.currRegion.basicBlocks for t in block.outputs]
            return [
                np.load(folder / f"ref-{output}.npy").astype(_NUMPY[operator.kind])
                for output, operator in zip(names, self.operators, strict=True)
            ]


def _write(module: Any, graph: Any, operator: Operator) -> None:
    names = [_feed(graph, x).name for x in operator.inputs]
    output = graph.addOutput(list(operator.shape), Enumerator("DType", operator.kind).number())
    attribute = module.TosaSerializerAttribute()
    number = Enumerator("Op", operator.op).number()
    attributes = [a.number() if isinstance(a, Enumerator) else a for a in operator.attributes]
    if operator.op == "CLAMP":
        attributes.insert(0, graph.builder)
    attribute.setAttribute(number, *attributes)
    graph.addOperator(number, names, [output.name], attribute)


def _feed(graph: Any, x: np.ndarray | Constant) -> Any:
    if isinstance(x, Constant):
        return graph.addConst(list(x.values.shape), Enumerator("DType", x.kind).number(), x.values)
    signed = x.view(x.dtype.str.replace("u", "i")) if x.dtype.kind == "u" else x
    return graph.addPlaceholder(list(x.shape), Enumerator("DType", _TYPES[x.dtype.name]).number(), signed)


def rounding_mode(name: str) -> Enumerator:
    return Enumerator("RoundingMode", name)


def resize_mode(name: str) -> Enumerator:
    return Enumerator("ResizeMode", name)


def dtype_number(name: str) -> Enumerator:
    return Enumerator("DType", name)
