"""scripts/calibrate.py end to end: a model and data in, a file that reads back out, faults in one message and exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import convolution_net

from quant.file import read_parameters
from quant.observe import Range
from tests.support.run_in_process import run_script
from toolchain.api import BuildOptions, build

SCRIPT = Path(__file__).parents[2] / "scripts" / "calibrate.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_script(SCRIPT, *arguments)


@pytest.mark.parametrize("machine", ["edge16", "brick"])
def test_it_writes_what_the_build_reads(machine: str, tmp_path: Path) -> None:
    text = (SCRIPT.parents[1] / "hw_configs" / "edge16.yaml").read_text()
    (tmp_path / "brick.yaml").write_text(text.replace("name: edge16", "name: brick"))
    hw = "edge16" if machine == "edge16" else tmp_path / "brick.yaml"
    onnx.save(convolution_net(), tmp_path / "net.onnx")
    x = np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=x)
    done = run(tmp_path / "net.onnx", "--data", tmp_path / "c.npz", "--hw", hw, "--samples", 4, "-o", tmp_path / "p.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path}/p.yaml: 5 tensors from 4 samples, observer minmax, ")
    parameters = read_parameters(tmp_path / "p.yaml")
    assert parameters.tensors["x"] == Range(float(x[:4].min()), float(x[:4].max()))
    assert (parameters.samples, parameters.model, parameters.hardware) == (4, "net.onnx", machine)


def test_it_calibrates_on_what_the_build_calibrates_on(tmp_path: Path) -> None:
    """All samples, since nothing judges: among them one that widens every range."""
    onnx.save(convolution_net(), tmp_path / "net.onnx")
    x = np.random.default_rng(0).standard_normal((24, 3, 8, 8)).astype(np.float32)
    x[16] *= 50
    np.savez(tmp_path / "c.npz", x=x)
    done = run(tmp_path / "net.onnx", "--data", tmp_path / "c.npz", "--hw", "edge16", "-o", tmp_path / "p.yaml")
    assert (done.returncode, done.stderr) == (0, "") and "tensors from 24 samples" in done.stdout
    calibrated = build(tmp_path / "net.onnx", BuildOptions("edge16", calibration=str(tmp_path / "c.npz")))
    from_file = build(tmp_path / "net.onnx", BuildOptions("edge16", parameters=str(tmp_path / "p.yaml")))
    assert from_file.data == calibrated.data


def test_a_fault_writes_nothing(tmp_path: Path) -> None:
    onnx.save(convolution_net(), tmp_path / "net.onnx")
    np.savez(tmp_path / "c.npz", x=np.full((1, 3, 8, 8), np.nan, np.float32))
    done = run(tmp_path / "net.onnx", "--data", tmp_path / "c.npz", "-o", tmp_path / "p.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{tmp_path}/c.npz: sample 0: input 'x' holds NaN at [0, 0, 0, 0]; calibration needs finite data, remove the sample\n"
    )
    assert not (tmp_path / "p.yaml").exists()


def test_a_pipe_is_written_to_and_a_link_stays_a_link(tmp_path: Path) -> None:
    onnx.save(convolution_net(), tmp_path / "net.onnx")
    np.savez(tmp_path / "c.npz", x=np.ones((1, 3, 8, 8), np.float32))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "real.yaml").write_text("old")
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    line = [sys.executable, str(SCRIPT), str(tmp_path / "net.onnx"), "--data", str(tmp_path / "c.npz"), "-o"]
    with subprocess.Popen([*line, str(tmp_path / "pipe")], stdout=subprocess.DEVNULL) as calibration:
        text = (tmp_path / "pipe").read_text()
    assert calibration.returncode == 0
    assert (tmp_path / "pipe").is_fifo()
    assert subprocess.run([*line, str(tmp_path / "link.yaml")], stdout=subprocess.DEVNULL).returncode == 0
    assert (tmp_path / "link.yaml").is_symlink()
    assert (tmp_path / "real.yaml").read_text() == text


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (".", "-o .: is a directory, give the name of a file"),
        ("none/p.yaml", "-o none/p.yaml: there is no directory none; make it first"),
        ("net.onnx", "-o net.onnx: is the same file as the model; it would be overwritten"),
        ("c.npz", "-o c.npz: is the same file as --data; it would be overwritten"),
        ("mine.yaml", "-o mine.yaml: is the same file as --hw; it would be overwritten"),
    ],
)
def test_an_output_that_cannot_be(output: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before the data are read, which would be refused."""
    onnx.save(convolution_net(), tmp_path / "net.onnx")
    np.savez(tmp_path / "c.npz", x=np.full((1, 3, 8, 8), np.nan, np.float32))
    (tmp_path / "mine.yaml").write_text(files("hw_configs").joinpath("edge16.yaml").read_text())
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    done = run("net.onnx", "--data", "c.npz", "--hw", "mine.yaml", "-o", output)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message + "\n")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_bad_shape_option(tmp_path: Path) -> None:
    done = run(tmp_path / "net.onnx", "--data", "c.npz", "--shape", "x=1,a", "-o", tmp_path / "p.yaml")
    assert (done.returncode, done.stderr) == (
        2,
        "--shape x=1,a: must be NAME=D0,D1,..., for example --shape x=1,3,640,640\n",
    )
