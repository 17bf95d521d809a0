"""A few faults of bench/inject_faults.py in the shipped classifier: the report's first line names the layer and the cause."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
CLASSIFIER = ROOT / "examples" / "classifier"


@pytest.fixture(scope="module")
def planting():  # type: ignore[no-untyped-def]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
        import inject_faults

        yield inject_faults


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("fault", ["wide", "clipped", "three bits", "uncalibrated"])
def test_the_first_line_names_what_was_spoiled(fault: str, seed: int, planting) -> None:  # type: ignore[no-untyped-def]
    from toolchain.isa import load_machine

    with np.load(CLASSIFIER / "calib.npz") as data:
        samples = [{"x": x[None].astype(np.float32)} for x in data["x"][:20]]
    subject = planting.Subject(CLASSIFIER / "classifier.onnx", {"x": (1, 1, 28, 28)}, samples[:16], samples[16:])
    planted = planting.FAULTS[fault](subject, load_machine("edge16"), np.random.default_rng(seed))
    first = planting.report_of(planted, subject.others).findings[0]
    assert planting.is_named(planted, first), (sorted(planted.layers), first.layer, first.cause)


@pytest.mark.slow
def test_advice_that_is_followed_gives_what_it_promises(planting, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from toolchain.isa import load_machine

    with np.load(CLASSIFIER / "calib.npz") as data:
        samples = [{"x": x[None].astype(np.float32)} for x in data["x"][:20]]
    subject = planting.Subject(CLASSIFIER / "classifier.onnx", {"x": (1, 1, 28, 28)}, samples[:16], samples[16:])
    planted = planting.FAULTS["clipped"](subject, load_machine("edge16"), np.random.default_rng(0))
    promise = planting.follow(planted, subject, "edge16", tmp_path)
    assert promise is not None and promise.is_reached and promise.promised_db > 15
    assert not planting.Promise("low: 0", 30.0, 27.9).is_reached and planting.Promise("low: 0", 90.0, 60.0).is_reached
