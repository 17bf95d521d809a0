"""Random network x random machine: the emitted bytes, simulated, equal the integer reference bit for bit.

In the last part layers take turns wherever they can. Each part prints in how many programs operations took operands of each type
(pytest -rP shows it)."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import onnx
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.support.check_bounds import require_bounds
from tests.support.compare_exact import require_exact
from tests.support.force_cascades import force_cascade_plans
from tests.support.random_cases import DRAWN, DrawnMachine, DrawnModel, machines, networks
from tests.support.threads import require_concurrent
from toolchain.api import BuildOptions, build
from toolchain.codegen.model import Region
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.runtime import Session

CASES = int(os.environ.get("RANDOM_CASES", "48"))
PATTERNS = [("*",), ("*[02468]",), ("*[13579]",), ("*[02468]", "*[13579]"), ("*[01234]", "*[05]")]  # of names of tensors
integers = st.integers(0, 2)
SEEDS = (0, 12, 2, 15, 4, 9)  # of parts that are tests of their own, so that they run side by side; the last has layers in turns
PARTS = len(SEEDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_simulator_equals_reference(folder: Path, part: int) -> None:
    """The same cases each time, others in each part; with RANDOM_CASES others each time."""
    uses_cascades = part == PARTS - 1
    check = equal_on_drawn_case if "RANDOM_CASES" in os.environ else seed(SEEDS[part])(equal_on_drawn_case)
    counts: Counter[str] = Counter()
    with force_cascade_plans(counts) if uses_cascades else nullcontext():
        check(folder, counts)
    print("\n".join(f"{times:7}  {what}" for what, times in sorted(counts.items(), key=lambda pair: pair[0])))
    assert not uses_cascades or counts["cascades"] > 0.1 * counts["programs"]


def types_used(data: bytes, chip: Chip) -> set[str]:
    """Unit kinds with the types that its operations name, each type alone and the pairs of the arrays."""
    session, types_in_use = Session(data), set[str]()
    for index, segment in enumerate(session.container.segments):
        for op in session.program(index).decoded.ops if isinstance(segment, Region) else ():
            named = {name: str(types.of(chip)[getattr(op, name)]) for name, types in op.type_numbers()}
            types_in_use |= {f"{op.ENGINE} {name}: {codes}" for name, codes in named.items()}
            if {"input_type", "weight_type"} <= named.keys():
                types_in_use.add(f"{op.ENGINE} {named['input_type']} x {named['weight_type']}")
    return types_in_use


@settings(DRAWN, max_examples=-(-CASES // PARTS))
@given(
    model=networks(), machine=machines(), level=st.sampled_from([2, 2, 0, 1, 3]), patterns=st.sampled_from(PATTERNS), at=integers
)
def equal_on_drawn_case(
    folder: Path, counts: Counter[str], model: DrawnModel, machine: DrawnMachine, level: int, patterns: tuple[str, ...], at: int
) -> None:
    path, chip = folder / "random.onnx", machine.machine.chip
    codes, weights = chip.code_types, chip.weight_types
    onnx.save(model.proto, path)
    types = tuple(f"{pattern}={codes[(at + i) % len(codes)]}" for i, pattern in enumerate(patterns)) if len(codes) > 1 else ()
    if len(weights) > 1:
        types += tuple(f"{pattern}={weights[(at + i) % len(weights)]}" for i, pattern in enumerate(patterns))
    try:
        built = build(path, BuildOptions(machine.machine, level=level, types=types))
    except CompileError as fault:
        # What a machine may refuse: an instruction that cannot fit its SRAM; types of tensors where it holds none of the names.
        small = "smallest tile needs" in str(fault)
        accepted_reasons = (
            "holds no such tensor",
            "no layer of the chip has such weights",
            "these are weights",
            "; ask for one of these",
        )
        absent = any(text in str(fault) for text in accepted_reasons)
        assert small or (types and absent), fault
        counts["refused: SRAM too small" if small else "refused: no tensor of such a name"] += 1
        return
    counts.update(["programs", *types_used(built.data, chip)])
    assert not built.figures["warnings"], built.figures["warnings"]
    require_bounds(built.figures)
    require_exact(built)
    if at == 1:
        require_concurrent(built)
        counts["run in threads"] += 1
