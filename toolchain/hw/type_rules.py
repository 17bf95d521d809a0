"""Check the rules between a machine's types of codes, the arrays that multiply them, and the functions that convert
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from toolchain.hw.chip import Chip
from toolchain.hw.engines import MacArray, Vector, group_sizes
from toolchain.hw.yaml_source import KeyPath

Broken = tuple[KeyPath, str]


def broken_types(chip: Chip) -> Iterator[Broken]:
    """Yield (path of the key, reason) for each broken rule."""
    yield from _pairs(chip, {name: e for name, e in chip.engines.items() if isinstance(e, MacArray)})
    yield from _between_types(chip)
    yield from _wide(chip)
    yield from _functions(chip)


def pair_of(activation: str, weight: str) -> str:
    """Return a pair of types as a machine's file writes it."""
    return f"{{activation: {activation}, weight: {weight}}}"


def find_unused_types(chip: Chip) -> Iterator[Broken]:
    """Yield rules that all arrays together keep, but the arrays that programs use break. The chip must break no other
    rule.
    """
    used = {unit.engine: unit.array for unit in chip.workers("mac_array")}
    if used and len(used) < sum(isinstance(e, MacArray) for e in chip.engines.values()):
        unused = ", ".join(name for name in chip.unused if isinstance(chip.engines[name], MacArray))
        yield from ((path, f"{reason} (programs do not use {unused})") for path, reason in _pairs(chip, used))


def _pairs(chip: Chip, arrays: Mapping[str, MacArray]) -> Iterator[Broken]:
    """Yield types that no array multiplies, and abilities of arrays that do not take every pair that another takes."""
    all_pairs = product(chip.operand_types, chip.weight_types)
    supported_pairs = [pair for pair in all_pairs if any(mac.rate_of(*pair) is not None for mac in arrays.values())]
    first = chip.code_types[0], chip.weight_types[0]
    if not supported_pairs:
        return  # said already
    if first not in supported_pairs and not first[0].is_wide:
        yield (
            ("engines", next(iter(arrays)), "types"),
            f"has no {pair_of(*first)}, the first types of numerics, nor has another array",
        )
    for i, weight in enumerate(chip.weight_types[1:]):
        if not any(weight == w for _, w in supported_pairs):
            yield ("numerics", "more_weights", i), f"{weight}: {chip.key('mac_array')}.types has no pair with it"
    for i, codes in enumerate(chip.code_types[1:]):
        if not codes.is_wide and not any(codes == a for a, _ in supported_pairs) and "rescale" not in chip.functions:
            reason = f"{codes}: {chip.key('mac_array')}.types has no pair with it, and {chip.key('vector')}.functions no rescale"
            yield ("numerics", "more_activations", i), f"{reason} that would make what arrays take of it"
    subsets = [("depthwise", "", [e for e in arrays.values() if e.depthwise != "none"])]
    for size in group_sizes(chip.engines):
        subsets.append(("groups", f" of {size}", [e for e in arrays.values() if e.groups is not None and size in e.groups.sizes]))
    for key, which, capable_arrays in subsets:
        missing_pairs = [pair for pair in supported_pairs if not any(mac.rate_of(*pair) is not None for mac in capable_arrays)]
        if capable_arrays and missing_pairs:
            name = next(n for n, e in arrays.items() if e is capable_arrays[0])
            yield ("engines", name, key), f"no array that has {key}{which} takes {pair_of(*missing_pairs[0])}, which another does"


def _functions(chip: Chip) -> Iterator[Broken]:
    """Yield functions that no program could use."""
    if not chip.numerics_keys.symmetric_activations or any(codes.bits > 8 for codes in chip.operand_types):
        return
    for name, engine in chip.engines.items():
        if isinstance(engine, Vector) and "softmax" in engine.functions:
            reason = (
                "no program can use it: a softmax of 8 bits has the least code for 0, and numerics.symmetric_activations is true"
            )
            yield ("engines", name, "functions", "softmax"), f"{reason}; leave it out, or have int16 activations"


def _between_types(chip: Chip) -> Iterator[Broken]:
    """Yield a fault where no scale is large enough to bring codes of few bits to those of many over the same range."""
    scale = chip.numerics_keys.scale
    if not (-31 if scale.kind == "pow2" else 0) <= scale.shift_min <= scale.shift_max:
        return  # said already
    narrowest, widest = (choose(chip.code_types, key=lambda t: t.bits) for choose in (min, max))
    least = -(-((1 << widest.bits - 1) - 1) // ((1 << narrowest.bits - 1) - 1))
    largest = scale.form.extremes[1]
    if widest.bits > narrowest.bits and largest < least:
        limit_text = f"the largest scale, by multiplier_bits and shift_min, is {largest:.0f}"
        yield ("numerics", "scale"), f"{limit_text}; {narrowest} codes become {widest} (more_activations) by up to {least}"


def _wide(chip: Chip) -> Iterator[Broken]:
    """Check what wide codes need: rescaling from and to narrower codes, and products of all their bits."""
    numerics = chip.numerics_keys
    rules = [(("numerics", "rounding"), numerics.rounding)]
    rules += [(("numerics", "per_op", op), rule) for op, rule in numerics.per_op.items()]
    for i, codes in enumerate(chip.code_types):
        if not codes.is_wide:
            continue
        path: KeyPath = ("numerics", "more_activations", i - 1)
        if "rescale" not in chip.functions:
            yield path, f"{codes} is rescaled to and from other types, and {chip.key('vector')}.functions has no rescale"
        for key, rule in rules:
            if rule == "fp32_rne":
                yield key, f"fp32_rne keeps 24 bits of a code; {codes} has {codes.bits} (numerics.more_activations)"
