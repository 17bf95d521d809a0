"""Check that a mask is minus infinity to float and the least code to the chip, so no layer loses by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from toolchain.api import BuildOptions, build
from toolchain.ir.graph import Quant
from toolchain.report.noise import RoundingError, noise_energy

LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("low", [LOWEST, -1e4])
def test_masked_positions_are_no_loss(low: float, tmp_path: Path) -> None:
    """x w + (1 - m) low -> Softmax: a quarter of the positions is masked."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Sub", ["one", "m"], ["inverse"]),
        helper.make_node("Mul", ["inverse", "low"], ["mask"]),
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["sum"]),
        helper.make_node("Softmax", ["sum"], ["y"], axis=-1),
    ]
    values = {"one": np.ones(()), "low": np.array(low), "w": rng.normal(0, 0.5, (8, 12))}
    constants = {n: v.astype(np.float32) for n, v in values.items()}
    model = build_model(nodes, {"x": [1, 4, 8], "m": [1, 1, 12]}, {"y": [1, 4, 12]}, constants)
    onnx.save(model, tmp_path / "net.onnx")
    let_through = np.ones((8, 1, 12), np.float32)
    let_through[:, :, 9:] = 0
    np.savez(tmp_path / "data.npz", x=rng.normal(0, 1, (8, 4, 8)).astype(np.float32), m=let_through)
    options = BuildOptions("transformer64", calibration=str(tmp_path / "data.npz"), error_report=True)
    built = build(tmp_path / "net.onnx", options)
    assert built.errors is not None
    rows = {row.tensor: row for row in built.errors.rows}
    assert rows["sum"].clipped_share == 0 and 25 < rows["sum"].alone_db < 50 and rows["sum"].cause == "coarse output scale"
    assert rows["mask"].cause == "nothing lost"
    assert not any("lie outside the codes" in warning for warning in built.warnings)


def test_only_a_mask_is_left_out() -> None:
    x, quant = np.array([LOWEST, -2000.0, -1.0, 0.5, 9.0], np.float32), Quant(1 / 16, 0)
    for masks, clipped, low, noise in ((True, 1, -1.0, (9 - 127 / 16) ** 2), (False, 3, LOWEST, LOWEST**2)):
        rounding = RoundingError(masks)
        codes = rounding.codes(x, quant, "int8")
        assert codes.tolist() == [-128, -128, -16, 8, 127]
        assert (rounding.clipped, rounding.low, rounding.high) == (clipped, low, 9.0)
        assert rounding.noise == pytest.approx(noise) == noise_energy(x, codes, quant, masks)
        assert rounding.usual == (1.0 if masks else 9.0)
