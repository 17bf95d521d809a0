"""Define the state of the dequantizing walk: which tensors are codes, of what, and what replaced them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolchain.frontend.convert import elem_type, type_of
from toolchain.frontend.infer import evaluate, foldable, infer
from toolchain.frontend.quantized_constants import BlockQuantizedConstant, QuantizedConstant
from toolchain.frontend.rewrite import operand
from toolchain.ir.file_quantization import FileWeights
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType, fresh_name

CODES = frozenset(("int8", "uint8", "int16", "uint16"))
SUMS = "int32"


@dataclass(frozen=True)
class CodeTensor:
    """A tensor of codes, with its scale and zero point.

    `real`: the float tensor that the codes stand for, "" until something reads it.
    Sums of products have no dtype of CODES: the scale of one input is known and the scale of the weights is not.
    """

    real: str
    scale: float
    zero_point: int
    dtype: str


@dataclass
class DequantizeState:
    """The state of the walk: the nodes taken so far, in real numbers.

    `same`: by tensor, the one that holds the same.
    `code_tensors`: tensors of codes by name.
    `static`: ranges of each run are calibrated.
    """

    graph: OnnxGraph
    opset: int
    static: bool
    types: dict[str, TensorType]
    constants: dict[str, np.ndarray]
    same: dict[str, str] = field(default_factory=dict)
    code_tensors: dict[str, CodeTensor] = field(default_factory=dict)
    emitted_tensors: set[str] = field(default_factory=set)  # tensors that a node emitted so far makes
    quantized_constants: dict[str, QuantizedConstant | BlockQuantizedConstant] = field(default_factory=dict)  # by constant
    nodes: list[OnnxNode] = field(default_factory=list)
    stored: dict[str, FileWeights] = field(default_factory=dict)  # by node
    floats: dict[str, str] = field(default_factory=dict)  # by constant, the type of its codes, which are floats
    lost: int = 0  # layers whose weights are held in a way that is no `FileWeights`

    def emit(self, node: OnnxNode) -> None:
        """Computes the node where all that it reads is constant, else adds it."""
        node = replace(node, inputs=tuple(self.same.get(n, n) for n in node.inputs))
        if foldable(node, self.constants):
            self.constants.update(evaluate(node, self.constants, self.opset))
            self.types.update((n, type_of(self.constants[n])) for n in node.outputs if n)
            block_constant = self.quantized_constants.get(operand(node, 0))
            if isinstance(block_constant, BlockQuantizedConstant) and (
                result_constant := block_constant.apply_node(node, tuple(self.constants[n] for n in node.inputs[1:]))
            ):
                self.quantized_constants[node.outputs[0]] = result_constant
            return
        self.types.update(infer(node, self.types, self.constants, self.opset))
        self.nodes.append(node)
        self.emitted_tensors.update(node.outputs)

    def fresh(self, base: str) -> str:
        """A name that no tensor has."""
        return fresh_name(base, self.types)

    def constant(self, base: str, value: np.ndarray) -> str:
        """The name of a new constant."""
        name = self.fresh(base)
        self.constants[name] = value
        self.types[name] = type_of(value)
        return name

    def scalar(self, name: str) -> float | None:
        """A constant of one number, as of a scale or zero point."""
        value = self.constants.get(self.same.get(name, name))
        return None if value is None or value.size != 1 else float(value.reshape(-1)[0])


def get_real_tensor(name: str, walk: DequantizeState) -> str:
    """The float tensor that codes stand for."""
    codes = walk.code_tensors[name]
    if codes.real:
        return walk.same.get(codes.real, codes.real)
    real_name = walk.fresh(f"{name}/real")
    walk.emit(_conversion("DequantizeLinear", name, real_name, codes, walk))
    walk.code_tensors[name] = replace(codes, real=real_name)
    return real_name


def make_codes(name: str, walk: DequantizeState) -> None:
    """Quantize the codes from their real tensor where only the real tensor exists."""
    codes = walk.code_tensors.get(name)
    if codes is None or name in walk.emitted_tensors or name in walk.graph.inputs:
        return
    if codes.dtype == SUMS:
        _make_sums(name, codes, walk)
        return
    walk.emit(_conversion("QuantizeLinear", codes.real, name, codes, walk))


def _make_sums(name: str, codes: CodeTensor, walk: DequantizeState) -> None:
    """Sums of products, where anything but their scales reads them: whole numbers, exact below 2^24."""
    factor = walk.constant(f"{name}/factor", np.asarray(1 / codes.scale, np.float32))
    scaled, rounded_sums = walk.fresh(f"{name}/scaled"), walk.fresh(f"{name}/whole")
    walk.emit(Node(f"{name}/scale", OnnxOp("Mul"), (codes.real, factor), (scaled,), ()))
    walk.emit(Node(f"{name}/round", OnnxOp("Round"), (scaled,), (rounded_sums,), ()))
    walk.emit(Node(f"{name}/cast", OnnxOp("Cast", {"to": elem_type(SUMS)}), (rounded_sums,), (name,), ()))


def _conversion(op_type: str, x: str, y: str, codes: CodeTensor, walk: DequantizeState) -> OnnxNode:
    scale = walk.constant(f"{y}/scale", np.asarray(codes.scale, np.float32))
    point = walk.constant(f"{y}/zero_point", np.asarray(codes.zero_point, codes.dtype))
    attributes: dict[str, Any] = {"axis": 1}
    return Node(f"{y}/{op_type}", OnnxOp(op_type, attributes), (x, scale, point), (y,), ())
