"""Two convolutions with a Relu between them: the nodes first, relu, second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser


def save_two_layers(path: Path, ports: str, w: tuple[int, ...], v: tuple[int, ...], rng: np.random.Generator) -> None:
    """Save a model of two layers.

    `ports`: of the graph, from x to y.
    `w`, `v`: shapes of the weights, of which rng draws first w, then v.
    """
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g {ports} {{ a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = Conv(b, v) }}'
    )
    for name, shape in (("w", w), ("v", v)):
        proto.graph.initializer.append(numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(np.float32), name))
    for node, name in zip(proto.graph.node, ("first", "relu", "second"), strict=True):
        node.name = name
    onnx.save(proto, path)
