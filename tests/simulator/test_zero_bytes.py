"""Images of zeros: written like any array, and given back to the system."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from simulator.zero_bytes import zero_bytes

PROGRAM = """
from pathlib import Path
import numpy as np
from simulator.zero_bytes import zero_bytes

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

before = resident_mib()
image = zero_bytes(24 << 20)
image[:] = 1
del image
block = np.ones(20 << 20, np.uint8)
behind = np.ones(1 << 10, np.uint8)
del block
print(round(resident_mib() - before))
"""


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, (1 << 20) - 1, 1 << 20, (3 << 20) + 5])
def test_zeros_can_be_written(size_bytes: int):
    first, second = zero_bytes(size_bytes), zero_bytes(size_bytes)
    assert first.shape == (size_bytes,)
    assert first.dtype == np.uint8
    assert not first.any()
    first[:] = 7
    assert first.sum(dtype=np.int64) == 7 * size_bytes
    assert not second.any()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_blocks_freed_after_an_image_go_back_to_the_system():
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(process.stdout) < 10
