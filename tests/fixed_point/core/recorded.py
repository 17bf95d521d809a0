"""Outputs of the foreign implementations, recorded: what the tests compare with where these are not installed.

`recorded.npz` holds one entry for each comparison: the output itself up to 2 KiB, its SHA-256 beyond. Where the
implementation is installed, the comparison runs against it and against the record. RECORD_VECTORS=1 writes the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PATH = Path(__file__).with_name("recorded.npz")
RECORDING = bool(os.environ.get("RECORD_VECTORS"))
_WHOLE_BYTES = 2048


def digest(x: np.ndarray) -> np.ndarray:
    """uint8[32] of shape and integer values, whatever their type."""
    return np.frombuffer(hashlib.sha256(str(x.shape).encode() + x.astype("<i8").tobytes()).digest(), np.uint8)


class Record:
    """All entries of the file, and new ones."""

    def __init__(self) -> None:
        self.entries: dict[str, np.ndarray] = {}
        if PATH.exists():
            with np.load(PATH) as file:
                self.entries = {name: file[name] for name in file.files}

    def save(self) -> None:
        arrays: dict[str, Any] = dict(sorted(self.entries.items()))
        np.savez_compressed(PATH, **arrays)


class Oracle:
    """Comparisons of one test, numbered in their order."""

    def __init__(self, record: Record, name: str) -> None:
        self.record, self.name, self.count = record, name, 0

    def check(self, got: np.ndarray, run: Callable[[], np.ndarray], missing: str | None) -> None:
        """got equals what `run` gives, bit for bit; without it (missing: the reason), what it gave when recorded."""
        key = f"{self.name}/{self.count}"
        self.count += 1
        if missing is None:
            want = run()
            np.testing.assert_array_equal(got, want, err_msg=key)
            if RECORDING:
                self.record.entries[key] = want if want.nbytes <= _WHOLE_BYTES else digest(want)
        recorded = self.record.entries.get(key)
        if recorded is None:
            if missing is not None:
                pytest.skip(f"{missing}, and nothing recorded for {key}")
            return
        if recorded.shape == got.shape:
            np.testing.assert_array_equal(got, recorded, err_msg=f"recorded {key}")
        else:
            assert digest(got).tolist() == recorded.tolist(), f"recorded {key}"
