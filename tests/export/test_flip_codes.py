"""bench/perturb_codes.py: what a few codes that are one step off make of a network's outputs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.export.test_qdq import CASES, save_model
from tests.support.run_in_process import run_script

ROOT = Path(__file__).parents[2]


def run_flip_codes(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script(ROOT / "bench" / "perturb_codes.py", *arguments)


def test_more_codes_that_are_off_leave_less(tmp_path: Path) -> None:
    path = save_model(CASES["chain"], tmp_path)
    completed = run_flip_codes(str(path), "--data", str(tmp_path / "data.npz"), "--share", "0", "0.01", "1")
    lines = completed.stdout.splitlines()
    assert lines[0] == "0 of the codes, 0.0 a sample: worst 200.0 dB, all 200.0 dB", completed.stderr
    assert lines[2].startswith("1 of the codes, 512.0 a sample: ")
    levels = [float(line.split()[-2]) for line in lines]
    assert levels[0] > levels[1] > levels[2] > 10


@pytest.mark.parametrize(("case", "fault"), [("host", "node_b: runs on the host"), ("chain", "holds 8 samples, and 16 are")])
def test_what_it_cannot_do_is_said(case: str, fault: str, tmp_path: Path) -> None:
    path = save_model(CASES[case], tmp_path)
    if case == "chain":
        np.savez(tmp_path / "data.npz", x=np.load(tmp_path / "data.npz")["x"][:8])
    completed = run_flip_codes(str(path), "--data", str(tmp_path / "data.npz"))
    assert completed.returncode == 2 and fault in completed.stderr


def float32_file(folder: Path) -> Path:
    """edge16 with onnxruntime's arithmetic, as a machine's file."""
    shipped, copy = ROOT / "hw_configs", folder / "once.yaml"
    shutil.copytree(shipped / "isa", folder / "isa")
    text = (shipped / "edge16.yaml").read_text()
    scale = "scale: {kind: multiplier, multiplier_bits: 31, shift_min: 0, shift_max: 62}"
    for old, new in ((scale, "scale: {kind: float32}"), ("rounding: double_round", "rounding: fp32_rne")):
        assert old in text
        text = text.replace(old, new)
    copy.write_text(text)
    return copy


def test_a_machine_that_rounds_once_in_float32_differs_in_nothing(tmp_path: Path) -> None:
    """edge16 rounds twice, and is off by a step now and then; half a step of the sums more is never worse by itself."""
    path = save_model(CASES["chain"], tmp_path)
    for machine, equal in (("edge16", False), (str(float32_file(tmp_path)), True)):
        completed = run_flip_codes(str(path), "--data", str(tmp_path / "data.npz"), "--share", "--once", "--hw", machine)
        plainly, better = completed.stdout.splitlines()
        assert plainly.startswith("rounded once, by float32 scales: ") and better.startswith("half a step more"), completed.stderr
        off = [float(line.split("scales: ")[1].split()[0]) for line in (plainly, better)]
        assert off[1] <= off[0] and (off == [0, 0]) == equal
        assert plainly.endswith("worst 200.0 dB, all 200.0 dB") == equal
