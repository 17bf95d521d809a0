"""Change a tensor's scale, zero point or type of codes, on the vector engine."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.pointwise.elementwise import rescale
from toolchain import machine
from toolchain.ir.graph import Node, Quant, step_name
from toolchain.machine import ElementwiseKind
from toolchain.ops.kit.box_tiles import PointwiseOp, box_nest, broadcast_strides
from toolchain.ops.kit.elementwise import elementwise
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.operator import Array, Layer, PerSample, split_per_sample
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.requants import pair
from toolchain.ops.kit.tile import Box, BoxLocation, ConstantBlock, Extent, TileTask, Tiling


@dataclass(frozen=True, eq=False)
class Rescale(PointwiseOp):
    """An integer operator that requantizes codes: y = requantize(x - x_zero_point), which adds y's zero point and clamps."""

    NAME = "Rescale"
    VERSION = 2
    takes_device_arrays = True
    x_zero_point: int
    requant: Requant

    def reference(self, inputs: Sequence[Array]) -> Array:
        return rescale(inputs[0], self.requant, x_zero_point=self.x_zero_point, dtype=self.requant.dtype)

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        return split_per_sample(self, layer, axis)

    def tiling_key(self) -> Hashable:
        return ()

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        return box_nest(layer.output.shape, tiling, lambda start, size: self._make_task(layer, start, size), extent)

    def _make_task(self, layer: Layer, start: tuple[int, ...], size: tuple[int, ...]) -> TileTask:
        box = Box(layer.node.inputs[0], start, size)

        def emit(sites: Sequence[BoxLocation], blocks: Sequence[int], out: BoxLocation | None) -> tuple[machine.MachineOp, ...]:
            assert out is not None
            strides = broadcast_strides(box, sites[0], len(size))
            r = self.requant
            a = (sites[0].address, *strides, self.x_zero_point, 0, 0)
            output = (r.zero_point, *pair(r), r.low, r.high)
            types = layer.type_number(layer.node.inputs[0]), 0, layer.output_number
            return (
                elementwise(
                    ElementwiseKind.RESCALE,
                    size,
                    out,
                    a=a,
                    b=(0,) * 7,
                    output=output,
                    types=types,
                    surfaces=(sites[0].strides.surface_bytes, 0),
                ),
            )

        no_blocks: tuple[ConstantBlock, ...] = ()
        return TileTask((box,), no_blocks, Box(layer.node.outputs[0], start, size), emit)


def at_output_scale(node: Node, names: Sequence[str], scope: QuantContext) -> tuple[list[Node], list[str]]:
    """Return nodes that rescale inputs `names` of a node to the qparams and type of its output, and the names to read then.

    These come in the order of `names`. Inputs that have the qparams and type already keep their name and need no node.
    """
    y, codes = scope.quant(node.outputs[0]), scope.codes(node.outputs[0])
    nodes: list[Node] = []
    rescaled_names: list[str] = []
    for i, name in enumerate(names):
        if (scope.quant(name), scope.codes(name)) == (y, codes):
            rescaled_names.append(name)
            continue
        rescaled_names.append(scope.own_name(f"{name}@{node.name}.{i}"))
        nodes.append(make_rescale_node(step_name(node.name, f"rescale {i}"), name, rescaled_names[-1], y, codes, scope))
    return nodes, rescaled_names


def make_rescale_node(name: str, source: str, target: str, y: Quant, codes: CodeType, scope: QuantContext) -> Node:
    """Return a node that gives `source` the qparams y and the type `codes`, in the tensor `target`, which it registers if it
    is new.

    Raise CompileError where the machine cannot express the change of scale.
    """
    x = scope.quant(source)
    requant = scope.requant(x.scale / y.scale, "rescale", codes, y.zero_point, *codes.limits, where=name)
    if target not in scope.graph.types:  # the network's tensors have their own, also while a node sees them in another type
        scope.inner(target, y, codes)
    return Node(name, Rescale(x.zero_point, requant), (source,), (target,), ())
