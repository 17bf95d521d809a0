"""Decomposed operators compute in float what onnxruntime computes; nothing is built."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx_text import model
from tests.frontend.same_outputs import session
from toolchain.frontend import load_model
from toolchain.ir.graph import verify
from toolchain.ops.kit.registry import DECOMPOSITIONS
from toolchain.passes.decompose import decompose_all

# By operator: opset and graph in ONNX text.
CASES: dict[str, list[tuple[int, str]]] = {
    "Div": [(21, "(float[3,4] x, float[3,1] z) => (float[3,4] y) { d = Sigmoid(z) y = Div(x, d) }")],
    "Sqrt": [
        (21, "(float[3,40] x, float[3,40] z) => (float[3,40] y) { p = Mul(x, x) q = Mul(z, z) s = Add(q, p) y = Sqrt(s) }"),
    ],
    "Softmax": [
        (21, "(float[2,3,5] x) => (float[2,3,5] y) { y = Softmax(x) }"),
        (21, "(float[2,3,5] x) => (float[2,3,5] y) { y = Softmax<axis = 1>(x) }"),
    ],
    "LogSoftmax": [(21, "(float[2,3,5] x) => (float[2,3,5] y) { y = LogSoftmax<axis = 0>(x) }")],
    "LayerNormalization": [
        (21, "(float[2,3,8] x, float[8] w, float[8] w2) => (float[2,3,8] y) { y = LayerNormalization<epsilon = 0.2>(x, w, w2) }"),
        (21, "(float[2,3,8] x, float[3,8] w) => (float[2,3,8] y) { y = LayerNormalization<axis = 1>(x, w) }"),
    ],
    "InstanceNormalization": [
        (
            21,
            "(float[2,3,4,5] x, float[3] w, float[3] w2) => (float[2,3,4,5] y) "
            "{ y = InstanceNormalization<epsilon = 0.3>(x, w, w2) }",
        ),
    ],
    "GroupNormalization": [
        (
            21,
            "(float[2,6,4,5] x, float[6] w, float[6] w2) => (float[2,6,4,5] y) "
            "{ y = GroupNormalization<num_groups = 2, epsilon = 0.3>(x, w, w2) }",
        ),
    ],
    "RMSNormalization": [
        (23, "(float[2,3,8] x, float[8] w) => (float[2,3,8] y) { y = RMSNormalization<epsilon = 0.2>(x, w) }"),
    ],
    "RNN": [
        (
            21,
            "(float[5,2,3] x, float[1,4,3] w, float[1,4,4] w2, float[1,8] w3, float[1,2,4] z) => "
            "(float[5,1,2,4] y, float[1,2,4] u) { y, u = RNN<hidden_size = 4>(x, w, w2, w3, , z) }",
        ),
        (
            21,
            "(float[5,2,3] x, float[2,4,3] w, float[2,4,4] w2) => (float[5,2,2,4] y) "
            "{ y = RNN<hidden_size = 4, direction = 'bidirectional'>(x, w, w2) }",
        ),
    ],
    "GRU": [
        (
            21,
            "(float[5,2,3] x, float[1,12,3] w, float[1,12,4] w2, float[1,24] w3, float[1,2,4] z) => "
            "(float[5,1,2,4] y, float[1,2,4] u) "
            f"{{ y, u = GRU<hidden_size = 4, linear_before_reset = {before}>(x, w, w2, w3, , z) }}",
        )
        for before in (0, 1)
    ],
    "LSTM": [
        (
            21,
            "(float[5,2,3] x, float[1,16,3] w, float[1,16,4] w2, float[1,32] w3, float[1,2,4] z, float[1,2,4] r) => "
            "(float[5,1,2,4] y, float[1,2,4] u, float[1,2,4] v) "
            "{ y, u, v = LSTM<hidden_size = 4, direction = 'reverse'>(x, w, w2, w3, , z, r) }",
        ),
    ],
    "TensorScatter": [
        (
            24,
            "(float[2,3,8,4] x, float[2,3,1,4] z) => (float[2,3,8,4] y) "
            "{ a = Constant<value_ints = [6, 0]>() y = TensorScatter<axis = 2, mode = 'circular'>(x, z, a) }",
        ),
    ],
}  # fmt: skip


def test_every_operator_has_a_case() -> None:
    assert CASES.keys() == DECOMPOSITIONS.keys()


@pytest.mark.parametrize(("kind", "number"), [(kind, number) for kind, cases in CASES.items() for number in range(len(cases))])
def test_the_steps_compute_what_the_operator_does(kind: str, number: int) -> None:
    opset, text = CASES[kind][number]
    proto = model(text, opset)
    rng = np.random.default_rng(1)
    feeds = {
        port.name: rng.normal(0.2, 1, [d.dim_value for d in port.type.tensor_type.shape.dim]).astype(np.float32)
        for port in proto.graph.input
    }
    steps = decompose_all(load_model(proto))
    assert not verify(steps.graph) and kind not in {node.op.op_type for node in steps.graph.nodes} - {"Div", "Sqrt"}
    assert any(node.sources != (node.name,) for node in steps.graph.nodes)  # they are of the node in whose place they stand
    expected = session(proto.SerializeToString()).run(None, feeds)
    actual = session(steps.proto.SerializeToString()).run(None, {name: feeds[name] for name in steps.graph.inputs})
    for one, other in zip(expected, actual, strict=True):
        largest = np.abs(np.asarray(one)).max()
        assert np.abs(np.asarray(one) - np.asarray(other)).max() < 1e-4 * largest
