"""A schedule that is printed and given back makes the same program, byte for byte."""

from __future__ import annotations

import pytest

from tests.support.machine_variants import with_keys, with_sram
from tests.support.schedule_round_trip import compiled, digest
from toolchain.hw import list_shipped_names
from toolchain.isa import Machine
from toolchain.schedule.goals import CYCLES, Goal
from toolchain.schedule.nodes import CascadeTree, RegionTree
from toolchain.schedule.parser import parse_schedule
from toolchain.schedule.text import print_schedule

SMALL, SMALLER = "resnet8_cifar", "dscnn_kws"
MOST_LINES = 40  # of a printed layer


def _same(network: str, machine: str | Machine, level: int, goal: Goal = CYCLES) -> str:
    planned = compiled(network, machine, level, goal=goal)
    text = print_schedule(planned.schedule)
    trees = parse_schedule(text, "given.sched")
    assert [_nodes(tree) for tree in trees] == [_nodes(plan) for plan in planned.plans]
    reread = compiled(network, machine, level, trees, goal)
    assert print_schedule(reread.schedule) == text
    assert digest(reread) == digest(planned)
    return text


def _nodes(tree: RegionTree) -> list[object]:
    """The nodes of a schedule, planned or read: what lies where, the loops of cascades, the parts of layers."""
    lies: list[object] = [(alloc.buffer, alloc.memory) for alloc in tree.tensors]
    cascades = [(part.loops, len(part.layers)) for part in tree.parts if isinstance(part, CascadeTree)]
    return [*lies, *cascades, *((layer.call, layer.loops, layer.rings, layer.fetches) for layer in tree.layers)]


@pytest.mark.parametrize("machine", list_shipped_names())
def test_on_every_machine(machine: str) -> None:
    text = _same(SMALL, machine, 2)
    layers = text.split("\n  layer ")
    assert max(len(layer.splitlines()) for layer in layers) <= MOST_LINES


@pytest.mark.parametrize("level", [0, 1, 3])
def test_at_every_level(level: int) -> None:
    _same(SMALLER, "nvdla_small", level)


@pytest.mark.parametrize(("machine", "kib"), [("wide32_w4a16", 32), ("nvdla_small", 24)])
def test_of_cascades(machine: str, kib: int) -> None:
    assert "in turns" in _same(SMALL, with_sram(machine, kib), 2)


def test_of_cascades_on_two_arrays() -> None:
    small = with_sram("wide32_w4a16", 32)
    engines = small.chip.model_dump(mode="json")["engines"]
    engines["mac"]["count"] = 2
    text = _same(SMALL, with_keys(small, engines=engines), 2)
    assert "on mac0, mac1" in text.partition("in turns")[2]


def test_of_several_products_at_once() -> None:
    _same("bert_tiny_relu_l2h128_s128", "transformer64", 2)


def test_of_constants_that_are_fetched_ahead() -> None:
    assert "fetch 1 behind" in _same(SMALL, "ethos_u55_256", 2)


@pytest.mark.parametrize("goal", [Goal("memory"), Goal("cycles", 40_000)])
def test_within_less_than_all_of_the_sram(goal: Goal) -> None:
    assert " within " in _same(SMALL, "edge16", 2, goal)
