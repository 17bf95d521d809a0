"""A kernel that no memory of weights holds: its taps are streamed while the sums of many pixels wait."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from toolchain.api import BuildOptions, build

WEIGHTS = "  weights:  # its port takes 128 int4 a cycle, twice what a fold of one row loads\n    size: "


def machine_with_weights(folder: Path, size: str) -> Path:
    """transformer64 with another memory of weights: a fold of 64 x 64 weights takes 4 KiB, a kernel of 3 x 3 folds 36."""
    shutil.copytree(str(files("hw_configs") / "isa"), folder / "isa")
    text = (files("hw_configs") / "transformer64.yaml").read_text()
    assert WEIGHTS + "512 KiB" in text
    (folder / "small.yaml").write_text(text.replace(WEIGHTS + "512 KiB", WEIGHTS + size))
    return folder / "small.yaml"


@pytest.mark.parametrize("layers", [1, 3])
def test_weights_are_read_once_for_many_pixels(layers: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {f"w{i}": (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32) for i in range(layers)}
    nodes = [helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], pads=[1, 1, 1, 1]) for i in range(layers)]
    model = build_model(nodes, {"x0": [1, 64, 12, 12]}, {f"x{layers}": [1, 64, 12, 12]}, weights, opset=13)
    onnx.save(model, tmp_path / "kernels.onnx")
    machine = machine_with_weights(tmp_path, "24 KiB")
    figures = build(tmp_path / "kernels.onnx", BuildOptions(str(machine), repair="none")).figures
    roomy = build(tmp_path / "kernels.onnx", BuildOptions("transformer64", repair="none")).figures
    assert figures["dram_read_bytes"] <= 1.2 * roomy["dram_read_bytes"]
    assert figures["cycles"] <= 2 * roomy["cycles"]
