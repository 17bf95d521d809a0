"""The bound beside the cycles: each port of the DRAM for itself, unless they are one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolchain.hw.chip import Chip
from toolchain.isa import load_machine
from toolchain.report.metrics import roofline


def chip(channels: int = 1, **dram: Any) -> Chip:
    data = json.loads(load_machine("edge16").chip.model_dump_json())
    data["memories"]["dram"] |= dram
    data["engines"]["dma"] |= {"channels": channels, "bytes_per_cycle": 16.0}
    return Chip.model_validate_json(json.dumps(data))


@pytest.mark.parametrize(
    ("dram", "channels", "read", "written", "cycles"),
    [
        # 4 and 2 bytes a cycle at once: the reads decide, the writes hide behind them
        ({"shared_ports": False, "read_bytes_per_cycle": 4.0, "write_bytes_per_cycle": 2.0}, 2, 4000, 400, 1000),
        ({"shared_ports": False, "read_bytes_per_cycle": 4.0, "write_bytes_per_cycle": 2.0}, 2, 400, 4000, 2000),
        ({"shared_ports": True, "read_bytes_per_cycle": 4.0, "write_bytes_per_cycle": 2.0}, 2, 4000, 400, 1100),
        # the DMA moves both ways at 16 bytes a cycle
        ({"shared_ports": False, "read_bytes_per_cycle": 64.0, "write_bytes_per_cycle": 64.0}, 1, 4000, 4000, 500),
    ],
)
def test_the_busiest_port_bounds(dram: dict[str, Any], channels: int, read: int, written: int, cycles: int) -> None:
    assert roofline(chip(channels, **dram), 0, read, written) == cycles
    assert roofline(chip(channels, **dram), 256 * 9000, read, written) == 9000
