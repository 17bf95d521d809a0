"""Rewrite operators as opsets 7 to 20 define them to how opset 21 does, one node at a time, during import.

Most operators changed only their types since and have no rule. Each rule takes an `Old` node and returns an `Upgraded`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from toolchain.frontend.convert import elem_type
from toolchain.frontend.errors import refuse_node
from toolchain.ir.graph import Node, OnnxNode, OnnxOp, TensorType

SPATIAL_SINCE = 9  # the opset from which a BatchNormalization has a scale a channel and nothing else


@dataclass
class Upgraded:
    """The nodes that replace one node, and the constants that they read, by name."""

    nodes: list[OnnxNode]
    constants: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])


@dataclass(frozen=True)
class Old:
    """One node of the model, with the opset that defines it.

    `types`, `constants`: of its inputs, by tensor; there may be more.
    """

    node: OnnxNode
    opset: int
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of the input at this place."""
        return self.types[self.node.inputs[index]].shape


def upgrade(
    node: OnnxNode, opset: int, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray] = MappingProxyType({})
) -> Upgraded:
    """Return the node as opset 21 defines it: itself where its operator has no rule. Raise NodeFault where there is no such
    form.

    `opset`: the one that defines the node. `types`, `constants`: of its inputs, by tensor; there may be more.
    """
    rule = RULES.get(node.op.op_type) if node.op.domain == "" else None
    return rule(Old(node, opset, types, constants)) if rule else Upgraded([node])


def without(node: OnnxNode, *names: str) -> dict[str, Any]:
    """Return the node's attributes without these."""
    return {k: v for k, v in node.op.attributes.items() if k not in names}


def with_inputs(
    node: OnnxNode, values: Mapping[str, np.ndarray | None], attributes: Mapping[str, Any], op_type: str = ""
) -> Upgraded:
    """Return the node with further inputs behind its own, in order, as constants named after the node; None is an absent
    input.
    """
    constants = {f"{node.name}/{k}": v for k, v in values.items() if v is not None}
    inputs = [*node.inputs, *(f"{node.name}/{k}" if v is not None else "" for k, v in values.items())]
    while inputs and not inputs[-1]:
        inputs.pop()
    op = OnnxOp(op_type or node.op.op_type, attributes)
    return Upgraded([replace(node, op=op, inputs=tuple(inputs))], constants)


def int64(values: Any) -> np.ndarray:
    """Return the numbers as int64[n], also of a scalar."""
    return np.asarray(values, np.int64).reshape(-1)


def axes_to_input(since: int) -> Callable[[Old], Upgraded]:
    """Return a rule that makes the attribute `axes` an input, for models below the opset `since`."""

    def rule(old: Old) -> Upgraded:
        axes = old.node.op.attributes.get("axes")
        if old.opset >= since or axes is None:
            return Upgraded([old.node])
        return with_inputs(old.node, {"axes": int64(axes)}, without(old.node, "axes"))

    return rule


def clip(old: Old) -> Upgraded:
    """Upgrade Clip before opset 11: its attributes min and max become inputs."""
    if old.opset >= 11:
        return Upgraded([old.node])
    dtype = old.types[old.node.inputs[0]].dtype
    limits = {k: np.asarray(old.node.op.attributes[k], dtype) if k in old.node.op.attributes else None for k in ("min", "max")}
    return with_inputs(old.node, limits, {})


def pad(old: Old) -> Upgraded:
    """Upgrade Pad before opset 11: its attributes pads and value become inputs."""
    if old.opset >= 11:
        return Upgraded([old.node])
    a = old.node.op.attributes
    value = np.asarray(a.get("value", 0.0), old.types[old.node.inputs[0]].dtype)
    return with_inputs(old.node, {"pads": int64(a["pads"]), "value": value}, without(old.node, "pads", "value"))


def slice_(old: Old) -> Upgraded:
    """Upgrade Slice before opset 10: its attributes starts, ends and axes become inputs."""
    if old.opset >= 10:
        return Upgraded([old.node])
    a = old.node.op.attributes
    axes = a.get("axes", tuple(range(len(a["starts"]))))
    return with_inputs(old.node, {"starts": int64(a["starts"]), "ends": int64(a["ends"]), "axes": int64(axes)}, {})


def split(old: Old) -> Upgraded:
    """Upgrade Split: sizes become an input (opset 13); without sizes num_outputs is written out (opset 18)."""
    a = old.node.op.attributes
    if old.opset < 13 and "split" in a:
        return with_inputs(old.node, {"split": int64(a["split"])}, without(old.node, "split"))
    if not any(old.node.inputs[1:]) and "num_outputs" not in a:
        op = replace(old.node.op, attributes={**a, "num_outputs": len(old.node.outputs)})
        return Upgraded([replace(old.node, op=op)])
    return Upgraded([old.node])


