"""Every machine operation is known to all that ask about operations, and a new one is missed by none of them in silence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from simulator.capability import AccumulatorState, broken_capability
from simulator.execute import Executor
from simulator.state import State
from toolchain.errors import InternalError
from toolchain.hw import shipped_names
from toolchain.isa import Machine, load_machine
from toolchain.isa.accesses import accesses
from toolchain.isa.manual import manual
from toolchain.isa.needs import need, needed_operations
from toolchain.isa.operations import OPERATIONS, End, MachineOp, Signal, Wait, engine_index
from toolchain.isa.timing import NOTHING, demand
from toolchain.report.causes import refuse_untold

SYNCHRONISATION = (Signal, Wait, End)
EDGE = load_machine("edge16")
DRAM_BYTES = 1 << 16


def sample(name: str, machine: Machine) -> MachineOp:
    """Multipliers 1, shifts 0, everything else the least that the machine's programs use: extents, strides and kernels of 1."""
    cls = OPERATIONS[name]
    values = {p: need(name, p, machine.chip).low for p in cls.parameters()}
    values |= {p: int(p.endswith("multiplier")) for p in values if p.endswith(("multiplier", "shift"))}
    return cls(**values)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("hw", shipped_names())
def test_every_operation_is_known_everywhere(hw: str, name: str) -> None:
    machine = load_machine(hw)
    chip, op = machine.chip, sample(name, machine)
    needed_operations(chip)
    touched, cost = accesses(op, chip), demand(op, chip)
    if isinstance(op, SYNCHRONISATION):
        assert not touched and cost == NOTHING
    else:
        # A product that does not emit writes nothing: its sums stay in the accumulators.
        assert any(a.write for a in touched) or not getattr(op, "emit", 1)
        assert cost.compute_cycles > 0
        assert engine_index(op) is not None
    reason = broken_capability(op, chip)
    assert reason is None or name not in needed_operations(chip) or reason.startswith("kind="), reason
    AccumulatorState().broken(op)
    refuse_untold([] if isinstance(op, SYNCHRONISATION) else [op])
    executor(machine).execute(op)
    if machine.isa.supports(name):
        assert f"### {name} (opcode" in manual(machine)


def executor(machine: Machine) -> Executor:
    return Executor(machine.chip, State(machine.chip, np.zeros(DRAM_BYTES, np.uint8)))


@dataclass(frozen=True)
class Sort(MachineOp):
    NAME = "sort"
    ENGINE = "mac"
    input_address: int
    order: int


@dataclass(frozen=True)
class Nowhere(Sort):
    ENGINE = None


CONSUMERS: dict[str, Callable[[MachineOp], object]] = {
    "which engine runs it": lambda op: engine_index(Nowhere(0, 0)),
    "what it costs (isa.timing)": lambda op: demand(op, EDGE.chip),
    "which bytes it touches (isa.accesses)": lambda op: accesses(op, EDGE.chip),
    "which machines can run it (simulator.capability)": lambda op: broken_capability(op, EDGE.chip),
    "what it leaves in the accumulators (simulator.capability)": lambda op: AccumulatorState().broken(op),
    "what it does (simulator.execute)": lambda op: executor(EDGE).execute(op),
    "which machines need it (isa.needs)": lambda op: needed_operations(EDGE.chip),
    "which values order takes (isa.needs)": lambda op: need("sort", "order", EDGE.chip),
    "which key of a machine cuts or slows it (report.causes)": lambda op: refuse_untold([op]),
    "what it means (its docstring in isa.operations)": lambda op: manual(with_row(op)),
}


def with_row(op: MachineOp) -> Machine:
    plan = replace(EDGE.isa.plans["end"], operation=type(op))
    isa = type(EDGE.isa)(EDGE.isa.table)
    isa.__dict__["plans"] = {**EDGE.isa.plans, "sort": plan}
    return replace(EDGE, isa=isa)


@pytest.mark.parametrize("missing", CONSUMERS)
def test_a_new_operation_that_is_left_out_somewhere_is_an_internal_error(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATIONS, "sort", Sort)
    with pytest.raises(InternalError) as caught:
        CONSUMERS[missing](Sort(0, 0))
    assert str(caught.value) == f"machine operation sort: nothing says {missing}"
