"""Plans follow from the input alone: nothing that decides reads a clock or draws numbers without a seed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import toolchain

FOLDER = Path(toolchain.__file__).parent
DECIDING = ("schedule", "memory", "codegen", "passes", "machine", "ops", "isa", "ir")
REFUSED = {"time", "datetime", "random", "secrets", "uuid"}


def list_imports(text: str) -> set[str]:
    """Return the first names of all modules that a file imports, wherever it does."""
    names = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("package", DECIDING)
def test_no_decision_reads_a_clock(package: str) -> None:
    files = sorted((FOLDER / package).rglob("*.py"))
    assert files
    assert {str(f): modules for f in files if (modules := REFUSED & list_imports(f.read_text()))} == {}


def test_the_compiler_reads_no_clock() -> None:
    assert not REFUSED & list_imports((FOLDER / "compiler.py").read_text())
    assert list_imports("def f():\n import time as t\nfrom random import random") == {"time", "random"}
