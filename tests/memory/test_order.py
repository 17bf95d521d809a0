from __future__ import annotations

import json
import random
from pathlib import Path

import nas_networks
import pytest
from exhaustive import smallest_peak_of_orders

from toolchain.memory import (
    InvalidGraph,
    Operator,
    concat_by_view,
    drop_no_ops,
    live_ranges,
    order_operators,
    peak_of_order,
    place,
    split_by_view,
    validate,
)

DATA = Path(__file__).parent / "data"


def random_graph(rng: random.Random, n: int) -> tuple[list[Operator], dict[str, int], list[str], list[str]]:
    """Several inputs, several outputs an operator, in-place pairs, workspace, outputs that stay."""
    inputs = [f"i{k}" for k in range(rng.randint(1, 2))]
    tensors = list(inputs)
    operators = []
    for k in range(n):
        used = tuple(rng.sample(tensors, min(len(tensors), rng.randint(1, 3))))
        outputs = tuple(f"t{k}_{j}" for j in range(rng.choice([1, 1, 1, 2])))
        pairs = tuple((outputs[0], t) for t in used if rng.random() < 0.3)
        operators.append(Operator(f"op{k}", used, outputs, pairs, rng.choice([0, 0, 0, 3])))
        tensors += outputs
    sizes = {t: rng.randint(0, 9) for t in tensors}
    return operators, sizes, inputs, rng.sample(tensors, rng.randint(0, 2))


