"""Run the example notebook headless: its cells in order, without Jupyter, and once with a kernel where nbclient is."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "notebook.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Execute a cell; return the value of its last line where that is an expression, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


def test_cells_run_in_order_and_show_a_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "classifier").symlink_to(EXAMPLES / "classifier")
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "notebook"}
    values = [run_cell("".join(cell["source"]), names) for cell in cells]
    pictures = [value._repr_html_() for value in values if hasattr(value, "_repr_html_")]
    assert len(pictures) == 1 and "<svg" in pictures[0] and " dB" in pictures[0]
    assert names["noise"] < 0.01 * float((names["in_float"] ** 2).sum())
    assert [path.name for path in tmp_path.iterdir()] == ["classifier"]


@pytest.mark.slow
def test_a_kernel_runs_it() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(EXAMPLES)}}
    ).execute()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("<svg" in data.get("text/html", "") for data in shown)
