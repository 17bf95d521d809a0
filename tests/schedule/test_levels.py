"""Test that levels are bit-exact, and that none below the highest finds a faster plan, or as fast a one of less energy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from toolchain.api import BuildOptions, build
from toolchain.runtime import Session, random_feeds
from toolchain.schedule.goals import BALANCED

CLASSIFIER = Path(__file__).parents[2] / "examples/classifier/classifier.onnx"


OTHERS = [pytest.param("ethos_u65_512", marks=pytest.mark.exhaustive), pytest.param("ws8_pow2", marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("machine", ["edge16", *OTHERS])
def test_levels_agree_and_the_highest_is_fastest(machine: str) -> None:
    built = [build(CLASSIFIER, BuildOptions(machine, level=level)) for level in range(4)]
    cycles = [b.figures["cycles"] for b in built]
    fewest_cycles = [(b.figures["fastest"] or b.figures)["cycles"] for b in built]
    assert fewest_cycles[3] == min(fewest_cycles)
    assert cycles[3] <= BALANCED.most * fewest_cycles[3]  # slower than its fastest plan only for less energy
    if built[3].figures["energy_pj"] is not None:
        within_tolerance = [b for b, n in zip(built, cycles) if n <= BALANCED.most * fewest_cycles[3]]
        energies = [b.figures["energy_pj"]["total"] for b in within_tolerance]
        assert energies[-1] == min(energies)
    assert cycles[2] < cycles[0]
    feeds = random_feeds(built[0].container.inputs, seed=3)
    outputs = [Session(b.data).run(None, feeds)[0] for b in built[1:]]
    for other in outputs[1:]:  # the same fusions, so the same integers
        np.testing.assert_array_equal(other, outputs[0])