def orders_against_brute_force(count: int, most: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        operators, sizes, inputs, outputs = random_graph(rng, rng.randint(3, most))
        best = smallest_peak_of_orders(operators, sizes, inputs, outputs)
        result = order_operators(operators, sizes, inputs, outputs)
        assert (result.peak_bytes, result.bound_bytes, result.proved) == (best, best, True), (operators, sizes, outputs)
        assert peak_of_order(operators, result.order, sizes, inputs, outputs) == best
        stopped = order_operators(operators, sizes, inputs, outputs, effort_states=1)
        assert stopped.bound_bytes <= best <= stopped.peak_bytes


def test_brute_force() -> None:
    orders_against_brute_force(150, most=7, seed=1)


def smallest_peak_by_sets(operators: list[Operator], sizes: dict[str, int], inputs: list[str], outputs: list[str]) -> int:
    """Every closed set, for graphs too large for every order; each step judged by running the order's own meter."""
    names = [op.name for op in operators]
    by_name = {op.name: op for op in operators}
    best: dict[frozenset[str], tuple[int, tuple[str, ...]]] = {frozenset(): (0, ())}
    for _ in names:
        after: dict[frozenset[str], tuple[int, tuple[str, ...]]] = {}
        for done, (_, order) in best.items():
            computed = {t for name in done for t in by_name[name].outputs} | set(inputs)
            for name in names:
                if name in done or not computed.issuperset(by_name[name].inputs):
                    continue
                longer = (*order, name)
                peak = peak_of_order(operators, longer, sizes, inputs, outputs)
                key = done | {name}
                if key not in after or peak < after[key][0]:
                    after[key] = (peak, longer)
        best = after
    return best[frozenset(names)][0]


@pytest.mark.slow
def test_brute_force_2000() -> None:
    rng = random.Random(2)
    for _ in range(2000):
        operators, sizes, inputs, outputs = random_graph(rng, rng.randint(3, 11))
        result = order_operators(operators, sizes, inputs, outputs)
        best = smallest_peak_by_sets(operators, sizes, inputs, outputs)
        assert (result.peak_bytes, result.proved) == (best, True), (operators, sizes, outputs)


def swiftnet() -> tuple[list[Operator], dict[str, int], list[str], list[str], list[str]]:
    data = json.loads((DATA / "swiftnet.json").read_text())
    operators = [Operator(str(k), tuple(map(str, o["ins"])), (str(o["out"]),)) for k, o in enumerate(data["ops"])]
    concats = [str(k) for k, o in enumerate(data["ops"]) if o["type"] == "CONCATENATION"]
    sizes = dict(data["tensors"])
    return operators, sizes, [str(t) for t in data["inputs"]], [str(t) for t in data["outputs"]], concats


def test_swiftnet() -> None:
    operators, sizes, inputs, outputs, concats = swiftnet()
    assert peak_of_order(operators, [op.name for op in operators], sizes, inputs, outputs) == 351_232
    plain = order_operators(operators, sizes, inputs, outputs)
    assert (plain.peak_bytes, plain.proved) == (301_056, True)
    dropped = drop_no_ops(operators, sizes, outputs, ["0"])
    result = order_operators(dropped.operators, dropped.tensor_sizes, inputs, dropped.graph_outputs)
    assert (result.peak_bytes, result.proved) == (275_968, True)
    views = concat_by_view(dropped.operators, sizes, dropped.graph_outputs, concats, scattered=True)
    result = order_operators(views.operators, views.tensor_sizes, inputs, views.graph_outputs)
    assert (result.peak_bytes, result.proved) == (200_704, True)
    assert result.states < 1000
    side_by_side = concat_by_view(dropped.operators, sizes, dropped.graph_outputs, concats)
    result = order_operators(side_by_side.operators, side_by_side.tensor_sizes, inputs, side_by_side.graph_outputs)
    assert (result.peak_bytes, result.proved) == (250_880, True)


def test_searched_networks() -> None:
    """Counts and optima, in KiB, of the networks that HMCOS publishes, measured by another exact search."""
    nas = nas_networks
    networks = [
        (nas.imagenet(nas.NASNET_A, 11, 4), 723, 4511.625),
        (nas.imagenet(nas.NASNET_A, 11, 4, in_place=True), 723, 4369.21875),
        (nas.imagenet(nas.AMOEBANET_A, 12.5, 4), 651, 4630.5),
        (nas.imagenet(nas.AMOEBANET_A, 12.5, 4, in_place=True), 651, 4361),
        (nas.imagenet(nas.DARTS, 12, 4), 591, 4508),
        (nas.cifar(nas.PNAS, 32, 6, in_place=True), 1017, 1664),
        (nas.randwire(0), 354, 3822),
        (nas.randwire(1), 352, 3822),
    ]
    for (operators, sizes, inputs, outputs), count, kibibytes in networks:
        result = order_operators(operators, sizes, inputs, outputs)
        assert len(operators) == count
        assert (result.peak_bytes, result.proved) == (kibibytes * 1024, True)
        assert peak_of_order(operators, result.order, sizes, inputs, outputs) == result.peak_bytes


def test_an_order_places() -> None:
    operators, sizes, inputs, outputs, _ = swiftnet()
    result = order_operators(operators, sizes, inputs, outputs)
    buffers = live_ranges(operators, result.order, sizes, inputs, outputs)
    plan = place(buffers)
    assert not validate(buffers, plan)
    assert (plan.peak_bytes, plan.proved) == (result.peak_bytes, True)


def test_live_ranges_agree_with_the_order() -> None:
    rng = random.Random(8)
    for _ in range(60):
        operators, sizes, inputs, outputs = random_graph(rng, rng.randint(2, 7))
        operators = [Operator(op.name, op.inputs, op.outputs, (), op.workspace_bytes) for op in operators]
        result = order_operators(operators, sizes, inputs, outputs)
        buffers = live_ranges(operators, result.order, sizes, inputs, outputs)
        assert place(buffers).bound_bytes == result.peak_bytes


def test_split_by_view() -> None:
    operators = [Operator("split", ("x",), ("a", "b")), Operator("use", ("b",), ("y",))]
    sizes = {"x": 10, "a": 4, "b": 6, "y": 1}
    changed = split_by_view(operators, sizes, ["y"], ["split"])
    assert changed.operators == (Operator("use", ("x",), ("y",)),)
    assert changed.views == {"a": ("x", 0), "b": ("x", 4)}


@pytest.mark.parametrize(
    ("operators", "outputs", "message"),
    [
        (
            [Operator("p", ("b",), ("a",)), Operator("q", ("a",), ("b",))],
            ["b"],
            "operators in a cycle, or behind one: p, q",
        ),
        ([Operator("p", ("b",), ("a",))], ["a"], "operator p: input b is made by no operator and is no graph input"),
        ([Operator("p", ("x",), ("x",))], ["x"], "tensor x: made by the graph's inputs and by p"),
        ([Operator("p", ("x",), ("z",))], ["z"], "tensor z: has no size"),
        ([Operator("p", ("x",), ("n",))], ["n"], "tensor n: size -1 is negative"),
        ([Operator("p", ("x",), ("a",))], ["b"], "graph output b: made by no operator"),
        (
            [Operator("p", ("x",), ("a",), (("x", "a"),))],
            ["a"],
            "operator p: in-place pair (x, a) is not (output, input) of it",
        ),
        ([Operator("p", ("x",), ("a",)), Operator("p", ("x",), ("b",))], ["a"], "operator p: the name is given twice"),
    ],
)
def test_refused(operators: list[Operator], outputs: list[str], message: str) -> None:
    with pytest.raises(InvalidGraph) as refusal:
        order_operators(operators, {"x": 1, "a": 1, "b": 1, "n": -1}, ["x"], outputs)
    assert str(refusal.value) == message
