"""Whole networks on arrays of which nothing but folds is charged: the totals that SCALE-Sim 3.0 reports, to the cycle.

No renewal of golden figures touches these: they are another simulator's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulator.machine_programs import make, small_chip
from toolchain.machine import Convolution, Depthwise, MachineOp, demand


def convolution(side: int, kernel: int, inputs: int, outputs: int) -> MachineOp:
    """Make a convolution.

    `side`: side of the square output.
    """
    return make(Convolution, **_window(side, kernel), input_channels=inputs, output_channels=outputs)


def channel(side: int, kernel: int) -> MachineOp:
    """One channel of a depthwise convolution."""
    return make(Depthwise, **_window(side, kernel), channels=1)


def _window(side: int, kernel: int) -> dict[str, Any]:
    reached = side + kernel - 1
    size = {"input_height": reached, "input_width": reached, "output_height": side, "output_width": side}
    return {**size, "kernel_height": kernel, "kernel_width": kernel, "emit": 1}


def resnet18() -> Iterator[MachineOp]:
    yield convolution(112, 7, 3, 64)
    inputs = 64
    for side, width in ((56, 64), (28, 128), (14, 256), (7, 512)):
        yield convolution(side, 3, inputs, width)
        if inputs != width:
            yield convolution(side, 1, inputs, width)
        for _ in range(3):
            yield convolution(side, 3, width, width)
        inputs = width
    yield convolution(1, 1, 512, 1000)


def resnet50() -> Iterator[MachineOp]:
    """Strides are at the 3x3 convolutions."""
    yield convolution(112, 7, 3, 64)
    inputs, before = 64, 56
    for side, width, blocks in ((56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3)):
        yield convolution(side, 1, inputs, 4 * width)
        for _ in range(blocks):
            yield convolution(before, 1, inputs, width)
            yield convolution(side, 3, width, width)
            yield convolution(side, 1, width, 4 * width)
            inputs, before = 4 * width, side
    yield convolution(1, 1, 2048, 1000)


def mobilenet_v2() -> Iterator[MachineOp]:
    """One product a channel of the depthwise convolutions."""
    yield convolution(112, 3, 3, 32)
    inputs, before = 32, 112
    stages = ((112, 1, 16, 1), (56, 6, 24, 2), (28, 6, 32, 3), (14, 6, 64, 4), (14, 6, 96, 3), (7, 6, 160, 3), (7, 6, 320, 1))
    for side, expansion, outputs, blocks in stages:
        for _ in range(blocks):
            hidden = expansion * inputs
            if expansion > 1:
                yield convolution(before, 1, inputs, hidden)
            yield from (channel(side, 3) for _ in range(hidden))
            yield convolution(side, 1, hidden, outputs)
            inputs, before = outputs, side
    yield convolution(7, 1, 320, 1280)
    yield convolution(1, 1, 1280, 1000)


# "cycles" of its reports, summed over a network's layers
TOTALS = [
    (resnet18, 16, {"ws": 9_226_427, "os": 8_005_533, "is": 10_478_827}),
    (resnet18, 32, {"ws": 2_855_031, "os": 2_133_315, "is": 3_400_155}),
    (resnet18, 128, {"ws": 441_581, "os": 274_431, "is": 629_829}),
    (resnet50, 16, {"ws": 20_599_802, "os": 18_627_324, "is": 21_386_666}),
    (resnet50, 32, {"ws": 6_349_206, "os": 5_198_850, "is": 6_620_586}),
    (resnet50, 128, {"ws": 916_490, "os": 645_320, "is": 1_070_450}),
    (mobilenet_v2, 16, {"ws": 4_391_068, "os": 7_657_678, "is": 8_949_130}),
]


@pytest.mark.parametrize(
    ("network", "size", "dataflow", "cycles"),
    [pytest.param(net, size, flow, n, id=f"{net.__name__}-{size}-{flow}") for net, size, of in TOTALS for flow, n in of.items()],
)
def test_totals_of_scale_sim(network: Any, size: int, dataflow: str, cycles: int) -> None:
    """SCALE-Sim reports the index of each product's last cycle: one less for each product."""
    shape = {"rows": size, "columns": size, "dataflow": dataflow, "depthwise": "column", "timing": "ideal"}
    chip = small_chip(**{f"engines__mac__{key}": value for key, value in shape.items()})
    assert sum(demand(op, chip).compute_cycles - 1 for op in network()) == cycles


@pytest.mark.parametrize(
    ("network", "products", "macs"), [(resnet18, 21, 1.814), (resnet50, 54, 4.089), (mobilenet_v2, 53, 0.301)]
)
def test_the_networks_are_those_it_ran(network: Any, products: int, macs: float) -> None:
    ops, chip = list(network()), small_chip()
    depthwise = [op for op in ops if isinstance(op, Depthwise)]
    assert len(ops) - len(depthwise) + (17 if depthwise else 0) == products
    assert round(sum(demand(op, chip).macs for op in ops) / 1e9, 3) == macs
