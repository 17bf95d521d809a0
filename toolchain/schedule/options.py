"""What the optimization levels switch on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """fuse: tables and residual sums into their producers (clamps always are). double_buffer: load while computing.
    residency: tensors stay in SRAM between layers. in_place: slices are views, concat parts are made in place. tilings: how
    many are costed for each layer.
    """

    fuse: bool
    double_buffer: bool
    residency: bool
    in_place: bool
    tilings: int


LEVELS = (
    Options(False, False, False, False, 1),
    Options(True, True, False, False, 4),
    Options(True, True, True, True, 12),
    Options(True, True, True, True, 40),
)
