"""The types that `typings/` gives to onnxruntime name what the library has: pyright believes them unseen."""

from __future__ import annotations

import ast
from pathlib import Path

import onnxruntime
import pytest

STUB = ast.parse((Path(__file__).parents[2] / "typings" / "onnxruntime" / "__init__.pyi").read_text())
NEWER = {"InferenceSession.get_provider_graph_assignment_info", "OrtEpAssignedNode", "OrtEpAssignedSubgraph", "preload_dlls"}


def _list_names() -> list[str]:
    """Return the functions, classes and members of the stub, without those that older versions lack."""
    names: list[str] = []
    for node in STUB.body:
        if isinstance(node, ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.ClassDef) and node.name not in NEWER:
            members = [m.name for m in node.body if isinstance(m, ast.FunctionDef)]
            members += [m.target.id for m in node.body if isinstance(m, ast.AnnAssign) and isinstance(m.target, ast.Name)]
            names += [node.name, *(f"{node.name}.{member}" for member in members)]
    return [name for name in names if name not in NEWER]


@pytest.mark.parametrize("name", _list_names())
def test_the_library_has_what_the_stub_names(name: str) -> None:
    holder, _, member = name.partition(".")
    of = getattr(onnxruntime, holder)
    assert not member or hasattr(of, member)
