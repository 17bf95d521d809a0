"""Damaged files, options and users' Python through the commands. bench/fuzz_readers.py takes other numbers and seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "fuzz_readers.py"


@pytest.mark.slow
@pytest.mark.parametrize("count", ["80", pytest.param("200", marks=pytest.mark.exhaustive)])
def test_damaged_files_are_taken_or_refused(count: str) -> None:
    done = subprocess.run([sys.executable, SCRIPT, count], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert done.stdout.startswith(f"{count} cases, seed 0: 0 wrong; ")
