"""Fixtures that tests of merged programs share."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def merge_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs be merged in which most operations stay single: these must be right too."""
    monkeypatch.setattr(sys.modules["simulator.merging.merge_program"], "_MOST_SINGLES", 1.0)
