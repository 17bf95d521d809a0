"""Models that are quantized already, made as users make them, and what onnxruntime's own kernels give of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx

from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.isa import Machine, load_machine

BENCH = Path(__file__).resolve().parents[2] / "bench"


@cache
def _script(name: str) -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(BENCH))


def script() -> ModuleType:
    """bench/make_quantized.py."""
    return _script("make_quantized")


def comparing() -> ModuleType:
    """bench/compare_exporters.py."""
    return _script("compare_exporters")


def computing() -> ModuleType:
    """bench/exact_reference.py."""
    return _script("exact_reference")


def leveling() -> ModuleType:
    """bench/sqnr_difference.py."""
    return _script("sqnr_difference")


@cache
def float32_machine() -> Machine:
    """edge16 with onnxruntime's arithmetic: float32 scales, rounded once to nearest even."""
    machine: Machine = comparing().float32_machine(load_machine("edge16"))
    assert not find_broken_rules(machine.chip), find_broken_rules(machine.chip)
    return machine


def on_kernels(model: onnx.ModelProto, feeds: dict[str, np.ndarray], *, fused: bool = True) -> Sequence[Any]:
    """The outputs by QLinear kernels: pairs of QuantizeLinear and DequantizeLinear are fused to them, int8 as it is. fused: else
    node by node."""
    outputs: Sequence[Any] = comparing().on_kernels(model, feeds, fused=fused)
    return outputs
