"""Files, modules and their names that README and the pages of docs point to exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("quant", "simulator", "toolchain")
FOLDERS = (*PACKAGES, "bench", "docs", "examples", "hw_configs", "scripts", "tests")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*/README.md")])
# Python files, named from any folder on, and anything named from a folder of the checkout on. Others are the user's.
_PATH = re.compile(rf"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.py|(?:{'|'.join(FOLDERS)})(?:/[\w-]+)+(?:\.\w+)?)(?![\w/*]|\.\w)")
_DOTTED = re.compile(r"`([a-z]\w*(?:\.\w+)+)(?:\([^`]*\))?`")
# Files of users and of Vela, keys of machines, and files that commands write.
_OTHERS = frozenset({"FILE.py", "file.py", "architecture_features.py", "npu_performance.py"})
_KEYS = frozenset({"isa.file", "isa.program_memory", "machine.isa", "memory.json", "report.html"})


@cache
def list_paths() -> frozenset[str]:
    """Return files and folders of the checkout, each from every folder of its path on."""
    paths = [p.relative_to(ROOT).parts for folder in FOLDERS for p in (ROOT / folder).rglob("*") if "__pycache__" not in p.parts]
    return frozenset("/".join(parts[k:]) for parts in paths for k in range(len(parts)))


def find_missing_paths(text: str) -> list[str]:
    return sorted({path for path in _PATH.findall(text) if path not in list_paths() and path not in _OTHERS})


def find_missing_names(text: str) -> list[str]:
    """Return names such as `schedule.plan_cost` that begin with a package, or a folder of one, and lead nowhere."""
    names = set(_DOTTED.findall(text)) - _KEYS
    return sorted(name for name in names if (paths := _find_packages(name)) and not any(map(_leads, paths)))


def _find_packages(name: str) -> list[Path]:
    """Return the paths that a dotted name may stand for, of packages that exist."""
    first, *rest = name.split(".")
    folders = [ROOT / first] if first in PACKAGES else [ROOT / package / first for package in PACKAGES]
    return [folder.joinpath(*rest) for folder in folders if (folder / "__init__.py").is_file()]


def _leads(path: Path) -> bool:
    """Return whether a path is that of a package, a module, or something that the one above it has."""
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    above = next((p for p in (path.parent / "__init__.py", path.parent.with_suffix(".py")) if p.is_file()), None)
    return above is not None and re.search(rf"\b{path.name}\b", above.read_text()) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_points_to_exists(page: Path) -> None:
    text = page.read_text()
    assert (find_missing_paths(text), find_missing_names(text)) == ([], [])


def test_a_stale_name_is_seen() -> None:
    text = "`toolchain/hw/control.py`, `passes/fuse.py`, ops/pool/rules.py, `schedule.plan_cost`, `frontend.state_names`"
    assert find_missing_paths(text) == ["ops/pool/rules.py", "toolchain/hw/control.py"]
    assert find_missing_names(text) == ["frontend.state_names"]
