"""Networks on machines whose accumulators are a memory: the outputs of the shipped machine, at little more time."""

from __future__ import annotations

import re

import pytest
from networks import figures
from test_golden import LEVEL, label, read_golden

from tests.support.accumulator_machines import emitting
from toolchain.isa import load_machine

NETWORKS = ("resnet8_cifar", "dscnn_kws", "bert_tiny_relu_l2h128_s128")
MOST = 1.065  # cycles, over those of sums that leave the array by itself


@pytest.mark.parametrize(
    ("network", "kind"),
    [
        ("dscnn_kws", "registers"),
        *((network, "descriptors") for network in NETWORKS),
        *(pytest.param(network, "registers", marks=pytest.mark.exhaustive) for network in NETWORKS if network != "dscnn_kws"),
    ],
)
def test_outputs_are_those_of_the_shipped_machine(network: str, kind: str) -> None:
    actual = figures(network, emitting(load_machine("edge16"), kind), LEVEL)
    golden = re.search(r"outputs (\w+)  cycles +(\d+)", read_golden()[label(network, "edge16", LEVEL)])
    assert golden is not None and actual.outputs == golden[1]
    assert actual.cycles < MOST * int(golden[2])
    assert 0.9 < actual.expected < 1.15


def test_the_cost_model_knows_what_emits_take() -> None:
    """Check that the network waits for the emits at one sum a cycle."""
    slow = figures("dscnn_kws", emitting(load_machine("edge16"), lanes=1), LEVEL)
    fast = figures("dscnn_kws", emitting(load_machine("edge16")), LEVEL)
    assert slow.cycles > 1.5 * fast.cycles
    assert 0.85 < slow.expected < 1.15
