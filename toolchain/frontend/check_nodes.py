"""Find contradictions in a node that onnx's own shape inference lets pass, such as an axis beyond the rank.

`check` runs while the nodes are imported. Each rule yields an error of one sentence with the value and its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard

import numpy as np

from toolchain.frontend.errors import NodeFault, all_of, refuse_node
from toolchain.ir.graph import OnnxNode, TensorType

Shape = tuple[int, ...]
Faults = Iterator[NodeFault]
SAME = ("SAME_UPPER", "SAME_LOWER")
DISAGREE = "the specification and onnxruntime do not agree what that is"
# Onnx's inference takes any number but 0 for true, onnxruntime 1 alone.
_FLAGS = ("keepdims", "noop_with_empty_axes", "allowzero", "select_last_index", "count_include_pad", "transA", "transB")
_REDUCTIONS = ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
# Numbers that may be as large as they like: values, and ends of a part, which stop at the tensor's.
_ANY_NUMBER = frozenset(("value_int", "value_ints", "start", "end", "starts", "ends"))
_INT32 = np.iinfo(np.int32)
# Inputs that onnxruntime takes as lists of numbers alone, while onnx's inference lets any rank pass.
_LISTS: Mapping[str, Sequence[int]] = {
    **dict.fromkeys((f"Reduce{kind}" for kind in _REDUCTIONS), (1,)),
    **dict.fromkeys(("Split", "Squeeze", "Reshape"), (1,)),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
}
# Inputs that hold one number, whatever their rank.
_NUMBERS: Mapping[str, Sequence[int]] = {**dict.fromkeys(("CumSum", "Trilu"), (1,)), "If": (0,), "Loop": (0, 1)}


@dataclass(frozen=True)
class NodeFacts:
    """A node with the types and constants of the graph so far. Inputs are addressed by their position."""

    node: OnnxNode
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def shape(self, index: int) -> Shape:
        return self.types[self.node.inputs[index]].shape

    def value(self, index: int) -> np.ndarray | None:
        """Return the value of an input; None where it is absent or no constant."""
        return self.constants.get(self.node.inputs[index]) if self.has(index) else None

    def ints(self, key: str, default: Sequence[int]) -> Shape:
        """Return an attribute of several integers; `default` where it is absent or empty."""
        return tuple(self.node.op.attributes.get(key) or default)

    def number(self, key: str, default: int) -> int:
        return int(self.node.op.attributes.get(key, default))

    def refuse(self, reason: str, way_out: str = "") -> NodeFault:
        return refuse_node(self.node, reason, way_out)


def check(node: OnnxNode, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray]) -> None:
    """Raise one CompileError with all contradictions of a node.

    Every node is checked for flags, numbers and list operands. The operator's own rule runs only where those are in order.
    Precondition: the number and types of the node's inputs are right.
    """
    rule = RULES.get(node.op.op_type) if not node.op.domain else None
    facts = NodeFacts(node, types, constants)
    faults = [*_flags(facts), *_numbers(facts), *_parameters(facts)]
    if not faults and rule is not None:
        faults = [*rule(facts)]
    if faults:
        raise all_of(faults)


def _flags(facts: NodeFacts) -> Faults:
    """Yield a fault for each flag that is neither 0 nor 1."""
    for key in () if facts.node.op.domain else _FLAGS:
        value = facts.number(key, 0)
        if value not in (0, 1):
            yield facts.refuse(f"{key}={value}: must be 0 or 1; {DISAGREE}")


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether the value of an attribute is a list."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _numbers(facts: NodeFacts) -> Faults:
    """Yield a fault for each attribute with a whole number beyond int32.

    With such axes and strides onnx and onnxruntime compute until they overflow. Constants' values, starts and ends are
    exempt.
    """
    for key, value in () if facts.node.op.domain else facts.node.op.attributes.items():
        numbers = value if _is_list(value) else (value,)
        far = next((n for n in numbers if isinstance(n, int) and not _INT32.min <= n <= _INT32.max), None)
        if far is not None and key not in _ANY_NUMBER:
            yield facts.refuse(f"{key}={list(numbers) if value is numbers else value}: {far} is beyond 32 bits")


def _parameters(facts: NodeFacts) -> Faults:
    """Yield a fault for each list of another rank than 1, and for each number of other than one element."""
    op_type = facts.node.op.op_type if not facts.node.op.domain else ""
    operand_shapes = {i: (n, facts.types[n].shape) for i, n in enumerate(facts.node.inputs) if n in facts.types}
    for name, shape in (operand_shapes[i] for i in _LISTS.get(op_type, ()) if i in operand_shapes):
        if len(shape) != 1:
            yield facts.refuse(f'its operand "{name}" is {list(shape)}; it must be a list of numbers, [n]')
    for name, shape in (operand_shapes[i] for i in _NUMBERS.get(op_type, ()) if i in operand_shapes):
        if prod(shape) != 1:
            yield facts.refuse(f'its operand "{name}" is {list(shape)}; it must be one number, []')


def conv(facts: NodeFacts) -> Faults:
    """Yield the faults of a Conv: kernel, channels, groups, bias, padding, a window larger than its input."""
    x, w, group = facts.shape(0), facts.shape(1), facts.number("group", 1)
    if len(x) != len(w) or len(x) < 3:
        return  # onnx says it
    yield from _kernel_of(facts, w[2:])
    if x[1] != w[1] * group or w[0] % group:
        weights = f"weights {list(w)} with group={group} take {w[1] * group}"
        yield facts.refuse(f"its input has {x[1]} channels; its {weights}, and their {w[0]} outputs must divide by the group")
    yield from _bias(facts, w[0])
    yield from _padding_once(facts, len(w) - 2)
    yield from _window_fits(facts, w[2:], ceil=False)


def conv_transpose(facts: NodeFacts) -> Faults:
    """Yield the faults of a ConvTranspose: kernel, channels, groups, bias, padding, output size."""
    x, w, group = facts.shape(0), facts.shape(1), facts.number("group", 1)
    if len(x) != len(w) or len(x) < 3:
        return
    yield from _kernel_of(facts, w[2:])
    if x[1] != w[0] or w[0] % group:
        yield facts.refuse(f"its input has {x[1]} channels; its weights {list(w)} take {w[0]}, which group={group} must divide")
    yield from _bias(facts, w[1] * group)
    yield from _padding_once(facts, len(w) - 2)
    yield from _spread_size(facts, x[2:], w[2:])


def _spread_size(facts: NodeFacts, size: Shape, kernel: Shape) -> Faults:
    """Yield the faults of a ConvTranspose's output size: it is some elements, and no more than its window and stride
    reach.
    """
    rank, auto, output_shape = len(kernel), facts.node.op.attributes.get("auto_pad", "NOTSET"), facts.ints("output_shape", ())
    strides, dilations, extra = (facts.ints(k, (d,) * rank) for k, d in (("strides", 1), ("dilations", 1), ("output_padding", 0)))
    pads = facts.ints("pads", (0,) * 2 * rank)
    if not all(len(v) == rank for v in (strides, dilations, extra, output_shape or kernel)) or len(pads) != 2 * rank:
        return
    reach = [s * (n - 1) + (k - 1) * d + 1 for n, s, k, d in zip(size, strides, kernel, dilations)]
    if any(out > n + s - 1 for out, n, s in zip(output_shape, reach, strides)):
        most = _by([n + s - 1 for n, s in zip(reach, strides)])
        yield facts.refuse(f"output_shape={list(output_shape)} is beyond the {most} that its window and strides reach")
    if not output_shape and auto in SAME and any(n + e < i * s for n, e, i, s in zip(reach, extra, size, strides)):
        reason = f"auto_pad={auto} with strides={list(strides)} beyond its window: {DISAGREE}"
        yield facts.refuse(reason, "give the size as output_shape=[...], or the padding as pads=[...]")
    padded_sizes = [n + e - a - b for n, e, a, b in zip(reach, extra, pads, pads[rank:])]
    if not output_shape and min(padded_sizes) < 1:
        yield facts.refuse(f"pads={list(pads)} leave nothing of the {_by([n + e for n, e in zip(reach, extra)])} that it makes")


def pool(facts: NodeFacts) -> Faults:
    """Yield the faults of a pooling operator: paddings on which ONNX and onnxruntime disagree, a window larger than its input."""
    kernel = facts.ints("kernel_shape", ())
    if len(kernel) != len(facts.shape(0)) - 2:
        return
    rank = len(kernel)
    yield from _padding_once(facts, rank)
    dilations, pads, mode = facts.ints("dilations", (1,) * rank), facts.ints("pads", (0,) * 2 * rank), facts.node.op.attributes
    auto = str(mode.get("auto_pad", "NOTSET"))
    if auto in SAME and any(k > 1 and d > 1 for k, d in zip(kernel, dilations)):
        reason = f"auto_pad={auto} with dilations={list(dilations)}: {DISAGREE}"
        yield facts.refuse(reason, "give the padding as pads=[...], without auto_pad")
    strides, size = facts.ints("strides", (1,) * rank), facts.shape(0)[2:]
    if auto in SAME and any((n - 1) // s * s + k < n for n, s, k in zip(size, strides, kernel)):
        reason = f"auto_pad={auto} with strides={list(strides)} beyond its window: {DISAGREE}"
        yield facts.refuse(reason, "give the padding as pads=[...], without auto_pad")
    if len(pads) == 2 * rank and any(p >= k for p, k in zip(pads, (*kernel, *kernel))):
        reason = f"pads={list(pads)} must be smaller than kernel_shape={list(kernel)}, as onnxruntime has it"
        yield facts.refuse(reason, "pad the input by a Pad before it")
    yield from _window_fits(facts, kernel, ceil=bool(mode.get("ceil_mode", 0)))


def _kernel_of(facts: NodeFacts, weights: Shape) -> Faults:
    """Yield a fault where kernel_shape differs from the weights' spatial shape."""
    kernel = facts.ints("kernel_shape", weights)
    if kernel != weights:
        yield facts.refuse(f'kernel_shape={list(kernel)}, but its weights "{facts.node.inputs[1]}" are {list(weights)} wide')


