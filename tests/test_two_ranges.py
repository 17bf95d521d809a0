"""A layer that reads magnitudes in two ranges: the same in float, and near it on the chip where the input is quiet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.cli.commands import Printed, run
from tests.meaning.case import Case
from tests.meaning.judge import sqnr_db
from toolchain.api import BuildOptions, build
from toolchain.runtime import Session

QUIET = Case(  # magnitudes of a spectrum, read by a product
    "quiet", "x 1,1,1,64; w 16,1,1,16; v 8,8,1,1",
    "s = Conv<strides = [1, 8]>(x, w) a = Constant<value_ints = [0]>() b = Constant<value_ints = [8]>() "
    "e = Constant<value_ints = [16]>() one = Constant<value_ints = [1]>() re = Slice(s, a, b, one) im = Slice(s, b, e, one) "
    "p = Mul(re, re) q = Mul(im, im) sum = Add(p, q) m = Sqrt(sum) z = Conv(m, v) "
    "low = Constant<value_float = -0.1>() high = Constant<value_float = 0.1>() y = Clip(z, low, high)",
)  # fmt: skip
LOUD = 250.0  # times as loud as the quiet samples


def samples(count: int, loudness: float) -> np.ndarray:
    """Of 16 bits, which codes hold exactly."""
    x = np.random.default_rng(5).normal(0, 1e-3, (count, 1, 1, 1, 64)) * loudness
    return (np.rint(x * 32768).clip(-32768, 32767) / 32768).astype(np.float32)


def made(case: Case, folder: Path, *options: str) -> Printed:
    onnx.save(case.proto, folder / "m.onnx")
    return run(" ".join([f"scripts/two_ranges.py {folder}/m.onnx -o {folder}/two.onnx", *options]))


def in_float(path: Path, data: np.ndarray) -> np.ndarray:
    runner = onnxruntime.InferenceSession(str(path))
    return np.stack([np.asarray(runner.run(["y"], {"x": x})[0]) for x in data])


def test_float_is_the_same_and_quiet_samples_come_nearer(tmp_path: Path) -> None:
    assert made(QUIET, tmp_path, "--layer z --limit 0.005 --largest 0.6").code == 0
    data = np.concatenate([samples(16, LOUD), samples(16, 1.0)])
    np.savez(tmp_path / "data.npz", allow_pickle=False, x=data)
    expected = in_float(tmp_path / "m.onnx", data)
    assert np.abs(in_float(tmp_path / "two.onnx", data) - expected).max() < 1e-5
    near = list[float]()
    for name, weights in (("m", "v"), ("two", "v, of both ranges")):
        types = ("*=int16", f"{weights}=int16")
        options = BuildOptions("transformer64", str(tmp_path / "data.npz"), types=types, repair="none")
        built = build(tmp_path / f"{name}.onnx", options)
        session = Session(built.data)
        near.append(sqnr_db(expected[16:], np.stack([session.run(["y"], {"x": x})[0] for x in data[16:]])))
    assert near[1] > near[0] + 10


REFUSED = {
    "no such layer": (QUIET, "--layer zz --limit 0.1 --largest 30", "--layer zz: no Conv or Gemm has this name; there are s, z"),
    "an input": (QUIET, "--layer s --limit 0.1 --largest 30", "x: is an input or a constant; the layer must read what"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    case, options, said = REFUSED[name]
    printed = made(case, tmp_path, options)
    assert printed.code == 2 and printed.err.startswith(said)
