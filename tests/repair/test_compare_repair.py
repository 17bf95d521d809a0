"""The table of scripts/compare_repair.py: no photograph on both sides, machines with other numerics, and what is no such key."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from toolchain.errors import CompileError

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        import compare_repair

        yield compare_repair
    finally:
        sys.path.remove(str(SCRIPTS))


def test_photographs_are_dealt_into_two_folds(script: ModuleType) -> None:
    import stamps

    folds = [script.fold_of(name) for name in stamps.ACCEPTED]
    assert sorted(set(folds)) == [0, 1] and abs(folds.count(0) - folds.count(1)) <= 1


def test_numerics_of_a_machine_are_changed(script: ModuleType) -> None:
    machine = script.varied_machine("edge16,weights_per_channel=false,rounding=floor")
    numerics = machine.chip.numerics
    assert (numerics.weights_per_channel, numerics.rounding) == (False, "floor")
    assert machine.chip.name == "edge16,weights_per_channel=false,rounding=floor"


@pytest.mark.parametrize("change", ["colour=red", "rounding"])
def test_no_such_key(script: ModuleType, change: str) -> None:
    with pytest.raises(CompileError, match=f"^--hw edge16,{change}: {change} is no KEY=VALUE of numerics; keys are activation, "):
        script.varied_machine(f"edge16,{change}")
