"""Random machines with weights in groups x products of random sizes: programs equal the integer reference bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.random_cases import DrawnMachine, machines
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.runtime import Session, random_feeds, verify

SIZES = st.tuples(st.integers(1, 9), st.integers(17, 100), st.integers(17, 60), st.integers(1, 20))


def products(sizes: tuple[int, int, int, int], path: Path) -> Path:
    """Two of them, the first with a Relu: rows, and the sizes of what is read, between, and made."""
    rows, inner, between, outputs = sizes
    rng = np.random.default_rng(sum(sizes))
    drawn = {"w": rng.normal(0, 1, (inner, between)), "v": rng.normal(0.3, 1, (between, outputs))}
    weights = {n: w.astype(np.float32) for n, w in drawn.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("Relu", ["a"], ["r"], name="r"),
        helper.make_node("MatMul", ["r", "v"], ["y"], name="y"),
    ]
    onnx.save(build_model(nodes, {"x": [rows, inner]}, {"y": None}, weights), path)
    return path


@pytest.mark.slow
@settings(
    max_examples=15,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(machine=machines(grouped=True), sizes=SIZES, level=st.sampled_from([0, 2, 3]))
def test_simulator_equals_reference(
    tmp_path_factory: pytest.TempPathFactory, machine: DrawnMachine, sizes: tuple[int, int, int, int], level: int
) -> None:
    assume(machine.machine.chip.numerics.weight_group)
    try:
        built = build(products(sizes, tmp_path_factory.getbasetemp() / "groups.onnx"), BuildOptions(machine.machine, level=level))
    except CompileError as fault:
        assert "smallest tile needs" in str(fault), fault
        return
    graph = built.container.graph
    groups = [n.op.group for n in graph.nodes if isinstance(n.op, IntegerConvolution)] if graph else []
    assert groups == [16, 16]
    feeds = random_feeds(built.container.inputs, seed=7)
    _, difference = verify(Session(built.data, timing=True), Session(built.data, backend="reference"), feeds)
    assert difference is None, difference