def _bias(facts: NodeFacts, outputs: int) -> Faults:
    """Yield a fault where there is a bias of another shape than [outputs]."""
    if facts.has(2) and facts.shape(2) != (outputs,):
        yield facts.refuse(f'its bias "{facts.node.inputs[2]}" is {list(facts.shape(2))}; it has {outputs} output channels')


def _padding_once(facts: NodeFacts, rank: int) -> Faults:
    """Yield a fault where auto_pad and pads are both given."""
    auto, pads = facts.node.op.attributes.get("auto_pad", "NOTSET"), facts.ints("pads", (0,) * 2 * rank)
    if auto != "NOTSET" and any(pads):
        reason = f"auto_pad={auto} and pads={list(pads)} contradict each other"
        yield facts.refuse(reason, "leave one of them out: only auto_pad=NOTSET goes with pads")


def _window_fits(facts: NodeFacts, kernel: Shape, ceil: bool) -> Faults:
    """Yield a fault where the window is larger than the padded input. `ceil`: the last window may end behind it."""
    rank, size = len(kernel), facts.shape(0)[2:]
    dilations, pads = facts.ints("dilations", (1,) * rank), facts.ints("pads", (0,) * 2 * rank)
    if facts.node.op.attributes.get("auto_pad", "NOTSET") in SAME or len(dilations) != rank or len(pads) != 2 * rank:
        return
    strides = facts.ints("strides", (1,) * rank)
    wide = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    padded = [n + a + b for n, a, b in zip(size, pads, pads[rank:])]
    if any(n and w - (s - 1 if ceil else 0) > p for n, w, s, p in zip(size, wide, strides, padded)):
        yield facts.refuse(f"its window of {_by(wide)} is larger than its input of {_by(padded)}, padding counted")


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def prelu(facts: NodeFacts) -> Faults:
    """Yield a fault where the slope does not broadcast to the input, in which it may not add dimensions."""
    x, slope = facts.shape(0), facts.shape(1)
    if len(slope) > len(x) or any(s not in (1, d) for s, d in zip(slope[::-1], x[::-1])):
        reason = f'its slope "{facts.node.inputs[1]}" {list(slope)} does not broadcast to its input {list(x)}'
        yield facts.refuse(reason, "give the slope as many dimensions as the input at most, each 1 or the input's")


