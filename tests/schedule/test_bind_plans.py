"""Check that faults of a schedule's layers are told each time, and that a sweep of the SRAM keeps the machine's own size."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolchain.codegen import Container
from toolchain.errors import CompileError
from toolchain.isa import Machine, load_machine
from toolchain.judging import sram_sweep
from toolchain.judging.sram_sweep import SweepPoint, sizes_for, sram_curve
from toolchain.schedule.bind_layer import Faults
from toolchain.schedule.bind_plans import FixedLayers
from toolchain.schedule.plan import _call


def test_faults_of_a_layer_are_raised_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(_self: FixedLayers, _index: int, _resident: Collection[str], faults: Faults) -> None:
        faults.add(1, "no such tile")

    monkeypatch.setattr(FixedLayers, "_plan_layer", plan)
    bound, facts = SimpleNamespace(tree=SimpleNamespace(file="s.txt", region=0)), SimpleNamespace(views={})
    layers = FixedLayers(cast(Any, bound), cast(Any, facts), cast(Any, None))
    for _ in range(2):
        with pytest.raises(CompileError, match="no such tile"):
            layers.plan_layer(0, frozenset())


def test_a_size_below_the_machines_own_that_fails_ends_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load_machine("edge16")
    own_bytes = machine.chip.sram.size
    below = [size for size in sizes_for(machine.chip) if size < own_bytes]

    def compile_for(other: Machine) -> Container:
        if other.chip.sram.size == below[-1]:
            raise CompileError("does not fit")
        return cast(Container, other)

    def point(other: Container) -> SweepPoint:
        return SweepPoint(cast(Machine, other).chip.sram.size, 1, 1, 1, 1)

    monkeypatch.setattr(sram_sweep, "_least_bytes", lambda _container: below[0])
    monkeypatch.setattr(sram_sweep, "_point", point)
    assert sram_curve(compile_for, machine, lambda *_: None).own.sram_bytes == own_bytes


def test_a_call_names_the_dataflow_where_an_array_has_several() -> None:
    calls = list[str]()
    for dataflows in (("weight_stationary",), ("weight_stationary", "output_stationary")):
        unit = SimpleNamespace(name="mac0", kind="mac_array", array=SimpleNamespace(dataflows=dataflows))
        layer = SimpleNamespace(node=SimpleNamespace(name="conv"))
        calls.append(_call(layer, SimpleNamespace(dataflow=0, mode=0), [unit]).dataflow)  # type: ignore[arg-type]
    assert calls == ["", "weight_stationary"]
