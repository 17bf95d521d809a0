"""Scales that are powers of two divide by powers of two alone; means over other counts have weights, or run on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.semantics.judge import judge_build
from tests.semantics.test_cases import CASES
from toolchain.isa import load_machine

BELOW_DB = 11.0  # truncation costs 6 dB, twice where a node is spelled in two; a count that is 25 % off costs 20 and more
MEANS = [name for name in CASES if name.startswith(("average pool", "global average pool", "mean over"))]


@pytest.mark.parametrize("name", MEANS)
def test_means_of_any_count(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for output in judge_build(case.proto, load_machine("ws8_pow2"), case.samples, tmp_path).outputs:
        assert output.sqnr_db >= output.rounded_db - BELOW_DB, output


def test_windows_of_unlike_counts_run_on_the_host(tmp_path: Path) -> None:
    case = CASES["average pool, padding not counted"]
    built = judge_build(case.proto, load_machine("ws8_pow2"), case.samples, tmp_path).built
    reasons = [f["reason"] for f in built.figures["fallbacks"]]
    assert reasons == ["windows of 6, 9 elements; numerics.scale.kind=pow2 divides by powers of two alone"]
