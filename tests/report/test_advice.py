"""What the report advises can be followed: options take the names that it gives."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.quantized.forms import script
from tests.quantized.test_forms import small_network
from tests.recurrent import recurrent
from toolchain.api import Build, BuildOptions, build


def quantized(form: str, folder: Path) -> tuple[Path, str]:
    model, samples = small_network()
    onnx.save(model if form == "float" else script().quantized(model, samples, form), folder / "m.onnx")
    np.savez(folder / "d.npz", x=np.concatenate([s["x"] for s in samples]))
    return folder / "m.onnx", str(folder / "d.npz")


def sequence(folder: Path) -> tuple[Path, str]:
    onnx.save(recurrent("LSTM", batch=1, length=3), folder / "m.onnx")
    np.savez(folder / "d.npz", x=np.random.default_rng(0).normal(0, 1, (6, 3, 1, 12)).astype(np.float32))
    return folder / "m.onnx", str(folder / "d.npz")


@pytest.mark.parametrize("form", ["float", "qdq_s8_channel", "qop_u8_channel", "integer", "dynamic", "LSTM"])
def test_advice_can_be_followed(form: str, tmp_path: Path) -> None:
    """Each --host-node and --observer that is advised, and --type of every tensor that is named."""
    model, data = sequence(tmp_path) if form == "LSTM" else quantized(form, tmp_path)
    built = build(model, BuildOptions("transformer64", data, error_report=True))
    assert built.errors is not None
    said = " ".join(row.remedy for row in (*built.errors.findings, *built.errors.rows))
    assert set(re.findall(r"--type (\S+)=int16", said)) <= {row.name for row in built.errors.rows}
    assert codes(model, data, types=tuple(dict.fromkeys(f"{row.name}=int16" for row in built.errors.rows)))
    assert codes(model, data, host_nodes=tuple(sorted(set(re.findall(r"--host-node ([^\s,]+)", said)))))
    for observer in set(re.findall(r"--observer (\w+)", said)):
        assert codes(model, data, observer=observer)


def codes(model: Path, data: str, **options: object) -> Build:
    return build(model, BuildOptions("transformer64", data, samples=2, level=0, **options))  # type: ignore[arg-type]
