"""Chains of Reshape and Transpose on the chip: as few Transposes as the model means, and the same bits as the reference."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_text import model, save

from toolchain.api import BuildOptions, build
from toolchain.frontend import load_model
from toolchain.hw import load_chip
from toolchain.ops.permutation import Transpose
from toolchain.passes.merge_transposes import FactoredShape
from toolchain.passes.pipeline import select_graph
from toolchain.passes.select import Selection
from toolchain.runtime import Session, random_feeds

SHUFFLE = (
    "(float[2,6,5,7] x, float[6,6,1,1] w, float[6,6,3,3] w2) => (float[a,b,c,d] y) {{ "
    "s = int64[5] {{2,3,2,5,7}} t = int64[4] {{2,6,5,7}} "
    "e = Conv(x, w) f = Reshape(e, s) g = Transpose<perm = [0,2,1,3,4]>(f) h = Reshape(g, t) {tail} }}"
)
# model, Transposes left on the chip
CHAINS = [
    (SHUFFLE.format(tail="y = Conv(h, w2)"), 1),  # channel shuffle
    (SHUFFLE.format(tail="k = Relu(h) y = Conv(k, w2)"), 1),  # the Relu is the first Conv's
    (
        "(float[1,5,7,6] x, float[4,6,3,3] w) => (float[a,b,c,d] y) { a = Transpose<perm = [0,3,1,2]>(x) "
        "b = Conv(a, w) c = Relu(b) y = Transpose<perm = [0,2,3,1]>(c) }",
        0,  # a channels-last model on a channels-last chip
    ),
    (
        "(float[1,4,5,7] x, float[8,4,1,1] w, float[4,2,1,1] w2) => (float[a,b,c,d] y) { s = int64[6] {1,2,2,2,5,7} "
        "t = int64[4] {1,2,10,14} e = Conv(x, w) f = Reshape(e, s) g = Transpose<perm = [0,1,4,2,5,3]>(f) h = Reshape(g, t) "
        "y = Conv(h, w2) }",
        1,  # pixel shuffle
    ),
    (
        "(float[1,4,5,7] x, float[6,4,1,1] w) => (float[a,b,c] y) { s = int64[3] {1,35,6} e = Conv(x, w) "
        "f = Transpose<perm = [0,2,3,1]>(e) y = Reshape(f, s) }",
        0,  # a detector's head
    ),
    (
        "(float[2,6,11] x, float[5,6,3] w, float[4,5,3] w2) => (float[a,b,c] y) { a = Conv(x, w) b = Relu(a) y = Conv(b, w2) }",
        0,  # 1-D windows: what comes and what leaves is turned by the host, as in two dimensions
    ),
    (
        "(float[2,11,6] x, float[5,6,3] w) => (float[a,b,c] y) { a = Transpose<perm = [0,2,1]>(x) b = Conv(a, w) "
        "y = Transpose<perm = [0,2,1]>(b) }",
        0,  # a 1-D model with channels last
    ),
    (
        "(float[2,11,6] x, float[6,6,3] w) => (float[a,b,c] y, float[d,e,f] z) { a = Transpose<perm = [0,2,1]>(x) "
        "b = Conv<pads = [1,1]>(a, w) z = Add(a, b) y = Transpose<perm = [0,2,1]>(z) }",
        0,  # and with a residual sum
    ),
    (
        "(float[2,6,11] x, float[5,6,3] w, float[11,4] v) => (float[a,b,c] y, float[d,e,f] z) { "
        "y = Conv(x, w) z = MatMul(x, v) }",
        1,  # what two layers read in two orders arrives in one
    ),
    *(
        (
            f"(float[2,6,12] x, float[8,6,3] w, float[8,8,1] w2, float[5,{channels},3] w3, float[6,6,3] w4) => "
            f"(float[a,b,c] y) {{ p = int64[6] {{0,0,4,0,0,0}} i = int64[1] {{1}} f = int64[1] {{5}} last = int64[1] {{-1}} "
            f"a = Conv(x, w) b = Relu(a) {between} y = Conv(z, w3) }}",
            0,
        )
        for channels, between in [
            (8, "z = Slice(b, i, f, last)"),
            (4, "z = Slice(b, i, f, i)"),
            (8, "z = Pad(b, p)"),
            (8, 'z = Pad<mode = "edge">(b, p)'),
            (8, 's = float[3] {1,1,2} z = Resize<mode = "nearest">(b, , s)'),
            (8, 's = float[3] {1,1,2} z = Resize<mode = "linear">(b, , s)'),
            (8, "m = GlobalAveragePool(b) n = Conv(m, w2) o = Sigmoid(n) z = Mul(b, o)"),
            (8, "m = GlobalAveragePool(b) n = Conv(m, w2) o = Sigmoid(n) z = Mul(o, b)"),
            (4, "m, n = Split<axis = 1>(b) o = Sigmoid(n) z = Mul(m, o)"),
            (14, "e = Conv<pads = [1,1]>(x, w) z = Concat<axis = -2>(e, x)"),
            (8, "d = Conv(b, w2) z = Concat<axis = -1>(d, b)"),
            (6, "e = Conv<pads = [1,1]>(x, w4) z = Add(e, x)"),
            (6, "e = Conv<pads = [1,1]>(x, w4) z = Sub(x, e)"),
        ]
    ),
    (
        "(float[2,6,11] x, float[5,6,3] w, float[9,4] v) => (float[a,b,c] z) { y = Conv(x, w) z = MatMul(y, v) }",
        1,  # what the chip reads in the model's order
    ),
]


def select_file(path: Path, machine: str = "edge16") -> Selection:
    return select_graph(load_model(path), load_chip(machine))


def transposes(selection: Selection) -> int:
    return sum(isinstance(node.op, Transpose) for node in selection.graph.nodes)


@pytest.mark.parametrize(("graph", "remaining"), CHAINS)
def test_transposes_left(graph: str, remaining: int, tmp_path: Path) -> None:
    path = save(model(graph), tmp_path)
    selection = select_file(path)
    assert not selection.fallbacks
    assert transposes(selection) == remaining
    same_bits(path)


def same_bits(path: Path, machine: str = "edge16", least_db: float = 25.0) -> None:
    """The build itself compares the simulator's bits with the reference; here: the reference with the float model."""
    built = build(path, BuildOptions(machine))
    assert min(output["sqnr_db"] or 99.0 for output in built.figures["outputs"]) > least_db
    session = Session(built.data)
    feeds = random_feeds(session.get_inputs(), seed=3)
    got = session.run(None, feeds)
    expected = Session(built.data, backend="reference").run(None, feeds)
    assert all(np.array_equal(a, b) for a, b in zip(got, expected))


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, ...] | list[int]]]:
    """A shape and steps: a tuple is a Reshape to it, a list a Transpose by it."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5]), min_size=1, max_size=5))
    start = shape = draw(st.permutations(factors).map(tuple))
    steps: list[tuple[int, ...] | list[int]] = []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            perm = draw(st.permutations(range(len(shape))))
            shape = tuple(shape[p] for p in perm)
            steps.append(list(perm))
            continue
        cut = draw(st.integers(0, len(shape) - 1))
        merged = (*shape[:cut], int(np.prod(shape[cut : cut + 2])), *shape[cut + 2 :])
        divisor = draw(st.sampled_from([d for d in range(1, merged[cut] + 1) if merged[cut] % d == 0]))
        shape = (*merged[:cut], divisor, merged[cut] // divisor, *merged[cut + 1 :])
        steps.append(shape)
    return start, steps


@settings(max_examples=300, deadline=None, derandomize=True)
@given(chains())
def test_one_transpose_is_the_chain(case: tuple[tuple[int, ...], list[tuple[int, ...] | list[int]]]) -> None:
    start, steps = case
    x = np.arange(int(np.prod(start))).reshape(start)
    factors, y = FactoredShape.of(start), x
    for step in steps:
        if isinstance(step, list):
            factors.transpose(tuple(step))
            y = y.transpose(step)
        elif factors.reshape(step):
            y = y.reshape(step)
        else:
            return
    shape, perm = factors.permutation()
    assert np.array_equal(x.reshape(shape).transpose(perm).reshape(y.shape), y)
    assert 1 not in shape and all(b != a + 1 for a, b in pairwise(perm))  # no dimension too many
