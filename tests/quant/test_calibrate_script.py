"""scripts/calibrate.py end to end: a model and data in, a file that reads back out, faults in one message and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import convolution_net

from quant.file import read_parameters
from quant.observe import Range

SCRIPT = Path(__file__).parents[2] / "scripts" / "calibrate.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize("machine", ["edge16", "brick"])
def test_it_writes_what_the_build_reads(machine: str, tmp_path: Path) -> None:
    text = (SCRIPT.parents[1] / "hw_configs" / "edge16.yaml").read_text()
    (tmp_path / "brick.yaml").write_text(text.replace("name: edge16", "name: brick"))
    hw = "edge16" if machine == "edge16" else tmp_path / "brick.yaml"
    onnx.save(convolution_net(), tmp_path / "net.onnx")
    x = np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=x)
    done = run(tmp_path / "net.onnx", "--data", tmp_path / "c.npz", "--hw", hw, "--limit", 4, "-o", tmp_path / "p.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path}/p.yaml: 5 tensors from 4 samples, observer minmax, ")
    found = read_parameters(tmp_path / "p.yaml")
    assert found.tensors["x"] == Range(float(x[:4].min()), float(x[:4].max()))
    assert (found.samples, found.model, found.hardware) == (4, "net.onnx", machine)


def test_a_fault_writes_nothing(tmp_path: Path) -> None:
    onnx.save(convolution_net(), tmp_path / "net.onnx")
    np.savez(tmp_path / "c.npz", x=np.full((1, 3, 8, 8), np.nan, np.float32))
    done = run(tmp_path / "net.onnx", "--data", tmp_path / "c.npz", "-o", tmp_path / "p.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{tmp_path}/c.npz: sample 0: input 'x' holds NaN at [0, 0, 0, 0]; calibration needs finite data, remove the sample\n"
    )
    assert not (tmp_path / "p.yaml").exists()


def test_a_bad_shape_option(tmp_path: Path) -> None:
    done = run(tmp_path / "net.onnx", "--data", "c.npz", "--shape", "x=1,a", "-o", tmp_path / "p.yaml")
    assert (done.returncode, done.stderr) == (
        2,
        "--shape x=1,a: not NAME=1,3,640,640; give the input's name and its whole shape\n",
    )