def dropout(old: Old) -> Upgraded:
    """Upgrade Dropout before opset 12, whose ratio means nothing outside training."""
    if old.opset >= 12:
        return Upgraded([old.node])
    return Upgraded([replace(old.node, op=OnnxOp("Dropout"))])


def top_k(old: Old) -> Upgraded:
    """Upgrade TopK before opset 10: its attribute k becomes an input."""
    if old.opset >= 10:
        return Upgraded([old.node])
    return with_inputs(old.node, {"k": int64([old.node.op.attributes["k"]])}, without(old.node, "k"))


def upsample(old: Old) -> Upgraded:
    """Upgrade Upsample of opsets 7 and 9, and Resize of opset 10, to Resize with y[i] = x[floor(i / scale)].

    Along an axis that it makes smaller, nearest takes ceil(i / scale), as onnxruntime does in these opsets. A Resize that makes
    some axes smaller and others larger becomes two. Raise NodeFault where the second changes no size.
    """
    if old.opset >= 11:
        return Upgraded([old.node])
    node, mode = old.node, old.node.op.attributes.get("mode", "nearest")
    if old.opset < 9:
        scales, name = np.asarray(node.op.attributes["scales"], np.float32), f"{node.name}/scales"
        return Upgraded([_make_resize(node, node.inputs[0], name, mode, "floor")], {name: scales})
    name = node.inputs[1]
    scales = old.constants.get(name)
    if mode != "nearest" or scales is None or (scales >= 1).all():
        return Upgraded([_make_resize(node, node.inputs[0], name, mode, "floor")])
    if (scales <= 1).all():
        return Upgraded([_make_resize(node, node.inputs[0], name, mode, "ceil")])
    larger = np.maximum(scales, 1)
    if all(int(size * scale) == size for size, scale in zip(old.shape(0), larger)):  # onnxruntime copies by such scales alone
        reason = f"scales {scales.tolist()} make an axis smaller, and scale others without changing their sizes"
        raise refuse_node(node, reason, "export with opset 11 or newer")
    smaller, less, more = (f"{node.name}/{what}" for what in ("smaller", "scales below 1", "scales above 1"))
    first = replace(_make_resize(node, node.inputs[0], less, mode, "ceil"), name=smaller, outputs=(smaller,))
    second = _make_resize(node, smaller, more, mode, "floor")
    return Upgraded([first, second], {less: np.minimum(scales, 1), more: larger})


def _make_resize(node: OnnxNode, x: str, scales: str, mode: str, nearest: str) -> OnnxNode:
    """Return the node as a Resize of the tensor `x` by the tensor `scales`, whose index i lies at i / scale of the input."""
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
    return replace(node, op=OnnxOp("Resize", attributes), inputs=(x, "", scales))


def resize(old: Old) -> Upgraded:
    """Upgrade Resize before opset 13: an unused roi, and scales beside sizes, become absent inputs."""
    if old.opset < 11:
        return upsample(old)
    if old.opset >= 13:
        return Upgraded([old.node])
    inputs = list(old.node.inputs)
    if old.node.op.attributes.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        inputs[1:2] = [""]
    if len(inputs) > 3 and inputs[3]:
        inputs[2] = ""  # until opset 12 an empty tensor stood for absent scales
    return Upgraded([replace(old.node, inputs=tuple(inputs))])


def softmax(old: Old) -> Upgraded:
    """Rewrite a Softmax of opset 12 or below, where the axes from `axis` on count as one.

    It is flattened to 2-D, normalised and reshaped back.
    """
    if old.opset >= 13:
        return Upgraded([old.node])
    node, shape = old.node, old.shape(0)
    axis = node.op.attributes.get("axis", 1)
    axis += len(shape) if axis < 0 else 0
    if prod(shape[axis + 1 :]) == 1 or axis >= len(shape):
        return Upgraded([replace(node, op=replace(node.op, attributes={"axis": min(axis, len(shape) - 1)}))])
    x, y = f"{node.name}/flat", f"{node.name}/normalised"
    into, back = f"{node.name}/flat_shape", f"{node.name}/shape"
    nodes = [
        Node(f"{node.name}/flatten", OnnxOp("Reshape"), (node.inputs[0], into), (x,), node.sources),
        replace(node, op=OnnxOp(node.op.op_type, {"axis": 1}), inputs=(x,), outputs=(y,)),
        Node(f"{node.name}/unflatten", OnnxOp("Reshape"), (y, back), node.outputs, node.sources),
    ]
    return Upgraded(nodes, {into: int64([prod(shape[:axis]), prod(shape[axis:])]), back: int64(shape)})


def scatter(old: Old) -> Upgraded:
    """Upgrade Scatter, which is called ScatterElements since."""
    return Upgraded([replace(old.node, op=replace(old.node.op, op_type="ScatterElements"))])


def cast_like(old: Old) -> Upgraded:
    """Rewrite CastLike as a Cast to the type of its second input."""
    to = elem_type(old.types[old.node.inputs[1]].dtype)
    op = OnnxOp("Cast", {**old.node.op.attributes, "to": to})
    return Upgraded([replace(old.node, op=op, inputs=old.node.inputs[:1])])


