"""Chooses tests: the fast tier by recorded CPU seconds, and what a change touches by imports."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DURATIONS = ROOT / "tests" / "durations.json"
TIERS = ROOT / "tests" / "tiers.yaml"
PACKAGES = ("toolchain", "quant", "simulator", "hw_configs", "scripts", "bench", "tests")
# They import the whole compiler, so nearly every test reaches nearly every module through them.
HUBS = frozenset(("toolchain.api", "toolchain.compiler", "toolchain.cli", "toolchain.runtime", "toolchain.judging.verify_build"))
CHEAP_S = 0.1  # CPU seconds of all cases of a test that is in the fast tier for being cheap, or of its first case


def find_function(nodeid: str) -> str:
    """Return the id of a test's function, without its parameters."""
    return nodeid.partition("[")[0]


@cache
def read_durations() -> Mapping[str, tuple[float, float]]:
    """Return CPU seconds by test function: of all its cases, and of the longest. Those of at most 0.1 in all are not recorded."""
    return {name: (total, longest) for name, (total, longest) in json.loads(DURATIONS.read_text()).items()}


@cache
def read_tiers() -> Mapping[str, object]:
    """Return tests by what is said of them.

    `fast`: in the fast tier whatever they take. `left_out`: not in it, though cheap. `slow`: the reason of each above 10 CPU
    seconds.
    """
    return yaml.safe_load(TIERS.read_text())


def choose_fast(nodeids: Iterable[str]) -> list[bool]:
    """Return for each test whether it is in the fast tier: chosen by its id or function, or the first of cheap cases."""
    chosen, flags, functions = _list_chosen(), list[bool](), set(_list_left_out())
    for nodeid in nodeids:
        function = find_function(nodeid)
        is_first = function not in functions and read_durations().get(function, (0.0, 0.0))[1] <= CHEAP_S
        flags.append(is_first or is_fast(function) or nodeid.startswith(chosen))
        functions.add(function)
    return flags


def is_fast(function: str) -> bool:
    """Return whether all cases of a test are in the fast tier: cheap in all, below 0.05 s each, or chosen."""
    total_s, longest_s = read_durations().get(function, (0.0, 0.0))
    is_cheap = total_s <= CHEAP_S or longest_s == 0
    return (is_cheap and function not in _list_left_out()) or function.startswith(_list_chosen())


@cache
def _list_chosen() -> tuple[str, ...]:
    chosen = read_tiers()["fast"]
    assert isinstance(chosen, list)
    return tuple(chosen)


@cache
def _list_left_out() -> frozenset[str]:
    left_out = read_tiers()["left_out"]
    assert isinstance(left_out, list)
    return frozenset(left_out)


def may_have_fast_tests(file: Path) -> bool:
    """Return whether a file has tests of the fast tier, or tests in classes. Other files need not be imported."""
    functions = re.findall(r"^( *)(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    return any(indent or may_be_fast(f"{file.relative_to(ROOT).as_posix()}::{function}") for indent, function in functions)


def may_be_fast(function: str) -> bool:
    """Return whether the fast tier has a case of a test function, as far as that follows from the function's id."""
    return choose_fast([function])[0] or any(find_function(test) == function for test in _list_chosen())


def deselect(config: pytest.Config, items: list[pytest.Item], is_chosen: Iterable[bool]) -> None:
    """Leave out the tests that are not chosen."""
    flags = list(is_chosen)
    config.hook.pytest_deselected(items=[item for item, flag in zip(items, flags, strict=True) if not flag])
    items[:] = [item for item, flag in zip(items, flags, strict=True) if flag]


def list_changed_files(base: str) -> list[str]:
    """Return the files that differ from a commit, and those that git does not know, from the root."""
    differing = ["git", "diff", "--name-only", base, "--"], ["git", "ls-files", "--others", "--exclude-standard"]
    return [f for command in differing for f in subprocess.check_output(command, cwd=ROOT, text=True).splitlines()]


def find_touched_tests(files: Collection[str]) -> set[str]:
    """Return the test files that are among `files`, or import one of them without going through the whole compiler."""
    imports = {path: set(_list_imports(path)) for path in _list_modules()}
    importers: dict[str, set[str]] = {}
    for path, targets in imports.items():
        for target in targets:
            importers.setdefault(target, set()).add(path)
    touched, waiting = set(files), list(files)
    while waiting:
        file = waiting.pop()
        if _module_name(file) in HUBS and file not in files:
            continue
        new = importers.get(file, set()) - touched
        touched |= new
        waiting += new
    return {file for file in touched if Path(file).name.startswith("test_")}


@cache
def _list_modules() -> tuple[str, ...]:
    return tuple(str(path.relative_to(ROOT)) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))


def _module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _list_imports(file: str) -> Iterator[str]:
    """Yield the files of the project that a file imports. A neighbour may be imported by its bare name."""
    files = {_module_name(path): path for path in _list_modules()}
    folder = _module_name(file).rpartition(".")[0]
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (files[name] for n in names for name in (n, f"{folder}.{n}") if name in files)
