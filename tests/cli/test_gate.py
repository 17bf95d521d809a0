"""A build that is not accurate enough ends with exit code 3, says why, and writes nothing unless it is told to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import Printed, contents, run
from two_layers import save_two_layers

from toolchain.judging.evaluation_data import count_judges

EVALUATION = """
import numpy as np

def worst(float_outputs, integer_outputs, samples):
    assert len(float_outputs) == len(integer_outputs) == len(samples) and samples[0]["x"].shape == (1, 4, 8, 8)
    found = max(float(np.abs(f["y"] - i["y"]).max()) for f, i in zip(float_outputs, integer_outputs))
    return found, found < LIMIT

def broken(float_outputs, integer_outputs, samples):
    raise ValueError("no labels")

def alone(float_outputs, integer_outputs, samples):
    return 0.5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """m.onnx, data.npz of 40 samples, of which a gate holds out 10, other.npz, and p.yaml, which clips tensor `a`."""
    rng = np.random.default_rng(0)
    save_two_layers(tmp_path / "m.onnx", "(float[1,4,8,8] x) => (float[1,4,8,8] y)", (4, 4, 3, 3), (4, 4, 1, 1), rng)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((40, 4, 8, 8)).astype(np.float32))
    np.savez(tmp_path / "other.npz", x=8 * rng.standard_normal((5, 4, 8, 8)).astype(np.float32))
    ranges = dict.fromkeys("xaby", (-8.0, 8.0)) | {"b": (-0.05, 0.05)}
    lines = [f"  {name}: {{low: {low}, high: {high}}}" for name, (low, high) in ranges.items()]
    (tmp_path / "p.yaml").write_text("\n".join(["version: 1", "tensors:", *lines, ""]))
    (tmp_path / "e.py").write_text(EVALUATION.replace("LIMIT", "1.0"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def built(options: str) -> Printed:
    return run(f"npu-build m.onnx --hw edge16 --json m.json {options}")


def test_a_build_above_the_gate_is_written(here: Path) -> None:
    printed = built("--calib data.npz --min-sqnr 20 --min-cosine 0.99 --eval e.py:worst")
    assert printed.code == 0 and "calibrated on" not in printed.err
    assert "outputs against float, on 10 samples of --calib, held out of calibration:\n" in printed.out
    assert "\n\ne.py:worst: 0." in printed.out and ", passed\n" in printed.out
    figures = json.loads((here / "m.json").read_text())
    assert (figures["judged_on"], figures["judged_samples"], figures["calibration_samples"]) == ("held out", 10, 40)
    assert figures["score"]["passed"] is True and figures["failures"] == []


@pytest.mark.parametrize(("loud", "code"), [(10, 3), (32, 0)])
def test_samples_that_loud_ones_hide_are_told(here: Path, loud: int, code: int) -> None:
    """Loud samples have 300 times the amplitude of the others, which one int8 scale loses."""
    x = np.load("data.npz")["x"]
    x[loud:] /= 300
    np.savez("mixed.npz", x=x)
    printed = built("--calib data.npz --judge mixed.npz --min-sqnr 20 --repair none")
    lower = f"{40 - loud} of 40 samples are lower, the worst at "
    assert printed.code == code and lower in printed.err
    assert ("dB; --min-sqnr asks for 20" if code else "WARNING: output y passes --min-sqnr 20, but ") in printed.err
    x[loud:] /= 1e4
    np.savez("mixed.npz", x=x)  # silence
    printed = built("--calib data.npz --judge mixed.npz --min-sqnr 20 --repair none")
    assert printed.code == 0 and " samples are lower" not in printed.err


def test_below_the_gate_nothing_is_written(here: Path) -> None:
    before = contents(here)
    line = "--quant p.yaml --calib data.npz --min-sqnr 20 --min-cosine 0.99 --image i --error-report r"
    printed = built(line)
    assert printed.code == 3 and contents(here) == before
    lines = printed.err[printed.err.index("NOT ACCURATE ENOUGH") :].splitlines()
    assert lines[1].startswith("output y: SQNR ") and "--min-sqnr asks for 20; cosine 0." in lines[1]
    assert lines[2].startswith("  layer first (IntegerConvolution), tensor b: clipped tail, leaves ")
    assert "lie outside its codes' [-0.05" in lines[2] and "; tried on 8 samples: low: 0, high: " in lines[2]
    assert " for b in the file of --quant (" in lines[2] and " dB for 0." in lines[2]
    assert lines[3:] == ["nothing was written; mend it, ask for less, or take it as it is with --force"]
    forced = built(f"{line} --force")
    assert forced.code == 0 and "WARNING: NOT ACCURATE ENOUGH, written because of --force: output y: SQNR " in forced.err
    assert {"m.npu", "m.json", "i", "r/layers.html", "r/layers.json", "r/layers.txt"} <= contents(here).keys()
    figures = json.loads((here / "m.json").read_text())
    assert len(figures["failures"]) == 1 and figures["outputs"][0]["poor"] is True


def test_the_remedy_works(here: Path) -> None:
    """The suggestion of the failure message is applied: the layer runs on the host."""
    printed = built("--quant p.yaml --calib data.npz --min-sqnr 20 --host-node first --host-node relu --host-node Conv")
    assert printed.code == 0


def test_a_function_that_does_not_pass_keeps_it_from_being_written(here: Path) -> None:
    printed = built("--calib data.npz --judge other.npz --eval e.py:worst")
    assert printed.code == 3 and not (here / "m.npu").exists()
    assert "outputs against float, on 5 samples of --judge:\n" in printed.out
    assert "NOT ACCURATE ENOUGH\n--eval e.py:worst: " in printed.err and " did not pass\n  " in printed.err
    assert ": clipped tail, " in printed.err and "samples in which" not in printed.err


def test_a_report_of_some_of_the_samples_says_so(here: Path) -> None:
    printed = built("--calib data.npz --judge other.npz")
    assert "outputs against float, on 4 of 5 samples of --judge:\n" in printed.out
    levels = json.loads((here / "m.json").read_text())["sample_sqnr_db"]
    assert f"\n\nsingle samples have {min(levels):.1f} to {max(levels):.1f} dB; --min-sqnr DB judges all 5\n\n" in printed.out
    assert len(levels) == 4 and min(levels) < max(levels)
    with np.load(here / "data.npz") as data:  # where others judge none are held out
        assert json.loads((here / "m.json").read_text())["calibration_samples"] == len(data["x"])
    assert "single samples" not in built("--calib data.npz --judge other.npz --min-sqnr 1").out


def test_too_few_samples_to_hold_any_out_are_said(here: Path) -> None:
    printed = built("--calib data.npz --samples 16 --min-sqnr 20")
    assert (printed.code, printed.err) == (
        0,
        "WARNING: the gate judges on the data it was calibrated on: others may do worse; give more than 16 samples, "
        "or --judge DATA\n",
    )


@pytest.mark.parametrize(
    ("count", "gate", "message"),
    [
        (17, "--observer auto", "judged on 1 sample alone"),
        (17, "", None),
        (20, "--observer auto", None),
        (20, "--min-sqnr 1", "the gate judges on 4 samples alone"),
        (32, "--min-sqnr 1", None),
    ],
)
def test_few_that_are_judged_are_a_warning(count: int, gate: str, message: str | None, here: Path) -> None:
    np.savez(here / "few.npz", x=np.load(here / "data.npz")["x"][:count])
    more = "held out of calibration: others may do worse; give --calib more samples, or --judge DATA"
    lines = built(f"--calib few.npz {gate}".strip()).err.splitlines()
    assert [line for line in lines if "judge" in line] == ([] if message is None else [f"WARNING: {message}, {more}"])


REFUSED = {
    "--calib data.npz --min-cosine 2": "--min-cosine 2: must be from -1 to 1, for example 0.99",
    "--calib data.npz --min-sqnr nan": "--min-sqnr nan: must be a number of decibels, for example 20",
    "--calib data.npz --eval e.txt:f": "--eval e.txt:f: must be FILE.py:FUNCTION",
    "--calib data.npz --eval e.py:wosrt": "e.py: no function 'wosrt' (functions: worst, broken, alone); did you mean \"worst\"?",
    "--calib data.npz --eval e.py:broken": "e.py:broken: ValueError: no labels (line 10); mend the function",
    "--calib data.npz --eval e.py:alone": "e.py:alone: gave 0.5; it must give (number, True or False)",
    "--calib data.npz --eval no.py:f": "no.py: no such file or directory; it was given as file.py:function",
    "--calib data.npz --force": (
        "--force: goes with --min-cosine, --min-sqnr or --eval; nothing else keeps a file from being written"
    ),
    "--min-sqnr 3": "--min-sqnr: random inputs say nothing of accuracy; give --calib DATA, or --quant FILE and --judge DATA",
    "--error-report r": (
        "--error-report: random inputs say nothing of accuracy; give --calib DATA, or --quant FILE and --judge DATA"
    ),
    "--judge other.npz": "--judge other.npz: what was calibrated on random inputs means nothing; give --calib or --quant",
    "--calib data.npz --judge no.npz": (
        "no.npz: no such file or directory; give an .npz, a directory of .npy or images, or file.py:function"
    ),
    "--calib data.npz --host-node Cnov": (
        '--host-node Cnov: the model has no such node or operator; did you mean "Conv"?\n'
        "  help: --explain lists the nodes of the model"
    ),
    "--calib data.npz --error-report .": "--error-report .: is not empty, and nothing in it is overwritten; give a new folder",
    "--calib data.npz --judge other.npz -o other.npz": "-o other.npz: is the same file as --judge; it would be overwritten",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_is_refused(options: str, here: Path) -> None:
    before = contents(here)
    printed = built(options)
    assert (printed.code, printed.err) == (2, f"{REFUSED[options]}\n")
    assert contents(here) == before


@pytest.mark.parametrize(("pattern", "hosted"), [("Conv", ["first", "second"]), ("s*", ["second"]), ("?elu", ["relu"])])
def test_operators_and_patterns_stay_on_the_host(pattern: str, hosted: list[str], here: Path) -> None:
    assert built(f"--calib data.npz --host-node {pattern}").code == 0
    assert [f["node"] for f in json.loads((here / "m.json").read_text())["fallbacks"]] == hosted


@pytest.mark.parametrize(
    ("count", "held"), [(1, 0), (16, 0), (17, 1), (20, 4), (24, 6), (40, 10), (128, 32), (144, 34), (1000, 141)]
)
def test_how_many_are_held_out_for_a_gate(count: int, held: int) -> None:
    assert count_judges(count) == held
