"""bench/sweep_timing_terms.py: the same program, charged with no term of its time, with each alone, with all."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from two_layers import save_two_layers

from toolchain.api import BuildOptions, build
from toolchain.hw.timing_terms import TERMS
from toolchain.runtime import Session, random_feeds

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "bench")
        import sweep_timing_terms  # type: ignore[import-not-found]

    return sweep_timing_terms


def test_figures_are_those_of_the_simulator(script: ModuleType, tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    save_two_layers(model, "(float[1,3,12,12] x) => (float[1,8,12,12] y)", (5, 3, 3, 3), (8, 5, 1, 1), np.random.default_rng(0))
    built = build(model, BuildOptions("ws8_pow2"))
    cycles_by_term = script.cycles_of(built.container)
    for name, left_out in (("all", ()), ("ideal", tuple(TERMS)), ("fill", tuple(t for t in TERMS if t != "fill"))):
        session = Session(built.data, timing=True, without=left_out)
        run = session.run_detailed(random_feeds(session.get_inputs()))
        assert cycles_by_term[name] == sum(s.simulation.cycles for s in run.segments if s.simulation is not None), name
    assert cycles_by_term["ideal"] < cycles_by_term["fill"] < cycles_by_term["all"]


def test_a_table_has_the_terms_that_cost_something(script: ModuleType) -> None:
    nothing = dict.fromkeys(TERMS, 1000)
    lines = script.table(
        {"a": {**nothing, "ideal": 1000, "fill": 1500, "all": 1501}, "b": {**nothing, "ideal": 1000, "all": 1000}}
    )
    assert lines == [
        "| network | ideal | fill | all |  |",
        "| --- | --: | --: | --: | --: |",
        "| a | 1,000 | +50.0 | 1,501 | +50.1 |",
        "| b | 1,000 | 0 | 1,000 | 0 |",
    ]
