"""Check the rules for where codes and constants lie."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from toolchain.hw.chip import Chip
from toolchain.hw.engines import MacArray, get_grouped_arrays, group_sizes
from toolchain.hw.yaml_source import KeyPath


def broken_layout(chip: Chip) -> Iterator[tuple[KeyPath, str]]:
    """Every rule that is broken, as (path of the value, reason)."""
    entry = chip.layout.parameters
    bits = {name: e.accumulators.bits for name, e in chip.engines.items() if isinstance(e, MacArray)}
    widest = max(bits, key=lambda name: bits[name], default="")
    if widest and entry.bias_bits < bits[widest]:
        reason = f"{entry.bias_bits} bits; a bias may take the {bits[widest]} of engines.{widest}.accumulators.bits"
        yield ("layout", "parameters", "bias_bits"), reason
    grouped = next(iter(get_grouped_arrays(chip.engines)), None)
    if chip.layout.weight_tile is not None and grouped is not None:
        reason = f"weights in groups lie as engines.{grouped}.groups.layout says; leave out one of the two"
        yield ("layout", "weight_tile"), reason
    yield from ((("layout", "feature_maps", "granule"), reason) for reason in _uncut_granules(chip))


def _uncut_granules(chip: Chip) -> Iterator[str]:
    """Check that one instruction takes whole granules of channels, and of the reduction whole groups of weights too."""
    maps = chip.layout.feature_maps
    if maps is None:
        return
    for section in ("convolution", "depthwise"):
        limits = getattr(chip.limits, section)
        for key, groups in (("max_input_channels", group_sizes(chip.engines)), ("max_output_channels", ())):
            least, most = lcm(maps.granule, *groups), getattr(limits, key, None)
            if most is not None and most < least:
                in_groups = f" in groups of {', '.join(map(str, groups))} (engines.*.groups.sizes)" if groups else ""
                yield f"{maps.granule} channels{in_groups}; limits.{section}.{key} is {most}, at least {least} are needed"
    for name, engine in chip.engines.items():
        if isinstance(engine, MacArray) and engine.accumulators.entries < maps.granule:
            yield f"{maps.granule} channels; engines.{name}.accumulators.entries is {engine.accumulators.entries}"


def narrow_scales(chip: Chip) -> Iterator[tuple[KeyPath, str]]:
    """Yield the fields that a chip's scales do not fit; the chip breaks no other rule."""
    entry, scale = chip.layout.parameters, chip.numerics.scale
    path: KeyPath = ("layout", "parameters")
    if scale.kind != "pow2" and entry.multiplier_bits < scale.word_bits:
        reason = f"{entry.multiplier_bits} bits; a multiplier has {scale.word_bits} (numerics.scale)"
        yield (*path, "multiplier_bits"), reason
    low, high = scale.shifts
    required_bits = max(high.bit_length(), (-low - 1).bit_length()) + 1 if low < 0 else high.bit_length()
    if entry.shift_bits < required_bits:
        reason = f"{entry.shift_bits} bits; shifts from {low} to {high} (numerics.scale) take {required_bits}"
        yield (*path, "shift_bits"), reason
