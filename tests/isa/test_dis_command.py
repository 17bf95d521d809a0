"""npu-dis: a compiled model's listing, and the listing back into the same file."""

from __future__ import annotations

import pytest
from any_operations import machine_of
from typer.testing import CliRunner

from toolchain.cli.dis import app
from toolchain.codegen import Container, Region, container_to_bytes
from toolchain.errors import ProgramError
from toolchain.ir.graph import Graph
from toolchain.isa import AssembledProgram, assemble_words, disassemble, encode
from toolchain.machine import End, Fill, Signal, Space, Wait

OPS = [Wait(2, 1), Fill(0, Space.SRAM, 64, 32, 1, 4, 8, 0, 128, 32, -7), Signal(2, 3), End()]


def model(name: str) -> bytes:
    machine = machine_of(name)
    region = Region(encode(OPS, machine.isa), (), (), (), 0, (), (), (-1,) * len(OPS), 0, 0)
    graph = Graph("two", (), (), (), {}, {})
    return container_to_bytes(Container("two\nlines", machine, (), (), (region, region), (), graph))


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["edge16", "ws8_pow2"])
def test_the_listing_assembles_to_the_same_file(name, tmp_path):
    (tmp_path / "a.npu").write_bytes(model(name))
    code, text, _ = run("a.npu")
    assert code == 0
    assert text.startswith(f"; two lines for {name}\n\n; segment 0: npu, ")
    assert run("a.npu", "-o", "a.txt") == (0, "", "")
    assert (tmp_path / "a.txt").read_text() == text
    assert run("a.npu", "--assemble", "a.txt", "-o", "b.npu") == (0, "", "")
    assert (tmp_path / "b.npu").read_bytes() == model(name)


def test_a_changed_listing_changes_the_program(tmp_path):
    (tmp_path / "a.npu").write_bytes(model("edge16"))
    (tmp_path / "a.txt").write_text(run("a.npu")[1].replace("value=-7", "value=5"))
    assert run("a.npu", "--assemble", "a.txt", "-o", "b.npu")[0] == 0
    assert run("b.npu")[1] == (tmp_path / "a.txt").read_text()


def test_faults(tmp_path):
    (tmp_path / "a.npu").write_bytes(model("edge16"))
    text = run("a.npu")[1]
    (tmp_path / "one.txt").write_text(text.rpartition("isa ")[0])
    (tmp_path / "odd.txt").write_text(text.replace("value=-7", "value=x"))
    (tmp_path / "flipped.npu").write_bytes(model("edge16")[:-1] + b"\1")
    line = text.splitlines().index("00000: fill wait=1 signal=3  ; op 0-2") + 1
    assert run("none.npu") == (2, "", "none.npu: no such file or directory\n")
    assert run("flipped.npu")[0] == 2
    assert run("a.npu", "--assemble", "a.npu") == (2, "", "--assemble writes a compiled model; name it with -o OUT.npu\n")
    assert run("a.npu", "--assemble", "one.txt", "-o", "b.npu") == (
        2,
        "",
        "the listing has 1 program (lines 'isa NAME'), the model 2\n",
    )
    assert run("a.npu", "--assemble", "odd.txt", "-o", "b.npu") == (2, "", f"listing line {line}: 'x' is not a whole number\n")
    assert not (tmp_path / "b.npu").exists()


@pytest.mark.parametrize(
    ("name", "field", "fault"),
    [
        ("edge16", "layer=2", "listing line {line}: layer=2: the program has 2 layers, from 0 on; - or nothing is for none"),
        ("edge16", "layer=-7", "listing line {line}: layer=-7: the program has 2 layers, from 0 on; - or nothing is for none"),
        ("edge16", "layer=0/1", "listing line {line}: layer= names 2 layers for 3 operations"),
        ("edge16", "layer=0 layer=0", "listing line {line}: 'layer=0' is given twice"),
        ("edge16", "layer=conv", "listing line {line}: 'conv' is not a whole number"),
        ("ws8_pow2", "layer=0/1", "listing line {line}: layer= names 2 layers for 1 operation"),
    ],
)
def test_layers_that_cannot_be(name: str, field: str, fault: str) -> None:
    isa = machine_of(name).isa
    text = disassemble(encode(OPS, isa), isa)
    at = next(i for i, line in enumerate(text.splitlines()) if "fill" in line)
    lines = text.splitlines()
    lines[at] = lines[at].replace("  ;", f" {field}  ;")
    with pytest.raises(ProgramError) as caught:
        assemble_words("\n".join(lines), isa, 2)
    assert str(caught.value) == fault.format(line=at + 1)


def test_a_write_belongs_to_no_layer() -> None:
    isa = machine_of("ws8_pow2").isa
    text = disassemble(encode(OPS, isa), isa).replace("  ; value", " layer=0  ; value", 1)
    with pytest.raises(ProgramError, match=r"^listing line \d+: a write belongs to no layer; give it at the start word "):
        assemble_words(text, isa, 2)


@pytest.mark.parametrize("name", ["edge16", "ws8_pow2"])
@pytest.mark.parametrize("layers", [(0, 1, 1, -1), (1, 1, 1, 1), (-1, -1, -1, -1), (-1, 0, 1, 0)])
def test_every_operation_keeps_its_layer(name: str, layers: tuple[int, ...]) -> None:
    """The layers include those of the wait and the signal that a descriptor carries too."""
    isa = machine_of(name).isa
    text = disassemble(encode(OPS, isa), isa, layers, ("stem", "two\nlines; layer=9"))
    assert assemble_words(text, isa, 2) == AssembledProgram(encode(OPS, isa), layers)
