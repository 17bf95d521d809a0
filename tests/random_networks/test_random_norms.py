"""Random norms, reductions, attention and what else is made of steps x random machine: the bytes equal the integer reference.

The build holds the steps in float to the file. `RANDOM_NORMS=5000` draws as many, others each time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.decompose_cases import require_equal_in_steps
from tests.support.random_cases import DRAWN, DrawnMachine, machines

CASES = int(os.environ.get("RANDOM_NORMS", "6"))
OPSET = 24
REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceProd",
    "ReduceMin",
    "ReduceMean",
)
FUNCTIONS = ("Swish", "Sign", "Gelu", "ThresholdedRelu", "Mish", "Hardmax", "LogSoftmax", "Softmax", "LpNormalization")


class Chain:
    """Nodes one behind the other, each of which keeps the shape [n, c, h, w]."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.shape = tuple(draw(st.integers(1, most)) for most in (2, 6, 4, 6))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.last = "x"
        self._rng = np.random.default_rng(draw(st.integers(0, 99)))

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=f"{kind} {name}", **attributes))
        return name

    def hold(self, *shape: int) -> str:
        return self.add_constant(self._rng.normal(1, 0.3, shape).astype(np.float32))

    def add_constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def choose(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def model(self) -> onnx.ModelProto:
        return build_model(self.nodes, {"x": self.shape}, {self.last: self.shape}, self.constants, opset=OPSET)


def norm(chain: Chain) -> None:
    kind, (_, channels, _, width) = chain.choose("Layer", "RMS", "Instance", "Group", "MeanVariance"), chain.shape
    x, name = chain.last, f"{kind}Normalization"
    if kind == "MeanVariance":
        chain.last = chain.add(name, x, axes=chain.choose([0, 2, 3], [1], [2, 3]))
    elif kind == "RMS":
        chain.last = chain.add(name, x, chain.hold(width), axis=-1)
    elif kind == "Layer":
        chain.last = chain.add(name, x, chain.hold(width), *([chain.hold(width)] if chain.choose(0, 1) else []), axis=-1)
    else:
        groups = (
            {"num_groups": chain.choose(*(g for g in range(1, channels + 1) if channels % g == 0))} if kind == "Group" else {}
        )
        chain.last = chain.add(name, x, chain.hold(channels), chain.hold(channels), **groups)


def reduction(chain: Chain) -> None:
    kind, axis = chain.choose(*REDUCTIONS), chain.choose(1, 2, 3)
    x = chain.add("Abs", chain.last) if kind == "ReduceLogSum" else chain.last
    chain.last = chain.add("Add", chain.last, chain.add(kind, x, chain.add_constant(np.array([axis])), keepdims=1))


def function(chain: Chain) -> None:
    kind = chain.choose(*FUNCTIONS)
    attributes = {"axis": chain.choose(1, 3, -1)} if kind in ("Hardmax", "LogSoftmax", "Softmax", "LpNormalization") else {}
    attributes |= {"p": chain.choose(1, 2)} if kind == "LpNormalization" else {}
    chain.last = chain.add(kind, chain.last, **attributes)


def response(chain: Chain) -> None:
    chain.last = chain.add("LRN", chain.last, size=chain.choose(1, 3), alpha=0.01, beta=0.75, bias=1.0)


def attention(chain: Chain) -> None:
    """Heads are channels. Turned by its place first where the width is even."""
    _, _, height, width = chain.shape
    query = chain.last
    if width % 2 == 0 and chain.choose(0, 1):
        angles = [
            np.tile(f(np.arange(height)[:, None] / np.arange(1, width // 2 + 1)), (chain.shape[0], 1, 1))
            for f in (np.cos, np.sin)
        ]
        query = chain.add("RotaryEmbedding", query, *(chain.add_constant(a.astype(np.float32)) for a in angles))
    chain.last = chain.add("Attention", query, chain.last, chain.last, is_causal=chain.choose(0, 1))


KINDS: tuple[Callable[[Chain], None], ...] = (norm, norm, reduction, function, function, response, attention)


@st.composite
def chains(draw: Any) -> onnx.ModelProto:
    chain = Chain(draw)
    for _ in range(draw(st.integers(1, 3))):
        draw(st.sampled_from(KINDS))(chain)
    return chain.model()


@pytest.mark.slow
def test_simulator_equals_reference(tmp_path: Path) -> None:
    check = equal_on_drawn if "RANDOM_NORMS" in os.environ else seed(1)(equal_on_drawn)
    check(tmp_path)


@settings(DRAWN, max_examples=CASES)
@given(model=chains(), machine=machines(), level=st.sampled_from([2, 0, 1]))
def equal_on_drawn(folder: Path, model: onnx.ModelProto, machine: DrawnMachine, level: int) -> None:
    require_equal_in_steps(folder, model, machine.machine, level)
