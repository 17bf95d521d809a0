"""A machine operation is one class that says everything of itself; all who deal with operations know each of them."""

from __future__ import annotations

import importlib
import inspect
import json
import random
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.execute import execute, load_semantics
from simulator.machine_state import MachineState
from simulator.semantics.context import Context
from tests.semantics.machines import make_mixed_machine
from tests.support.accumulator_machines import emitting
from tests.support.control_flow_machines import CONTROL, with_control
from toolchain.errors import InternalError
from toolchain.hw import Chip, list_shipped_names, load_chip
from toolchain.isa import Machine, decode, encode, load_machine, make_default_table
from toolchain.isa.constants import c_header
from toolchain.isa.encoding_needs import list_needed_operations
from toolchain.isa.manual import manual
from toolchain.isa.verilog import verilog_package
from toolchain.machine import (
    ADDEND,
    ControlOp,
    Demand,
    End,
    MachineOp,
    Space,
    WithAddend,
    accesses,
    columns_of,
    demand,
    find_unsupported,
    may_be_unsupported,
)
from toolchain.machine.parameters.description import Need
from toolchain.machine.registry import OPERATIONS

COMPLETE_FILE = '''
from collections.abc import Iterator
from dataclasses import dataclass
from toolchain.machine.access import Access
from toolchain.machine.traffic import NO_DEMAND, Demand
from toolchain.machine.operation import MachineOp
from toolchain.machine.parameters.addresses import operand_address

@dataclass(frozen=True, slots=True)
class Negate(MachineOp):
    """y = -x."""
    NAME = "negate"
    ENGINE = "vector"
    FUNCTIONS = ("negate",)
    input_address: int = operand_address("input")

    @classmethod
    def find_required_key(cls, chip):
        return None

    def ranges(self, chip):
        return ()

    def demand(self, chip):
        return NO_DEMAND

    def broken(self, chip):
        return iter(())

    @classmethod
    def meaning(cls, chip):
        return iter(())
'''
LEFT_OUT = {
    'NAME = "negate"': "NAME",
    'ENGINE = "vector"': "ENGINE",
    'FUNCTIONS = ("negate",)': "FUNCTIONS",
    "def find_required_key(": "find_required_key",
    "def ranges(": "ranges",
    "def demand(": "demand",
    "def broken(": "broken",
    "def meaning(": "meaning",
    '"""y = -x."""': "a docstring",
    ' = operand_address("input")': "the unit and values of parameter input_address",
}


