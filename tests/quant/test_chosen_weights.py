"""Codes of weights that were chosen elsewhere are the layer's and the machine's, or one error says all that is wrong."""

import numpy as np
import pytest

from quant.parameters import WeightQuant, check_chosen_weight
from tests.quant.edge_numerics import machine
from toolchain.errors import CompileError

WEIGHTS = np.zeros((4, 3, 3, 2), np.float32)
CODES = np.full(WEIGHTS.shape, 7, np.int8)


def test_codes_that_fit_are_taken() -> None:
    chosen = WeightQuant(CODES, np.full(4, 0.3), 0)
    assert check_chosen_weight(chosen, WEIGHTS, machine(weight="int4"), name="conv") is chosen


@pytest.mark.parametrize(
    ("chosen", "changes", "message"),
    [
        (WeightQuant(CODES[:3], np.ones(4), 0), {}, "their shape is [3, 3, 3, 2], the weights' [4, 3, 3, 2]"),
        (WeightQuant(CODES + 1, np.ones(4), 0), {"weight": "int4"}, "they reach from 0 to 8, the machine's int4 from -8 to 7"),
        (WeightQuant(CODES, np.ones(4), 0), {"weights_per_channel": False}, "they have 4 scales, the machine takes 1"),
        (WeightQuant(CODES, np.full(4, 0.3), 0), {"scale": {"kind": "pow2"}}, "their scales are no powers of two"),
    ],
)
def test_others_are_refused(chosen: WeightQuant, changes: dict, message: str) -> None:
    with pytest.raises(CompileError) as fault:
        check_chosen_weight(chosen, WEIGHTS, machine(**changes), name="conv")
    assert str(fault.value).startswith("conv: the codes chosen for it do not fit: ")
    assert message in str(fault.value)


def test_all_faults_are_said_at_once() -> None:
    with pytest.raises(CompileError) as fault:
        check_chosen_weight(WeightQuant(CODES[:3], np.ones(2), 0), WEIGHTS, machine(), name="conv")
    assert "shape" in str(fault.value) and "scales" in str(fault.value)
