"""Writes the directory of a kit of test vectors whole or not at all, and replaces one only where it holds an earlier kit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from quant.fixed_point.core.fixed_point_errors import FixedPointError

INDEX = "index.json"  # a list of cases, of each `file`, and `more` where it has more files than that


@contextmanager
def kit_directory(out_dir: Path) -> Generator[Path]:
    """A context whose value is a directory to write a kit into, with its index; it becomes out_dir where nothing is raised.

    `out_dir`: new or empty, or holds an earlier kit, which is replaced; FixedPointError otherwise.
    """
    target = Path(os.path.realpath(out_dir))
    _require_place(out_dir, target)
    staging = target.with_name(f".{target.name}.{os.getpid()}")
    staging.mkdir()
    try:
        yield staging
        _replace_directory(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _require_place(out_dir: Path, target: Path) -> None:
    """Raise FixedPointError where anything but an earlier kit would be lost."""
    if not target.parent.is_dir():
        raise FixedPointError(f"{out_dir}: there is no directory {out_dir.parent}; make it first")
    if not target.exists():
        return
    if not target.is_dir():
        raise FixedPointError(f"{out_dir}: is a file; give the name of a directory")
    present = {p.name for p in target.iterdir()}
    foreign = sorted(present - _kit_files(target))
    if foreign:
        raise FixedPointError(f"{out_dir}: holds {foreign[0]}, which is no part of a kit; give a new or an empty directory")


def _kit_files(directory: Path) -> set[str]:
    """Return the files that the index in a directory names, and the index; none where it cannot be read."""
    try:
        entries = json.loads((directory / INDEX).read_text())
        return {INDEX, *(entry["file"] for entry in entries), *(name for entry in entries for name in entry.get("more", ()))}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return set()


def _replace_directory(staging: Path, target: Path) -> None:
    """Rename staging to target; what target held goes only when the new one stands."""
    if not target.exists():
        staging.rename(target)
        return
    old = target.with_name(f"{staging.name}.old")
    target.rename(old)
    try:
        staging.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)
