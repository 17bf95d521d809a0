"""Write an ONNX graph of codes and real numbers node by node, for the QDQ export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, Quant, TensorType

Array = NDArray[Any]


@dataclass(frozen=True)
class CodedTensor:
    """The codes of a model's tensor on the chip.

    `dtype`: numpy's name of their type. `is_chip_output`: whether the chip makes them, and does not only read them.
    """

    quant: Quant
    dtype: str
    is_chip_output: bool


@dataclass
class Writer:
    """A writer of nodes beside a source graph, which it does not change.

    `coded`: by model tensor that the chip holds, its codes.
    `nodes`, `types`, `constants`: what was written so far; `types` has the constants too.
    `dequantized`: by model tensor, the name of its real numbers behind the rounding.
    `codes`: by model tensor, the names of its codes and of their zero point.
    """

    source: OnnxGraph
    coded: Mapping[str, CodedTensor]
    nodes: list[OnnxNode] = field(default_factory=list[OnnxNode])
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    dequantized: dict[str, str] = field(default_factory=dict[str, str])
    codes: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def add_rounding(self, name: str, source: str, target: str) -> None:
        """Add QuantizeLinear and DequantizeLinear from `source` to `target`, by the codes of the model tensor `name`.

        `name`: a key of `coded`. `source`, `target`: names of tensors; `target` must be new, as `fresh` gives it. It goes into
        `dequantized`, as what the chip's nodes read for `name`.
        """
        coded = self.coded[name]
        parameters = self._parameters(name, coded.quant.scale, coded.quant.zero_point, coded.dtype)
        codes, shape = self.fresh(f"{name}/codes"), self.source.types[name].shape
        self.types[codes] = TensorType(shape, coded.dtype)
        self.types[target] = self.source.types[name]
        self.nodes.append(Node(f"{name}/quantize", OnnxOp("QuantizeLinear"), (source, *parameters), (codes,)))
        self.nodes.append(Node(f"{name}/dequantize", OnnxOp("DequantizeLinear"), (codes, *parameters), (target,)))
        self.dequantized[name], self.codes[name] = target, (codes, parameters[1])

    def _parameters(self, name: str, scale: Any, zero_point: Any, dtype: str) -> tuple[str, str]:
        return (
            self.constant(f"{name}/scale", np.asarray(scale, np.float32)),
            self.constant(f"{name}/zero_point", np.asarray(zero_point, dtype)),
        )

    def fresh(self, name: str) -> str:
        """Return `name`, or one like it, that no tensor of the source or written has. It is not reserved."""
        while name in self.source.types or name in self.types:
            name += "'"
        return name

    def constant(self, name: str, value: Array) -> str:
        """Add a constant and return its name, made from `name`."""
        name = self.fresh(name)
        self.constants[name] = value
        self.types[name] = TensorType(value.shape, str(value.dtype))
        return name

    def add_quantized_constant(self, name: str, codes: Array, scale: Array, zero_point: Array, axis: int | None = None) -> str:
        """Add a constant as codes and their DequantizeLinear; return the name of the real numbers.

        `axis`: the dimension of several scales; None for one scale.
        """
        name = self.fresh(name)
        stored = self.constant(f"{name}/codes", codes)
        parameters = self._parameters(name, scale, zero_point, str(codes.dtype))
        self.types[name] = TensorType(codes.shape, "float32")
        attributes = {} if axis is None else {"axis": axis}
        self.nodes.append(Node(f"{name}/dequantize", OnnxOp("DequantizeLinear", attributes), (stored, *parameters), (name,)))
        return name

    def add_node(self, name: str, op_type: str, inputs: tuple[str, ...], kind: TensorType, **attributes: Any) -> str:
        """Add a node with one output of the type `kind`; both are called `name` or like it. Return that name."""
        name = self.fresh(name)
        self.types[name] = kind
        self.nodes.append(Node(name, OnnxOp(op_type, attributes), inputs, (name,)))
        return name
