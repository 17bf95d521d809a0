"""Listings and buffer files that a stranger may send."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolchain.errors import ProgramError
from toolchain.input_limits import NUMBER_CHARACTERS
from toolchain.isa import assemble, disassemble, encode, load_machine, split_listings
from toolchain.machine import End, Signal, Wait
from toolchain.memory import InvalidCsv, read_csv


@pytest.mark.parametrize(
    ("machine", "line"),
    [
        ("edge16", "00000: signal semaphore={}"),
        ("ethos_u55_256", "00000: write IFM_BASE = {}"),
        ("ws8_pow2", "00000: start copy channel={}"),
    ],
)
@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "9" * 5000])
def test_numbers_of_thousands_of_digits(machine: str, line: str, number: str) -> None:
    isa = load_machine(machine).isa
    with pytest.raises(ProgramError) as refused:
        assemble(f"isa {isa.name}\n{line.format(number)}\n", isa)
    assert str(refused.value) == f"listing line 2: a number of {len(number):,} characters; 64 are the most"


def test_numbers_may_be_padded_to_the_longest_that_is_read() -> None:
    isa = load_machine("edge16").isa
    program = encode([Signal(1, 5), Wait(2, 5), End()], isa)
    padded = disassemble(program, isa).replace("semaphore=5", f"semaphore=0x{5:0{NUMBER_CHARACTERS - 2}x}")
    assert assemble(padded, isa) == program


def test_a_listing_of_millions_of_lines() -> None:
    with pytest.raises(ProgramError) as refused:
        split_listings("\n" * 4_000_001)
    assert str(refused.value) == "listing: has 4,000,001 lines, 4,000,000 are the most"


def refusal(path: Path) -> str:
    with pytest.raises(InvalidCsv) as refused:
        read_csv(path)
    return str(refused.value)


def test_buffers_of_thousands_of_digits(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text(f"id,lower,upper,size\na,0,1,{'9' * 5000}\n")
    assert refusal(path) == f"{path}:2: size: {'9' * 64!r} is not a whole number"


def test_twenty_thousand_faults_of_buffers(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text("id,lower,upper,size\n" + "".join(f"b{i},1,0,x\n" for i in range(20_000)))
    lines = refusal(path).splitlines()
    assert (len(lines), lines[-1]) == (101, f"{path}: and 19,900 more faults")


def test_a_buffer_file_that_never_ends() -> None:
    assert refusal(Path("/dev/zero")) == "/dev/zero:1: holds more than 16,777,216 bytes, which are the most for such a file"


def test_too_many_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.memory.io.csv_format.MOST_BUFFERS", 3)
    path = tmp_path / "b.csv"
    path.write_text("id,lower,upper,size\n" + "".join(f"b{i},0,1,1\n" for i in range(4)))
    assert refusal(path) == f"{path}:5: 3 buffers are the most"