def gather(facts: NodeFacts) -> Faults:
    """Yield the faults of Gather, GatherElements and ScatterElements: an axis or an index out of range."""
    rank, axis = len(facts.shape(0)), facts.number("axis", 0)
    yield from _axis(facts, axis, rank)
    if -rank <= axis < rank:
        yield from _indices(facts, facts.value(1), facts.shape(0)[axis])


def gather_nd(facts: NodeFacts) -> Faults:
    """Yield the faults of GatherND and ScatterND: batch_dims, or indices out of range.

    The last dimension of the indices counts through the data's dimensions behind the batch's.
    """
    indices, batch = facts.value(1), facts.number("batch_dims", 0)
    most = min(len(facts.shape(0)), len(facts.shape(1))) - 1
    if not 0 <= batch <= max(most, 0):
        yield facts.refuse(
            f"batch_dims={batch}: its data {list(facts.shape(0))} and indices {list(facts.shape(1))} have {most} at most"
        )
        return
    if indices is None or not indices.size:
        return
    if not indices.ndim:
        yield facts.refuse(f'its indices "{facts.node.inputs[1]}" are a scalar; at least one dimension is needed')
        return
    for at, size in zip(range(indices.shape[-1]), facts.shape(0)[batch:]):
        yield from _indices(facts, indices[..., at], size)


