"""The networks of examples/networks with seeded weights."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import onnx

FOLDER = Path(__file__).parents[2] / "examples" / "networks"


def fill_network(network: str) -> onnx.ModelProto:
    return _fill_weights().fill_model(FOLDER / f"{network}.graph.onnx")


@lru_cache(maxsize=1)
def _fill_weights() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fill_weights", FOLDER / "fill_weights.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
