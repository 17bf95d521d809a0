"""Finds faults of a parameters file whose form is right: names that the model lacks, and values that the machine cannot express.

`quant.file.read` collects them into one ConfigError.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from quant.file.parameters import of_type
from quant.file.schema import Entry, File, Weights
from quant.fixed_point.core.numerics import Numerics
from quant.parameters import SMALLEST_SCALE
from quant.suggestion import suggestion
from toolchain.hw import Source

_LARGEST = float(np.finfo(np.float32).max)
_OTHER_SCALE = "give one that fits the data, or low and high"


def name_faults(source: Source, tensors: Collection[str], allowed: Collection[str], source_names: Mapping[str, str]) -> list[str]:
    """Return the faults of the tensor names in a file, each a line with its place; empty where there are none.

    `source`: the file as read, with its line numbers.
    `tensors`: tensors that must have an entry.
    `allowed`: tensors that may have one.
    `source_names`: by tensor, another name that an entry may have instead, which messages use.
    """
    entries = source.data["tensors"]
    missing = list(dict.fromkeys(source_names.get(n, n) for n in tensors if {n, source_names.get(n, n)}.isdisjoint(entries)))
    unknown = list[str]()
    for name in entries:
        if name not in allowed and name not in source_names.values():
            near = suggestion(name, missing or sorted({source_names.get(n, n) for n in allowed}))
            reason = f"the model has no such tensor{near}; mend or remove its entry"
            unknown.append(source.fault(("tensors", name), reason, at_key=True))
    absent = [
        source.fault(("tensors",), f"tensor {name!r} of the model has no entry; add it, or calibrate again", at_key=True)
        for name in missing
    ]
    return unknown + absent


def layer_faults(file: File, source: Source, layers: Collection[str]) -> list[str]:
    """Return the faults of the section `weights`: unknown layers, and layers whose codes the repair gives with their own scales.

    `file`: the readable part of the source.
    `layers`: layers that have weights.
    """
    faults: list[str] = []
    chosen = {} if file.repair is None else file.repair.layers
    for name in source.data["weights"]:
        layer_entry = file.weights.get(name)
        if name not in layers:
            reason = f"the machine has no such layer with weights{suggestion(name, layers)}; mend or remove its entry"
        elif layer_entry is not None and layer_entry.scales is not None and name in chosen and chosen[name].weights:
            reason = "repair.layers has codes of its weights, with their scales; remove one of the two"
        else:
            continue
        faults.append(source.fault(("weights", name), reason, at_key=True))
    return faults


def weight_faults(entry: Weights, numerics: Numerics) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for each value of a layer's entry that the machine does not have."""
    weight_types, wide = numerics.weight_types, numerics.wide_weights
    if entry.type is not None and entry.type not in (*weight_types, *wide):
        besides = f", and {', '.join(wide)} in two planes" if wide else ""
        yield "type", f"{entry.type} where the machine has {', '.join(weight_types)} weights{besides}; give one of these"
    if entry.scales == "channel" and not numerics.weights_per_channel:
        yield "scales", "the machine has one scale for all weights of a layer (numerics.weights_per_channel); use tensor"
    sizes = () if numerics.groups is None else numerics.groups.sizes
    if isinstance(entry.scales, int) and entry.scales not in sizes:
        weight_types = f"use {', '.join(map(str, sizes))}, channel or tensor" if sizes else "use channel or tensor"
        yield "scales", f"the machine has no groups of {entry.scales} weights (engines.mac.groups); {weight_types}"


def machine_faults(entry: Entry, numerics: Numerics) -> list[tuple[str, str]]:
    """Return (key, reason) for each value of a tensor's entry that the machine cannot express; empty where there is none."""
    ends = (("low", entry.low), ("high", entry.high))
    faults = [(key, f"{end!r} is beyond float32") for key, end in ends if end is not None and abs(end) > _LARGEST]
    if entry.type is not None and entry.type not in numerics.types:
        return [
            *faults,
            ("type", f"{entry.type} where the machine has {', '.join(numerics.types)} activations; give one of these"),
        ]
    if entry.scale is None or entry.zero_point is None:
        return faults
    if entry.type is not None and entry.type.is_wide:
        return [*faults, ("scale", f"is not given for {entry.type}, of which narrower codes hold the range; give low and high")]
    numerics = of_type(entry.type, numerics)
    low, high = numerics.activation.limits
    if entry.scale < SMALLEST_SCALE:
        faults.append(("scale", f"{entry.scale!r} is below the smallest, 2^-40 ({SMALLEST_SCALE:.2g}); {_OTHER_SCALE}"))
    elif entry.scale * (high - low) > _LARGEST:
        faults.append(("scale", f"{entry.scale!r} spreads the codes beyond float32; {_OTHER_SCALE}"))
    elif numerics.scale.kind == "pow2" and not _is_power_of_two(entry.scale):
        below, above = _neighbours(entry.scale)
        faults.append(
            ("scale", f"{entry.scale!r} is no power of two, and the machine has no others (numerics.scale.kind); "
             f"use {below!r} or {above!r}, or give low and high")
        )  # fmt: skip
    if numerics.symmetric_activations and entry.zero_point != 0:
        faults.append(
            (
                "zero_point",
                f"{entry.zero_point} where the machine has none (numerics.symmetric_activations); use 0, or give low and high",
            )
        )
    elif not low <= entry.zero_point <= high:
        faults.append(("zero_point", f"{entry.zero_point} is no {numerics.activation} code; use {low} to {high}"))
    return faults


def _is_power_of_two(value: float) -> bool:
    """Return whether a positive number is a power of two."""
    return math.frexp(value)[0] == 0.5


def _neighbours(value: float) -> tuple[float, float]:
    """Return the powers of two below and above."""
    exponent = math.frexp(value)[1]
    return 2.0 ** (exponent - 1), 2.0**exponent
