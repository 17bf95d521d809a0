"""The wheel has every package, and the layers of .importlinter have every part of the toolchain."""

import configparser
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GROUND_FLOOR = "toolchain.memory"


def test_every_folder_of_code_is_a_package_of_the_wheel() -> None:
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    folders = {path.parent for pattern in include for path in ROOT.glob(f"{pattern}/**/*.py")}
    assert len(folders) > 40
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_every_part_of_the_toolchain_stands_in_a_layer() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    layered = set(re.findall(r"[\w.]+", contracts["importlinter:contract:layers"]["layers"])) | {GROUND_FLOOR}
    parts = {path.stem for path in (ROOT / "toolchain").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert sorted(f"toolchain.{part}" for part in parts - {"__init__"} if f"toolchain.{part}" not in layered) == []


@pytest.mark.parametrize("module", ["toolchain.reference", "toolchain.isa"])
def test_modules_of_the_callers_folder_are_none_of_ours(module: str, tmp_path: Path) -> None:
    (tmp_path / "quant.py").write_text("raise SystemExit('not ours')\n")
    done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert "not ours" not in done.stderr and f"python -m {module}" in done.stdout + done.stderr
