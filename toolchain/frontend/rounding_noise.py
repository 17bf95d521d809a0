"""Add noise to a model's float tensors, to measure what float's own rounding may do to its outputs.

The check that the file and its canonical form agree uses it: a difference within that noise is no fault.

Tensors of the types `ROUNDED` can get noise. They are multiplied in their own type where it is in `WIDE`, else in float32.
All tensors share one input of noise, of which each reads a run that begins at a drawn place below `STARTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from toolchain.frontend.convert import FLOATS, elem_type
from toolchain.frontend.read_onnx import graphs_of, opset_of
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.ir.graph import TensorType

ROUNDED = (*FLOATS, "bfloat16")
WIDE = ("float32", "float64")
STARTS = 1 << 12
CUT_BY_INPUTS = 10  # the opset from which on Slice has no attributes


@dataclass(frozen=True)
class NoisyModel:
    """A model with noise. `part`: reads the input `noise` too: float32[numbers], to be drawn from the standard normal
    distribution.
    """

    part: FloatSubmodel
    noise: str
    numbers: int


def add_rounding_noise(proto: onnx.ModelProto, types: Mapping[str, TensorType], step: Callable[[str], float]) -> tuple[str, int]:
    """Add relative noise to tensors of `proto`, in place; return the name of its new input and how many numbers that takes.

    Each tensor of `types` that a node outside of subgraphs makes is multiplied element by element by 1 + step * noise.
    `types`: the tensors to change, each with a float type and a static shape of at least one element. `step`: returns the
    relative size of the noise for an element type by its numpy name.
    """
    names, new = [*_names(proto.graph)], "noise"
    while any(name.startswith(new) for name in names):
        new += "_"
    numbers = STARTS + max((t.elements for t in types.values()), default=0)
    rng, nodes = np.random.default_rng(0), list[onnx.NodeProto]()
    for dtype in sorted({t.dtype for t in types.values()}):
        nodes += _factors(new, dtype, step(dtype))
    for node in proto.graph.node:
        nodes.append(node)
        for i, name in enumerate(node.output):
            if name in types:
                node.output[i] = f"{new}_of_{len(nodes)}"
                start = int(rng.integers(STARTS))
                nodes += _add_noise_nodes(node.output[i], name, types[name], new, start, opset_of(proto))
    copied = onnx.GraphProto(node=nodes)
    del proto.graph.node[:]
    proto.graph.node.extend(copied.node)
    proto.graph.input.append(helper.make_tensor_value_info(new, TensorProto.FLOAT, [numbers]))
    return new, numbers


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield every name of a tensor in the graph and its subgraphs; a name may come twice."""
    yield from (t.name for t in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from node.output
        for subgraph in graphs_of(node):
            yield from _names(subgraph)


def _wide(dtype: str) -> str:
    """Return the type in which a tensor of this type is multiplied."""
    return dtype if dtype in WIDE else "float32"


class _Chain:
    """Nodes one behind the other, whose tensors are numbered."""

    def __init__(self, name: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._name = name

    def put(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [f"{self._name}_{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def constant(self, value: Sequence[int] | np.ndarray) -> str:
        array = value if isinstance(value, np.ndarray) else np.asarray(value, np.int64)
        return self.put("Constant", value=numpy_helper.from_array(array))

    def cast(self, name: str, dtype: str) -> str:
        return self.put("Cast", name, to=elem_type(dtype))

    def ending_in(self, name: str) -> list[onnx.NodeProto]:
        """Return the nodes, of which the last makes the tensor `name`."""
        self.nodes[-1].output[0] = name
        return self.nodes


def _factors(noise: str, dtype: str, step: float) -> list[onnx.NodeProto]:
    """Return nodes that compute 1 + step * noise for tensors of this type."""
    kind, chain = _wide(dtype), _Chain(f"{noise}_{dtype}")
    wide = chain.cast(noise, kind)
    scaled = chain.put("Mul", wide, chain.constant(np.asarray(step, kind)))
    chain.put("Add", scaled, chain.constant(np.asarray(1, kind)))
    return chain.ending_in(f"{noise}_{dtype}")


def _add_noise_nodes(x: str, y: str, t: TensorType, noise: str, start: int, opset: int) -> list[onnx.NodeProto]:
    """Return nodes that make `y` of `x` by multiplying it with the factors from place `start` on."""
    chain, factors = _Chain(x), f"{noise}_{t.dtype}"
    starts, ends = [start], [start + t.elements]
    if opset < CUT_BY_INPUTS:
        cut = chain.put("Slice", factors, starts=starts, ends=ends, axes=[0])
    else:
        cut = chain.put("Slice", factors, chain.constant(starts), chain.constant(ends))
    moved = chain.put("Mul", chain.cast(x, _wide(t.dtype)), chain.put("Reshape", cut, chain.constant(t.shape)))
    chain.cast(moved, t.dtype)
    return chain.ending_in(y)
