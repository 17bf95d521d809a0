"""Check programs, outputs and cycles of the small networks of tests/semantics against cases.txt, each on one machine.

They go through every operator and rule, where the example networks have a few. Half of the cases have a machine with little
SRAM, so that its layers are tiled. After an intended change run `pytest tests/golden/test_case_programs.py --update-golden`.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import cache
from pathlib import Path

import pytest
from networks import HEX_DIGITS, program_digest, simulate_network

from quant.observe import Range
from quant.repair.choices import Quantization
from tests.semantics.test_cases import CASES
from tests.support.machine_variants import with_sram
from toolchain.codegen import Region
from toolchain.compiler import compile_model, select_model
from toolchain.errors import CompileError
from toolchain.foundation.atomic_files import write_atomically
from toolchain.frontend import load_model
from toolchain.hw import list_shipped_names
from toolchain.isa import Machine, load_machine
from toolchain.passes.decompose import decompose_model
from toolchain.repair.network import Network
from toolchain.schedule.goals import CYCLES

GOLDEN = Path(__file__).parent / "cases.txt"
MACHINES = list_shipped_names()
LEVELS = (2, 3, 2, 1, 0)  # of optimization, in turn; what a build does unless told otherwise comes twice
SMALL_KIB = 1.0  # refuses few cases, whose lines have the reason
TEXT_WIDTH = 90
make_small = cache(with_sram)


def range_of(tensor: str) -> Range:
    """Return a range for a tensor by its name alone, so that nothing depends on this computer's float."""
    number = zlib.crc32(tensor.encode())
    return Range(-(1 + number % 7) / 4, (1 + number // 7 % 7) / 4)


def choose_machine(name: str) -> tuple[Machine, int]:
    """Return a case's machine and level of optimization. Both follow from its name, so that new cases change no others."""
    number = zlib.crc32(name.encode())
    machine, level = MACHINES[number // 2 % len(MACHINES)], LEVELS[number // 64 % len(LEVELS)]
    return (load_machine(machine) if number % 2 == 0 else make_small(machine, SMALL_KIB)), level


def figures(name: str) -> str:
    """Return digests of a case's programs and outputs, and its cycles."""
    machine, level = choose_machine(name)
    model = decompose_model(load_model(CASES[name].proto), machine.chip, ())
    selection = select_model(model, machine)
    drawn_ranges = {tensor: range_of(tensor) for tensor in Network(model, selection, machine).tensors}
    ranges = {**drawn_ranges, **selection.file_ranges}
    try:
        compiled = compile_model(name, model, selection, machine, Quantization(ranges), level, goal=CYCLES)
    except CompileError as refusal:
        return str(refusal)[:TEXT_WIDTH]
    cycles, outputs = simulate_network(compiled)
    regions = [s for s in compiled.container.segments if isinstance(s, Region)]
    expected = sum(plan.cycles for plan in compiled.plans)
    digest = hashlib.sha256(outputs).hexdigest()[:HEX_DIGITS]
    return f"program {program_digest(regions)}  outputs {digest}  cycles {cycles}  expected {expected}"


def label(name: str) -> str:
    """Return what a line of the file begins with."""
    machine, level = choose_machine(name)
    size = "shipped" if machine is load_machine(machine.chip.name) else "small"
    return f"{name} | {size} {machine.chip.name} -O{level} | "


@cache
def read_golden() -> dict[str, str]:
    """Return the figures by label."""
    lines = GOLDEN.read_text(encoding="utf-8").splitlines() if GOLDEN.exists() else []
    return {line[: line.rindex(" | ") + 3]: line[line.rindex(" | ") + 3 :] for line in lines}


@pytest.mark.parametrize("name", CASES)
def test_programs_of_cases_are_the_golden_ones(name: str, update_golden: bool) -> None:
    key, actual = label(name), figures(name)
    if update_golden:
        lines = {**read_golden(), key: actual}
        labels = [label(n) for n in CASES]
        write_atomically(GOLDEN, "".join(f"{k}{lines[k]}\n" for k in labels if k in lines).encode())
        read_golden.cache_clear()
    assert read_golden().get(key) == actual, "where this is meant, renew the file: see the top of this test's file"


def test_every_case_has_its_line() -> None:
    assert list(read_golden()) == [label(name) for name in CASES]
