"""Tests of operations that write the next value of a state: they get the state's own address."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tests.support.control_flow_machines import with_control
from toolchain.codegen.lower import PlacedOp
from toolchain.codegen.place_states import ELSEWHERE, StatePlace, _move_to_place
from toolchain.isa import load_machine
from toolchain.machine import Copy, Fill, LoadBase, MachineOp, Space, accesses

CHIP = with_control(load_machine("edge16")).chip
STATES = [StatePlace("s", ELSEWHERE, 4096, 64), StatePlace("t", ELSEWHERE + 64, 8192, 64)]
FILL = Fill(0, Space.DRAM, 0, 8, 1, 1, 1, 0, 0, 0, 5)


def place(op: MachineOp) -> PlacedOp:
    return PlacedOp(op, 0, accesses(op, CHIP))


def make_load(address: int) -> LoadBase:
    parameters: dict[str, Any] = dict.fromkeys((f.name for f in fields(LoadBase)), 0)
    return LoadBase(**parameters | {"space": Space.DRAM, "address": address, "word_bytes": 4})


@pytest.mark.parametrize("op", [make_load(64), FILL, replace(FILL, destination_space=Space.SRAM)])
def test_what_reaches_no_state_stays_as_it_is(op: MachineOp) -> None:
    placed = place(op)
    assert _move_to_place(placed, STATES, CHIP) is placed


@pytest.mark.parametrize(("stand_in", "address"), [(0, 4096), (56, 4152), (64, 8192)])
def test_a_next_value_is_written_where_the_state_lies(stand_in: int, address: int) -> None:
    moved = _move_to_place(place(replace(FILL, destination_address=ELSEWHERE + stand_in)), STATES, CHIP)
    assert moved == place(replace(FILL, destination_address=address))


def test_a_next_value_is_read_where_the_state_lies() -> None:
    parameters: dict[str, Any] = {f.name: int(f.name.startswith("count")) for f in fields(Copy)}
    parameters |= {"source_space": Space.DRAM, "destination_space": Space.SRAM, "inner_bytes": 8}
    parameters["source_address"] = ELSEWHERE + 72
    read = Copy(**parameters)
    assert _move_to_place(place(read), STATES, CHIP) == place(replace(read, source_address=8200))
