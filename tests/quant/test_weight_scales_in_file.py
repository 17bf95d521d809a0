"""The section `weights` of a parameters file: which weights of a layer share a scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edge_numerics import machine

from quant.file import Parameters, read_parameters, render_parameters, write_parameters
from quant.fixed_point import GroupForm, Numerics, WeightScaling
from quant.observe import Range
from quant.parameters import WeightQuant
from quant.repair.choices import LayerParameters, Quantization
from quant.repair.file import Repair
from toolchain.errors import ConfigError

SCALINGS = {"a": WeightScaling(None), "b/c": WeightScaling(0), "d": WeightScaling(0, 64)}
GROUPED = Numerics(groups=GroupForm((32, 64)))


def written(path: Path, lines: str) -> Path:
    path.write_text(f'version: 1\nweights:\n{lines}tensors:\n  "x": {{low: -1.0, high: 1.0}}\n')
    return path


def test_round_trip(tmp_path: Path) -> None:
    parameters = Parameters({"x": Range(-1.0, 1.0)}, weights=SCALINGS)
    text = render_parameters(parameters)
    assert '  "d": {scales: 64}\n' in text and '  "a": {scales: tensor}\n' in text
    (tmp_path / "p.yaml").write_text(text)
    parsed = read_parameters(tmp_path / "p.yaml", layers=lambda: list(SCALINGS), numerics=GROUPED)
    assert dict(parsed.weights) == SCALINGS
    assert {n: p.scaling for n, p in parsed.quantization.layers.items()} == SCALINGS
    assert "weights:" not in render_parameters(Parameters({"x": Range(-1.0, 1.0)}))


@pytest.mark.parametrize(
    ("line", "numerics", "message"),
    [
        (
            "  fc: {scales: 64}\n",
            machine(),
            "weights.fc.scales: the machine has no groups of 64 weights",
        ),
        ("  fc: {scales: 128}\n", GROUPED, "no groups of 128 weights (engines.mac.groups); use 32, 64, channel or tensor"),
        ("  fc: {scales: channel}\n", machine(weights_per_channel=False), "weights.fc.scales: the machine has one scale for all"),
        (
            "  frist: {scales: 64}\n",
            GROUPED,
            'weights.frist: the machine has no such layer with weights; did you mean "first"?',
        ),
        ("  fc: {scales: 40}\n", GROUPED, "weights.fc.scales"),
        ("  fc: {scales: row}\n", GROUPED, "weights.fc.scales"),
        ("  fc: {group: 32}\n", GROUPED, "weights.fc.group"),
    ],
)
def test_faults_have_their_line(tmp_path: Path, line: str, numerics: Numerics, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_parameters(written(tmp_path / "p.yaml", line), layers=lambda: ["fc", "first"], numerics=numerics)
    assert all(f.startswith(f"{tmp_path}/p.yaml:3: ") for f in caught.value.faults)
    assert message in "\n".join(caught.value.faults), caught.value.faults


def test_codes_that_repair_chose_have_their_scales(tmp_path: Path) -> None:
    layers = {"fc": LayerParameters(WeightQuant(np.ones((1, 1, 1, 1), np.int8), np.ones(1), 0))}
    repair = Repair(Quantization({}, layers=layers), "full")
    write_parameters(tmp_path / "p.yaml", Parameters({}, repair=repair, weights={"fc": WeightScaling(0)}))
    with pytest.raises(ConfigError, match=r"weights\.fc: repair\.layers has codes of its weights, with their scales"):
        read_parameters(tmp_path / "p.yaml", layers=lambda: ["fc"], numerics=machine())
