"""The whole machine of docs/machine.md is one, with the table that the page's command writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from toolchain.isa import load_machine

PAGE = (Path(__file__).parents[2] / "docs" / "machine.md").read_text()
HERON = next(part for part in PAGE.split("```") if part.startswith("yaml\nname: heron\n")).removeprefix("yaml\n")
COMMAND = "python -m toolchain.isa heron.yaml registers 32 -o isa/heron.yaml"


def test_the_machine_from_nothing_loads(tmp_path: Path) -> None:
    assert COMMAND in PAGE
    (tmp_path / "heron.yaml").write_text(HERON)
    (tmp_path / "isa").mkdir()
    subprocess.run([sys.executable, *COMMAND.split()[1:]], check=True, cwd=tmp_path)
    machine = load_machine(str(tmp_path / "heron.yaml"))
    assert (machine.chip.name, machine.chip.array.rows, machine.chip.array.columns) == ("heron", 8, 32)
    assert machine.isa.table.kind == "registers"
