"""A poor output is traced to the layer and tensor where the error arises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from toolchain.api import BuildOptions, build
from toolchain.report.text import warnings_text

NAMES = ("one", "two", "three", "four")


def chain(folder: Path) -> Path:
    """Four convolutions and calibration data for them."""
    text = " ".join(f"{o} = Conv<pads=[1,1,1,1]>({i}, w{k})" for k, (i, o) in enumerate(zip("xabc", "abcy")))
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float[1,4,8,8] y) {{ {text} }}'
    )
    rng = np.random.default_rng(0)
    for k in range(4):
        value = (rng.standard_normal((4, 4, 3, 3)) / 6).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(value, f"w{k}"))
    for node, name in zip(proto.graph.node, NAMES):
        node.name = name
    onnx.save(proto, folder / "m.onnx")
    np.savez(folder / "data.npz", x=rng.standard_normal((4, 4, 8, 8)).astype(np.float32))
    return folder / "m.onnx"


@pytest.mark.parametrize(("tensor", "layer"), [("a", "one"), ("c", "three"), ("y", "four"), ("x", None)])
def test_the_layer_where_the_error_arises_is_named(tensor: str, layer: str | None, tmp_path: Path) -> None:
    path = chain(tmp_path)
    ranges = dict.fromkeys("xabcy", "{low: -6.0, high: 6.0}") | {tensor: "{low: -0.05, high: 0.05}"}
    lines = "\n".join(f"  {name}: {text}" for name, text in ranges.items())
    (tmp_path / "p.yaml").write_text(f"version: 1\ntensors:\n{lines}\n")
    data = str(tmp_path / "data.npz")
    built = build(path, BuildOptions("edge16", calibration=data, parameters=str(tmp_path / "p.yaml")))
    found = built.figures["origin"]
    assert (found["tensor"], found["layer"]) == (tensor, layer)
    assert found["sqnr_db"] < 10 < found["before_db"]
    said = warnings_text(built.figures)[-1]
    if layer is None:
        assert said.startswith("warning: the error arises where tensor x with ")
    else:
        assert said.startswith(f"warning: the error arises first in layer {layer} (IntegerConvolution): tensor {tensor} with ")


def test_a_good_network_has_no_origin(tmp_path: Path) -> None:
    built = build(chain(tmp_path), BuildOptions("edge16", calibration=str(tmp_path / "data.npz")))
    assert built.figures["origin"] is None and warnings_text(built.figures) == []
    assert built.figures["calibration_samples"] == built.figures["judged_samples"] == 4
    assert built.notes[-1] == "calibrated on 4 samples; ranges of fewer than 16 may not hold for other data"
