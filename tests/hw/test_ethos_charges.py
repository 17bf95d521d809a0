"""The shipped Ethos machines charge what Vela's cost model charges (`npu_performance.py` of the ethos-u-vela 5.2.0 wheel)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulator.machine_programs import make
from toolchain.hw.chip import Chip
from toolchain.isa import load_machine
from toolchain.machine import Convolution, Depthwise, Elementwise, MachineOp, Pool, Space, Table, demand

CORES = {"ethos_u55_256": 1, "ethos_u65_512": 2}


@pytest.fixture(params=CORES)
def machine(request: Any) -> tuple[Chip, int]:
    return load_machine(request.param).chip, CORES[request.param]


def window(pixels: int, kernel: tuple[int, int]) -> dict[str, int]:
    """A row of so many outputs, without padding."""
    size = {"input_height": kernel[0], "input_width": pixels + kernel[1] - 1, "output_height": 1, "output_width": pixels}
    return {**size, "kernel_height": kernel[0], "kernel_width": kernel[1], "emit": 1}


def more(chip: Chip, few: MachineOp, many: MachineOp) -> int:
    """Cycles of `many` beyond those of `few`, so that what begins an operation is left out."""
    return int(demand(many, chip).compute_cycles) - int(demand(few, chip).compute_cycles)


@pytest.mark.parametrize(
    ("kernel", "channels", "cycles"),
    [
        ((1, 1), 32, 4),
        ((1, 1), 40, 8),
        ((1, 1), 8, 4),
        ((3, 3), 32, 9 * 4),
        ((3, 3), 3, 12),  # part kernel: 8 channels of four taps
        ((3, 3), 16, 2 * 12),
        ((7, 7), 3, 13 * 4),
    ],
)
def test_convolutions(machine: tuple[Chip, int], kernel: tuple[int, int], channels: int, cycles: int) -> None:
    """max(32 outputs' products, their way out of 0.25 cycles an element): of 1,024 pixels."""
    chip, cores = machine
    few, many = (make(Convolution, **window(n, kernel), input_channels=channels, output_channels=8) for n in (1024, 2048))
    assert more(chip, few, many) == max(cycles, 8) * 1024 // 4 // cores


@pytest.mark.parametrize(("kernel", "cycles"), [((3, 3), 12), ((5, 5), 28), ((1, 7), 8)])
def test_depthwise_convolutions(machine: tuple[Chip, int], kernel: tuple[int, int], cycles: int) -> None:
    chip, cores = machine
    few, many = (make(Depthwise, **window(n, kernel), channels=8) for n in (1024, 2048))
    assert more(chip, few, many) == cycles * 1024 // 4 // cores


def test_a_table_takes_a_cycle_an_element(machine: tuple[Chip, int]) -> None:
    chip, cores = machine
    few, many = (make(Convolution, **window(n, (1, 1)), input_channels=8, output_channels=8, use_table=1) for n in (64, 128))
    assert more(chip, few, many) == 64 * 8 // cores
    few, many = (make(Table, height=1, width=n, channels=8) for n in (64, 128))
    assert more(chip, few, many) == 64 * 8 // cores


@pytest.mark.parametrize(("kind", "cycles"), [(0, 0.75), (1, 0.75), (2, 0.375), (3, 0.25)])
def test_elementwise_operations(machine: tuple[Chip, int], kind: int, cycles: float) -> None:
    """add, sub, mul, rescale."""
    chip, cores = machine
    few, many = (make(Elementwise, kind=kind, height=1, width=n, channels=8) for n in (64, 128))
    assert more(chip, few, many) == 64 * 8 * cycles / cores


@pytest.mark.parametrize(("kind", "kernel", "cycles"), [(0, 1, 4), (0, 2, 4), (0, 3, 9), (1, 2, 8), (1, 3, 9), (1, 7, 49)])
def test_pools(machine: tuple[Chip, int], kind: int, kernel: int, cycles: int) -> None:
    """max(4, taps) / 32 cycles an element, of a mean at least the 0.25 of its way out."""
    chip, cores = machine
    few, many = (make(Pool, kind=kind, **_make_pool(n, kernel)) for n in (64, 128))
    assert more(chip, few, many) == cycles * 64 * 8 // 32 // cores


def _make_pool(pixels: int, kernel: int) -> dict[str, int]:
    fields = window(pixels, (kernel, kernel))
    return {**{key: n for key, n in fields.items() if key != "emit"}, "channels": 8}


def test_inputs_are_read_once_for_128_channels(machine: tuple[Chip, int]) -> None:
    """A row of 100 pixels of 32 channels, all taps from the window buffer."""
    chip, _ = machine

    def read(outputs: int) -> int:
        op = make(Convolution, **window(100, (3, 3)), input_channels=32, output_channels=outputs)
        return int(demand(op, chip).at(Space.SRAM).read_bytes) - outputs * (9 * 32 + 10)

    assert read(128) == 3 * 102 * 32
    assert read(129) == 2 * read(128)
