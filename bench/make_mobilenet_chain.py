"""Write a chain of MobileNet bodies with random weights as ONNX.

    `python bench/make_mobilenet_chain.py OUT.onnx [--bodies 2] [--size 28] [--channels 24] [--wide 192]`.

A body is a 1x1 convolution that widens, a depthwise 3x3, and a 1x1 that narrows.
The tensors between the wide layers are many times the input and output, so that the chain shows the savings of cascades.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from onnx_builder import build_model


def bodies(count: int = 2, size: int = 28, channels: int = 24, wide: int = 192) -> onnx.ModelProto:
    """Return `count` bodies on float[1, channels, size, size]; the wide tensors between them have a Relu."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}

    def conv(x: str, y: str, inputs: int, outputs: int, kernel: int, group: int, relu: bool) -> None:
        fan_in = inputs // group * kernel * kernel
        w = rng.standard_normal((outputs, inputs // group, kernel, kernel)) * np.sqrt(2 / fan_in)
        b = rng.standard_normal(outputs) * 0.1
        weights.update({y + "_w": w.astype(np.float32), y + "_b": b.astype(np.float32)})
        conv_output = y + "_sum" if relu else y
        pads = [kernel // 2] * 4
        nodes.append(
            helper.make_node("Conv", [x, y + "_w", y + "_b"], [conv_output], y, kernel_shape=[kernel] * 2, pads=pads, group=group)
        )
        if relu:
            nodes.append(helper.make_node("Relu", [conv_output], [y], y + "_relu"))

    for body in range(count):
        x, y = "x" if body == 0 else f"narrow{body - 1}", "y" if body == count - 1 else f"narrow{body}"
        conv(x, f"wide{body}", channels, wide, 1, 1, True)
        conv(f"wide{body}", f"deep{body}", wide, wide, 3, wide, True)
        conv(f"deep{body}", y, wide, channels, 1, 1, False)
    shape = [1, channels, size, size]
    model = build_model(nodes, {"x": shape}, {"y": shape}, weights, opset=13, name="bodies")
    onnx.checker.check_model(model)
    return model


def main() -> None:
    """Write the chain that the options describe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    for name, default in (("bodies", 2), ("size", 28), ("channels", 24), ("wide", 192)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    onnx.save(bodies(args.bodies, args.size, args.channels, args.wide), args.out)


if __name__ == "__main__":
    main()
