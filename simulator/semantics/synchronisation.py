"""Signals, waits and ends change no bytes; their order is kept by the checks and the timeline."""

from __future__ import annotations

from simulator.semantics.context import Context
from toolchain.machine import End, Signal, Wait


def nothing(op: Signal | Wait | End, context: Context) -> None:
    """Do nothing."""


VALUES = {Signal: nothing, Wait: nothing, End: nothing}
