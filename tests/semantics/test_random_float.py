"""Check that random networks compute on the chip what the user's file computes in onnxruntime.

On int16 they are within 40 dB, on int8 within 3 dB of the file rounded where the chip rounds. The canonical form computes
what the file computes.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, event, given, seed, settings
from hypothesis import strategies as st

from tests.semantics.case import RANGES
from tests.semantics.judge import find_changed_outputs, in_float, judge_build
from tests.semantics.machines import int8_machine, int16_machine
from tests.semantics.recorder import Coverage, everything, record_coverage
from tests.semantics.sqnr_floors import QUOTIENT, TWICE, beyond_16, right_on_8, right_on_16
from tests.support.random_cases import DrawnModel, draw_exported_network
from toolchain.isa import load_machine

CASES = int(os.environ.get("RANDOM_FLOAT_CASES", "112"))
PARTS = 8  # tests of their own, so that they run side by side
SAMPLES = 8


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_means_what_the_file_means(part: int) -> None:
    drawn(part)


@pytest.mark.slow
@pytest.mark.skipif("RANDOM_FLOAT_CASES" in os.environ, reason="only of the cases that are the same each time it is known")
def test_every_operator_of_the_chip_is_drawn() -> None:
    coverage: Coverage = set().union(*(drawn(part) for part in range(PARTS)))
    kinds = {"float operator", "integer operator", "optional part", "select"}
    assert not [(what, name) for what, name in sorted(everything() - coverage) if what in kinds]


class Notes:
    """A collector of what cases went through, which is not shown when one fails."""

    def __init__(self, coverage: Coverage):
        self.coverage = coverage

    def __repr__(self) -> str:
        return "Notes"


@cache
def drawn(part: int) -> Coverage:
    """Return what the cases of this part went through.
    The cases are the same each time and others in each part; with RANDOM_FLOAT_CASES others each time.
    """
    check = means_the_same if "RANDOM_FLOAT_CASES" in os.environ else seed(part)(means_the_same)
    with record_coverage() as coverage:
        check(Notes(coverage))
    return coverage


@settings(
    max_examples=-(-CASES // PARTS),
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    print_blob=True,  # @reproduce_failure draws the weights as well, which the text of a case leaves out
    phases=[Phase.generate],  # shrinking takes minutes; a case is small
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(model=draw_exported_network(), level=st.sampled_from([2, 2, 0, 1]), shipped=st.booleans())
def means_the_same(notes: Notes, model: DrawnModel, level: int, shipped: bool) -> None:
    samples = drawn_samples(model.proto)
    expected = in_float(model.proto, samples)
    coarse = load_machine("ethos_u55_256") if shipped else int8_machine()
    loose = causes(model.proto)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        on_16 = judge_build(model.proto, int16_machine(softmax=False), samples, folder, level)
        on_8 = judge_build(model.proto, coarse, samples, folder, level)
        assert not find_changed_outputs(folder / "model.onnx", samples, expected)
    notes.coverage.update(on_16.coverage | on_8.coverage)
    for output in on_16.outputs:
        event("int16 cannot have 40 dB" if beyond_16(output) else "int16 has 40 dB")
        assert right_on_16(output), output
    for output in on_8.outputs:
        assert right_on_8(output, loose), output


def causes(proto: onnx.ModelProto) -> list[str]:
    computed = {o for n in proto.graph.node if n.op_type != "Constant" for o in n.output}
    quotient = any(n.op_type == "Div" and n.input[1] in computed for n in proto.graph.node)
    shapes = {i.name: list(i.dims) for i in proto.graph.initializer}
    matrix = any(
        n.op_type == "Gemm" and len(n.input) > 2 and min(shapes.get(n.input[2], [1])[:-1], default=1) > 1
        for n in proto.graph.node
    )
    return [QUOTIENT] * quotient + [TWICE] * matrix


def drawn_samples(proto: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    ranges = dict(zip(shapes, RANGES))
    return [{n: np.asarray(rng.uniform(*ranges[n], s), np.float32) for n, s in shapes.items()} for _ in range(SAMPLES)]
