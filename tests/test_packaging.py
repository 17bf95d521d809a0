"""What pyproject.toml and .importlinter list by hand must be all that there is."""

import configparser
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GROUND_FLOOR = "toolchain.memory"


def test_every_package_is_listed_for_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for top in ("toolchain", "quant", "simulator")
        for init in (ROOT / top).rglob("__init__.py")
    }
    assert sorted(listed) == sorted(found | {"hw_configs", "hw_configs.isa"})


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