def import_operation(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (folder / "negate_file.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "negate_file", raising=False)
    importlib.invalidate_caches()
    return importlib.import_module("negate_file")


def test_a_class_that_says_all_is_an_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    negate = import_operation(COMPLETE_FILE, tmp_path, monkeypatch).Negate(5)
    assert (negate.queue(load_chip("edge16")), negate.parameters()) == (1, ("input_address",))
    with pytest.raises(FrozenInstanceError):
        negate.input_address = 6
    assert not hasattr(negate, "__dict__")
    chip = load_chip("edge16")
    with pytest.raises(InternalError, match=r"^no file of simulator\.semantics computes the operation negate$"):
        execute(negate, Context(chip, MachineState(chip, np.zeros(1, np.uint8))))


@pytest.mark.parametrize("part", LEFT_OUT)
def test_what_is_left_out_fails_at_import_with_its_name(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_out = part.replace("def ", "def other_") if part.startswith("def ") else ""
    text = COMPLETE_FILE.replace(part, left_out)
    assert text != COMPLETE_FILE
    with pytest.raises(TypeError) as caught:
        import_operation(text, tmp_path, monkeypatch)
    assert str(caught.value) == f"negate_file.Negate: a machine operation needs {LEFT_OUT[part]}"


def test_values_of_all_operations_and_no_others() -> None:
    assert {*load_semantics()} == {*OPERATIONS.values()}


CONTROLLED = {"edge16, control": "descriptors", "ws8_pow2, control": "registers", "edge16, operands": "registers"}
EMITTING = {"edge16, emits": "descriptors", "wide32_w4a16, emits": "registers"}


def machine_of(name: str) -> Machine:
    """A shipped one, or one of these with repeats and calls, or with accumulators that are a memory."""
    base = load_machine(name.partition(",")[0])
    if name in EMITTING:
        return emitting(base, EMITTING[name])
    control = {**CONTROL, "operand_bases": True} if name.endswith("operands") else CONTROL
    return with_control(base, CONTROLLED[name], None, control) if name in CONTROLLED else base


def test_every_operation_is_one_of_some_machine() -> None:
    used = {
        name
        for machine in (*list_shipped_names(), *CONTROLLED, *EMITTING)
        for name in list_needed_operations(machine_of(machine).chip)
    }
    assert used == {*OPERATIONS}


@pytest.mark.parametrize(("times", "name"), [(0.5, "sram"), (1, "sram"), (2, "wbuf")])
def test_extents_reach_to_the_largest_memory_beside_the_dram(times: float, name: str) -> None:
    data = json.loads(load_machine("edge16").chip.model_dump_json())
    memories = data["memories"]
    memories["wbuf"] = {**memories["sram"], "size": int(times * memories["sram"]["size"])}
    chip = Chip.model_validate_json(json.dumps(data))
    assert OPERATIONS["copy"].need("inner_bytes", chip) == Need(1, memories[name]["size"], f"memories.{name}.size")


@pytest.mark.parametrize("name", [*list_shipped_names(), *CONTROLLED, *EMITTING])
def test_every_consumer_knows_every_operation(name: str) -> None:
    """Encodings, manual, header, package and first table hold each operation that the machine's programs use."""
    machine = machine_of(name)
    chip, isa = machine.chip, machine.isa
    texts = manual(machine), c_header(machine).lower(), verilog_package(machine).lower()
    first = make_default_table(chip)
    for operation, reason in list_needed_operations(chip).items():
        assert reason and all(operation in text for text in (*texts, first)), operation
    ops = [lowest(OPERATIONS[n], machine) for n in isa.plans if n != "end"]
    assert [*decode(encode(ops, isa), isa).ops] == ops
    for op in ops:
        touched, op_demand = accesses(op, chip), demand(op, chip)
        assert find_unsupported(op, chip) is None, op
        assert (op.queue(chip) is None) == isinstance(op, End | ControlOp)
        has_engine = op.ENGINE is not None
        assert has_engine == bool(touched) == (op_demand.compute_cycles > 0), op.NAME
        written = sum(a.bytes for a in touched if a.write)
        # Written bytes are charged somewhere: an operation that writes for nothing would cost nothing.
        assert written <= sum(t.write_burst_bytes for t in op_demand.traffic), op.NAME


def lowest(operation: type[MachineOp], machine: Machine) -> MachineOp:
    """The operation with the least value of each parameter, writing and of whole extent."""
    fixed = dict(machine.isa.plans[operation.NAME].fixed)
    values = {p: fixed.get(p, max(operation.need(p, machine.chip).low, 0)) for p in operation.parameters()}
    if operation.NAME == "elementwise":
        values["b_channel_stride"] = values["a_channel_stride"] = 0
    ones = [p for p in values if p in ("emit", "input_height", "input_width") and p not in fixed]
    return operation(**{**values, **dict.fromkeys(ones, 1)})


def drawn(operation: type[MachineOp], chip: Any, rng: random.Random) -> MachineOp:
    """Parameters of any size up to 300 that the encodings could hold."""
    values = {}
    for name in operation.parameters():
        need = operation.need(name, chip)
        values[name] = rng.choice((need.low, min(need.high, need.low + rng.randrange(300)), min(need.high, 64)))
    return operation(**values)


@pytest.mark.parametrize("name", [*list_shipped_names(), *EMITTING])
def test_columns_ask_for_what_their_rows_ask_for(name: str) -> None:
    chip, rng = machine_of(name).chip, random.Random(7)
    for operation in OPERATIONS.values():
        ops = [drawn(operation, chip, rng) for _ in range(100)]
        columns = [np.broadcast_to(np.asarray(v), (len(ops),)) for v in figures(demand(columns_of(ops), chip))]
        rows = [tuple(int(column[i]) for column in columns) for i in range(len(ops))]
        assert rows == [tuple(int(v) for v in figures(demand(op, chip))) for op in ops], operation.NAME


def figures(op_demand: Demand) -> list[Any]:
    """Every number of a demand, memory by memory."""
    return [*op_demand[:3], *(v for space in (Space.DRAM, Space.SRAM, Space.MEMORY2) for v in op_demand.at(space)[1:])]


def test_spaces_that_are_none_are_refused() -> None:
    chip = load_chip("edge16")
    copy = lowest(OPERATIONS["copy"], load_machine("edge16"))
    assert accesses(copy, chip)[0].space is Space.DRAM
    with pytest.raises(ValueError, match="7 is no memory; the machine has dram 0, sram 1"):
        accesses(OPERATIONS["copy"](*(7 if n == "source_space" else getattr(copy, n) for n in copy.parameters())), chip)


def test_the_parameters_of_an_addend_are_stated_once() -> None:
    taking = [c for c in OPERATIONS.values() if "use_add" in c.parameters()]
    assert {c.NAME for c in taking} == {"convolution", "emit"}
    for operation in taking:
        names = operation.parameters()
        assert names[names.index(ADDEND[0]) :][: len(ADDEND)] == ADDEND
        stating = [c for c in operation.__mro__ if set(ADDEND) & set(inspect.get_annotations(c))]
        assert stating == [WithAddend]


def test_types_that_there_are_not_and_codes_that_a_type_has_not_are_refused_everywhere() -> None:
    chip = make_mixed_machine().chip
    checked_names: set[str] = set()
    for operation in (o for o in OPERATIONS.values() if o.find_required_key(chip)):
        op = lowest(operation, make_mixed_machine())
        plain = replace(op, **dict.fromkeys((name for name, _ in operation.pair_codes_with_types()), 0))
        for name, types in operation.type_numbers():
            type_names = types.of(chip)
            broken = replace(plain, **{name: len(type_names)})
            assert find_unsupported(broken, chip) == f"{name}={len(type_names)}, {types.keys} name {', '.join(type_names)}"
            assert may_be_unsupported([plain, broken], chip)[1]
        for name, kind in operation.pair_codes_with_types():
            narrow, wide = (replace(plain, **{name: 128, kind: number}) for number in (0, 1))
            assert find_unsupported(narrow, chip) == f"{name}=128, must be -128..127 (int8)"
            assert list(may_be_unsupported([narrow, wide], chip)) == [True, bool(may_be_unsupported([plain], chip)[0])]
            assert f"{name}=" not in (find_unsupported(wide, chip) or "")
            checked_names.add(name)
    assert {"a_zero_point", "clamp_high", "add_addend_zero_point", "input_zero_point", "value"} <= checked_names


@pytest.mark.parametrize("name", list_shipped_names())
def test_what_is_moved_is_what_is_touched(name: str) -> None:
    machine = load_machine(name)
    for operation in list_needed_operations(machine.chip):
        op = lowest(OPERATIONS[operation], machine)
        moved = [(access.space, access.write) for access, _ in op.list_moved_operands(machine.chip)]
        assert moved == [(access.space, access.write) for access in op.ranges(machine.chip)], operation


@pytest.mark.parametrize(("a_type", "b_type"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_products_move_as_many_bytes_as_their_types_have(a_type: int, b_type: int) -> None:
    machine = make_mixed_machine()
    product = replace(lowest(OPERATIONS["matrix_product"], machine), rows=3, columns=5, inner=7, batches=2)
    (_, a_bytes), (_, b_bytes), *_ = product.list_moved_operands(machine.chip)
    wide = replace(product, a_type=a_type, b_type=b_type)
    assert [size for _, size in wide.list_moved_operands(machine.chip)][:2] == [a_bytes << a_type, b_bytes << b_type]
