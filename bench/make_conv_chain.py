"""Write a chain of equal convolutions with random orthogonal weights as ONNX.

    `python bench/make_conv_chain.py OUT.onnx [--layers 2000] [--channels 8] [--size 8] [--kernel 1]`.

It shows the planning cost of many layers.

    `python bench/make_conv_chain.py chain.onnx && python bench/bench_build.py chain.onnx --against ../before`.
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

from toolchain.cli.application import report_errors, require_writable


def chain(layers: int = 2000, channels: int = 8, size: int = 8, kernel: int = 1) -> onnx.ModelProto:
    """Return a chain on float[1, channels, size, size]; with kernels of 1x1 each layer keeps the mean square of its input."""
    rng = np.random.default_rng(0)
    names = ["x", *(f"x{at}" for at in range(1, layers)), "y"]
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    for at in range(layers):
        columns, _ = np.linalg.qr(rng.standard_normal((channels * kernel * kernel, channels)))
        weights[f"w{at}"] = columns.T.reshape(channels, channels, kernel, kernel).astype(np.float32)
        inputs, pads = [names[at], f"w{at}"], [kernel // 2] * 4
        nodes.append(helper.make_node("Conv", inputs, [names[at + 1]], f"conv{at}", kernel_shape=[kernel] * 2, pads=pads))
    shape = [1, channels, size, size]
    model = build_model(nodes, {"x": shape}, {"y": shape}, weights, name="chain")
    onnx.checker.check_model(model)
    return model


def main() -> None:
    """Write the chain that the options describe."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--layers", type=int, default=2000, help="convolutions")
    parser.add_argument("--channels", type=int, default=8, help="of the input and of each layer")
    parser.add_argument("--size", type=int, default=8, help="rows and columns of the input and of what each layer makes")
    parser.add_argument("--kernel", type=int, default=1, help="rows and columns of the kernels; odd")
    args = parser.parse_args()
    for name in ("layers", "channels", "size", "kernel"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: give 1 or more")
    if args.kernel % 2 == 0:
        parser.error(f"--kernel {args.kernel}: with an even one layers do not keep the size; give an odd one")
    with report_errors():
        require_writable({"OUT": args.out}, {})
        onnx.save(chain(args.layers, args.channels, args.size, args.kernel), args.out)


if __name__ == "__main__":
    main()
