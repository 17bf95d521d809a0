"""Layers share tilings only where they are alike: an operator says what its tilings depend on, or all its parameters count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.rounding import Rounding
from toolchain.hw import load_chip
from toolchain.ir.graph import Graph, Node, TensorType
from toolchain.ops.kit.operator import Layer, tiling_key
from toolchain.ops.kit.registry import INTEGER_OPERATORS
from toolchain.ops.kit.tile import Tiling
from toolchain.ops.pool.geometry import Geometry
from toolchain.ops.pool.integer_pool import IntegerMaxPool
from toolchain.ops.rescale import Rescale
from toolchain.schedule.cost import CostModel, Runs
from toolchain.schedule.options import LEVELS, RegionInput
from toolchain.schedule.plan import PlannedRegion, TiledLayer
from toolchain.schedule.region_planner import RegionPlanner

REQUANT = Requant(np.array([1 << 30]), np.array([38]), Rounding("single_half_up"), 0, -128, 127)
CHIP = load_chip("edge16")


class Cut(Rescale):
    """Tiles of as many rows as its parameters say; all else is the Rescale's."""

    def rows(self) -> int:
        raise NotImplementedError

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        _, width, channels = layer.output.shape[-3:]
        yield Tiling(self.rows(), width, channels, 0)


@dataclass(frozen=True, eq=False)
class Reaching(Cut):
    reach: tuple[tuple[str, int], ...] = (("rows", 1),)  # a window under another name

    def rows(self) -> int:
        return dict(self.reach)["rows"]


@dataclass(frozen=True, eq=False)
class Shifting(Cut):
    shift: int = 1

    def rows(self) -> int:
        return self.shift


@dataclass(frozen=True, eq=False)
class Sharing(Cut):
    share: float = 0.25

    def rows(self) -> int:
        return int(16 * self.share)


@dataclass(frozen=True, eq=False)
class Listing(Cut):
    steps: Any = None

    def rows(self) -> int:
        return int(np.sum(self.steps))


@dataclass(frozen=True, eq=False)
class Nesting(Cut):
    inner: Shifting | None = None

    def rows(self) -> int:
        return self.inner.shift if self.inner else 1


UNLIKE = [
    (Reaching(3, REQUANT, (("rows", 2),)), Reaching(3, REQUANT, (("rows", 4),))),
    (Shifting(3, REQUANT, 2), Shifting(3, REQUANT, 4)),
    (Sharing(3, REQUANT, 0.125), Sharing(3, REQUANT, 0.25)),
    (Listing(3, REQUANT, np.array([1, 1])), Listing(3, REQUANT, np.array([1, 3]))),
    (Nesting(3, REQUANT, Shifting(3, REQUANT, 2)), Nesting(3, REQUANT, Shifting(3, REQUANT, 4))),
]


def planned(*ops: Any) -> PlannedRegion:
    """The operators in a row over one shape."""
    names = [f"t{i}" for i in range(len(ops) + 1)]
    nodes = tuple(Node(f"n{i}", op, (names[i],), (names[i + 1],)) for i, op in enumerate(ops))
    graph = Graph("g", nodes, names[:1], names[-1:], {n: TensorType((1, 16, 8, 16), "int8") for n in names}, {})  # type: ignore
    return RegionPlanner(RegionInput(graph, nodes, names[:1], names[-1:], CHIP, LEVELS[2])).search_plans()[0]


@pytest.mark.parametrize(("first", "second"), UNLIKE)
def test_unlike_layers_have_tilings_of_their_own(first: Cut, second: Cut) -> None:
    plan = planned(first, second, replace(first), second)
    assert [p.tiling.rows for p in plan.layers if isinstance(p, TiledLayer)] == [2, 4, 2, 4]


def key(op: Any, constants: dict[str, np.ndarray] | None = None) -> object:
    return tiling_key(Layer(Node("n", op, ("x", *(constants or {})), ("y",)), {}, constants or {}, CHIP))


@pytest.mark.parametrize(("first", "second"), UNLIKE)
def test_equal_parameters_are_shared(first: Cut, second: Cut) -> None:
    assert key(first) == key(replace(first)) != key(second)


def test_constants_of_an_unknown_operator_count() -> None:
    op = Shifting(3, REQUANT, 2)
    assert key(op, {"w": np.zeros(2)}) != key(op, {"v": np.zeros(2)})


def test_what_numbers_a_layer_computes_with_does_not_count() -> None:
    other = replace(REQUANT, multiplier=np.array([1 << 29]), zero_point=7)
    assert key(Rescale(3, REQUANT)) == key(Rescale(-4, other))


def test_operators_of_the_project_say_what_counts() -> None:
    """Those that are tiled; a new one may leave it out, and shares with less."""
    tiled = {name for name, cls in INTEGER_OPERATORS.items() if hasattr(cls, "tilings")}
    assert tiled == {name for name in tiled if "tiling_key" in vars(INTEGER_OPERATORS[name])}


def test_works_ask_what_their_own_layer_asks() -> None:
    """Of equal shapes; layers that are alike share what was found."""
    types = {n: TensorType((1, 16, 8, 16), "int8") for n in ("x", "y")}
    ops = [Rescale(3, REQUANT), IntegerMaxPool(Geometry((3, 3), (1, 1), (1, 1, 1, 1))), Rescale(3, REQUANT)]
    model = CostModel(CHIP)
    runs_by_layer: list[Runs] = []
    for i, op in enumerate(ops):
        layer = Layer(Node(f"n{i}", op, ("x",), ("y",)), types, {}, CHIP)
        task = next(layer.tiled.nest(layer, Tiling(16, 8, 16, 0)).iterate_tasks())
        runs_by_layer.append(model.runs(layer, task))
        assert runs_by_layer[i] == CostModel(CHIP).runs(layer, task)
    assert runs_by_layer[2] is runs_by_layer[0] != runs_by_layer[1]
