"""Functions of any length: composed, evaluated, printed and built without recursion, each part once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from chip_against_file import against_file
from onnx_text import model, save

from toolchain import compiler
from toolchain.api import BuildOptions, build
from toolchain.compiler import STAGES
from toolchain.ir import text as graph_text
from toolchain.ir.graph import Graph, Node, TensorType
from toolchain.ir.text import print_graph
from toolchain.ops.scalar_functions import X, evaluate
from toolchain.ops.unary import Unary


def chain(steps: list[str], count: int) -> str:
    """Return the text of a chain of nodes.

    `steps`: nodes from IN to OUT, whose inner tensors have names that end in the step's number.
    """
    nodes = [steps[i % len(steps)].format(x=f"t{i}", y=f"t{i + 1}", n=i) for i in range(count)]
    return f"(float[1,2,6] x) => (float[a,b,c] y) {{ t0 = Identity(x) {' '.join(nodes)} y = Neg(t{count}) }}"


LEAKY = "{y} = LeakyRelu<alpha = 0.999>({x})"


@pytest.mark.parametrize(("steps", "count"), [([LEAKY], 400), ([LEAKY, "{y} = Abs({x})"], 1200)])
def test_one_layer(steps: list[str], count: int, tmp_path: Path) -> None:
    built = against_file(save(model(chain(steps, count)), tmp_path))
    assert len(built.figures["layers"]) == 1


def unary(function: object) -> Graph:
    types = {name: TensorType((3,), "float32") for name in "xy"}
    return Graph("g", (Node("f", Unary(function), ("x",), ("y",)),), ("x",), ("y",), types, {})


def test_deep_functions() -> None:
    function = X
    for _ in range(5000):
        function = ("add", function, 1.0)
    assert evaluate(function, np.zeros(2)).tolist() == [5000.0, 5000.0]
    assert print_graph(unary(function)).count("(add, ") == 5000


def test_a_part_in_two_places_is_written_and_computed_once() -> None:
    function = ("mul", X, 0.5)
    for _ in range(60):  # written out, 2**60 parts
        function = ("add", function, function)
    assert evaluate(function, np.ones(1)).tolist() == [2.0**59]
    text = print_graph(unary(("sub", ("mul", X, 0.5), ("mul", X, 0.5))))
    assert "function=(sub, (mul, (x), 0.5), (mul, (x), 0.5))" in text
    text = print_graph(unary(function))
    assert text.count("(add, ") == 60 and "#60=(mul, (x), 0.5), #60)" in text


def test_stages_are_written_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts_by_stage: dict[str, list[str]] = {}
    path = save(model(chain([LEAKY], 1)), tmp_path)
    build(path, BuildOptions("edge16"), lambda stage, text: texts_by_stage.setdefault(stage, []).append(text()))
    assert tuple(name for name in texts_by_stage if name in STAGES) == STAGES and all(
        text for texts in texts_by_stage.values() for text in texts
    )
    for module, name in ((graph_text, "print_graph"), (compiler, "annotate_plan"), (compiler, "disassemble")):
        monkeypatch.setattr(module, name, lambda *_, name=name: pytest.fail(f"{name} was called"))
    build(path, BuildOptions("edge16"), lambda stage, text: None)
