"""Check that tensors with type overrides compute what the file computes.

One type throughout is the machine of that type, bit for bit, and finer tensors among coarser ones lose nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quant.fidelity import sqnr_db
from tests.semantics.case import Case
from tests.semantics.judge import in_float, save
from tests.semantics.machines import int4_machine, int8_machine, int16_machine, make_mixed_machine
from tests.semantics.test_cases import CASES
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.isa import Machine
from toolchain.runtime import Session

WORSE_DB = 3.0  # by chance of rounding, where some tensors are finer
EACH = 12  # of so many cases one is fast
TESTS = 7  # of so many cases each test has another one; all with the exhaustive ones


def outputs(case: Case, machine: Machine, folder: Path, *types: str) -> tuple[list[list[np.ndarray]], list[str]]:
    """Return the outputs of each sample by the integer reference, to which the build holds the program, and the chip's model
    tensors.
    """
    model, data = save(case.proto, case.samples, folder)
    built = build(model, BuildOptions(machine, calibration=str(data), types=types))
    session, names = Session(built.container, backend="reference"), [o.name for o in case.proto.graph.output]
    graph = built.container.graph
    chip_tensors = sorted({n for n, t in graph.types.items() if t.quant is not None and n not in graph.constants})
    return [session.run(names, s) for s in case.samples], chip_tensors


def chosen(turn: int) -> list[object]:
    """The cases' names; turn: of the test among the three."""
    marks = [[pytest.mark.slow] * (i % EACH != turn) + [pytest.mark.exhaustive] * (i % TESTS != turn) for i in range(len(CASES))]
    return [pytest.param(name, marks=these) for name, these in zip(CASES, marks)]


def expect_no_worse(case: Case, actual: list[list[np.ndarray]], others: list[list[np.ndarray]]) -> None:
    """Check outputs whose bits differ: products by slices of constants that the compiler makes are held in the finest codes."""
    expected = in_float(case.proto, case.samples)
    for i, output in enumerate(case.proto.graph.output):
        real, got, other = (np.stack([run[i] for run in runs]) for runs in (expected, actual, others))
        if real.dtype.kind == "f":
            assert sqnr_db(real, got) >= sqnr_db(real, other) - 1.0, output.name


@pytest.mark.parametrize("name", chosen(0))
def test_weights_of_a_type_are_those_of_the_machine_of_that_type(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    try:
        coarse, _ = outputs(case, make_mixed_machine(), tmp_path, "*=int4")
    except CompileError as fault:
        assert "no layer of the chip has such weights" in str(fault), fault
        return
    narrow, _ = outputs(case, int4_machine(), tmp_path)
    if any(node.op_type == "Resize" for node in case.proto.graph.node):
        expect_no_worse(case, coarse, narrow)
        return
    for one, other in zip(narrow, coarse):
        for a, b in zip(one, other):
            np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("name", chosen(1))
def test_wide_codes_lose_nothing_of_the_finest_others(name: str, tmp_path: Path) -> None:
    """Check that a machine with further types makes the same bits where nothing asks for them."""
    case, machine = CASES[name], make_mixed_machine("int32")
    without, chip_tensors = outputs(case, make_mixed_machine(), tmp_path)
    with_them, _ = outputs(case, machine, tmp_path)
    for one, other in zip(without, with_them):
        for a, b in zip(one, other):
            np.testing.assert_array_equal(a, b)
    if not chip_tensors:
        return
    expected = in_float(case.proto, case.samples)
    fine, wide = (outputs(case, machine, tmp_path, f"*={codes}")[0] for codes in ("int16", "int32"))
    for i, output in enumerate(case.proto.graph.output):
        real, narrow, got = (np.stack([run[i] for run in runs]) for runs in (expected, fine, wide))
        if real.dtype.kind == "f":
            assert sqnr_db(real, got) >= sqnr_db(real, narrow) - 1.0, output.name


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("name", chosen(2))
def test_types_mean_what_the_file_means(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    coarse, chip_tensors = outputs(case, int8_machine(), tmp_path)
    same, _ = outputs(case, make_mixed_machine(), tmp_path)
    if not chip_tensors:
        return
    fine, _ = outputs(case, int16_machine(), tmp_path)
    throughout, _ = outputs(case, make_mixed_machine(), tmp_path, "*=int16")
    for one, other in zip(fine, throughout):
        for a, b in zip(one, other):
            np.testing.assert_array_equal(a, b)
    expected = in_float(case.proto, case.samples)
    node_outputs = [n for node in case.proto.graph.node for n in node.output if n in chip_tensors]
    for chosen in (node_outputs[::2], node_outputs[1::2]):
        if not chosen:
            continue
        mixed, _ = outputs(case, make_mixed_machine(), tmp_path, *(f"{n}=int16" for n in chosen))
        for i, output in enumerate(case.proto.graph.output):
            real, alone, same_types, got = (np.stack([run[i] for run in runs]) for runs in (expected, coarse, same, mixed))
            if real.dtype.kind == "f":
                assert sqnr_db(real, got) >= min(sqnr_db(real, alone), sqnr_db(real, same_types)) - WORSE_DB, output.name
