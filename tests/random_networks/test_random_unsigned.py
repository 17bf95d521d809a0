"""Random network x random machine of uint8: the numbers of the same machine with int8, to the last bit, at every tensor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from tests.support.random_cases import DrawnMachine, DrawnModel, machines, networks
from tests.support.unsigned_machines import HALF, make_signed, make_unsigned
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.ir.graph import TensorType
from toolchain.isa import Machine
from toolchain.runtime import Session, random_feeds
from toolchain.runtime.session import Run

CASES = int(os.environ.get("RANDOM_CASES", "4"))


@pytest.mark.slow
def test_codes_are_128_higher_than_those_of_int8(tmp_path: Path) -> None:
    (equal_on_drawn_case if "RANDOM_CASES" in os.environ else seed(7)(equal_on_drawn_case))(tmp_path)


@settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(model=networks(), machine=machines())
def equal_on_drawn_case(folder: Path, model: DrawnModel, machine: DrawnMachine) -> None:
    assume(machine.machine.chip.numerics.activation == "uint8")
    onnx.save(model.proto, folder / "random.onnx")
    try:
        mine, other = (_ran(folder / "random.onnx", m) for m in (make_unsigned(machine.machine), make_signed(machine.machine)))
    except CompileError as fault:
        assert "smallest tile needs" in str(fault), fault
        return
    (mine, types), (other, signed_types) = mine, other
    assert mine.codes.keys() == other.codes.keys()
    for name, codes in mine.codes.items():
        if codes.dtype == np.uint8:
            quant, signed_quant = types[name].quant, signed_types[name].quant
            offset = HALF
            if quant is not None and signed_quant is not None and quant.scale == signed_quant.scale == 1:
                offset = quant.zero_point - signed_quant.zero_point  # whole numbers lie where their type has room
            np.testing.assert_array_equal(codes.astype(int) - offset, other.codes[name], err_msg=name)
    for name, value in mine.outputs.items():
        np.testing.assert_array_equal(value, other.outputs[name])


def _ran(path: Path, machine: Machine) -> tuple[Run, Mapping[str, TensorType]]:
    container = build(path, BuildOptions(machine)).container  # which runs the program against the reference
    run = Session(container, backend="reference").run_detailed(random_feeds(container.inputs, seed=7))
    return run, container.graph.types