def _indices(facts: NodeFacts, indices: np.ndarray | None, size: int) -> Faults:
    """Yield a fault where constant indices are outside -size..size - 1; computed ones, None, have none."""
    if indices is None or not indices.size:
        return
    wrong = indices[(indices < -size) | (indices >= size)]
    if wrong.size:
        allowed = f"{-size} to {size - 1}" if size else "none"
        yield facts.refuse(f'its indices "{facts.node.inputs[1]}" hold {wrong[0]}; the dimension has {size} elements: {allowed}')


def hardmax(facts: NodeFacts) -> Faults:
    yield from _axis(facts, facts.number("axis", -1), len(facts.shape(0)))


def _axis(facts: NodeFacts, axis: int, rank: int) -> Faults:
    """Yield a fault where the axis is outside -rank..rank - 1."""
    if not -rank <= axis < rank:
        allowed = f"{-rank} to {rank - 1}" if rank else "none"
        yield facts.refuse(f"axis {axis} is outside rank {rank}: {allowed}")


def cum_sum(facts: NodeFacts) -> Faults:
    """Yield a fault for a constant axis beyond the rank."""
    axis = facts.value(1)
    if axis is not None and axis.size == 1:
        yield from _axis(facts, int(axis.reshape(-1)[0]), len(facts.shape(0)))


def transpose(facts: NodeFacts) -> Faults:
    """Yield a fault where perm is no permutation of the input's dimensions."""
    rank = len(facts.shape(0))
    perm = facts.ints("perm", range(rank)[::-1])
    if sorted(perm) != list(range(rank)):
        yield facts.refuse(f"perm={list(perm)} is no order of the {rank} dimensions of its input")


def reshape(facts: NodeFacts) -> Faults:
    """Yield a fault where a constant shape without -1 has another number of elements than the input."""
    x, target = facts.shape(0), facts.value(1)
    if target is None:
        return
    zero_copies = not facts.number("allowzero", 0)
    sizes = [x[i] if d == 0 and zero_copies and i < len(x) else d for i, d in enumerate(target.reshape(-1).tolist())]
    if sizes.count(-1) == 0 and prod(sizes) != prod(x):
        yield facts.refuse(f"{list(x)} has {prod(x)} elements, the shape {target.tolist()} {prod(sizes)}")


def split(facts: NodeFacts) -> Faults:
    """Yield faults of the axis, and of num_outputs that differs from the node's outputs."""
    rank, axis, outputs = len(facts.shape(0)), facts.number("axis", 0), len(facts.node.outputs)
    yield from _axis(facts, axis, rank)
    named = facts.number("num_outputs", outputs)
    if named != outputs:
        yield facts.refuse(f"num_outputs={named}, but it has {outputs} outputs")


def squeeze(facts: NodeFacts) -> Faults:
    """Yield a fault for axes that are an empty list, on which the specification and onnxruntime disagree."""
    if facts.has(1) and not prod(facts.shape(1)):
        yield facts.refuse(f'its axes "{facts.node.inputs[1]}" are an empty list: {DISAGREE}', "leave them out, or name them")


def pad(facts: NodeFacts) -> Faults:
    """Yield a fault where a reflecting Pad needs more elements than there are."""
    x, pads = facts.shape(0), facts.value(1)
    if facts.node.op.attributes.get("mode") != "reflect" or pads is None or facts.has(3) or pads.size != 2 * len(x):
        return
    for axis, size in enumerate(x):
        most = max(int(pads[axis]), int(pads[axis + len(x)]))
        if most >= max(size, 1):
            yield facts.refuse(f"pads={pads.tolist()}: dimension {axis} of {size} has {max(size - 1, 0)} to reflect, not {most}")


