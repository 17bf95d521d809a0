"""Machines of several DMA channels, of few semaphores, or of small counts: built all the same, and no hazard, deadlock or
overflow in the simulator."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.support.random_cases import DrawnMachine, DrawnModel, machines, networks
from toolchain.api import BuildOptions, build
from toolchain.codegen import Container, Region
from toolchain.codegen.synchronise import _Event, _Order, _scarce_links
from toolchain.errors import CompileError
from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.isa import Machine, decode, load_machine
from toolchain.isa.encoding_needs import find_encoding_gaps
from toolchain.machine import Copy, Space
from toolchain.runtime import Session, random_feeds

CLASSIFIER = Path(__file__).parents[2] / "examples" / "classifier" / "classifier.onnx"


def with_sync(machine: Machine, channels: int, **sync: int) -> Machine:
    """`machine` with other semaphores and DMA channels."""
    chip = machine.chip
    dma = chip.engines["dma"].model_copy(update={"channels": channels})
    engines = {**chip.engines, "dma": dma}
    return replace(machine, chip=chip.model_copy(update={"engines": engines, "sync": chip.sync.model_copy(update=sync)}))


@pytest.mark.slow
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(networks(), machines(), st.integers(3, 12), st.sampled_from([1, 1, 2, 3, 15]), st.integers(1, 3))
def test_random_networks_on_scarce_machines(
    tmp_path_factory: pytest.TempPathFactory, model: DrawnModel, drawn: DrawnMachine, semaphores: int, count: int, channels: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "scarce.onnx"
    onnx.save(model.proto, path)
    machine = with_sync(drawn.machine, channels, semaphores=semaphores, max_count=count)
    assume(
        not find_broken_rules(machine.chip) and not find_encoding_gaps(machine.chip, machine.isa)
    )  # a first table is as narrow as can be
    try:
        built = build(path, BuildOptions(machine))
    except CompileError as fault:
        engines = machine.chip.engines.values()
        ring = 2 * sum(1 if engine.kind == "dma" else engine.count for engine in engines)  # with an answer to each of its signals
        assert "smallest tile needs" in str(fault) or ("sync.semaphores is" in str(fault) and semaphores < ring), fault
        assume(False)
        return
    feeds = random_feeds(built.container.inputs, seed=7)
    got = Session(built.data, timing=True).run_detailed(feeds)
    expected = Session(built.data, backend="reference").run_detailed(feeds)
    for name, value in expected.outputs.items():
        np.testing.assert_array_equal(got.outputs[name], value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "semaphores, count", [(3, 255), *(pytest.param(*few, marks=pytest.mark.exhaustive) for few in [(6, 1), (12, 2)])]
)
def test_the_classifier_on_three_engines(semaphores: int, count: int) -> None:
    """mac, vector and one DMA channel: a ring of three suffices, with an answer each where the count is small."""
    edge16 = load_machine("edge16")
    plain = build(CLASSIFIER, BuildOptions(edge16)).figures["cycles"]
    scarce = build(CLASSIFIER, BuildOptions(with_sync(edge16, 1, semaphores=semaphores, max_count=count))).figures["cycles"]
    assert plain <= scarce < 1.25 * plain


def make_order(signals: Counter[tuple[int, int]]) -> _Order:
    """Return an order in which each pair of engines signals as often as it counts."""
    events: list[_Event] = []
    for (source, target), count in signals.items():
        for _ in range(count):
            events += [_Event(source, 0, False, ()), _Event(target, 0, False, (len(events),))]
    return _Order(tuple(events), {})


@pytest.mark.parametrize("semaphores", [2, 4, 5, 7, 12, 40])
def test_scarce_semaphores_go_to_a_ring_and_the_most_used_pairs(semaphores: int) -> None:
    signals = Counter({pair: 1 + i for i, pair in enumerate(permutations(range(4), 2))})
    links = list(_scarce_links(make_order(signals), semaphores))
    assert [len(some) for some in links] == list(range(max(4, min(semaphores, 12)), 3, -1))
    ring = links[-1]
    assert {a for a, _ in ring} == {b for _, b in ring} == set(range(4))
    for some in links:
        assert ring <= some
        others = signals.keys() - ring
        assert min((signals[p] for p in some - ring), default=99) >= max((signals[p] for p in others - some), default=0)


def test_channels_without_semaphores_of_their_own_stay_idle() -> None:
    one, few, many = (with_sync(load_machine("edge16"), c, semaphores=n).chip for c, n in ((1, 64), (3, 12), (3, 20)))
    assert [len(chip.channels) for chip in (one, few, many)] == [1, 2, 3]
    assert len(with_sync(load_machine("edge16"), 3, semaphores=11).chip.channels) == 1
    assert len(with_sync(load_machine("edge16"), 3, semaphores=24, max_count=1).chip.channels) == 2


def _region(container: Container) -> Region:
    return next(part for part in container.segments if isinstance(part, Region))


@pytest.mark.slow
def test_loads_are_dealt_out_to_all_channels_but_the_last() -> None:
    """Four slow channels: three load, one stores, and that is faster than one of each."""
    edge16 = load_machine("edge16")
    chip = edge16.chip.model_copy(
        update={
            "engines": {
                **edge16.chip.engines,
                "dma": edge16.chip.engines["dma"].model_copy(update={"bytes_per_cycle": 2.0}),
            }
        }
    )
    cycles, used = {}, {}
    for channels in (2, 4):
        machine = with_sync(replace(edge16, chip=chip), channels)
        built = build(CLASSIFIER, BuildOptions(machine))
        ops = decode(_region(built.container).program, machine.isa).ops
        loads = {op.channel for op in ops if isinstance(op, Copy) and op.source_space == Space.DRAM}
        stores = {op.channel for op in ops if isinstance(op, Copy) and op.destination_space == Space.DRAM}
        cycles[channels], used[channels] = built.figures["cycles"], (loads, stores)
    assert used == {2: ({0}, {1}), 4: ({0, 1, 2}, {3})}
    assert cycles[4] < 0.9 * cycles[2]


def test_too_few_are_refused_with_the_number_that_would_do() -> None:
    with pytest.raises(
        CompileError, match=r"^edge16: to order mac, vector, dma0 takes at least 3 semaphores and \d for answers, "
    ):
        build(CLASSIFIER, BuildOptions(with_sync(load_machine("edge16"), 1, semaphores=3, max_count=1)))
