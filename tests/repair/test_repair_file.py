"""Check that a repair in the parameters file reads back to the last bit and builds the same program without data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from unequal_networks import convolutions, make_norm_network, samples

from quant.file import Parameters, read_parameters, write_parameters
from quant.fixed_point.sums.grouped_sums import WeightGroups
from quant.observe import Range
from quant.parameters import WeightQuant
from quant.repair.choices import LayerParameters, Offset, Quantization
from quant.repair.file import Repair, array_file
from tests.support.run_in_process import run_script
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError, ConfigError
from toolchain.repair.calibrate_network import calibrate_network
from toolchain.repair.network import Network
from toolchain.repair.sample_folds import deal_folds

SCRIPT = Path(__file__).parents[2] / "scripts/calibrate.py"


def everything() -> Quantization:
    rng = np.random.default_rng(0)
    weight = WeightQuant(rng.integers(-127, 127, (4, 3, 3, 2)).astype(np.int8), rng.random(4), 0)
    codes, of_groups = rng.integers(-8, 7, (2, 1, 1, 40)).astype(np.int8), rng.integers(0, 255, (2, 3)).astype(np.int32)
    layers = {
        "b/conv": LayerParameters(weight, rng.standard_normal(4)),
        "a": LayerParameters(None, rng.standard_normal(2)),
        "c": LayerParameters(WeightQuant(np.array([[[[3]]]], np.int8), np.array([0.5]), 0)),
        "grouped": LayerParameters(WeightQuant(codes, rng.random(2), 0, WeightGroups(16, of_groups))),
        "lifted": LayerParameters(WeightQuant(codes, rng.random(2), 0, WeightGroups(16, of_groups, -of_groups))),
    }
    return Quantization(
        {"t": Range(-1.5, 2.25)}, {"t": rng.random(3) + 1e-7}, layers, {"sum": Offset((0, -1), 2)}, ("Add_1", 'odd "name"')
    )


def test_everything_reads_back(tmp_path: Path) -> None:
    path, quantization = tmp_path / "p.yaml", everything()
    step = {
        "step": "rounding",
        "kept": True,
        "why": "it gains: 1 %",
        "before_db": 1e-5,
        "after_db": None,
        "notes": [],
        "layers": [],
    }
    write_parameters(path, Parameters(quantization.ranges, repair=Repair(quantization, "fast", 4, [step])))
    parsed = read_parameters(path)
    assert parsed.repair is not None and (parsed.repair.effort, parsed.repair.held_out) == ("fast", 4)
    assert list(parsed.repair.steps) == [step]
    back = parsed.quantization
    assert back.ranges == quantization.ranges and back.offsets == quantization.offsets and back.hosted == quantization.hosted
    assert np.array_equal(back.factors["t"], quantization.factors["t"])
    for name, layer in quantization.layers.items():
        other = back.layers[name]
        for a, b in ((layer.bias, other.bias), (layer.weight, other.weight)):
            assert (a is None) == (b is None)
        if layer.bias is not None:
            assert np.array_equal(layer.bias, other.bias)  # pyright: ignore[reportArgumentType]
        if layer.weight is not None and other.weight is not None:
            assert np.array_equal(layer.weight.codes, other.weight.codes) and other.weight.codes.dtype == np.int8
            assert np.array_equal(layer.weight.scales, other.weight.scales)
            assert other.weight.scaling.group == layer.weight.scaling.group
            assert np.array_equal(layer.weight.integers, other.weight.integers)
    before = path.read_bytes(), array_file(path).read_bytes()
    write_parameters(path, Parameters(quantization.ranges, repair=Repair(quantization, "fast", 4, [step])))
    assert (path.read_bytes(), array_file(path).read_bytes()) == before


def test_the_array_file_belongs_to_it(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    write_parameters(path, Parameters({"t": Range(0, 1)}, repair=Repair(everything(), "fast")))
    codes_path = array_file(path)
    data = codes_path.read_bytes()
    codes_path.write_bytes(data[:-1] + b"x")
    with pytest.raises(CompileError) as caught:
        read_parameters(path, allowed=["t"])
    message = f"{codes_path}: is not the file that {path} was written with (repair.arrays.sha256); repair again"
    assert str(caught.value) == message
    codes_path.unlink()
    with pytest.raises(CompileError) as caught:
        read_parameters(path, allowed=["t"])
    assert (
        str(caught.value) == f"{codes_path}: is not there; {path} takes the codes of its weights from it, keep the two together"
    )
    codes_path.write_bytes(data)
    path.write_text(path.read_text().replace("weights: [4, 3, 3, 2]", "weights: [5, 3, 3, 2]"))
    with pytest.raises(CompileError) as caught:
        read_parameters(path, allowed=["t"])
    assert (
        str(caught.value) == f"{path}: repair.layers: ask for 251 codes, {codes_path} holds 233; leave them as they were written"
    )


def test_factors_of_people_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text('version: 1\nrepair:\n  effort: "fast"\n  factors:\n    "t": [1.0, -2.0]\ntensors: {}\n')
    with pytest.raises(ConfigError) as caught:
        read_parameters(path)
    assert str(caught.value) == f"{path}:5: repair.factors.t[1]: must be more than 0, got -2.0"


@pytest.mark.slow
@pytest.mark.parametrize("make", [convolutions, make_norm_network])
def test_the_file_builds_what_was_repaired(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net: Network = make(tmp_path) if make is make_norm_network else make(tmp_path, "ws8_pow2")
    shape, name = net.model.types["x"].shape, net.machine.chip.name
    np.savez(tmp_path / "c.npz", x=np.concatenate([s["x"] for s in samples(shape, 24)]))
    monkeypatch.chdir(tmp_path)
    done = run_script(SCRIPT, "net.onnx", "--data", "c.npz", "--hw", name, "--repair", "fast", "-o", "p.yaml")
    assert done.returncode == 0, done.stderr
    assert "equalization: kept" in done.stdout or "region ends: kept" in done.stdout
    again = build(tmp_path / "net.onnx", BuildOptions(name, str(tmp_path / "c.npz"), parameters=str(tmp_path / "p.yaml")))
    held_out = deal_folds(_stream(tmp_path)).held
    plain = build(tmp_path / "net.onnx", BuildOptions(name, str(tmp_path / "c.npz")))
    assert again.figures["outputs"][0]["sqnr_db"] > plain.figures["outputs"][0]["sqnr_db"] + 2
    calibrated = calibrate_network(net, _stream(tmp_path), None, "fast", lambda *_: None)
    session = calibrated.network.session(calibrated.quantization)
    from toolchain.runtime import Session

    other = Session(again.container, backend="reference")
    for sample in held_out:
        assert np.array_equal(session.run(None, sample)[0], other.run(None, sample)[0])


def _stream(folder: Path):
    from quant.calibration_data import open_data
    from toolchain.frontend import load_model

    model = load_model(folder / "net.onnx")
    return open_data(folder / "c.npz", {"x": model.types["x"]})


RANDOM = "repair fast: random inputs say nothing of accuracy; give --calib DATA, or --repair none"
REFUSED = [
    ({"repair": "fastest"}, "repair fastest: must be one of none, fast, full"),
    (
        {"repair": "fast", "calibration": None},
        "repair fast: random inputs say nothing of accuracy; give --calib DATA, or --repair none",
    ),
    ({"repair": "fast"}, "repair fast: takes 16 calibration samples or more, there are 8"),
    ({"observer": "auto"}, "observer auto: takes 16 calibration samples or more, there are 8"),
    ({"repair": "fast", "parameters": "p.yaml"}, "repair fast: p.yaml holds what is built already; give one of them"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_refusals(options: dict, message: str, tmp_path: Path) -> None:
    convolutions(tmp_path)
    np.savez(tmp_path / "c.npz", x=np.concatenate([s["x"] for s in samples((1, 3, 8, 8), 8)]))
    with pytest.raises(CompileError) as caught:
        build(tmp_path / "net.onnx", BuildOptions("edge16", **{"calibration": str(tmp_path / "c.npz"), **options}))
    assert str(caught.value) == message


def test_nothing_repaired_says_nothing(tmp_path: Path) -> None:
    net = convolutions(tmp_path)
    calibrated = calibrate_network(net, samples((1, 3, 8, 8), 16), None, "none", lambda *_: None)
    assert calibrated.repair is None and calibrated.figures() is None and calibrated.network is net
