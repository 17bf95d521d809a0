"""NaN and infinity in samples: what makes or reads them runs on the host, unless that would move products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from toolchain.api import Build, BuildOptions, build
from toolchain.cli.files import npz_bytes, read_feeds
from toolchain.errors import CompileError
from toolchain.runtime import Session

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
WITHOUT_NAN = f"""{HEAD}
g (float[2,4] x, float[4,4] w) => (float[2,4] y) <float zero = {{0}}>
{{ lost = IsNaN(x)
  kept = Where(lost, zero, x)
  y = MatMul(kept, w) }}"""
MASKED = f"""{HEAD}
g (float[2,4] x, float[4,4] w, bool[2,4] seen) => (float[2,4] y) <float zero = {{0}}, float none = {{-inf}}>
{{ m = MatMul(x, w)
  scores = Where(seen, m, none)
  p = Softmax<axis=1>(scores)
  lost = IsNaN(p)
  kept = Where(lost, zero, p)
  y = MatMul(kept, w) }}"""
RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 4), (4, 4)))


def built(folder: Path, text: str, feeds: dict[str, np.ndarray]) -> Build:
    model, data = folder / "model.onnx", folder / "data.npz"
    onnx.save(onnx.parser.parse_model(text), model)
    data.write_bytes(npz_bytes({name: value[None] for name, value in feeds.items()}))
    return build(model, BuildOptions("edge16", calibration=str(data), states=("none",)))


def with_nan() -> np.ndarray:
    x = X.copy()
    x[0, 1] = x[1, 2] = np.nan
    return x


def test_what_reads_nan_runs_on_the_host_and_products_on_the_chip(tmp_path: Path) -> None:
    feeds = {"x": with_nan(), "w": W}
    network_build = built(tmp_path, WITHOUT_NAN, feeds)
    assert any(
        w.startswith("'x' holds NaN in 2 of 8 elements in a sample, which codes cannot hold") for w in network_build.warnings
    )
    assert [(op, reason) for _, op, reason in network_build.container.fallbacks if op == "Where"] == [
        ("Where", "'x' holds NaN in 2 of 8 elements in a sample, which codes cannot hold")
    ]
    assert network_build.figures["macs"] and not network_build.figures["host"]["macs"]
    session = Session(network_build.data)
    path = tmp_path / "feeds.npz"
    path.write_bytes(npz_bytes(feeds))
    read = read_feeds(path, session.get_inputs(), loose=session.container.host_inputs)
    (y,) = session.run(None, read)
    assert np.allclose(y, np.nan_to_num(feeds["x"]) @ W, atol=0.05)
    with pytest.raises(CompileError, match="input 'w' holds NaN or infinity; codes cannot hold them"):
        session.run(None, {**feeds, "w": np.full_like(W, np.inf)})


def test_nan_that_products_read_is_refused(tmp_path: Path) -> None:
    text = f"{HEAD} g (float[2,4] x, float[4,4] w) => (float[2,4] y) {{ y = MatMul(x, w) }}"
    message = r"data.npz: sample 0: input 'x' holds NaN at \[0, 1\]; calibration needs finite data, remove the sample"
    with pytest.raises(CompileError, match=message):
        built(tmp_path, text, {"x": with_nan(), "w": W})
    nan_text = f"{HEAD} g (float[2,4] x, float[4,4] w) => (float[2,4] y) {{ a = Neg(x)\n y = MatMul(a, w) }}"
    with pytest.raises(CompileError, match=message):
        built(tmp_path, nan_text, {"x": with_nan(), "w": W})


def test_a_row_that_a_mask_leaves_nothing_of_is_nan_behind_the_softmax_as_in_float(tmp_path: Path) -> None:
    visible = np.asarray([[True, True, False, True], [False] * 4])
    network_build = built(tmp_path, MASKED, {"x": X, "w": W, "seen": visible})
    (y,) = Session(network_build.data).run(None, {"x": X, "w": W, "seen": visible})
    scores = np.exp((X @ W)[0]) * visible[0]
    assert np.allclose(y[0], scores / scores.sum() @ W, atol=0.05) and np.allclose(y[1], 0, atol=0.02)
    assert network_build.figures["macs"]
