"""Means on a machine whose vector engine has no average_pool: depthwise convolutions with ones, of the same meaning."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.semantics.judge import judge_build
from tests.semantics.machines import int8_machine
from tests.semantics.test_cases import CASES
from toolchain.hw.chip import Chip
from toolchain.isa import Machine

BELOW_DB = 3.0
MEANS = ["average pool, padding counted", "average pool of all", "global average pool", "global average pool of one dimension"]


@cache
def without_average_pool() -> Machine:
    machine = int8_machine()
    data = json.loads(machine.chip.model_dump_json())
    del data["engines"]["vector"]["functions"]["average_pool"]
    return replace(machine, chip=Chip.model_validate_json(json.dumps(data)))


@pytest.mark.parametrize("name", MEANS)
def test_means_are_convolutions_with_ones(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    verdict = judge_build(case.proto, without_average_pool(), case.samples, tmp_path)
    assert verdict.built.figures["fallbacks"] == []
    for output in verdict.outputs:
        assert output.sqnr_db >= output.rounded_db - BELOW_DB, output
