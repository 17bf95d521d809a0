"""Graphs of independent TOSA operators, run in one call of the TOSA reference model (tests and vector writer).

graph = TosaGraph()
y = graph.add("MATMUL", [a, b, zero_a, zero_b], (1, 4, 5), "INT32")
outputs = graph.run()       # [y's array, ...] in the order of add
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
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {"int8": "INT8", "uint8": "INT8", "int16": "INT16", "uint16": "INT16", "int32": "INT32", "int64": "INT48"}
_NUMPY = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT48": np.int64}


def missing() -> str | None:
    """The reason why the reference model cannot run here, or None."""
    if importlib.util.find_spec("serializer") is None or _program() is None:
        return "tosa-tools is not installed (pip install tosa-tools)"
    return None


def _program() -> str | None:
    return shutil.which("tosa_reference_model", path=str(Path(sys.executable).parent)) or shutil.which("tosa_reference_model")


def _number(enumeration: str, name: str) -> int:
    module: Any = importlib.import_module(f"tosa.{enumeration}")
    return getattr(getattr(module, enumeration)(), name)


class TosaGraph:
    """Operators of one graph; every output is an output of the graph."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="tosa")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.serializer_module: Any = importlib.import_module("serializer.tosa_serializer")
        self.graph = self.serializer_module.TosaSerializer(self.directory.name)
        self.outputs: list[np.dtype] = []

    def shape(self, values: Sequence[int]) -> Any:
        """A constant of the type shape."""
        return self.graph.addConst([len(values)], _number("DType", "SHAPE"), np.array(values, np.int64))

    def constant(self, values: Any, kind: str) -> Any:
        """A constant tensor."""
        array = np.atleast_1d(np.asarray(values))
        return self.graph.addConst(list(array.shape), _number("DType", kind), array)

    def add(self, op: str, inputs: Sequence[Any], shape: Sequence[int], kind: str, *attributes: Any) -> None:
        """inputs: arrays (fed from files; int64 as 48 bits) or constants; kind: 'INT8', ... of the output."""
        names = [self._feed(x).name if isinstance(x, np.ndarray) else x.name for x in inputs]
        output = self.graph.addOutput(list(shape), _number("DType", kind))
        attribute = self.serializer_module.TosaSerializerAttribute()
        number = _number("Op", op)
        if op == "CLAMP":
            attributes = (self.graph.builder, *attributes)
        attribute.setAttribute(number, *attributes)
        self.graph.addOperator(number, names, [output.name], attribute)
        self.outputs.append(np.dtype(_NUMPY[kind]))

    def _feed(self, x: np.ndarray) -> Any:
        signed = x.view(x.dtype.str.replace("u", "i")) if x.dtype.kind == "u" else x
        return self.graph.addPlaceholder(list(x.shape), _number("DType", _TYPES[x.dtype.name]), signed)

    def run(self) -> list[np.ndarray]:
        """The outputs, in the order of add."""
        folder = Path(self.directory.name)
        (folder / "test.tosa").write_bytes(self.graph.serialize())
        (folder / "desc.json").write_text(self.graph.writeJson("test.tosa"))
        done = subprocess.run(
            [str(_program()), f"--test_desc={folder / 'desc.json'}", "--tosa_level=NONE"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"tosa_reference_model: {done.stdout}{done.stderr}")
        names = [t for block in self.graph.currRegion.basicBlocks for t in block.outputs]
        return [np.load(folder / f"ref-{name}.npy").astype(kind) for name, kind in zip(names, self.outputs, strict=True)]


def rounding_mode(name: str) -> int:
    return _number("RoundingMode", name)


def resize_mode(name: str) -> int:
    return _number("ResizeMode", name)


def dtype_number(name: str) -> int:
    return _number("DType", name)
