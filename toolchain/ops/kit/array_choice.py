"""Find the MAC arrays of a machine that can run an operator: arrays may differ in their epilogues, types and depthwise modes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from toolchain.errors import CompileError, InternalError
from toolchain.hw.chip import Chip
from toolchain.hw.engines import MacArray
from toolchain.hw.unit_map import Unit
from toolchain.ops.kit.tile import Tiling


def find_capable_arrays(
    chip: Chip, post: Collection[str] = (), depthwise: bool = False, group: int = 0, pair: tuple[str, str] | None = None
) -> tuple[Unit, ...]:
    """Return the arrays that programs use and that have all of these features, in the machine's order; there may be none.

    `post`: epilogues, by the words of `engines.mac.post`.
    `depthwise`: a mode for depthwise convolutions is needed.
    `group`: weights in groups of this size are needed; 0: no groups.
    `pair`: types of activations and weights; None: any.
    """
    return tuple(
        unit
        for unit in chip.workers("mac_array")
        if set(post) <= set(unit.array.post) and (not depthwise or unit.array.depthwise != "none")
        if not group or (unit.array.groups is not None and group in unit.array.groups.sizes)
        if pair is None or unit.array.rate_of(*pair) is not None
    )


def add_dataflows(tilings: Iterable[Tiling], arrays: Sequence[Unit], depthwise: bool = False) -> Iterator[Tiling]:
    """Yield each tiling with every dataflow that an operation on one of these arrays may name.

    `depthwise`: with every depthwise mode too.
    """
    counts = {(len(u.array.dataflows), len(u.array.depthwise_modes) if depthwise else 1) for u in arrays}
    variants = sorted({pair for flows, modes in counts for pair in product(range(flows), range(modes))})
    for tiling in tilings:
        for flow, mode in variants:
            same = (tiling.dataflow, tiling.mode) == (flow, mode)  # on most machines: no copy
            yield tiling if same else replace(tiling, dataflow=flow, mode=mode)


def lie_together(chip: Chip, *roles: str) -> bool:
    """Return whether operands of these roles lie in one memory on every array that programs use."""
    return all(len({unit.roles[role] for role in roles}) == 1 for unit in chip.workers("mac_array"))


def main_array(units: Sequence[Unit]) -> MacArray:
    """Return the array of most multipliers, the first among equal ones; tilings are made for it. Raise InternalError without
    any.
    """
    if not units:
        raise InternalError("an operator that no array can run")
    return max(units, key=lambda unit: unit.array.multipliers).array


def require_usable_units(chip: Chip) -> None:
    """Raise CompileError where programs can use no array or no DMA of the machine."""
    for kind, what in (("mac_array", "multiplies"), ("dma", "moves data")):
        if not chip.workers(kind):
            engines = dict.fromkeys(unit.engine for unit in chip.of_kind(kind))
            reasons = "; ".join(chip.unused[engine] for engine in engines)
            raise CompileError(f"{chip.name}: nothing that {what} can be used: {reasons}")
