#!/usr/bin/env python3
"""Build, keep, run and read a model from Python: `python examples/python_api.py`."""

from pathlib import Path

import numpy as np

from toolchain.api import BuildOptions, Session, build

CLASSIFIER = Path(__file__).parent / "classifier"
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def main() -> None:
    built = build(CLASSIFIER / "classifier.onnx", BuildOptions("edge16", str(CLASSIFIER / "calib.npz")))
    Path("classifier.npu").write_bytes(built.data)
    with np.load(CLASSIFIER / "test.npz") as data:
        x = data["x"][:1, None].astype(np.float32) / np.float32(255)

    session = Session("classifier.npu")  # backend="reference" evaluates the integer graph instead: the same bits, sooner
    logits = session.run(None, {"x": x})[0]
    print(f"class: {CLASSES[int(logits.argmax())]}")

    run = Session("classifier.npu", timing=True).run_detailed({"x": x})
    for ran in run.segments:
        cycles = ran.simulation.cycles if ran.simulation else 0
        print(f"{', '.join(ran.nodes)} on {ran.where}: {cycles:,} cycles")
    slowest = max(built.figures["layers"], key=lambda layer: layer["cycles"])
    print(f"the longest layer is {slowest['name']}: {slowest['cycles']:,} cycles, bound by {slowest['bound_by']}")


if __name__ == "__main__":
    main()
