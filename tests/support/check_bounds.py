"""Check that every program moves and takes no less than its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dram_bytes(figures: Mapping[str, Any]) -> int:
    """Return the bytes of DRAM that a program moved."""
    return figures["dram_read_bytes"] + figures["dram_write_bytes"]


def require_bounds(figures: Mapping[str, Any]) -> None:
    """Require that the figures respect their bounds.

    `figures`: figures of a build or a run with times.
    """
    bounds = figures["bounds"]
    assert dram_bytes(figures) >= figures["dram_bound_bytes"] == sum(bounds["dram"].values())
    assert figures["dram_write_bytes"] >= bounds["dram"]["outputs"]
    assert figures["dram_read_bytes"] >= figures["dram_bound_bytes"] - bounds["dram"]["outputs"]
    assert figures["cycles"] >= bounds["cycles"], (figures["cycles"], bounds)
