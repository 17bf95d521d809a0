"""YAML that a stranger may send: refused in a sentence, soon, whichever command reads it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from quant.file import read_parameters
from quant.images import read_preprocess
from toolchain.errors import CompileError, ConfigError
from toolchain.hw import load_chip, read_source
from toolchain.input_limits import YAML_BYTES
from toolchain.isa import load_machine

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
TOO_MANY = "holds more than 100,000 keys and values, each alias counted as what it stands for"


def message(read, path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read(path)
    return str(refused.value)


@pytest.mark.parametrize("read", [lambda path: load_chip(str(path)), read_parameters, read_preprocess])
def test_aliases_of_aliases(read, tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMB)
    assert message(read, path) == f"{path}:1: file: {TOO_MANY}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: " + "[" * 40 + "]" * 40, "nests deeper than 32 sections and lists in line 1"),
        pytest.param("name: [" + "1," * 100_000 + "]", TOO_MANY, marks=pytest.mark.slow),
    ],
)
def test_deep_and_long_documents(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(text)
    assert message(lambda path: load_chip(str(path)), tmp_path / "m.yaml") == f"{tmp_path}/m.yaml:1: file: {reason}"


def test_a_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "m.yaml", "wb") as file:
        file.truncate(YAML_BYTES + 1)
    too_long = "holds more than 4,194,304 bytes, which are the most for such a file"
    assert message(lambda path: load_chip(str(path)), tmp_path / "m.yaml") == f"{tmp_path}/m.yaml: {too_long}"
    assert message(read_parameters, Path("/dev/zero")) == f"/dev/zero: {too_long}"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("!!bool x", "'x' is no bool"),
        ('!!int ""', "'' is no int"),
        ("!!int x", "'x' is no int"),
        ("!!float x", "'x' is no float"),
        ("!!timestamp x", "'x' is no timestamp"),
        ("0x" + "f" * 5000, "a number of 5,002 characters; 64 are the most"),
        ("9" * 5000, "a number of 5,000 characters; 64 are the most"),
        ("1" + ":1" * 5000, "a number of 10,001 characters; 64 are the most"),
        ('"\\ud800"', "holds half a character (a lone surrogate)"),
    ],
)
def test_values_that_their_tag_does_not_fit(value: str, reason: str, tmp_path: Path) -> None:
    text = files("hw_configs").joinpath("edge16.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("rows: 16", f"rows: {value}", 1))
    line = text[: text.index("rows: 16")].count("\n") + 1
    assert message(lambda p: load_chip(str(p)), path) == f"{path}:{line}: engines.mac.rows: {reason}"


def test_twenty_thousand_faults_are_told_in_a_hundred_lines(tmp_path: Path) -> None:
    text = files("hw_configs").joinpath("edge16.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text + "".join(f"strange{i}: 1\n" for i in range(2000)))
    lines = message(lambda path: load_chip(str(path)), tmp_path / "mine.yaml").splitlines()
    assert len(lines) == 101
    assert lines[-1] == "and 1,900 more faults"


def test_a_message_has_lines_of_a_bounded_length() -> None:
    message = str(CompileError(f"node {'x' * 5000}: no"))
    assert message == f"node {'x' * 745} [4,009 characters left out] {'x' * 246}: no"
    assert str(CompileError("\n".join("abc" for _ in range(101)))).splitlines()[-1] == "and 1 more line"
    assert len(str(CompileError("\n".join("abc" for _ in range(100)))).splitlines()) == 100


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret.yaml", "isa/../../secret.yaml", "secret.txt"])
def test_an_instruction_table_lies_beside_its_machine(name: str, tmp_path: Path) -> None:
    """The first lines of any file would be quoted in the faults of a machine from elsewhere."""
    (tmp_path / "secret.yaml").write_text("password: hunter2\n")
    (tmp_path / "secret.txt").write_text("password: hunter2\n")
    path = tmp_path / "in" / "mine.yaml"
    path.parent.mkdir()
    text = files("hw_configs").joinpath("edge16.yaml").read_text()
    path.write_text(text.replace("isa/descriptors1024.yaml", name))
    line = text[: text.index("isa:")].count("\n") + 1
    reason = f"{name!r} must be a .yaml file in the machine's folder or below it, such as isa/mine.yaml"
    assert message(lambda p: load_machine(str(p)), path) == f"{path}:{line}: isa.file: {reason}"


def test_a_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("password: hunter2\n")
    path = tmp_path / "in" / "mine.yaml"
    path.parent.mkdir()
    (path.parent / "table.yaml").symlink_to(tmp_path / "secret.yaml")
    text = files("hw_configs").joinpath("edge16.yaml").read_text()
    path.write_text(text.replace("isa/descriptors1024.yaml", "table.yaml"))
    assert "hunter2" not in message(lambda p: load_machine(str(p)), path)
    assert "there is no file 'table.yaml' beside this one or among the shipped" in message(lambda p: load_machine(str(p)), path)


EQUIVALENT_TEXTS = {
    "tabs": ["a:\n\tb: 1\n", "a: b\tc\n", "\ta: 1\n", "a: 1\t# b\n"],
    "question marks": ["a: {b? : 1}\n", "? a\n: 1\n", "a: {b: 1?, c: 2}\n"],
    "block scalars": ["a: |\n  x\n  y\n", "a: >-\n  x\n", "># no\na: 1\n"],
    "tags": ["a: [!8, 4]\n", "a: !!int 3\n", "a: !!int x\n"],
    "directives and documents": ["%YAML 1.1\n---\na: 1\n", "---\na:\n", "--- \n", "a: 1\n---\nb: 2\n", "a: 1\n...\n", ""],
    "byte order marks": ["\ufeffa: 1\n", "a: 1\n\ufeff# b: 2\n"],
    "aliases": ["a: &x [1]\nb: *x\n", "a: *x\n", "a: &x [*x]\n", BOMB],
    "quotes": ["a: 'b\n", 'a: "b\\x41\\u00e9"\n', 'a: "\\ud800"\n', "a: 'it''s'\n"],
    "brackets": ["a: {b: 1\n", "a: [1, 2\nb: 3\n", "[]"],
    "indents": ["a: 1\n b: 2\n", "a: b: c\n", "a: b\r\nc: d\r", "a: [1, 2]\nb:\n", "a: 1\nb"],
    "characters": ["a: @b\n", "a: `b`\n", "a: \x07\n", "a: \u2028b\n"],
    "keys": ["<<: {a: 1}\n", "a: 1\na: 2\n", "[a]: 1\n"],
    "values": ["a: 0x1F\nb: 1:30\nc: 1e3\nd: .inf\n", "a: 2001-01-01\nb: ~\nc: yes\n"],
    "machines": [(files("hw_configs") / name).read_text() for name in ("edge16.yaml", "isa/registers48.yaml")],
}


@pytest.mark.parametrize("text", [pytest.param(text, id=kind) for kind, texts in EQUIVALENT_TEXTS.items() for text in texts])
def test_a_file_reads_alike_with_libyaml_and_without(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> object:
        try:
            source = read_source(text, "m.yaml")
        except ConfigError as fault:
            return fault.faults
        return repr(source.data), source.lines

    with_it = read()
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    assert read() == with_it
