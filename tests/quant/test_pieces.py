"""A model in pieces computes what the whole does, in any cut, and what a body reads reaches it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from models import convolution_net, model, node

from quant.float_session import FloatSession, PlainModel
from quant.piecewise_model import PiecewiseModel, tensor_bytes
from scripts.onnx_builder import build_graph


def make_branched_model() -> onnx.ModelProto:
    """Return a model of y = a if the sum of x is positive, else b.
    Tensors a and b are computed long before, and only the branch bodies read them.
    """
    yes, no = (build_graph([node("Neg", read, f"{read}_neg")], {}, {f"{read}_neg": None}) for read in ("a", "b"))
    nodes = [
        node("Relu", "x", "a"),
        node("Exp", "x", "b"),
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "positive"),
        node("If", "positive", "y", then_branch=yes, else_branch=no),
    ]
    return model(nodes, {"x": [4]}, ["y"], {"zero": np.array(0, np.float32)})


@pytest.mark.parametrize("held_bytes", [1, 2048, 1 << 20])
def test_pieces_compute_what_the_whole_does(held_bytes: int) -> None:
    proto = convolution_net()
    sample = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    names = ["y", "x", "c", "d"]
    expected_outputs = FloatSession(PlainModel(proto), names).run(sample)
    pieces = FloatSession(PiecewiseModel(proto, held_bytes), names, lean=True).run(sample)
    for expected, actual in zip(expected_outputs, pieces, strict=True):
        assert np.allclose(expected, actual, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_what_a_body_reads_reaches_it(sign: int) -> None:
    x = sign * np.arange(4, dtype=np.float32)
    (y,) = FloatSession(PiecewiseModel(make_branched_model(), 1), ["y"]).run({"x": x})
    assert np.allclose(y, -np.maximum(x, 0) if sign > 0 else -np.exp(x))


def test_only_what_is_asked_for_is_made() -> None:
    parts = list(PiecewiseModel(convolution_net(), 1).parts(["r"]))
    assert [p.outputs for p in parts] == [("c",), ("r",)]


def test_sizes_of_tensors() -> None:
    assert tensor_bytes(convolution_net()) == {"c": 2048, "r": 2048, "d": 1024, "y": 16}


def test_integers_between_pieces_need_no_declared_type() -> None:
    nodes = [node("Relu", "x", "a"), node("Shape", "a", "s"), node("Exp", "a", "b"), node("Reshape", "b s", "y")]
    proto = model(nodes, {"x": [4]}, ["y"], {})
    del proto.graph.value_info[:]
    x = np.arange(4, dtype=np.float32)
    (y,) = FloatSession(PiecewiseModel(proto, 1), ["y"]).run({"x": x})
    assert np.allclose(y, np.exp(x))
