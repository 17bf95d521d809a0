"""The schedules of docs/schedules.md are those of examples/schedules, and do what the page says. Each build compares bits."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from examples.schedules.networks import NETWORKS
from toolchain.api import BuildOptions, build

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/schedules.md").read_text()
ROWS = re.findall(r"^\| (\w+) \| (\w+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE)


def test_the_page_has_the_files() -> None:
    assert sorted(row[0] for row in ROWS) == sorted(NETWORKS)
    for name in NETWORKS:
        assert f"```\n{(ROOT / 'examples/schedules' / name).with_suffix('.sched').read_text()}```" in PAGE


@pytest.mark.parametrize("by_hand", [False, True], ids=["planned", "by hand"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_cycles_and_bytes(row: tuple[str, ...], by_hand: bool, tmp_path: Path) -> None:
    name, machine, *columns = row
    cycles, dram_bytes = (int(figure.replace(",", "")) for figure in columns[by_hand::2])
    onnx.save(NETWORKS[name](), tmp_path / "model.onnx")
    schedule = str(ROOT / "examples/schedules" / f"{name}.sched") if by_hand else None
    figures = build(tmp_path / "model.onnx", BuildOptions(machine, schedule=schedule)).figures
    assert figures["cycles"] == pytest.approx(cycles, rel=0.01)
    assert figures["dram_read_bytes"] + figures["dram_write_bytes"] == dram_bytes


def test_the_program_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(NETWORKS["residual"](), "residual.onnx")
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out.strip().isdigit()
