"""Check the rules for arrays that take weights in groups."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.hw.chip import Chip
from toolchain.hw.engines import WeightGroups, get_grouped_arrays, group_sizes
from toolchain.hw.yaml_source import KeyPath

_LEAST_MINIMUM = 8  # bits: of a scale of 4 bits, a minimum of as many whole steps each way and 4 bits of fractions


def broken_groups(chip: Chip) -> Iterator[tuple[KeyPath, str]]:
    """Every rule that is broken, as (path of the value, reason)."""
    grouped = get_grouped_arrays(chip.engines)
    for name, groups in grouped.items():
        path: KeyPath = ("engines", name, "groups")
        yield from ((path + key, reason) for key, reason in _alone(groups, chip.limits.convolution.max_input_channels))
        first, other = next(iter(grouped.items()))
        for key in ("scale_bits", "minimum_bits", "layout"):
            value, its = getattr(groups, key), getattr(other, key)
            if value != its:
                reason = f"{value}, and those of {first} have {its}: weights must not depend on the array that reads them"
                yield (*path, key), reason


def _alone(groups: WeightGroups, most: int | None) -> Iterator[tuple[KeyPath, str]]:
    for i, size in enumerate(groups.sizes):
        if size in groups.sizes[:i]:
            yield ("sizes", i), f"{size} is given twice"
        if most is not None and size > most:
            reason = f"{size} are more than limits.convolution.max_input_channels={most}: an operation has whole groups"
            yield ("sizes", i), reason
    if 0 < groups.minimum_bits < _LEAST_MINIMUM:
        yield ("minimum_bits",), f"{groups.minimum_bits} are too few for a minimum: {_LEAST_MINIMUM} to 16, or 0 for none"


def find_unused_groups(chip: Chip) -> Iterator[tuple[KeyPath, str]]:
    """Yield groups that only arrays have which programs do not use; the chip breaks no other rule."""
    group_size = chip.numerics_keys.weight_group
    if group_size not in (0, *group_sizes(chip.used_arrays)):
        having = [name for name, groups in get_grouped_arrays(chip.engines).items() if group_size in groups.sizes]
        yield ("numerics", "weight_group"), f"{group_size}, and no program uses {', '.join(having)}: {chip.unused[having[0]]}"
