#!/usr/bin/env python3
"""Fill networks with weights: DEST/NAME.onnx gets seeded random weights for every NAME.graph.onnx beside this file.

    `fill_weights.py DEST`.

The graphs are eight standard architectures (opset 13, static shapes, batch 1) without their large weights.
Each tensor that is left out keeps the mean, deviation, minimum and maximum of its values as its doc_string.
The networks are good for cycles, memory and traffic; their outputs mean nothing.
"""

import argparse
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx

MARK = "random "
GRAPHS = sorted(Path(__file__).parent.glob("*.graph.onnx"))


def fill(tensor: onnx.TensorProto) -> None:
    """Fills a left-out float32 tensor in place: normal, clipped to its range, seeded by its name."""
    mean, deviation, low, high = map(float, tensor.doc_string.removeprefix(MARK).split())
    rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
    values = np.clip(rng.normal(mean, deviation, list(tensor.dims)), low, high)
    tensor.raw_data = values.astype(np.float32).tobytes()
    tensor.doc_string = ""


def fill_model(path: Path) -> onnx.ModelProto:
    """The graph of the file with weights, checked; the same file gives the same bytes."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.doc_string.startswith(MARK):
            fill(tensor)
    onnx.checker.check_model(model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the example networks with seeded random weights.")
    parser.add_argument("dest", type=Path, help="folder to write")
    dest = parser.parse_args().dest
    if dest.exists() and not dest.is_dir():
        print(f"{dest}: is a file; DEST is the folder to write {len(GRAPHS)} networks to", file=sys.stderr)
        sys.exit(2)
    fill_all(dest)


def fill_all(dest: Path) -> None:
    dest.mkdir(parents=True, exist_ok=True)
    for graph in GRAPHS:
        path = dest / graph.name.replace(".graph", "")
        path.write_bytes(fill_model(graph).SerializeToString(deterministic=True))
        print(path)


if __name__ == "__main__":
    main()
