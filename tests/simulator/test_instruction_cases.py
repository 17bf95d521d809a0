"""The vectors of instructions: every operation of every shipped machine against plain loops, as files, and in hexadecimal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from plain_machine import PlainMachine
from typer.testing import CliRunner

from tests.support.accumulator_machines import emitting
from tests.support.instructions import cases_of
from tests.support.machine_variants import with_keys
from toolchain.cli.hw import app
from toolchain.errors import InternalError
from toolchain.hw import list_shipped_names
from toolchain.isa import Machine, decode, load_machine
from toolchain.machine import Copy
from toolchain.machine.registry import OPERATIONS
from toolchain.vectors import InstructionCase, instruction_cases, load_draws, read_instruction_cases, write_instruction_cases
from toolchain.vectors.case_builder import FAR_BYTES, CaseBuilder, NotApplicable

PLAIN = ("edge16", "ethos_u55_256", "wide32_w4a16", "ws8_pow2")  # one type of codes, everything in the sram

_NO_OPERANDS = {  # of arrays: int32, the third type of transformer64
    *(f"{name}.typed_2_{made}_{weight}" for name in ("convolution", "depthwise") for made in range(3) for weight in range(2)),
    *(f"matrix_product.typed_{a}_{b}_{made}" for a in range(3) for b in range(3) for made in range(3) if 2 in (a, b)),
}
# What a machine lacks, and no more: cases that are left out by mistake show here.
LEFT_OUT = {
    "transformer64": _NO_OPERANDS,
    "edge16": {"copy.turned_0", "matrix_product.batched", "matrix_product.batched_shared"},
    "ws8_pow2": {
        "copy.turned_0",
        "convolution.tabled",
        "convolution.added",
        "convolution.tabled_and_added",
        "depthwise.tabled",
        "matrix_product.batched",
        "matrix_product.batched_shared",
    },
}


def plain(case: InstructionCase, machine: Machine) -> dict[str, np.ndarray]:
    """Memories after the case, its operations one after another in plain Python."""
    runs = PlainMachine(machine.chip, b"")
    for code, space in enumerate(machine.chip.spaces):
        case_memory = case.memory.get(space.name)
        if case_memory is None:
            continue
        far = int(case_memory.ranges[0, 0]) if code == 0 else 0
        end = int(case_memory.ranges.sum(1).max())
        runs.memory[code] = bytearray(end - far if code == 0 else space.memory.size)
        at = 0
        for address, size in case_memory.ranges.tolist():
            runs.memory[code][address - far : address - far + size] = case_memory.before[at : at + size].tobytes()
            at += size
    for op in case.ops:
        step = getattr(runs, f"run_{op.NAME}", None)
        if step:
            step(op)
    after = {}
    for code, space in enumerate(machine.chip.spaces):
        if space.name in case.memory:
            first = int(case.memory[space.name].ranges[0, 0]) if code == 0 else 0
            spans = [(a - first, n) for a, n in case.memory[space.name].ranges.tolist()]
            after[space.name] = np.frombuffer(b"".join(bytes(runs.memory[code][a : a + n]) for a, n in spans), np.uint8)
    return after


def unlike_plain(cases: Iterable[InstructionCase], machine: Machine) -> list[str]:
    """Cases whose memories afterwards are not those of the plain loops. Addresses in the DRAM count from its first byte here."""
    wrong = []
    for case in cases:
        if case.memory.get("dram") is not None and case.name.endswith("at_end"):
            continue  # its DRAM would be of all of the machine's bytes
        after = plain(case, machine)
        wrong += [f"{case.operation}.{case.name}" for name in after if not np.array_equal(after[name], case.memory[name].after)]
    return wrong


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "ws8_pow2")) for n in PLAIN])
def test_memories_afterwards_are_those_of_plain_loops(name: str) -> None:
    assert unlike_plain(cases_of(name), load_machine(name)) == []


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "ws8_pow2")) for n in list_shipped_names()])
def test_programs_of_cases_are_what_their_words_say(name: str) -> None:
    machine, far = load_machine(name), 0
    for case in cases_of(name):
        assert tuple(decode(case.words, machine.isa).ops) == case.ops, case.name
        far += any(getattr(op, p) >= FAR_BYTES for op in case.ops for p in op.parameters() if p.endswith("address"))
    assert far


@pytest.mark.slow
def test_sums_that_leave_by_an_operation_are_those_of_plain_loops() -> None:
    machine = emitting(load_machine("edge16"))
    cases = [c for c in instruction_cases(machine) if c.operation in ("convolution", "emit", "matrix_product")]
    assert {"plain_0", "rounding", "product_6", "tabled_and_added"} <= {c.name for c in cases}
    assert unlike_plain(cases, machine) == []


@pytest.mark.slow
@pytest.mark.parametrize("order", ["surface", "line"])
def test_granules_of_channels_are_those_of_plain_loops(order: str) -> None:
    machine = with_keys(load_machine("edge16"), layout={"feature_maps": {"granule": 16, "order": order}})
    cases = [case for case in instruction_cases(machine) if case.name.endswith("in_granules")]
    assert {"convolution", "depthwise", "pool", "elementwise", "table"} == {case.operation for case in cases}
    assert len(cases) == 3 + 2 + 5
    assert unlike_plain(cases, machine) == []


@pytest.mark.slow
def test_other_dataflows_modes_and_units_have_the_same_codes() -> None:
    engines = json.loads(load_machine("edge16").chip.model_dump_json())["engines"]
    more = {"count": 2, "more_dataflows": ["ws"], "more_depthwise": ["column"]}
    machine = with_keys(load_machine("edge16"), engines=engines | {"mac": engines["mac"] | more})
    cases = [case for case in instruction_cases(machine) if case.name in ("unit_1", "dataflow_1", "mode_1")]
    assert {f"{case.operation}.{case.name}" for case in cases} == {
        "convolution.unit_1",
        "convolution.dataflow_1",
        "depthwise.unit_1",
        "depthwise.dataflow_1",
        "depthwise.mode_1",
        "matrix_product.unit_1",
        "matrix_product.dataflow_1",
    }
    assert unlike_plain(cases, machine) == []


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_what_the_machine_lacks(name: str) -> None:
    machine = load_machine(name)
    case_names = {f"{c.operation}.{c.name}" for c in cases_of(name)}
    plans = [(n, plan.operation) for n, plan in machine.isa.plans.items()]
    drawn = {f"{n}.{case}" for n, operation in plans for case, _ in load_draws()[operation](operation, machine.chip)}
    granules = {case for case in drawn if case.endswith("in_granules")}
    assert drawn - case_names - granules == LEFT_OUT[name] and not case_names & granules
    assert {case.partition(".")[0] for case in case_names} == {*machine.isa.plans}


def test_every_operation_has_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {*load_draws()} == {*OPERATIONS.values()}
    draws = {operation: cases for operation, cases in load_draws().items() if operation is not Copy}
    monkeypatch.setattr("toolchain.vectors.files.load_draws", lambda: draws)
    with pytest.raises(InternalError, match=r"^no file of toolchain.vectors.draws draws the operation copy$"):
        list(instruction_cases(load_machine("edge16")))


def test_fields_take_their_ends() -> None:
    """The machine is ws8_pow2. Except for sizes that no memory holds, the smallest and the largest value of each
    field occur.
    """
    machine, values_by_field = load_machine("ws8_pow2"), {}
    for case in cases_of("ws8_pow2"):
        for op in decode(case.words, machine.isa).ops:
            for name in op.parameters():
                values_by_field.setdefault((op.NAME, name), set()).add(int(getattr(op, name)))
    ends = (
        "kernel",
        "dilation",
        "pad",
        "stride_h",
        "stride_w",
        "shift",
        "clamp",
        "semaphore",
        "space",
        "kind",
        "emit",
        "accumulate",
        "value",
    )
    checked = 0
    for operation, plan in machine.isa.plans.items():
        for slot in plan.slots:
            need = plan.operation.need(slot.name, machine.chip)
            if any(end in slot.name for end in ends) and "multiplier" not in slot.name:
                assert {need.low, need.high} <= values_by_field[operation, slot.name], (operation, slot.name)
                checked += 1
            elif "address" in slot.name and slot.name != "parameter_address":
                assert max(values_by_field[operation, slot.name]) >= need.high * 0.99, (operation, slot.name)
    assert checked > 50


@pytest.mark.slow
def test_the_files_hold_the_cases(tmp_path: Path) -> None:
    machine = load_machine("ws8_pow2")
    cases = write_instruction_cases(tmp_path / "kit", machine, hexadecimal=True)
    again = {c.name: c for c in read_instruction_cases(tmp_path / "kit")}
    assert len(again) == len(cases)
    for case in cases:
        stem = f"{case.operation}.{case.name}"
        read = again[stem]
        assert (read.words, read.metadata["cycles"], {*read.memory}) == (case.words, case.cycles, {*case.memory})
        assert np.array_equal(read.start, case.start) and np.array_equal(read.end, case.end)
        lines = (tmp_path / "kit" / f"{stem}.words.hex").read_text().split("\n")
        assert lines[0] == f"// {case.cycles} cycles" and lines[-1] == ""
        assert b"".join(int(line, 16).to_bytes(4, "little") for line in lines[1:-1]) == case.words
        for name, case_memory in case.memory.items():
            for when, values in (("before", case_memory.before), ("after", case_memory.after)):
                assert np.array_equal(getattr(read.memory[name], when), values)
                memory_words = readmemh((tmp_path / "kit" / f"{stem}.{name}.{when}.hex").read_text())
                places = np.concatenate([np.arange(a, a + n) for a, n in case_memory.ranges.tolist()])
                assert memory_words == dict(zip(places.tolist(), values.tolist()))


def readmemh(text: str) -> dict[int, int]:
    """IEEE 1800, 21.4: numbers between white space, `@` and an address from which on they lie."""
    byte_by_address: dict[int, int] = {}
    at = 0
    for word in text.split():
        if word.startswith("@"):
            at = int(word[1:], 16)
        else:
            byte_by_address[at] = int(word, 16)
            at += 1
    return byte_by_address


@pytest.mark.parametrize(
    ("operation", "name", "cycles"),
    [
        # of ws8_pow2: issue 4, latencies of the sram 2 and 1, then what the manual's section of timing says
        ("elementwise", "mul_plain", 4 + 3 + 8 + 15),  # 60 elements, 4 a cycle
        ("pool", "average_plain", 4 + 3 + 8 + 9 * 23),  # 90 elements, 4 a cycle, 9 in a window
        # 30 pixels, 9 taps of 3 channels padded to 4 in 5 folds of 8 rows, 3 cycles each, and a pass of 30 outputs behind them
        ("convolution", "plain", 4 + 3 + 5 * (30 + 22 + 3) + 30),
        ("depthwise", "plain", 4 + 3 + 5 * 2 * (30 + 22 + 3) + 30),  # 9 products in 2 folds, 5 channels one by one
        ("matrix_product", "plain", 4 + 3 + 1 * (4 + 22 + 3) + 4),
        # a request of 2, latencies of 24 and 1; 17 bytes: two bursts of 16
        ("copy", "dram_to_sram_on_dma0", 2 + 2 + 25 + 32 // 2),
    ],
)
def test_cycles_are_those_that_the_manual_s_terms_give(operation: str, name: str, cycles: int) -> None:
    case = next(c for c in cases_of("ws8_pow2") if (c.operation, c.name) == (operation, name))
    words = len(case.words) // 4 - 1  # but for the End
    assert (int(case.start[0]), int(case.end[0] - case.start[0])) == (words, cycles)


def test_numbers_read_from_memory_are_held_within_their_limit() -> None:
    cases = {c.name: c for c in cases_of("transformer64") if c.operation == "load_base"}
    for word_bytes, (value, run) in ((w, v) for w in (1, 2, 4) for v in (("0", 0), ("3", 3), ("5", 5), ("6", 5), ("minus1", 0))):
        case = cases[f"word_{word_bytes}_{value}"]
        copied = case.memory["sram"].after[:4]
        assert np.array_equal(copied, case.memory["dram"].before[4 * run : 4 * run + 4])


def test_repeats_and_calls_run_as_often_as_they_say() -> None:
    cases = {(c.operation, c.name): c for c in cases_of("transformer64")}
    for key in (("repeat", "several_times"), ("repeat", "nested"), ("call", "last_block")):
        case = cases[key]
        size = case.memory["dram"].before.size
        assert np.array_equal(case.memory["sram"].after[:size], case.memory["dram"].before), key
        assert not np.array_equal(case.memory["sram"].before[:size], case.memory["dram"].before)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    kit = str(tmp_path / "kit")
    code, out, err = run("vectors", "ws8_pow2", "--instructions", "--out", kit)
    index = json.loads((tmp_path / "kit" / "index.json").read_text())
    assert (code, err) == (0, "") and out.startswith(f"{kit}: {len(index)} cases of 10 instructions of ws8_pow2, ")
    assert {e["operation"] for e in index} == {*load_machine("ws8_pow2").isa.plans} and all(e["about"] for e in index)
    assert run("vectors", "ws8_pow2", "--out", kit)[0] == 0  # the kit of the numerics takes its place
    assert run("vectors", "ws8_pow2", "--hex", "--out", kit)[1:] == (
        "",
        "--hex: words and memories are what --instructions writes; give both\n",
    )


@pytest.mark.slow
def test_equal_machines_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_instruction_cases(tmp_path / name, load_machine("ws8_pow2"), hexadecimal=True)
    files = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert files[0] == files[1]


def test_a_full_memory_is_no_place() -> None:
    bench = CaseBuilder(load_machine("ws8_pow2"), "any")
    with pytest.raises(NotApplicable, match=r"^sram is too small$"):
        bench.place(1, 1 << 20)
