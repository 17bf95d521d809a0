"""--type of calibrate.py and evaluate.py is npu-build's: what it asks for is in the file, and the build is the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import convolution_net, model, node

from quant.file import read_parameters
from quant.fixed_point.core.codes import CodeType
from tests.support.recurrent import recurrent
from tests.support.run_in_process import run_script
from toolchain.api import BuildOptions, build

SCRIPTS = Path(__file__).parents[2] / "scripts"
MACHINE = "transformer64"


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_script(SCRIPTS / script, *arguments)


def make_type_options(*types: str) -> list[str]:
    return [part for one in types for part in ("--type", one)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(convolution_net(), tmp_path / "net.onnx")
    tailed = np.random.default_rng(0).standard_normal((24, 3, 8, 8)) ** 7  # in 8 bits the least error cuts its ends off
    np.savez(tmp_path / "c.npz", x=tailed.astype(np.float32))
    return tmp_path


@pytest.mark.parametrize("more", [[], ["--observer", "mse"], ["--repair", "fast"]])
def test_a_calibrated_file_says_the_types_that_were_asked_for(more: list[str], folder: Path) -> None:
    overrides = ("c_node=int16", "w2=int4")
    net, data, parameters = folder / "net.onnx", folder / "c.npz", folder / "p.yaml"
    done = run("calibrate.py", net, "--data", data, "--hw", MACHINE, *more, *make_type_options(*overrides), "-o", parameters)
    assert (done.returncode, done.stderr) == (0, "")
    parameters_read = read_parameters(parameters)
    assert parameters_read.types["r"] == CodeType.INT16  # the clamp is fused: r is what is made
    assert set(parameters_read.types) <= {"c", "r"} or "--repair" in more  # repair may give others wider codes too
    assert parameters_read.weight_types == {"d_node": CodeType.INT4}
    names = {"--observer": "observer", "--repair": "repair"}
    # With data to judge on a build holds none of the others out, as the script holds none.
    chosen: dict[str, Any] = {names[more[0]]: more[1]} if more else {}
    options = BuildOptions(MACHINE, calibration=str(data), judge=str(data), types=overrides, **chosen)
    assert build(net, BuildOptions(MACHINE, parameters=str(parameters))).data == build(net, options).data


def test_steps_have_the_bounds_of_their_types(tmp_path: Path) -> None:
    nodes = [node("LayerNormalization", "x g b", "y", axis=-1)]
    constants = {"g": np.linspace(0.5, 2, 16, dtype=np.float32), "b": np.linspace(-1, 1, 16, dtype=np.float32)}
    net, data = tmp_path / "net.onnx", tmp_path / "c.npz"
    onnx.save(model(nodes, {"x": [1, 4, 16]}, ["y"], constants), net)
    np.savez(data, x=np.random.default_rng(0).standard_normal((8, 4, 16)).astype(np.float32))
    line = (net, "--data", data, "--hw", MACHINE, "--type", "LayerNormalization=int16", "-o", tmp_path / "p.yaml")
    done = run("calibrate.py", *line)
    assert (done.returncode, done.stderr) == (0, "")
    options = BuildOptions(MACHINE, calibration=str(data), types=("LayerNormalization=int16",))
    assert build(net, BuildOptions(MACHINE, parameters=str(tmp_path / "p.yaml"))).data == build(net, options).data


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--type", "r=int16"], "--type r=int16: is a type of a machine's, and no machine was named; give --hw"),
        (
            ["--type", "r", "--hw", MACHINE],
            "--type r: must be NAME=TYPE, such as conv1=int16\n"
            "  help: the parameters file that scripts/calibrate.py writes lists the tensors, --explain the nodes",
        ),
    ],
)
def test_types_that_cannot_be_are_refused(more: list[str], message: str, folder: Path) -> None:
    output = [] if "-o" in more else ["-o", folder / "p.yaml"]
    done = run("calibrate.py", folder / "net.onnx", "--data", folder / "c.npz", *output, *more)
    assert (done.returncode, done.stderr) == (2, message + "\n")


@pytest.mark.slow
def test_evaluation_is_of_the_types_that_were_asked_for(tmp_path: Path) -> None:
    signs = np.where(np.random.default_rng(1).random((4, 16)) < 0.5, -1, 1).astype(np.float32)  # exact in any type of weights
    onnx.save(model([node("Gemm", "x w", "y", transB=1)], {"x": [1, 16]}, ["y"], {"w": signs}), tmp_path / "net.onnx")
    x = np.random.default_rng(0).standard_normal((8, 1, 16)).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=x)
    np.savez(tmp_path / "labelled.npz", x=x, y=np.zeros(8, np.int64))
    line = (tmp_path / "net.onnx", "--hw", MACHINE, "--npz", tmp_path / "labelled.npz", "--calib", tmp_path / "c.npz")
    plain, fine = (run("evaluate.py", *line, *make_type_options(*types)) for types in ((), ("x=int16", "y=int16")))
    assert (plain.returncode, fine.returncode, fine.stderr) == (0, 0, "")
    decibels = [float(done.stdout.split("logits ")[1].split(" dB")[0]) for done in (plain, fine)]
    assert decibels[1] > decibels[0] + 30
    refused = run("evaluate.py", *line, *make_type_options("z=int16"))
    assert refused.returncode == 2 and refused.stderr.startswith("--type z=int16: the chip holds no such tensor")


def test_encodings_hold_types_of_activations(folder: Path) -> None:
    net, data = folder / "net.onnx", folder / "c.npz"
    built = []
    for name in ("p.yaml", "p.encodings"):
        done = run("calibrate.py", net, "--data", data, "--hw", MACHINE, "--type", "c_node=int16", "-o", folder / name)
        assert (done.returncode, done.stderr) == (0, "")
        built.append(build(net, BuildOptions(MACHINE, parameters=str(folder / name))))
    assert built[0].data == built[1].data
    assert "int16" in {t.dtype for t in built[1].container.graph.types.values() if t.quant is not None}
    done = run("calibrate.py", net, "--data", data, "--hw", MACHINE, "--type", "w2=int4", "-o", folder / "w.encodings")
    message = f"-o {folder}/w.encodings: encodings cannot say types of weights, or wide ones; give -o params.yaml\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.fixture
def encoded(tmp_path: Path) -> Path:
    """A recurrent layer, its data, and the encodings that the script writes."""
    onnx.save(recurrent("LSTM", length=3, inputs=4, units=4), tmp_path / "net.onnx")
    np.savez(tmp_path / "c.npz", x=np.random.default_rng(0).standard_normal((8, 3, 2, 4)).astype(np.float32))
    line = ("--data", tmp_path / "c.npz", "--hw", MACHINE, "-o", tmp_path / "p.encodings")
    done = run("calibrate.py", tmp_path / "net.onnx", *line)
    assert (done.returncode, done.stderr) == (0, "")
    return tmp_path


def test_encodings_have_the_width_of_each_tensors_own_codes(encoded: Path) -> None:
    """Check that tensors without an override have their own width too: the state of a recurrent layer has 16 bits and room for
    other sequences.
    """
    entries = json.loads((encoded / "p.encodings").read_text())["activation_encodings"]
    assert {entries[name][0]["bitwidth"] for name in ("Y: cell", "Y")} == {16}
    calibrated = BuildOptions(MACHINE, calibration=str(encoded / "c.npz"), repair="none")
    options = (calibrated, BuildOptions(MACHINE, parameters=str(encoded / "p.encodings")))
    first, second = (build(encoded / "net.onnx", o).container.graph.types for o in options)
    shown = [
        {n: (t.dtype, float(np.float32(t.quant.scale))) for n, t in entries.items() if t.quant} for entries in (first, second)
    ]
    assert shown[0] == shown[1]


def test_a_scale_of_other_codes_than_the_builds_is_taken_as_its_range(encoded: Path) -> None:
    encodings = json.loads((encoded / "p.encodings").read_text())
    for (entry,) in encodings["activation_encodings"].values():
        scale = (entry["max"] - entry["min"]) / 255
        entry |= {"bitwidth": 8, "scale": scale, "offset": round(entry["min"] / scale)}
    (encoded / "p.encodings").write_text(json.dumps(encodings))
    build_result = build(
        encoded / "net.onnx", BuildOptions(MACHINE, str(encoded / "c.npz"), parameters=str(encoded / "p.encodings"))
    )
    (cell,) = {t.quant.scale for n, t in build_result.container.graph.types.items() if n.startswith("Y: cell, step") and t.quant}
    assert (
        cell < encodings["activation_encodings"]["Y: cell"][0]["scale"] / 100
        and build_result.figures["outputs"][0]["sqnr_db"] > 35
    )
