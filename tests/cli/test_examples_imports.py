"""Examples import what is public alone, so that a user may copy them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = {"toolchain.api", "toolchain.runtime", "toolchain.plugin"}
# An operation of its own needs the modules of machine operations and tiles, as docs/plugins.md says.
INNER = {"plugins/mid_pool.py"}
FILES = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py"))


@pytest.mark.parametrize("name", [name for name in FILES if name not in INNER])
def test_examples_import_public_modules_alone(name: str) -> None:
    imported = set[str]()
    for node in ast.walk(ast.parse((EXAMPLES / name).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    ours = {module for module in imported if module.partition(".")[0] in ("toolchain", "quant", "simulator")}
    assert ours <= PUBLIC
