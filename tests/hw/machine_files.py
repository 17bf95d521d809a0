"""Writes shipped machines with one change into a directory, for tests of what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from toolchain.errors import ConfigError


def read_shipped_text(name: str) -> str:
    return files("hw_configs").joinpath(name).read_text()


def section_text(name: str, key: str) -> str:
    """A section of hw_configs/NAME that is there once, from its key to the end of its last line."""
    lines = read_shipped_text(name).splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip() == f"{key}:")
    indent = len(lines[first]) - len(lines[first].lstrip())
    last = next(i for i in range(first + 1, len(lines)) if not lines[i].startswith(" " * (indent + 1)))
    return "\n".join(lines[first:last]).lstrip()


def write_changed(directory: Path, name: str, changes: list[tuple[str, str]], target: str = "mine.yaml") -> None:
    """hw_configs/NAME with each (old, new) replaced; old must be there exactly once."""
    text = read_shipped_text(name)
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {name}"
        text = text.replace(old, new)
    path = directory / target
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def line_of(path: Path, anchor: str) -> int:
    """The line, from 1, where `anchor` first is."""
    text = path.read_text()
    return text[: text.index(anchor)].count("\n") + 1


def assert_one_fault(
    directory: Path, changes: list[tuple[str, str]], anchor: str, message: str, load: Callable[[str], Any]
) -> None:
    """edge16 with these changes has one fault: `said`, in the line of `anchor`; what its table lacks for them is told besides."""
    write_changed(directory, "edge16.yaml", changes)
    with chdir(directory), pytest.raises(ConfigError) as caught:
        load("mine.yaml")
    file_faults = [fault for fault in caught.value.faults if fault.startswith("mine.yaml:")]
    assert file_faults == [f"mine.yaml:{line_of(directory / 'mine.yaml', anchor)}: {message}"]
