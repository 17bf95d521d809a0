"""The pipeline as a list of passes: what it prints, verifies and leaves out, and a pass of one's own in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import run
from toolchain.api import BuildOptions, build
from toolchain.errors import InternalError
from toolchain.frontend import load_model, to_graph
from toolchain.hw import load_chip
from toolchain.passes import pipeline
from toolchain.passes.pass_options import PassOptions
from toolchain.passes.pipeline import PIPELINE, Lowering, Pass, PassContext, run_passes
from toolchain.runtime import Session

OPTIONAL = [one.name for one in PIPELINE if one.optional]
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,6,6] x) => (float[1,4,6,6] y)
<float[4,4,3,3] w = {WEIGHTS}> {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    s = Sigmoid(c)
    d = Mul(c, s)
    y = Add(d, x)
}
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution with a table and a residual sum behind it."""
    from onnx import parser, save

    weights = np.random.default_rng(3).standard_normal(144).round(3)
    path = tmp_path_factory.mktemp("pipeline") / "n.onnx"
    save(parser.parse_model(TEXT.replace("WEIGHTS", ", ".join(map(str, weights)))), path)
    return path


def lowering(path: Path) -> Lowering:
    model = load_model(path)
    return Lowering(model, to_graph(model), "onnx")


def record(texts: dict[str, str], stage: str, text: Callable[[], str]) -> None:
    texts[stage] = text()


def test_forms_follow_one_another() -> None:
    forms = [(one.needs, one.gives) for one in PIPELINE]
    assert forms[0][0] == "onnx" and forms[-1][1] == "integer"
    assert all(one[1] == following[0] for one, following in pairwise(forms))
    assert len({one.name for one in PIPELINE}) == len(PIPELINE)


def test_passes_are_listed_in_order() -> None:
    lines = run("npu-build --list-passes").out.splitlines()
    names = [line.split()[0] for line in lines if not line.startswith("-")]
    assert names == ["pass", *(one.name for one in PIPELINE), "partition", "plan", "link", "outline"]


@pytest.mark.parametrize("name", OPTIONAL)
def test_programs_are_right_without_an_optional_pass(name: str, network: Path) -> None:
    x = {"x": np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)}
    options = BuildOptions("edge16", passes=PassOptions(frozenset((name,)), verify=True))
    skipped, usual = build(network, options), build(network, replace(options, passes=PassOptions()))
    outputs = [Session(built.data).run(None, x)[0] for built in (skipped, usual)]
    assert np.abs(outputs[0] - outputs[1]).max() < 0.1 * np.abs(outputs[1]).max()


@pytest.mark.parametrize("name", ["fuse-tables", "fuse-residuals"])
def test_a_pass_that_is_left_out_leaves_operators(name: str, network: Path) -> None:
    counts = []
    for skip in (frozenset[str](), frozenset((name,))):
        texts: dict[str, str] = {}
        build(network, BuildOptions("edge16", passes=PassOptions(skip)), partial(record, texts))
        counts.append(texts["fuse"].count("\n"))
    assert counts[0] < counts[1]


def test_a_pass_that_breaks_the_graph_is_named(network: Path) -> None:
    def drop_last_node(state: Lowering, context: PassContext) -> Lowering:
        return replace(state, graph=replace(state.graph, nodes=state.graph.nodes[:-1]))

    broken = Pass("drop-last-node", "onnx", "onnx", drop_last_node, "")
    context = PassContext(load_chip("edge16"), options=PassOptions(verify=True))
    with pytest.raises(InternalError, match=r"^pass drop-last-node broke the graph: output 'y' is never defined"):
        run_passes((broken,), lowering(network), context)


def test_a_pass_in_the_wrong_place_is_named(network: Path) -> None:
    with pytest.raises(InternalError, match="pass fuse-clamps needs a graph in form chip, and it is in form onnx"):
        run_passes(pipeline.INTEGER_PASSES, lowering(network), PassContext(load_chip("edge16")))
