"""Networks on machines of uint8 activations: every program is the reference, and the codes are those of int8, 128 higher."""

from __future__ import annotations

import hashlib
import re

import numpy as np
import pytest
from networks import HEX_DIGITS, NETWORKS, compile_network, simulate_network
from test_golden import LARGE, LEVEL, SMALL, label, read_golden

from tests.quantized.forms import float32_machine
from tests.support.unsigned_machines import HALF, make_unsigned
from toolchain.codegen import Region
from toolchain.compiler import CompiledNetwork
from toolchain.isa import Machine, load_machine
from toolchain.runtime import Session, random_feeds, verify

CASES = [
    pytest.param(
        n,
        marks=([] if n == SMALL else [pytest.mark.slow]) + ([pytest.mark.exhaustive] if n in LARGE else []),
    )
    for n in NETWORKS
]


def check_network(network: str, machine: Machine, level: int = LEVEL) -> CompiledNetwork:
    """The network on the machine with uint8, whose program equals the reference."""
    compiled = compile_network(network, make_unsigned(machine), level)
    container = compiled.container
    feeds = random_feeds(container.inputs, seed=5)
    _, difference = verify(Session(container), Session(container, backend="reference"), feeds)
    assert difference is None
    assert {port.dtype for s in container.segments if isinstance(s, Region) for port in (*s.inputs, *s.outputs)} == {"uint8"}
    return compiled


@pytest.mark.parametrize("network", CASES)
def test_codes_are_128_higher_than_those_of_int8(network: str) -> None:
    cycles, outputs = simulate_network(check_network(network, load_machine("edge16")))
    lower = np.frombuffer(outputs, np.uint8) ^ np.uint8(HALF)
    golden = re.search(r"outputs (\w+)  cycles +(\d+)", read_golden()[label(network, "edge16", LEVEL)])
    assert golden is not None
    assert (hashlib.sha256(lower.tobytes()).hexdigest()[:HEX_DIGITS], cycles) == (golden[1], int(golden[2]))


@pytest.mark.parametrize("network", CASES)
def test_programs_of_float32_scales_equal_the_reference(network: str) -> None:
    check_network(network, float32_machine(), LEVEL if network == SMALL else LEVEL - 1)  # the same arithmetic, planned sooner
