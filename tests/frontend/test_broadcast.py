"""Constants of any rank beside a tensor: the result has numpy's shape and the model's numbers, or a sentence says why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from chip_against_file import against_file
from onnx_text import model, save

from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.frontend.reshape_sinking_rules import constant_shape
from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType
from toolchain.passes.compose import compose

# shape of x, shape of the constant
RAISED = [((7,), (1, 1)), ((1, 7), (1, 1, 1, 1)), ((2, 3, 4), (1, 1, 1, 1)), ((1, 3, 4, 5), (1, 1, 1, 1, 1))]
WIDER = [((4,), (3, 1)), ((4,), (3, 4)), ((3, 4), (1, 3, 1)), ((3, 4), (2, 1, 4)), ((2, 3, 4), (2, 1, 3, 1)), ((1, 4), (1, 1, 4))]
SPELLINGS = ["{op}(a, c)", "{op}(c, a)"]


def make_binary_text(op: str, x: tuple[int, ...], c: tuple[int, ...], spelling: str = SPELLINGS[0]) -> str:
    rank = ",".join("abcdef"[: max(len(x), len(c))])
    before = "a = Abs(x)" if op == "Pow" else "a = Neg(x)"
    shapes = [",".join(map(str, s)) for s in (x, c)]
    return f"(float[{shapes[0]}] x, float[{shapes[1]}] c) => (float[{rank}] y) {{ {before} y = {spelling.format(op=op)} }}"


def weights(c: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {"c": np.linspace(0.5, 1.75, int(np.prod(c))).reshape(c)}


@pytest.mark.parametrize(
    ("op", "x", "c"),
    [(op, *shapes) for op in ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max") for shapes in RAISED]
    + [(op, *shapes) for op in ("Sub", "Mul", "Max") for shapes in WIDER],
)
def test_a_constant_of_higher_rank(op: str, x: tuple[int, ...], c: tuple[int, ...], tmp_path: Path) -> None:
    for spelling in SPELLINGS[: 1 if op in ("Pow", "Div") else 2]:  # one over a number near nothing has no range
        against_file(save(model(make_binary_text(op, x, c, spelling), weights=weights(c)), tmp_path), least_db=25.0)


@pytest.mark.parametrize("machine", ["ws8_pow2", "wide32_w4a16", "ethos_u55_256"])
@pytest.mark.parametrize(("x", "c"), [RAISED[0], WIDER[2]])
def test_on_other_machines(x: tuple[int, ...], c: tuple[int, ...], machine: str, tmp_path: Path) -> None:
    path = save(model(make_binary_text("Mul", x, c), weights=weights(c)), tmp_path)
    assert not against_file(path, machine, least_db=25.0).figures["fallbacks"] or machine == "ws8_pow2"


def test_behind_a_gemm(tmp_path: Path) -> None:
    """The product keeps its own rank, and is the Gemm's."""
    graph = (
        "(float[2,6] x, float[6,4] w) => (float[a,b,c] y) { c = float[1,1,1] {0.5} g = Gemm(x, w) m = Mul(g, c) y = Sigmoid(m) }"
    )
    built = against_file(save(model(graph), tmp_path))
    assert len(built.figures["layers"]) == 1


def test_composition_keeps_shapes() -> None:
    """A constant that raises the rank is no part of a function of one tensor, wherever it comes from."""
    nodes = (Node("m", OnnxOp("Mul"), ("x", "c"), ("y",)), Node("e", OnnxOp("Exp"), ("y",), ("z",)))
    types = {"x": TensorType((7,), "float32"), "c": TensorType((1, 1), "float32")}
    types |= {name: TensorType((1, 7), "float32") for name in "yz"}
    graph = Graph("g", nodes, ("x",), ("z",), types, {"c": np.full((1, 1), 0.5, np.float32)})
    assert [n.inputs for n in compose(graph).nodes] == [("x", "c"), ("y",)]


@pytest.mark.parametrize(("x", "slope"), [((1, 4), (2, 1, 4)), ((7,), (1, 1)), ((2, 4), (3, 4))])
def test_a_slope_wider_than_its_input(x: tuple[int, ...], slope: tuple[int, ...], tmp_path: Path) -> None:
    shapes = [",".join(map(str, s)) for s in (x, slope)]
    path = save(model(f"(float[{shapes[0]}] x, float[{shapes[1]}] w) => (float[a] y) {{ y = PRelu(x, w) }}"), tmp_path)
    with pytest.raises(CompileError) as fault:
        load_model(path)
    assert str(fault.value) == (
        f'node PRelu_0 (PRelu): its slope "w" {list(slope)} does not broadcast to its input {list(x)}\n'
        "  help: give the slope as many dimensions as the input at most, each 1 or the input's"
    )


# Shape of the constant; of the other operand before its Reshape and behind it; of the constant before the Reshape.
BEFORE_RESHAPES = [
    ((), (2, 3), (3, 2), ()),
    ((3,), (4, 2, 3), (8, 3), (3,)),
    ((3,), (2, 3), (1, 2, 3), (3,)),
    ((3,), (2, 3, 1), (2, 1, 3), (3, 1)),
    ((3,), (2, 1, 3, 1), (2, 1, 3), (3, 1)),
    ((2, 1, 3), (2, 1, 3, 1), (2, 1, 3), (2, 1, 3, 1)),
    ((2, 1), (2, 3, 1), (2, 3), (2, 1, 1)),
    ((2, 3), (2, 3), (3, 2), None),
    ((3,), (2, 3, 2), (2, 2, 3), None),
]


@pytest.mark.parametrize(("constant", "source", "target", "shape"), BEFORE_RESHAPES)
def test_a_constant_before_a_reshape_meets_the_same_elements(
    constant: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], shape: tuple[int, ...] | None
) -> None:
    assert constant_shape(constant, source, target) == shape
    if shape is not None:
        values = np.arange(np.prod(constant, dtype=int)).reshape(constant)
        before = np.broadcast_to(values.reshape(shape), source)
        np.testing.assert_array_equal(before.reshape(target), np.broadcast_to(values, target))
