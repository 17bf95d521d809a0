"""Test where cycles go: each cause by a program in which it is the true one, and that all causes sum to the
program's cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import random_operations
from machine_programs import DMA0, DMA1, VECTOR, functions, load, make, small_chip, store
from pipelines import pipeline, random_program, rescale
from random_operations import Draw

from simulator import Attribution, Simulation, StallCause, attribute_cycles, by_reason, simulate, wrap_measured_run
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import Convolution, End, LoadBase, MachineOp, MatrixProduct, Pool, Signal, Space, Wait, demand

IMAGE = np.zeros(0x10000, np.uint8)
GAPS = {"memories__dram__latency_cycles": 20, "isa__word_cycles": 1.5, "engines__vector__issue_cycles": 2}
SLOW = {
    "memories__dram__read_bytes_per_cycle": 3.0,
    "memories__sram__write_bytes_per_cycle": 12.0,
    "engines__dma__queue_depth": 1,
}


def run(chip: Chip, ops: Sequence[MachineOp], words: Sequence[int] | None = None) -> Simulation:
    return simulate(chip, [*ops, End()], words, IMAGE, [(0, IMAGE.size)], values=False, check=False)


def attribute(chip: Chip, done: Simulation) -> Attribution:
    attribution = attribute_cycles(chip, done)
    assert attribution is not None
    return attribution


def count_by_cause(chip: Chip, ops: Sequence[MachineOp], words: Sequence[int] | None = None) -> dict[str, dict[str, Any]]:
    """Cycles of each unit by cause."""
    done = run(chip, ops, words)
    return {unit: by_reason(chip, counted[0]) for unit, counted in attribute(chip, done).totals().items()}


def convolution(pixels: int, inner: int, outputs: int, **more: int) -> Convolution:
    """pixels x inner by inner x outputs; the sums stay."""
    strides = {"input_row_stride": 64, "input_column_stride": 64, "input_height": 1, "input_width": pixels}
    sizes = {"output_height": 1, "output_width": pixels, "input_channels": inner, "output_channels": outputs}
    return make(Convolution, **strides, **sizes, **more)


def test_fill_and_drain_partial_folds_and_useful_cycles_of_an_array() -> None:
    """The array is 4 x 8, outputs stationary, with 5 pixels, 10 channels, a sum of 20.

    There are 2 x 2 folds of 20 steps and 4 + 8 - 2.
    A full array would take 5 * 10 * 20 / 32 cycles. One word of dispatch precedes it.
    """
    array = count_by_cause(small_chip(), [convolution(5, 20, 10)])["mac"]
    useful = -(-5 * 10 * 20 // 32)
    assert array == {"fill_drain": 4 * 10, "useful": useful, "partial_folds": 4 * 20 - useful, "nothing": 1}


def test_folds_that_are_full_lose_nothing_but_fill_and_drain() -> None:
    array = count_by_cause(small_chip(), [convolution(8, 20, 16)])["mac"]
    assert array == {"fill_drain": 4 * 10, "useful": 4 * 20, "nothing": 1}


def test_depth_that_a_sum_does_not_fill_is_a_partial_fold() -> None:
    array = count_by_cause(small_chip(engines__mac__depth=4), [convolution(4, 9, 8)])["mac"]
    assert array == {"fill_drain": 10, "useful": 3, "nothing": 1}
    array = count_by_cause(small_chip(engines__mac__depth=16), [convolution(4, 9, 8)])["mac"]
    assert array == {"fill_drain": 10, "useful": 1, "nothing": 1}
    array = count_by_cause(small_chip(engines__mac__depth=8), [convolution(4, 17, 8)])["mac"]
    assert array == {"fill_drain": 10, "useful": 3, "nothing": 1}
    array = count_by_cause(small_chip(engines__mac__depth=8), [convolution(8, 17, 8)])["mac"]
    assert array == {"fill_drain": 20, "useful": 5, "partial_folds": 1, "nothing": 1}


def test_a_lower_rate_of_types_is_no_loss() -> None:
    chip = small_chip(numerics__activation="int16", numerics__table={"entries": 513, "interpolation": "tosa"})
    array = count_by_cause(chip, [convolution(8, 20, 16)])["mac"]
    assert array == {"fill_drain": 4 * 10, "useful": 4 * 40, "nothing": 1}


def test_operands_that_load_before_a_fold_can_begin_are_fill() -> None:
    """Weights stationary, folds overlap: 2 pixels a fold, and 4 cycles in which the next weights load."""
    chip = small_chip(engines__mac__dataflow="ws", engines__mac__folds_overlap=True)
    array = count_by_cause(chip, [convolution(2, 16, 8)])["mac"]
    assert array == {"fill_drain": 3 * (4 - 2) + 2 * 4 + 8 - 2, "useful": 4 * 2, "nothing": 1}


def test_the_output_path_scales_the_sums_of_groups() -> None:
    groups = {"sizes": (32,), "fold_cycles": 3}
    chip = small_chip(engines__mac__groups=groups, numerics__weight_group=32, memories__sram__read_bytes_per_cycle=4096.0)
    array = count_by_cause(chip, [convolution(4, 64, 8, group=32)])["mac"]
    assert array == {"fill_drain": 2 * 10, "useful": 64, "output_path": 2 * 3, "nothing": 1}


def test_products_of_two_activations_and_batches() -> None:
    op = make(MatrixProduct, rows=4, inner=10, columns=8, batches=2, emit=1, output_row_stride=8, a_row_stride=10)
    array = count_by_cause(small_chip(), [op])["mac"]
    assert array == {"fill_drain": 2 * 10, "useful": 2 * 10, "nothing": 1}


def test_startup_and_lanes_of_a_vector_engine() -> None:
    """The startup is 4.

    On 16 lanes, 20 elements take 2 cycles, as full lanes do.
    The pool's 4 taps of them take 8 instead of 5.
    """
    chip = small_chip(engines__vector__functions=functions(lanes=16))
    assert count_by_cause(chip, [rescale(0, 64, 32)])["vector"] == {"fill_drain": 4, "useful": 2, "nothing": 1}
    window = {"kernel_height": 2, "kernel_width": 2, "input_height": 2, "input_width": 2, "output_height": 1, "output_width": 1}
    pool = make(Pool, channels=20, **window)
    assert count_by_cause(chip, [pool])["vector"] == {"fill_drain": 4, "useful": 5, "partial_folds": 3, "nothing": 1}


def test_bandwidth_and_latency_of_dram() -> None:
    """800 bytes at 16 a cycle of the channel, 8 of the memory, behind 30 cycles of latency."""
    chip = small_chip(memories__dram__latency_cycles=30)
    assert count_by_cause(chip, [load(0, 0, 800)])["dma0"] == {"useful": 50, "memory": {"dram": 30 + 50}, "nothing": 1}


def test_a_channel_that_is_slower_than_the_memory_is_of_use_all_the_time() -> None:
    chip = small_chip(engines__dma__bytes_per_cycle=2.0)
    assert count_by_cause(chip, [load(0, 0, 800)])["dma0"] == {"useful": 400, "nothing": 1}


def test_a_memory_that_serves_another_is_what_is_waited_for() -> None:
    both = count_by_cause(small_chip(), [load(0, 0, 800), load(800, 800, 800, 1)])
    assert both["dma1"] == {"useful": 50, "memory": {"dram": 150}, "nothing": 1}
    assert both["dma0"] == {"useful": 50, "memory": {"dram": 50}, "nothing": 101}


def test_ports_of_the_sram() -> None:
    """256 bytes at 8 lanes: 32 cycles; read at 4 bytes a cycle: 64. Or written at 2: 128."""
    chip = small_chip(memories__sram__read_bytes_per_cycle=4.0)
    assert count_by_cause(chip, [rescale(0, 512, 256)])["vector"] == {
        "fill_drain": 4,
        "useful": 32,
        "memory": {"sram": 28},
        "nothing": 1,
    }
    chip = small_chip(memories__sram__write_bytes_per_cycle=2.0, memories__sram__write_latency_cycles=5)
    waited = count_by_cause(chip, [rescale(0, 512, 256)])["vector"]["memory"]
    assert waited == {"sram": 128 - 36 + 5}


def test_an_array_that_reads_too_much_waits_for_the_memory_of_its_weights() -> None:
    chip = small_chip(
        memories__wbuf={"size": 1 << 14, "read_bytes_per_cycle": 1.0, "write_bytes_per_cycle": 16.0},
        engines__mac__memories={"weights": "wbuf"},
    )
    array = count_by_cause(chip, [convolution(4, 20, 8)])["mac"]
    assert array == {"fill_drain": 10, "useful": 20, "memory": {"wbuf": 8 * 20 - 30}, "nothing": 1}


def test_a_wait_for_a_channel_at_its_own_rate_is_a_wait_for_its_signal() -> None:
    chip = small_chip(engines__dma__bytes_per_cycle=2.0)
    ops = [load(0, 0, 800), Signal(DMA0, 0), Wait(VECTOR, 0), rescale(0, 0x1000, 64)]
    assert count_by_cause(chip, ops)["vector"] == {"nothing": 1, "signal": {"dma0": 400}, "fill_drain": 4, "useful": 8}


def test_a_wait_is_told_through_to_the_memory_that_kept_the_load() -> None:
    chip = small_chip(memories__dram__latency_cycles=30)
    ops = [load(0, 0, 800), Signal(DMA0, 0), Wait(VECTOR, 0), rescale(0, 0x1000, 64)]
    assert count_by_cause(chip, ops)["vector"] == {
        "nothing": 1,
        "memory": {"dram": 30 + 50},
        "signal": {"dma0": 50},
        "fill_drain": 4,
        "useful": 8,
    }


def test_a_chain_of_waits_ends_at_what_the_first_of_them_waits_for() -> None:
    """The store waits for the vector engine, which waits for the load: cycles 1 to 81 are the DRAM's and the channel's."""
    chip = small_chip(memories__dram__latency_cycles=30)
    ops = [load(0, 0, 800), Signal(DMA0, 0), Wait(VECTOR, 0), rescale(0, 0x1000, 64), Signal(VECTOR, 1)]
    ops += [Wait(DMA1, 1), store(0x1000, 0x1000, 64, 1)]
    assert count_by_cause(chip, ops)["dma1"] == {
        "nothing": 1,
        "memory": {"dram": 30 + 50 + 4},
        "signal": {"dma0": 50, "vector": 12},
        "useful": 4,
    }


def test_a_full_queue_keeps_the_front_end_from_other_units() -> None:
    """Five loads have room, the sixth when the first is over at 102, the seventh at 202; each word takes a cycle."""
    ops = [convolution(4, 20, 8), *[load(0, 0, 800) for _ in range(7)], convolution(4, 20, 8)]
    array = count_by_cause(small_chip(isa__word_cycles=1.0), ops)["mac"]
    queue = {"queue": (102 - 31) + (202 - 103), "dispatch": 1 + 1}
    assert array == {"nothing": 1 + 702 - 233, "fill_drain": 20, "useful": 40, **queue}


def test_a_share_of_whole_cycles_is_no_cycle_more() -> None:
    """60 cycles by a share of 31 / 60 are 31.000000000000004 in float64."""
    chip = small_chip()
    causes = attribute_cycles(chip, run(chip, [convolution(4, 60, 8)]), np.array([31 / 60, 1.0]))
    assert causes is not None
    array = by_reason(chip, causes.totals()["mac"][0])
    assert (array["useful"], array["partial_folds"]) == (31, 29)


def test_words_that_the_front_end_reads_and_issue_are_dispatch() -> None:
    chip = small_chip(isa__word_cycles=2.0, engines__vector__issue_cycles=3)
    ops = [rescale(0, 64, 16), rescale(0, 64, 16)]
    vector = count_by_cause(chip, ops, [10, 10, 1])["vector"]
    assert vector == {"nothing": 20, "dispatch": 3 + (40 - 29) + 3, "fill_drain": 8, "useful": 4}


def test_behind_an_address_from_memory_the_units_wait_for_that_load() -> None:
    """The front end stands while the channel reads the word: 30 cycles of latency, 1 at the port."""
    chip = small_chip(
        memories__dram__latency_cycles=30, control={"bases": 4, "indirect": {"max_index": 7}}, engines__dma__bytes_per_cycle=4.0
    )
    index = LoadBase(0, 1, 0, 0, 1, 7, Space.DRAM, 0, 4, 0)
    ops = [rescale(0, 64, 16), index, rescale(0, 64, 16)]
    vector = count_by_cause(chip, ops)["vector"]
    assert vector == {"nothing": 1, "memory": {"dram": 24}, "signal": {"dma0": 1}, "fill_drain": 8, "useful": 4}


def test_a_unit_without_operations_has_nothing_to_do() -> None:
    done = count_by_cause(small_chip(), [load(0, 0, 800)])
    assert done["mac"] == done["vector"] == done["dma1"] == {"nothing": 101}


def test_spans_touch_and_name_the_operation_that_takes_them() -> None:
    chip = small_chip(memories__dram__latency_cycles=30)
    ops = [load(0, 0, 800), Signal(DMA0, 0), Wait(VECTOR, 0), rescale(0, 0x1000, 64)]
    spans = attribute(chip, run(chip, ops)).units["vector"]
    assert spans.first.tolist() == [0, 1, 31, 81, 131, 135]
    assert spans.op.tolist() == [-1, 2, 2, 2, 3, 3]


def test_windows_divide_the_cycles() -> None:
    chip = small_chip(**GAPS)
    attribution = attribute(chip, run(chip, pipeline(5)[:-1]))
    ends = [40, 40, 133, attribution.cycles]
    for unit, counted in attribution.totals(ends).items():
        assert counted.sum(axis=1).tolist() == np.diff([0, *ends]).tolist()
        assert (counted.sum(axis=0) == attribution.totals()[unit][0]).all()


def test_times_of_others_have_no_causes() -> None:
    chip, ops = small_chip(), pipeline(3)
    done = run(chip, ops[:-1])
    assert attribute_cycles(chip, wrap_measured_run(chip, ops, done.memory, done.start, done.end)) is None
    untimed = simulate(chip, ops, None, IMAGE, [(0, IMAGE.size)], values=False, check=False, timing=False)
    assert attribute_cycles(chip, untimed) is None


def laws(chip: Chip, done: Simulation) -> None:
    """Check the laws of every run: each cycle counts once, and the parts of an operation lie inside its own cycles."""
    attribution = attribute(chip, done)
    computing = [i for i, reason in enumerate(attribution.reasons) if reason.cause in tuple(StallCause)[:4]]
    names = [reason.cause for reason in attribution.reasons]
    ends = np.array(done.end)
    for queue, (unit, spans) in enumerate(attribution.units.items()):
        counted = attribution.totals()[unit][0]
        assert counted.sum() == done.cycles and (counted >= 0).all()
        assert spans.first[0] == 0 and (np.diff(spans.first) > 0).all() and spans.first[-1] < done.cycles
        mine = np.flatnonzero(done.engine == queue)
        computed = done.op_demands.compute_cycles[mine].sum()
        assert sum(counted[i] for i in computing) == computed
        assert counted[names.index(StallCause.USEFUL)] == computed - done.op_demands.lost[:, mine].sum()
        took, lasts = spans.op, np.append(spans.first[1:], done.cycles)
        is_own = (took >= 0) & (spans.first >= done.start[took])
        assert (lasts[is_own] <= ends[took[is_own]]).all()
        busy = is_own & np.array([not isinstance(done.flow[op], Signal | Wait) for op in took])
        assert (lasts - spans.first)[busy].sum() == done.busy_cycles[unit]
        assert not (np.isin(spans.reason[~is_own], computing)).any()


def test_causes_sum_to_the_cycles_of_random_programs() -> None:
    rng, seen_causes, compared = np.random.default_rng(23), set[str](), 0
    for case in range(90):
        ops = random_program(rng, int(rng.integers(5, 80))) if case % 3 else pipeline(int(rng.integers(2, 12)), 128)
        chip = small_chip(**[{}, GAPS, SLOW, GAPS | SLOW][case % 4])
        try:
            done = run(chip, ops[:-1], rng.integers(1, 9, len(ops)).tolist())
        except ProgramError as deadlock:
            assert "deadlock" in str(deadlock)
            continue
        laws(chip, done)
        for counted in attribute(chip, done).totals().values():
            seen_causes |= by_reason(chip, counted[0]).keys()
        compared += 1
    assert compared > 50
    assert seen_causes >= {"useful", "fill_drain", "memory", "signal", "queue", "dispatch", "nothing"}


@pytest.mark.parametrize("kind", ["convolution", "depthwise", "accumulated", "matrix_product", "pool", "elementwise", "softmax"])
def test_what_operations_lose_is_part_of_what_they_take(kind: str) -> None:
    dataflows = {"engines__mac__more_dataflows": ("ws", "is"), "engines__mac__folds_overlap": True, "engines__mac__depth": 3}
    for chip in (small_chip(), small_chip(**dataflows), small_chip(engines__mac__dataflow="ws", engines__mac__rows=3)):
        ops = [op for seed in range(20) for op in getattr(random_operations, kind)(Draw(chip, seed))]
        for op in ops:
            op_demand = demand(op, chip)
            useful = op_demand.compute_cycles - sum(op_demand.lost)
            assert min(op_demand.lost) >= 0 and useful > 0, op
            if op_demand.macs:
                assert useful == -(-op_demand.macs // chip.array.multipliers), op
        laws(chip, run(chip, ops))


def test_a_wait_whose_signal_was_there_is_no_loss() -> None:
    ops = [load(0, 0, 16), Signal(DMA0, 0), Wait(DMA1, 0), store(0, 0x100, 16, 1)]
    causes = count_by_cause(small_chip(isa__word_cycles=1.0), ops, [1, 1, 50, 1, 1])["dma1"]
    assert causes == {"nothing": 52, "dispatch": 1, "useful": 1, "memory": {"dram": 1}}
