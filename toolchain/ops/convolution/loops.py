"""The loops of a convolution: places and channels in either order, groups one by one or together, kernel rows innermost."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from toolchain.ops.convolution.parameters import ConvolutionParameters
from toolchain.ops.kit.loops import GRANULES, LoopAxis, LoopOrder, one_by_one
from toolchain.ops.kit.operator import Layer

_TOGETHER = "groups alone are `for groups by 1`"


def loop_orders(op: ConvolutionParameters, layer: Layer) -> tuple[LoopOrder, ...]:
    return tuple(_orders(op, layer))


def _orders(op: ConvolutionParameters, layer: Layer) -> Iterator[LoopOrder]:
    images, height, width, outputs = layer.output.shape
    _, kernel, _, inputs = layer.constants[layer.node.inputs[1]].shape
    x, out, deep = layer.node.inputs[0], layer.node.outputs[0], op.depthwise(layer)
    groups = 1 if deep else op.groups
    channel_multiple = layer.channel_step(out, *((x,) if deep else layer.activations[1:]))
    within = 1 if deep else layer.channel_step(x)
    places = (*one_by_one((images,)), LoopAxis("rows", height, "rows"), LoopAxis("columns", width, "columns"))
    channels = LoopAxis("channels", outputs // groups, "channels", multiple=channel_multiple, why=GRANULES)
    why = "a cut lies between groups of weights that share a scale" if op.group else GRANULES
    inner = LoopAxis("inner", inputs, "inner", multiple=lcm(op.group or 1, within), why=why)
    taps = LoopAxis("taps", kernel, "taps")
    group_axis = LoopAxis("groups", groups)
    yield LoopOrder((group_axis, *places, channels, inner, taps))
    yield LoopOrder((group_axis, channels, *places, inner, taps), False)
    if groups > 1 and op.residual is None:
        together = LoopAxis("groups", groups, "channels", outputs // groups, least=2, why=_TOGETHER)
        pieces = LoopAxis("pieces", groups, "inner", inputs)
        yield LoopOrder((*places, together, pieces))
        yield LoopOrder((together, *places, pieces), False)
