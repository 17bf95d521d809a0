"""Several sets of input shapes in one file: each is judged, explained and exported as a build of its own would be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from commands import Printed, contents, run
from PIL import Image
from two_layers import save_two_layers

EVALUATION = """
def single(float_outputs, integer_outputs, samples):
    return len(samples[0]["x"]), len(samples[0]["x"]) == 1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """m.onnx of any batch and size, 24 samples of 8 x 8 in data.npz, louder ones of 9 x 9, ranges and 25 images."""
    rng = np.random.default_rng(0)
    save_two_layers(tmp_path / "m.onnx", "(float[N,3,H,W] x) => (float[N,6,P,Q] y)", (4, 3, 3, 3), (6, 4, 1, 1), rng)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((24, 3, 8, 8)).astype(np.float32))
    np.savez(tmp_path / "alike.npz", x=rng.standard_normal((5, 3, 9, 9)).astype(np.float32))
    np.savez(tmp_path / "loud.npz", x=20 * rng.standard_normal((5, 3, 9, 9)).astype(np.float32))
    ranges = "\n".join(f"  {name}: {{low: -4.0, high: 4.0}}" for name in "xaby")
    (tmp_path / "p.yaml").write_text(f"version: 1\ntensors:\n{ranges}\n")
    (tmp_path / "e.py").write_text(EVALUATION)
    (tmp_path / "images").mkdir()
    for i in range(25):
        pixels = rng.integers(0, 255, (12, 10, 3), np.uint8, endpoint=True)
        Image.fromarray(pixels).save(tmp_path / f"images/{i:02d}.png")
    (tmp_path / "images/preprocess.yaml").write_text("mean: 128\nstd: 64\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def built(options: str) -> Printed:
    return run(f"npu-build m.onnx --hw edge16 --json m.json {options}")


def figures() -> dict[str, Any]:
    return json.loads(Path("m.json").read_text())


def test_ranges_hold_what_the_data_show_in_all_shapes(here: Path) -> None:
    """Images are made to the shapes of each entry: a sum over four times as many pixels is in the range too."""
    text = "g (float[1,3,H,W] x) => (float y) <int64[2] a = {2, 3}> { r = Relu(x) y = ReduceSum<keepdims=1>(r, a) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), here / "m.onnx")
    printed = built("--calib images --entry small:x=1,3,8,8 --entry large:x=1,3,16,16")
    assert printed.code == 0 and "entry large: more than" not in printed.err, printed.err


BATCHES = "--entry one:x=1,3,8,8 --entry two:x=2,3,8,8"
SIZES = "--entry small:x=1,3,8,8 --entry large:x=1,3,9,9"


def test_a_later_entry_keeps_the_file_from_being_written(here: Path) -> None:
    before = contents(here)
    line = f"--calib data.npz --min-sqnr 10 --eval e.py:single {BATCHES}"
    printed = built(line)
    assert printed.code == 3 and contents(here) == before
    lines = printed.err[printed.err.index("NOT ACCURATE ENOUGH") :].splitlines()
    assert lines[1] == "entry two: --eval e.py:single: 2 did not pass" and lines[2].startswith("  layer ")
    assert lines[3:] == ["nothing was written; mend it, ask for less, or take it as it is with --force"]
    forced = built(f"{line} --force")
    warning = "WARNING: NOT ACCURATE ENOUGH, written because of --force: entry two: --eval e.py:single: 2 did not pass"
    assert forced.code == 0 and warning in forced.err
    result = figures()
    assert [one["score"]["passed"] for one in result["entries"].values()] == [True, False]
    assert [f.partition("\n")[0] for f in result["failures"]] == ["entry two: --eval e.py:single: 2 did not pass"]


def test_samples_that_were_not_calibrated_on_judge_every_entry_of_their_batch(here: Path) -> None:
    """The same images are held out at every size; of other batches none has only such."""
    printed = built("--calib images --min-sqnr 10 --entry small:x=1,3,8,8 --entry large:x=1,3,16,12 --entry pair:x=2,3,8,8")
    assert printed.code == 0, printed.err
    entries = figures()["entries"].values()
    assert [(one["judged_on"], one["judged_samples"]) for one in entries] == [
        ("held out", 6),
        ("held out", 6),
        ("calibration", 13),
    ]
    assert all(one["worst_layers"] for one in entries)
    assert built(f"--calib images --samples 18 --observer auto {SIZES.replace('9,9', '16,12')}").code == 0
    assert [(one["judged_on"], one["judged_samples"]) for one in figures()["entries"].values()] == [("held out", 2)] * 2
    assert [line for line in printed.err.splitlines() if "calibrated on" in line] == [
        "WARNING: entry pair: the gate judges on the data it was calibrated on: others may do worse; give --judge DATA"
    ]


def test_data_that_do_not_fit_an_entry_cannot_judge_it(here: Path) -> None:
    before = contents(here)
    for option in ("--min-sqnr 10", "--error-report r", "--judge data.npz"):
        printed = built(f"--calib data.npz {option} {SIZES}")
        assert (printed.code, printed.err) == (
            2,
            f"entry large: cannot be judged as {option.split()[0]} asks: data.npz: array for input 'x' has shape [24, 3, 8, 8]; "
            "the input takes [1, 3, 9, 9], so it must be [samples, 3, 9, 9]: resize the samples, or bind other dimensions with "
            "--shape\n"
            "  help: give data of its own, --judge ENTRY:DATA\n",
        )
        assert contents(here) == before
    assert built(f"--calib data.npz --judge small:data.npz {SIZES}").code == 0
    assert [one["judged_on"] for one in figures()["entries"].values()] == ["judge", "repeated"]


def test_an_entry_is_judged_on_data_of_its_own(here: Path) -> None:
    printed = built(f"--calib data.npz --min-sqnr 10 --judge large:alike.npz {SIZES}")
    assert printed.code == 0, printed.err
    assert [(one["judged_on"], one["judged_samples"]) for one in figures()["entries"].values()] == [("held out", 6), ("judge", 5)]
    printed = built(f"--calib data.npz --min-sqnr 10 --judge large:loud.npz {SIZES}")
    assert printed.code == 3
    lines = printed.err[printed.err.index("NOT ACCURATE ENOUGH") :].splitlines()
    assert lines[1].startswith("entry large: output y: SQNR ") and lines[1].endswith(" dB, --min-sqnr asks for 10")
    assert "clipped tail" in lines[2]


def test_the_error_report_has_a_folder_of_each_entry(here: Path) -> None:
    """The report has the figures of a separate build."""
    printed = built(f"--quant p.yaml --judge data.npz --judge large:alike.npz --error-report r {SIZES}")
    assert printed.code == 0, printed.err
    assert sorted(str(p.relative_to("r")) for p in Path("r").rglob("*.*")) == [
        f"{entry}/layers.{kind}" for entry in ("large", "small") for kind in ("html", "json", "txt")
    ]
    assert (
        Path("r/large/layers.txt")
        .read_text()
        .startswith("m, entry large, on edge16: error of each layer, on 5 samples of --judge\n")
    )
    for entry, data, shape in (("small", "data.npz", "1,3,8,8"), ("large", "alike.npz", "1,3,9,9")):
        assert built(f"--quant p.yaml --judge {data} --error-report alone-{entry} --shape x={shape}").code == 0
        report, alone = (json.loads(Path(f, "layers.json").read_text()) for f in (f"r/{entry}", f"alone-{entry}"))
        assert report.pop("model") == f"m, entry {entry}, on edge16" and alone.pop("model") == "m on edge16"
        assert report == alone


def test_every_entry_is_exported(here: Path) -> None:
    """The export equals that of a separate build, to the byte."""
    assert built(f"--quant p.yaml --calib data.npz --export-qdq q.onnx {SIZES}").code == 0
    assert not Path("q.onnx").exists()
    for entry, shape in (("small", (1, 3, 8, 8)), ("large", (1, 3, 9, 9))):
        assert built(f"--quant p.yaml --export-qdq alone.onnx --shape x={','.join(map(str, shape))}").code == 0
        assert Path(f"q.{entry}.onnx").read_bytes() == Path("alone.onnx").read_bytes()
        (y,) = onnxruntime.InferenceSession(f"q.{entry}.onnx").run(["y"], {"x": np.ones(shape, np.float32)})
        assert np.asarray(y).shape == (1, 6, *shape[2:])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--judge data.npz --judge wide:alike.npz",
            "--judge wide:alike.npz: data.npz is given already; ENTRY:DATA is of a single entry; entries are small, large",
        ),
        ("--judge large:alike.npz --judge large:b.npz", "--judge large:b.npz: entry large has data already: alike.npz"),
        (
            "--judge large:no.npz",
            "entry large: cannot be judged as --judge asks: no.npz: no such file or directory; give an .npz, a directory of .npy "
            "or images, or file.py:function\n  help: give data of its own, --judge ENTRY:DATA",
        ),
        ("--judge large:alike.npz -o alike.npz", "-o alike.npz: is the same file as --judge large; it would be overwritten"),
        (
            "--export-qdq q.onnx -o q.large.onnx",
            "--export-qdq of entry large q.large.onnx: is the same file as -o; it would be overwritten",
        ),
        ("--export-qdq no/q.onnx", "--export-qdq of entry small no/q.small.onnx: there is no directory no; make it first"),
        ("--export-qdq /dev/null", "--export-qdq /dev/null: every entry has a file of its own; give the name of a file"),
    ],
)
def test_what_is_refused(line: str, message: str, here: Path) -> None:
    before = contents(here)
    printed = built(f"--calib data.npz {line} {SIZES}")
    assert (printed.code, printed.err) == (2, f"{message}\n")
    assert contents(here) == before


def test_data_of_an_entry_without_entries(here: Path) -> None:
    from toolchain.api import BuildOptions
    from toolchain.errors import CompileError

    with pytest.raises(CompileError, match=r"^judge large:d\.npz: there is no such entry; give --entry large:INPUT=SHAPE$"):
        BuildOptions("edge16", "data.npz", judges={"large": "d.npz"})
