"""What the optimization levels switch on."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """fuse: tables and residual sums into their producers (clamps always are). double_buffer: load while computing.
    residency: tensors stay in SRAM between layers. in_place: slices are views, concat parts are made in place. tilings: how
    many are costed for each layer. repeat_cycles: where the machine has a repeat, a batch is the program of one sample, repeated,
    unless that takes more than so many times the cycles of a program that works through the batch layer by layer.
    """

    fuse: bool
    double_buffer: bool
    residency: bool
    in_place: bool
    tilings: int
    repeat_cycles: float


LEVELS = (
    Options(False, False, False, False, 1, math.inf),
    Options(True, True, False, False, 4, 1.05),
    Options(True, True, True, True, 12, 1.05),
    Options(True, True, True, True, 40, 1.0),
)
