"""The plug-ins that tests load, and copies of them with a fault."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "plugins"
RMSNORM = Path(__file__).parents[2] / "examples" / "rmsnorm" / "rmsnorm.py"


def source_of(name: str) -> Path:
    """Return the file of a plug-in."""
    return RMSNORM if name == "rmsnorm" else FOLDER / f"{name}.py"


def break_plugin(name: str, folder: Path, old: str, new: str) -> Path:
    """Return a copy of a plug-in in which one text stands in the place of another."""
    text = source_of(name).read_text()
    assert text.count(old) == 1, (name, old)
    file = folder / f"{name}.py"
    file.write_text(text.replace(old, new))
    return file
