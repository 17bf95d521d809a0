"""Models that are quantized already, made as users make them, and what onnxruntime's own kernels give of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx

from toolchain.hw.chip import Chip
from toolchain.hw.rules import broken_rules
from toolchain.isa import Machine, load_machine

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@cache
def script() -> ModuleType:
    """scripts/make_quantized.py."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        import make_quantized  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(SCRIPTS))
    return make_quantized


@cache
def float32_machine() -> Machine:
    """edge16 with onnxruntime's arithmetic: float32 scales, rounded once to nearest even."""
    base = load_machine("edge16")
    data = json.loads(base.chip.model_dump_json())
    data["name"] = "edge16_float32"
    data["numerics"] |= {
        "scale": {"kind": "float32", "multiplier_bits": 24, "shift_min": 0, "shift_max": 62},
        "rounding": "fp32_rne",
    }
    chip = Chip.model_validate_json(json.dumps(data))
    assert not broken_rules(chip), broken_rules(chip)
    return replace(base, chip=chip)


def on_kernels(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Sequence[Any]:
    """The outputs by QLinear kernels: pairs of QuantizeLinear and DequantizeLinear are fused to them, int8 as it is."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)
