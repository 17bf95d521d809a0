"""Turn the graph of a quantized model into a float network, and note how the file quantizes its constants.

It runs after import and before canonicalization. A model without quantizing operators passes unchanged.
Constants become real numbers, and computation on codes becomes computation on the numbers that the codes stand for.
What remains are pairs of QuantizeLinear and DequantizeLinear on activations, one directly behind the other.
`passes.fold_qdq` later turns those into scales of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from toolchain.errors import format_count
from toolchain.frontend.convert import numpy_dtype, type_of
from toolchain.frontend.dequantize_state import (
    CODES,
    CodeTensor,
    DequantizeState,
    QuantizedConstant,
    get_real_tensor,
    make_block_quantized_constant,
    make_codes,
    make_quantized_constant,
)
from toolchain.frontend.errors import refuse_node
from toolchain.frontend.infer import evaluate
from toolchain.frontend.integer_products import (
    PRODUCTS,
    cast_codes,
    fold_bias_into_product,
    fold_scale_into_product,
    integer_product,
    split_batched_matmul,
)
from toolchain.frontend.rewrite import operand
from toolchain.ir.file_quantization import FileWeights
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, distinctly_named

# Operators of which codes of their outputs mean what codes of their first input do.
MOVES = frozenset(
    (
        *("DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "SpaceToDepth", "Split"),
        *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
WEIGHTED: Mapping[str, int] = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": -1}  # the output channels' axis of input 1
NUMPY = frozenset((*CODES, "int32"))  # types of codes that onnxruntime takes from Python
_LOST = "are rounded anew, no machine has scales along what products sum over, nor in blocks of kernels"
QUANTIZERS = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))


@dataclass(frozen=True)
class DequantizedGraph:
    """A dequantized graph with the quantization of its constants.

    `stored`: by node, how the file holds its constants; nodes without quantized constants have no entry.
    `notes`: sentences about weights that no machine can hold as the file does, and that are quantized again.
    """

    graph: OnnxGraph
    stored: Mapping[str, FileWeights]
    notes: tuple[str, ...] = ()


def dequantize_graph(graph: OnnxGraph, opset: int, static: bool = False) -> DequantizedGraph:
    """Return the graph in real numbers, with the file's quantization of constants beside it.

    Raise CompileError for scales of activations that are not finite and positive.
    Inputs and outputs keep their names and types, codes included. `graph` is not changed. `opset`: of the model.
    `static`: treat DynamicQuantizeLinear, which takes each run's own range, as a pair whose range is calibrated once.
    """
    walk = DequantizeState(graph, opset, static, dict(graph.types), dict(graph.constants))
    if not any(n.op.op_type in QUANTIZERS for n in graph.nodes):
        return DequantizedGraph(graph, {})
    for node in graph.nodes:
        _take(node, walk)
    for name in graph.outputs:
        make_codes(name, walk)
        if name in walk.same:
            walk.emit(Node(f"{name}/identity", OnnxOp("Identity"), (name,), (name,), ()))
            del walk.same[name]
    done = replace(graph, nodes=distinctly_named(walk.nodes), types=walk.types, constants=walk.constants)
    return DequantizedGraph(done, walk.stored, tuple(_notes(walk)))


def _notes(walk: DequantizeState) -> Iterator[str]:
    """Yield notes about weights that no machine holds as the file does."""
    if walk.lost:
        yield f"weights of {format_count(walk.lost, 'layer')} {_LOST}"
    read = [walk.floats[n] for node in walk.nodes for n in node.inputs[:2] if n in walk.floats and node.op.op_type in WEIGHTED]
    if read:
        yield f"weights of {format_count(len(read), 'layer')} are {', '.join(sorted(set(read)))} in the file, and rounded anew"


def _take(node: OnnxNode, walk: DequantizeState) -> None:
    """Convert one node by its rule, which returns whether it did; else as data movement, or keep it."""
    rule = None if node.op.domain else _RULES.get(node.op.op_type)
    if rule is not None and rule(node, walk):
        return
    if not _convert_data_movement(node, walk):
        _plain(node, walk)


def _parameters(node: OnnxNode, walk: DequantizeState) -> tuple[np.ndarray, np.ndarray, str] | None:
    """Return scale, zero point and type of the codes of a QuantizeLinear or DequantizeLinear; None where scale or point is
    computed.

    Scales of constants may be zero or less: onnxruntime's quantizer to four bits writes such.
    Raise CompileError for such scales of activations.
    """
    scale = walk.constants.get(operand(node, 1))
    quantizes = node.op.op_type == "QuantizeLinear"
    dtype = walk.types[node.outputs[0] if quantizes else node.inputs[0]].dtype
    point = walk.constants.get(operand(node, 2)) if operand(node, 2) else np.zeros((), np.int32)
    if scale is None or point is None:
        return None
    bad = scale[~(np.isfinite(scale) & (scale > 0))].reshape(-1)
    if bad.size and node.inputs[0] not in walk.constants:
        raise refuse_node(node, f"has the scale {bad[0]:g}; scales are finite and above zero", "quantize the model again")
    return scale, point, dtype


def _quantize(node: OnnxNode, walk: DequantizeState) -> bool:
    """Convert a QuantizeLinear; return whether it was converted.

    One of a constant is computed. The output of another with one scale is recorded as codes; its real numbers follow when
    read.
    """
    qparams, x = _parameters(node, walk), node.inputs[0]
    if x in walk.constants and qparams is not None and qparams[2] not in NUMPY:
        scale, point, dtype = qparams
        point = point.astype(numpy_dtype(dtype))  # absent with output_dtype
        walk.constants[node.outputs[0]] = _quantize_constant(walk.constants[x], scale, point, node)
        return True
    if x in walk.constants and qparams is not None:
        value_by_output = evaluate(
            replace(node, inputs=tuple(walk.same.get(n, n) for n in node.inputs)), walk.constants, walk.opset
        )
        walk.constants.update(value_by_output)
        walk.types.update((n, type_of(v)) for n, v in value_by_output.items())
        return True
    if qparams is None or qparams[0].size != 1 or qparams[2] not in CODES:
        return False
    walk.emit(node)
    walk.code_tensors[node.outputs[0]] = CodeTensor(
        "", float(qparams[0].reshape(-1)[0]), int(qparams[1].reshape(-1)[0]), qparams[2]
    )
    return True


def _quantize_constant(x: np.ndarray, scale: np.ndarray, point: np.ndarray, node: OnnxNode) -> np.ndarray:
    """Return x in codes of a type that onnxruntime does not take from Python: float8, float4, or 4 bits."""
    import ml_dtypes  # comes with onnx

    of, zero = (_broadcast_qparam(v.astype(np.float32), x.shape, node) for v in (scale, point))
    limits = getattr(ml_dtypes, "finfo" if point.dtype.name.startswith("float") else "iinfo")(point.dtype)
    codes = x / of + zero if point.dtype.name.startswith("float") else np.rint(x / of) + zero
    return np.clip(codes, float(limits.min), float(limits.max)).astype(point.dtype)


def _broadcast_qparam(values: np.ndarray, shape: tuple[int, ...], node: OnnxNode) -> np.ndarray:
    """Return scales or zero points of a QuantizeLinear or DequantizeLinear, as an array that broadcasts to `shape`."""
    block, axis = int(node.op.attributes.get("block_size") or 0), int(node.op.attributes.get("axis", 1))
    if values.size == 1:
        return values.reshape(())
    if values.ndim == 1 and not block:
        return values.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
    return np.take(np.repeat(values, max(block, 1), axis), range(shape[axis]), axis)


def _dequantize(node: OnnxNode, walk: DequantizeState) -> bool:
    """Convert a DequantizeLinear; return whether it was converted. Where its codes have real numbers already, these are its
    output.
    """
    qparams, q, y = _parameters(node, walk), node.inputs[0], node.outputs[0]
    if qparams is None:
        return False
    if q in walk.constants:
        _dequantize_constant(node, *qparams[:2], walk)
        return True
    if fold_scale_into_product(node, *qparams[:2], walk):
        return True
    if qparams[0].size != 1:
        return False
    code_tensor = CodeTensor("", float(qparams[0].reshape(-1)[0]), int(qparams[1].reshape(-1)[0]), qparams[2])
    earlier_tensor = walk.code_tensors.get(q, code_tensor)
    if replace(earlier_tensor, real="") != code_tensor:
        return False  # other scales than those that made it
    if earlier_tensor.real:
        walk.same[y] = walk.same.get(earlier_tensor.real, earlier_tensor.real)
        return True
    walk.emit(node)
    walk.code_tensors[q] = replace(earlier_tensor, real=y)
    return True


def _dequantize_constant(node: OnnxNode, scale: np.ndarray, point: np.ndarray, walk: DequantizeState) -> None:
    """Compute a DequantizeLinear of a constant, and note how the file holds it.

    Nothing is noted of codes that are floats (float8, float4): no machine has such.
    """
    codes = walk.constants[node.inputs[0]]
    floats = codes.dtype.name.startswith("float")
    number = np.float64 if floats else np.int64
    integer_codes, point = codes.astype(number), point.astype(number)
    block, axis = int(node.op.attributes.get("block_size") or 1), int(node.op.attributes.get("axis", 1)) % max(codes.ndim, 1)
    spread, zero = (_broadcast_qparam(v, codes.shape, node) for v in (scale, point))
    y = node.outputs[0]
    value = ((integer_codes - zero).astype(np.float32) * spread.astype(np.float32)).astype(np.float32)
    walk.constants[y] = value
    walk.types[y] = type_of(value)
    if floats:
        walk.floats[y] = codes.dtype.name
    elif scale.ndim > 1 and scale.size > 1:
        walk.quantized_constants[y] = make_block_quantized_constant(integer_codes, scale, point, axis, block)
    else:
        walk.quantized_constants[y] = make_quantized_constant(
            integer_codes - zero, scale, axis, spread, int(point.reshape(-1)[0]), codes.dtype.name
        )


def _dynamic(node: OnnxNode, walk: DequantizeState) -> bool:
    """Convert a DynamicQuantizeLinear, whose scale and zero point each run computes; return whether it was converted.

    With `static` it stays as a pair that calibration gives a range. What reads its codes reads real numbers: codes of scale
    1.
    """
    if not walk.static:
        return _convert_dynamic_codes(node, walk)
    y, scale, point = node.outputs
    real = walk.fresh(f"{y}/real")
    walk.emit(node)
    walk.emit(Node(f"{node.name}/real", OnnxOp("DequantizeLinear", {"axis": 1}), (y, scale, point), (real,), node.sources))
    walk.same[scale] = walk.constant(f"{scale}/one", np.ones((), np.float32))
    walk.same[point] = walk.constant(f"{point}/none", np.zeros((), np.uint8))
    walk.code_tensors[y] = CodeTensor(real, 1.0, 0, "uint8")
    return True


def _convert_dynamic_codes(node: OnnxNode, walk: DequantizeState) -> bool:
    """Convert a DynamicQuantizeLinear that only products read; return whether it could be converted.

    Codes less their zero point are numbers of a separate tensor, in units of a scale that each run computes.
    After the products the file multiplies by that scale, as by any other tensor.
    """
    y, _, point = node.outputs
    readers = [n for n in walk.graph.nodes if not {y, point}.isdisjoint(n.inputs)]
    if not {y, point}.isdisjoint(walk.graph.outputs) or not all(_multiplies(n, y, point) for n in readers):
        return False
    walk.emit(node)
    units, one = walk.fresh(f"{y}/units"), walk.constant(f"{y}/one", np.ones((), np.float32))
    walk.emit(Node(f"{node.name}/units", OnnxOp("DequantizeLinear", {"axis": 1}), (y, one, point), (units,), node.sources))
    walk.same[point] = walk.constant(f"{point}/none", np.zeros((), np.uint8))
    walk.code_tensors[y] = CodeTensor(units, 1.0, 0, "uint8")
    return True


def _multiplies(node: OnnxNode, codes: str, point: str) -> bool:
    """Return whether the node uses the codes only in a product of these codes less this zero point."""
    operands = [(operand(node, i), operand(node, i + 2)) for i in range(2)]
    mine = all((a == codes) == (p == point) for a, p in operands)
    return node.op.op_type in PRODUCTS and mine and codes not in node.inputs[2:] and point not in node.inputs[:2]


def _convert_data_movement(node: OnnxNode, walk: DequantizeState) -> bool:
    """Convert a node that only moves codes, to move the real numbers; return whether it is one.

    A MaxPool counts too, since larger codes stand for larger numbers.
    """
    if node.op.domain or not node.inputs:
        return False
    parts = node.inputs if node.op.op_type == "Concat" else node.inputs[:1]
    codes = [walk.code_tensors.get(n) for n in parts]
    first = codes[0]
    if first is None or not _only_moves(node):
        return False
    if any(c is None or replace(c, real="") != replace(first, real="") for c in codes):
        return False
    reals = [get_real_tensor(n, walk) for n in parts]
    others = node.inputs[len(parts) :]
    if node.op.op_type == "Pad":
        pads, code, *axes = (*others, "")
        value = walk.scalar(code) if code else 0.0
        if value is None:
            return False
        around = np.asarray((value - first.zero_point) * first.scale, np.float32)
        others = (pads, walk.constant(f"{node.name}/value", around), *(n for n in axes if n))
    outputs = tuple(walk.fresh(f"{n}/real") if n else "" for n in node.outputs)
    walk.emit(replace(node, inputs=(*reals, *others), outputs=outputs))
    walk.code_tensors.update((n, replace(first, real=real)) for n, real in zip(node.outputs, outputs) if n)
    return True


def _only_moves(node: OnnxNode) -> bool:
    """Return whether codes of the node's output mean what codes of its first input do, or of all inputs for a Concat."""
    kind, mode = node.op.op_type, node.op.attributes.get("mode", "")
    if kind == "MaxPool":
        return not any(node.outputs[1:])  # places, which codes have not
    return kind in MOVES or kind in ("Concat", "Pad") or (kind == "Resize" and mode == "nearest")


