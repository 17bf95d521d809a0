"""Tests of the format number of machine files and instruction tables, and of `npu-hw upgrade`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from toolchain.cli.hw import app
from toolchain.errors import ConfigError
from toolchain.hw import MACHINE_FORMAT, TABLE_FORMAT, list_shipped_names, load_chip, upgrade_text
from toolchain.isa import load_machine

NEW = (files("hw_configs") / "edge16.yaml").read_text()
FUNCTIONS = ("add", "sub", "mul", "rescale", "prelu", "table", "max_pool", "average_pool")
BLOCK = "    functions:\n" + "".join(f"      {name}: {{lanes: 16, startup: 8}}\n" for name in FUNCTIONS)
OLD_BLOCK = f"    lanes: 16  # a comment\n    operations: [{', '.join(FUNCTIONS)}]\n    startup_cycles: 8\n"
OLD = NEW.replace(f"format: {MACHINE_FORMAT}\n", "").replace(BLOCK, OLD_BLOCK)
NEWER = MACHINE_FORMAT + 1
TABLES = [path for path in (files("hw_configs") / "isa").iterdir() if path.name.endswith(".yaml")]


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    return path


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output


def test_an_old_file_is_refused_with_the_way_out(old_file: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_machine(str(old_file))
    line = OLD.splitlines().index("  vector:") + 1
    way_out = f"npu-hw upgrade {old_file} rewrites them for format {MACHINE_FORMAT}"
    assert refused.value.faults[0] == f"{old_file}:{line}: engines.vector: has keys of format 1; {way_out}"


def test_upgrade_gives_the_same_machine_and_keeps_comments(old_file: Path) -> None:
    code, output = run("upgrade", str(old_file))
    assert (code, len(output.splitlines())) == (0, 2)
    assert load_chip(str(old_file)) == load_chip("edge16")
    assert old_file.read_text() == NEW
    assert run("upgrade", str(old_file)) == (0, f"{old_file}: is of the newest format already\n")


@pytest.mark.parametrize("startup", [", startup_cycles: 6", ""])
def test_upgrade_of_a_flow_mapping(startup: str, old_file: Path) -> None:
    flow = f"  vector: {{kind: vector, lanes: 4, operations: [add, table]{startup}, queue_depth: 2}}\n"
    start = OLD.index("  vector:\n")
    text = OLD[:start] + flow + OLD[OLD.index("  dma:\n") :]
    upgraded = yaml.safe_load(upgrade_text(text, "old.yaml").text)
    rate = {"lanes": 4, "startup": 6 if startup else 4}
    assert upgraded["engines"]["vector"] == {"kind": "vector", "queue_depth": 2, "functions": {"add": rate, "table": rate}}
    assert upgraded == {**yaml.safe_load(text), "format": MACHINE_FORMAT, "engines": upgraded["engines"]}


def test_upgrade_of_lists_over_lines_and_of_no_functions() -> None:
    tall = OLD_BLOCK.replace(f"[{', '.join(FUNCTIONS)}]", "\n" + "".join(f"      - {name}\n" for name in FUNCTIONS).rstrip("\n"))
    assert yaml.safe_load(upgrade_text(OLD.replace(OLD_BLOCK, tall), "old.yaml").text) == yaml.safe_load(NEW)
    bare = OLD.replace(OLD_BLOCK, "    lanes: 16\n    operations: []\n")
    assert yaml.safe_load(upgrade_text(bare, "old.yaml").text)["engines"]["vector"]["functions"] == {}


def test_upgrade_of_an_indented_file() -> None:
    assert upgrade_text("  a: 1\n  b: 2\n", "m.yaml").text == f"  format: {MACHINE_FORMAT}\n  a: 1\n  b: 2\n"


@pytest.mark.parametrize(
    "engines",
    [
        "{v: {kind: vector, lanes: &n 16, operations: [add]}, mac: {kind: array, columns: *n}}",
        "{mac: {reads: &r [1, 2]}, v: {kind: vector, lanes: 16, operations: [add], reads: *r, queue_depth: 3}}",
        "{v: &v {kind: vector, lanes: 16, operations: [add]}, w: *v}",
        "\n  mac: {columns: &n 16}\n  v:\n    kind: vector\n    lanes: *n\n    operations: [add]",
        "{v: {kind: vector, lanes: 16, operations: add}}",
        "{v: {kind: vector, operations: [add]}}",
    ],
)
def test_upgrade_refuses_what_would_hold_other_values(engines: str) -> None:
    with pytest.raises(ConfigError, match=r"m\.yaml:1: file: the rewritten file would not hold the same values"):
        upgrade_text(f"memories: {{}}\nengines: {engines}\n", "m.yaml")


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.name)
def test_upgrade_of_an_instruction_table(table: Path) -> None:
    text = table.read_text()
    assert upgrade_text(text, table.name).changes == ()
    assert upgrade_text(text.replace(f"format: {TABLE_FORMAT}\n", ""), table.name).text == text


@pytest.mark.parametrize("name", list_shipped_names())
def test_shipped_files_are_of_the_newest_format(name: str) -> None:
    assert upgrade_text((files("hw_configs") / f"{name}.yaml").read_text(), name).changes == ()


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (
            str(NEWER),
            f"{NEWER} is newer than {MACHINE_FORMAT}, which this version reads; install a newer one",
        ),
        ("0", f"must be a whole number from 1 to {MACHINE_FORMAT}, got 0"),
        ("two", f"must be a whole number from 1 to {MACHINE_FORMAT}, got 'two'"),
        ("true", f"must be a whole number from 1 to {MACHINE_FORMAT}, got True"),
    ],
)
@pytest.mark.parametrize("read", [load_machine, lambda path: upgrade_text(Path(path).read_text(), path)])
def test_other_formats_are_refused(number: str, reason: str, read: Callable[[str], object], tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(NEW.replace(f"format: {MACHINE_FORMAT}\n", f"format: {number}\n"))
    line = NEW.splitlines().index(f"format: {MACHINE_FORMAT}") + 1
    with pytest.raises(ConfigError) as refused:
        read(str(path))
    assert refused.value.faults == [f"{path}:{line}: format: {reason}"]


@pytest.mark.parametrize("text", ["", "[1, 2]\n", "a: b: c\n", "1\n"])
def test_what_is_no_machine_is_refused_and_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    code, output = run("upgrade", str(path))
    assert code == 2 and "Traceback" not in output
    assert path.read_text() == text


def test_upgrade_writes_elsewhere(old_file: Path, tmp_path: Path) -> None:
    assert run("upgrade", str(old_file), "-o", str(tmp_path / "new.yaml"))[0] == 0
    assert old_file.read_text() == OLD
    assert (tmp_path / "new.yaml").read_text() == NEW
    assert run("upgrade", str(tmp_path / "absent.yaml"))[0] == 2