def clip(facts: NodeFacts) -> Faults:
    """Yield a fault for each limit that is not one number."""
    for index in (1, 2):
        if facts.has(index) and facts.shape(index) not in ((), (1,)):  # onnxruntime takes [1] too, and exporters write it
            yield facts.refuse(f'its limit "{facts.node.inputs[index]}" is {list(facts.shape(index))}; it must be one number, []')


def layer_norm(facts: NodeFacts) -> Faults:
    """Yield faults of the axis, and of a scale or bias that does not broadcast to the input."""
    x = facts.shape(0)
    axis = facts.number("axis", -1)
    yield from _axis(facts, axis, len(x))
    for index in (1, 2):
        if not facts.has(index):
            continue
        scale_shape = facts.shape(index)
        if len(scale_shape) > len(x) or any(a not in (1, b) for a, b in zip(scale_shape[::-1], x[::-1])):
            yield facts.refuse(f'"{facts.node.inputs[index]}" {list(scale_shape)} does not broadcast to its input {list(x)}')


def instance_norm(facts: NodeFacts) -> Faults:
    """Yield a fault for a scale or bias of another shape than [channels], and for an input of less than three dimensions."""
    channels = facts.shape(0)[1:2]
    if len(facts.shape(0)) < 3:
        yield facts.refuse(f"its input {list(facts.shape(0))} has no dimension behind the channels to normalize over")
    for index in (1, 2):
        if facts.shape(index) != channels:
            name, parameter_shape, x = facts.node.inputs[index], list(facts.shape(index)), list(facts.shape(0))
            yield facts.refuse(f'"{name}" is {parameter_shape}; its input {x} takes {list(channels)}')


def recurrent(facts: NodeFacts) -> Faults:
    """Yield a fault for an absent hidden_size, which onnxruntime needs though ONNX has it as optional."""
    if facts.node.op.attributes.get("hidden_size") is None and len(facts.shape(2)) == 3:
        units = facts.shape(2)[2]
        reason = f'has no hidden_size; its recurrent weights "{facts.node.inputs[2]}" are for {units} units'
        yield facts.refuse(reason, f"write hidden_size={units} into the node")


def local_response_norm(facts: NodeFacts) -> Faults:
    size = facts.number("size", 1)
    if size < 1:
        yield facts.refuse(f"size={size}: must be 1 or more")


def depth_to_space(facts: NodeFacts) -> Faults:
    """Yield a fault where the block's square does not divide the channels."""
    x, size = facts.shape(0), facts.number("blocksize", 1)
    if len(x) == 4 and (size < 1 or x[1] % (size * size)):
        yield facts.refuse(f"blocksize={size}: its square must divide the {x[1]} channels of its input")


def random_normal(facts: NodeFacts) -> Faults:
    """Yield a fault for a scale that is not positive, with which onnxruntime ends the process."""
    scale = float(facts.node.op.attributes.get("scale", 1.0))
    if not scale > 0:
        yield facts.refuse(f"scale={scale:g}: must be above 0")


def random_uniform(facts: NodeFacts) -> Faults:
    """Yield a fault for low above high, with which onnxruntime ends the process."""
    low, high = (float(facts.node.op.attributes.get(key, default)) for key, default in (("low", 0.0), ("high", 1.0)))
    if not low <= high:
        yield facts.refuse(f"low={low:g} and high={high:g}: low must not be above high")


RULES: Mapping[str, Callable[[NodeFacts], Faults]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), pool),
    "PRelu": prelu,
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements"), gather),
    **dict.fromkeys(("GatherND", "ScatterND"), gather_nd),
    "Hardmax": hardmax,
    "CumSum": cum_sum,
    "Transpose": transpose,
    "Reshape": reshape,
    "Split": split,
    "Squeeze": squeeze,
    "Pad": pad,
    "Clip": clip,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), layer_norm),
    "InstanceNormalization": instance_norm,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent),
    "LRN": local_response_norm,
    "DepthToSpace": depth_to_space,
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), random_normal),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), random_uniform),
}