def _plain(node: OnnxNode, walk: DequantizeState) -> None:
    """Keep a node that no rule converts. Codes that it reads are computed where so far only real numbers exist."""
    for name in node.inputs:
        make_codes(name, walk)
    how = _how(node, walk)
    if how is not None:
        walk.stored[node.name] = how
    walk.emit(node)


def _product(node: OnnxNode, walk: DequantizeState) -> bool:
    """Convert a MatMul whose weights no machine holds in one product, as several (`split_batched_matmul`); return whether it
    was.
    """
    parts = split_batched_matmul(node, walk)
    for part in parts:
        _take(part, walk)
    return bool(parts)


def _how(node: OnnxNode, walk: DequantizeState) -> FileWeights | None:
    """Return how the file holds the constants of a node, or None; weights that no `FileWeights` describes are counted in
    `walk.lost`.
    """
    weights = walk.quantized_constants.get(operand(node, 1))
    if node.op.op_type not in WEIGHTED:
        constant = weights or walk.quantized_constants.get(operand(node, 0))
        return None if constant is None else constant.find_axis_weights(0)
    if weights is None:
        left_weights = walk.quantized_constants.get(operand(node, 0)) if node.op.op_type == "MatMul" else None
        how = None if left_weights is None else left_weights.find_axis_weights(0)
        walk.lost += left_weights is not None and how is None
        return None if how is None else replace(how, product=True)
    transposed = node.op.op_type == "Gemm" and node.op.attributes.get("transB", 0)
    several = node.op.op_type == "MatMul" and isinstance(weights, QuantizedConstant) and weights.scale.size > 1
    along_batch = several and weights.axis < weights.codes.ndim - 2  # to the chip an activation, of one scale
    how = weights.find_axis_weights(weights.axis if along_batch else 0 if transposed else WEIGHTED[node.op.op_type])
    bias = walk.quantized_constants.get(operand(node, 2))
    if how is None:
        walk.lost += 1
        return None
    is_int32_bias = isinstance(bias, QuantizedConstant) and bias.dtype == "int32"
    return replace(how, product=True, bias=bias.real() if is_int32_bias and isinstance(bias, QuantizedConstant) else None)


_RULES = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "ConvInteger": integer_product,
    "MatMul": _product,
    "MatMulInteger": integer_product,
    "Add": fold_bias_into_product,
    "Cast": cast_codes,
}
