"""Check what is repaired by default: networks with enough data, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from unequal_networks import convolutions, samples

from tests.conftest import SHIPPED
from toolchain.api import Build, BuildOptions, build

pytestmark = pytest.mark.usefixtures("repaired_by_default")


def built(folder: Path, count: int | None, **options: Any) -> Build:
    """Build the unequal convolutions.

    `count`: calibration samples, None: random inputs.
    """
    convolutions(folder, "ws8_pow2")
    data = None
    if count is not None:
        data = str(folder / "c.npz")
        np.savez(data, x=np.concatenate([s["x"] for s in samples((1, 3, 8, 8), count)]))
    return build(folder / "net.onnx", replace(BuildOptions("ws8_pow2", data, level=0), **options))


def test_fast_is_the_default(request: pytest.FixtureRequest) -> None:
    assert request.config.stash[SHIPPED] == "fast"


def test_sixteen_samples_are_enough(tmp_path: Path) -> None:
    default_build, requested = built(tmp_path, 16), built(tmp_path, 16, repair="fast")
    assert default_build.data == requested.data != built(tmp_path, 16, repair="none").data
    repair = default_build.figures["repair"]
    assert repair["effort"] == "fast" and default_build.figures["calibration_samples"] == 16
    assert any(s["kept"] for s in repair["steps"]) and not all(s["kept"] for s in repair["steps"])
    assert [w for w in requested.warnings if "left out" in w] and not [w for w in default_build.warnings if "left out" in w]


@pytest.mark.parametrize("count", [15, None])
def test_fewer_samples_and_random_inputs_are_not_repaired_by(count: int | None, tmp_path: Path) -> None:
    assert built(tmp_path, count).figures["repair"] is None


def test_what_is_quantized_already_is_left_alone(tmp_path: Path) -> None:
    plain = built(tmp_path, 16, repair="none", export_qdq=True)
    assert plain.qdq is not None
    (tmp_path / "q.onnx").write_bytes(plain.qdq)
    assert onnx.load(tmp_path / "q.onnx").graph.node
    build_result = build(tmp_path / "q.onnx", BuildOptions("ws8_pow2", str(tmp_path / "c.npz"), level=0))
    assert build_result.figures["repair"] is None
