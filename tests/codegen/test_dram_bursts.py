"""Ports, spilled tensors and constants begin with a burst, so that no transfer of theirs is charged for another's bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolchain.api import BuildOptions, build
from toolchain.codegen import Region

CLASSIFIER = Path(__file__).parents[2] / "examples/classifier/classifier.onnx"


@pytest.mark.parametrize(("machine", "burst"), [("ethos_u55_256", 128), ("ethos_u65_512", 128)])
def test_what_lies_in_dram_begins_with_a_burst(machine: str, burst: int) -> None:
    """Check that DRAM addresses begin at a burst, where the alignment alone is 16 bytes."""
    built = build(CLASSIFIER, BuildOptions(machine))
    regions = [s for s in built.container.segments if isinstance(s, Region)]
    ports = [port.address for r in regions for port in (*r.inputs, *r.outputs)]
    starts = ports + [address for r in regions for address, _ in r.constants]
    assert len(starts) > 2 and all(address % burst == 0 for address in starts)
