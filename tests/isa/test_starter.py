"""The first table that a new machine is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.errors import ConfigError
from toolchain.hw import list_shipped_names, load_chip, read_source
from toolchain.hw.engines import FunctionRate
from toolchain.isa.__main__ import main
from toolchain.isa.default_table import make_default_table
from toolchain.isa.encoding import Isa
from toolchain.isa.encoding_needs import find_encoding_gaps
from toolchain.isa.machine import load_machine, read_table
from toolchain.isa.word_layout import broken_layout


@pytest.mark.parametrize("kind, bits", [("descriptors", None), ("descriptors", 2008), ("registers", 32), ("registers", 128)])
@pytest.mark.parametrize("name", list_shipped_names())
def test_the_machine_accepts_its_first_table(name, kind, bits):
    chip = load_chip(name)
    table, faults = read_table(read_source(make_default_table(chip, kind, bits), "starter.yaml"))
    assert faults == [] and table is not None
    assert broken_layout(table) == [] and find_encoding_gaps(chip, Isa(table)) == []
    assert bits in (None, table.word_bits)


def test_what_a_machine_knows_at_one_value_takes_no_bits():
    """ws8_pow2 is symmetric, has no table and no addend, and two DMA dimensions."""
    lines = make_default_table(load_chip("ws8_pow2")).splitlines()
    row = next(line for line in lines if line.startswith("    fixed: {input_zero_point"))
    assert "output_zero_point: 0" in row and "use_table: 0" in row and "add_left_shift: 0" in row
    copy = next(line for line in lines if line.startswith("    fixed: {channel: 0"))
    assert "count0: 1" in copy and "count1" not in copy


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.sets(st.sampled_from(["add", "sub", "mul", "rescale", "prelu", "table", "max_pool", "average_pool"]), min_size=1))
def test_kinds_follow_the_operations_that_the_vector_engine_has(operations):
    chip = load_chip("edge16")
    vector = chip.engines["vector"].model_copy(
        update={"functions": {name: FunctionRate(lanes=16) for name in sorted(operations)}}
    )
    chip = chip.model_copy(update={"engines": {**chip.engines, "vector": vector}})
    table, _ = read_table(read_source(make_default_table(chip), "starter.yaml"))
    assert table is not None
    assert ("table" in table.operations) == ("table" in operations)
    pools = operations & {"max_pool", "average_pool"}
    assert ("pool" in table.operations) == bool(pools)
    assert len(pools) != 1 or table.operations["pool"].fixed["kind"] == (pools == {"average_pool"})


def test_words_too_narrow_are_refused_with_the_width_that_would_do():
    chip = load_chip("edge16")
    with pytest.raises(ConfigError, match=r"^descriptors of 128 bits: edge16 needs 678; give at least 680 bits$"):
        make_default_table(chip, "descriptors", 128)
    with pytest.raises(ConfigError, match="no kind of instruction table 'microcode'; there are descriptors and registers"):
        make_default_table(chip, "microcode")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("registers 33", "registers of 33 bits: must be a multiple of 8 from 16 to 1,024"),
        ("registers 0", "registers of 0 bits: must be a multiple of 8 from 16 to 1,024"),
        ("registers 2000", "registers of 2000 bits: must be a multiple of 8 from 16 to 1,024"),
        ("registers abc", "registers of 'abc' bits: must be a multiple of 8 from 16 to 1,024"),
        ("descriptors 700.0", "descriptors of '700.0' bits: must be a multiple of 8 from 64 to 4,096"),
        ("descriptors 900", "descriptors of 900 bits: must be a multiple of 8 from 64 to 4,096"),
        ("descriptors 5000", "descriptors of 5000 bits: must be a multiple of 8 from 64 to 4,096"),
        ("descriptors 128", "descriptors of 128 bits: edge16 needs 678; give at least 680 bits"),
        ("registers 16", "register words of 16 bits do not hold the 81 registers of edge16; give more"),
        ("microcode abc", "no kind of instruction table 'microcode'; there are descriptors and registers"),
        ("registers 32 33", "surplus argument '33': after the machine come a kind of table and a number of bits"),
    ],
)
def test_the_command_refuses_what_the_machine_would(arguments: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["edge16", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", message + "\n")


@pytest.mark.parametrize("kind", ["descriptors", "registers"])
def test_a_machine_without_a_section_isa_gets_a_table(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = (Path(__file__).parents[2] / "hw_configs" / "edge16.yaml").read_text()
    complete_text, section = text, "isa: {file: isa/descriptors1024.yaml, word_cycles: 8.0, program_memory: own}\n"
    assert section in complete_text
    (tmp_path / "mine.yaml").write_text(complete_text.replace(section, ""))
    assert main([str(tmp_path / "mine.yaml"), kind]) == 0
    assert capsys.readouterr().out == make_default_table(load_chip("edge16"), kind)


def test_the_command_prints_a_table_beside_which_the_machine_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = (Path(__file__).parents[2] / "hw_configs" / "edge16.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("isa/descriptors1024.yaml", "mine_isa.yaml"))
    assert main([str(tmp_path / "mine.yaml"), "registers", "32"]) == 0
    (tmp_path / "mine_isa.yaml").write_text(capsys.readouterr().out)
    machine = load_machine(str(tmp_path / "mine.yaml"))
    assert machine.isa.kind == "registers" and machine.isa.word_bytes == 4


def test_the_command_tells_its_own_use(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "python -m toolchain.isa mine.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broken", "arguments", "reason"),
    [
        (True, "mine.yaml -o isa.yaml", "mine.yaml:1: frequncy: no such key"),
        (False, "mine.yaml registers 7 -o isa.yaml", "registers of 7 bits: "),
        (False, "mine.yaml -o mine.yaml", "-o mine.yaml: is the machine itself, which would be overwritten; give another file"),
        (False, "mine.yaml -o lost/isa.yaml", "-o lost/isa.yaml: there is no directory lost; make it first"),
        (False, "mine.yaml -o", "-o: must be given once, with the name of the file for the table"),
        (False, "mine.yaml -o isa.yaml -o b.yaml", "-o: must be given once"),
    ],
)
def test_a_fault_leaves_the_file_of_a_table_as_it_was(
    broken: bool, arguments: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "hw_configs" / "edge16.yaml").read_text().replace("isa/descriptors1024.yaml", "isa.yaml")
    Path("mine.yaml").write_text(text + "frequncy: 1 GHz\n" * broken)
    Path("isa.yaml").write_text("as it was")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert main(arguments.split()) == 2
    assert reason.removeprefix("mine.yaml:1: ") in capsys.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    Path("mine.yaml").write_text(text)
    assert main(["mine.yaml", "registers", "32", "-o", "isa.yaml"]) == 0
    assert load_machine("mine.yaml").isa.kind == "registers"
