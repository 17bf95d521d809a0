"""The optimization levels: each is bit-exact, and the highest never needs more cycles than those below it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from toolchain.api import BuildOptions, build
from toolchain.runtime import Session, random_feeds

CLASSIFIER = Path(__file__).parents[2] / "examples/classifier/classifier.onnx"


OTHERS = [pytest.param("ethos_u65_512", marks=pytest.mark.exhaustive), pytest.param("ws8_pow2", marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("machine", ["edge16", *OTHERS])
def test_levels_agree_and_the_highest_is_fastest(machine: str) -> None:
    built = [build(CLASSIFIER, BuildOptions(machine, level=level)) for level in range(4)]
    cycles = [b.figures["cycles"] for b in built]
    assert cycles[3] == min(cycles)
    assert cycles[2] < cycles[0]
    feeds = random_feeds(built[0].container.inputs, seed=3)
    outputs = [Session(b.data).run(None, feeds)[0] for b in built[1:]]
    for other in outputs[1:]:  # the same fusions, so the same integers
        np.testing.assert_array_equal(other, outputs[0])
