"""Write a sweep of a network that builds in a third of a second, and data on which builds hang, die or fill the memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from scripts.onnx_builder import build_model

TINY = """networks:
  tiny: {model: tiny.onnx}
machines:
  edge:
    file: edge16
    keys: {engines.mac.rows: [8, 16], memories.sram.size: [32 KiB, 128 KiB]}
options: {level: 1, repair: none}
"""
DATA = """import os, signal, time
import numpy as np

def batches(shape=(1, 4, 8, 8)):
    for seed in range(4):
        yield {"x": np.random.default_rng(seed).normal(size=shape).astype(np.float32)}

def good(): return batches()

def hangs(): time.sleep(60)

def dies(): os.kill(os.getpid(), signal.SIGKILL)

def exits(): os._exit(7)

def fills():
    arrays = []
    while True: arrays.append(np.ones(1 << 24))
"""


def write_tiny(folder: Path, text: str = TINY, weight: float = 1.0) -> Path:
    """Write tiny.onnx, data.py and sweep.yaml; return the last."""
    rng = np.random.default_rng(1)
    weights = {"w": (weight * rng.normal(size=(8, 4, 3, 3))).astype(np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["y"])]
    onnx.save(build_model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 8, 8, 8]}, weights), folder / "tiny.onnx")
    (folder / "data.py").write_text(DATA)
    (folder / "sweep.yaml").write_text(text)
    return folder / "sweep.yaml"