def batch_normalization(old: Old) -> Upgraded:
    """Upgrade BatchNormalization to its inference form with one output.

    Raise NodeFault in training mode, and for a scale at every place (spatial = 0).
    """
    if any(old.node.outputs[1:]) or old.node.op.attributes.get("training_mode", 0):
        raise refuse_node(old.node, "is in training mode", "export the model for inference (eval mode)")
    if not old.node.op.attributes.get("spatial", 1):
        reason = "has spatial = 0: a scale and bias for every place, not for every channel"
        raise refuse_node(old.node, reason, f"export with opset {SPATIAL_SINCE} or newer")
    keep = {"epsilon": old.node.op.attributes.get("epsilon", 1e-5)}
    return Upgraded([replace(old.node, op=OnnxOp("BatchNormalization", keep), outputs=old.node.outputs[:1])])


def group_normalization(old: Old) -> Upgraded:
    """Return the node at opset 21; raise NodeFault for opsets 18 to 20, which scale whole groups."""
    if old.opset >= 21:
        return Upgraded([old.node])
    raise refuse_node(old.node, "GroupNormalization of opsets 18 to 20 scales whole groups", "export with opset 21 or newer")


def grid_sample(old: Old) -> Upgraded:
    """Upgrade GridSample before opset 20, whose modes have other names."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(old.node.op.attributes.get("mode", "linear"))
    if old.opset >= 20 or mode is None:
        return Upgraded([old.node])
    return Upgraded([replace(old.node, op=replace(old.node.op, attributes={**old.node.op.attributes, "mode": mode}))])


def dft(old: Old) -> Upgraded:
    """Upgrade DFT before opset 20: its attribute axis becomes an input."""
    if old.opset >= 20:
        return Upgraded([old.node])
    inputs = (*old.node.inputs, "")[:2]
    axis = np.asarray(old.node.op.attributes.get("axis", 1), np.int64)
    name = f"{old.node.name}/axis"
    op = replace(old.node.op, attributes=without(old.node, "axis"))
    return Upgraded([replace(old.node, op=op, inputs=(*inputs, name))], {name: axis})


def roi_align(old: Old) -> Upgraded:
    """Upgrade RoiAlign before opset 16, which shifts no coordinate by half a pixel: a mode that is the default no more."""
    if old.opset >= 16:
        return Upgraded([old.node])
    attributes = {"coordinate_transformation_mode": "output_half_pixel", **old.node.op.attributes}
    return Upgraded([replace(old.node, op=replace(old.node.op, attributes=attributes))])


def sequences_first(old: Old) -> Upgraded:
    """Upgrade a recurrent layer with layout = 1, [batch, sequence, ...], to layout 0 between Transposes.

    onnxruntime does not run layout 1.
    """
    node = old.node
    if not node.op.attributes.get("layout"):
        return Upgraded([node])
    nodes, inputs = list[OnnxNode](), list(node.inputs)
    outputs = [f"{node.name}/output_{i}" if y else "" for i, y in enumerate(node.outputs)]
    for index in (0, 5, 6):  # the input, and first states
        if index < len(inputs) and inputs[index]:
            x, inputs[index] = inputs[index], f"{node.name}/input_{index}"
            nodes.append(_make_transpose(node, f"input_{index}", x, inputs[index], (1, 0, 2)))
    op = OnnxOp(node.op.op_type, without(node, "layout"))
    nodes.append(replace(node, op=op, inputs=tuple(inputs), outputs=tuple(outputs)))
    for index, (x, y) in enumerate(zip(outputs, node.outputs)):
        if y:  # of all steps [length, directions, batch, units], last states without their first dimension
            nodes.append(_make_transpose(node, f"output_{index}", x, y, (1, 0, 2) if index else (2, 0, 1, 3)))
    return Upgraded(nodes)


def _make_transpose(node: OnnxNode, what: str, x: str, y: str, perm: tuple[int, ...]) -> OnnxNode:
    return Node(f"{node.name}/turned_{what}", OnnxOp("Transpose", {"perm": perm}), (x,), (y,), node.sources)


REDUCTIONS = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")

RULES: Mapping[str, Callable[[Old], Upgraded]] = {
    **{op: axes_to_input(13) for op in ("Squeeze", "Unsqueeze", "ReduceSum")},
    **{op: axes_to_input(18) for op in (*REDUCTIONS, "ReduceSumSquare")},
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), softmax),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), sequences_first),
    "Clip": clip,
    "Pad": pad,
    "Slice": slice_,
    "Split": split,
    "Dropout": dropout,
    "TopK": top_k,
    "Upsample": upsample,
    "Resize": resize,
    "Scatter": scatter,
    "CastLike": cast_like,
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "GridSample": grid_sample,
    "DFT": dft,
    "RoiAlign": roi_align,
}
