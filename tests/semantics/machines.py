"""Machines on which meaning shows: a shipped one, and its copy whose codes are so fine that only a wrong meaning is loud."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from toolchain.hw import read_source
from toolchain.hw.chip import Chip
from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.isa import Machine, load_machine
from toolchain.isa.default_table import make_default_table
from toolchain.isa.encoding import Isa
from toolchain.isa.machine import read_table


@cache
def int8_machine() -> Machine:
    """edge16, but rounding once: asymmetric int8, weights per channel, tables and sums behind the array."""
    return _like_edge16("edge16_rounding_once", {"rounding": "single_half_up"})


@cache
def int16_machine(*, softmax: bool = True) -> Machine:
    """The same with int16 activations: asymmetric too, and interpolated tables. softmax: with the unit, whose outputs are in
    steps of 2**-15 however small they are."""
    table = {"entries": 513, "interpolation": "tosa"}
    numerics = {"activation": "int16", "rounding": "single_half_up", "table": table, "add_left_shift": 14}
    mac = {"types": [{"activation": "int16", "weight": "int8"}], "accumulators": {"bits": 48, "entries": 4096}}
    return _like_edge16("edge16_a16", numerics, mac, softmax)


@cache
def int4_machine() -> Machine:
    """int8_machine with int4 weights."""
    mac = {"types": [{"activation": "int8", "weight": "int4"}]}
    return _like_edge16("edge16_w4", {"weight": "int4", "rounding": "single_half_up"}, mac)


def _like_edge16(
    name: str, numerics: Mapping[str, object], mac: Mapping[str, object] = MappingProxyType({}), softmax: bool = True
) -> Machine:
    base = load_machine("edge16")
    data = json.loads(base.chip.model_dump_json())
    data["name"] = name
    data["engines"]["vector"]["functions"] |= {"softmax": {"lanes": 4}} if softmax else {}
    data["numerics"].update(numerics)
    data["engines"]["mac"].update(mac)
    data["control"] = {"bases": 4, "indirect": {}}
    data["limits"]["decompose"] = []
    return _machine(base, data)


def _machine(base: Machine, data: Mapping[str, object]) -> Machine:
    chip = Chip.model_validate_json(json.dumps(data))
    broken = find_broken_rules(chip)
    if broken:
        raise ValueError("; ".join(f"{'.'.join(map(str, path))}: {reason}" for path, reason in broken))
    fields, faults = read_table(read_source(make_default_table(chip, "descriptors"), f"{chip.name}.yaml"))
    assert fields is not None, faults
    return replace(base, chip=chip, isa=Isa(fields))


@cache
def make_mixed_machine(*wide: str) -> Machine:
    """All of these: int8 where nothing is asked for, activations of int16 and weights of int4 where they are. What it shares
    with each of them is theirs. wide: int32, where it has this too."""
    table = {"entries": 256, "interpolation": "tosa"}
    numerics = {"rounding": "single_half_up", "table": table, "add_left_shift": 14}
    numerics |= {"more_activations": ["int16", *wide], "more_weights": ["int4"]}
    types = [{"activation": a, "weight": w} for a in ("int8", "int16") for w in ("int8", "int4")]
    mac = {"types": types, "accumulators": {"bits": 48, "entries": 4096}}
    return _like_edge16("_".join(("edge16_mixed", *wide)), numerics, mac)


@cache
def make_paired_machine(*arrays: tuple[tuple[str, str], ...], rescale: bool = True) -> Machine:
    """mixed_machine with these arrays, each of which takes these pairs of activations and weights. rescale: whether its vector
    engine can."""
    base = make_mixed_machine()
    data = json.loads(base.chip.model_dump_json())
    mac = data["engines"].pop("mac")
    for i, pairs in enumerate(arrays):
        data["engines"][f"mac{i}"] = {**mac, "types": [{"activation": a, "weight": w} for a, w in pairs]}
    if not rescale:
        del data["engines"]["vector"]["functions"]["rescale"]
    return _machine(base, data)


@cache
def make_unsigned_machine(*more: str) -> Machine:
    """int8_machine with uint8 activations where nothing is asked for, and those of `more` where they are."""
    numerics = {"activation": "uint8", "more_activations": [*more], "rounding": "single_half_up", "add_left_shift": 14}
    types = [{"activation": a, "weight": "int8"} for a in ("uint8", *more) if a != "int32"]
    mac = {"types": types, "accumulators": {"bits": 48, "entries": 4096}}
    return _like_edge16("_".join(("edge16_unsigned", *more)), numerics, mac)


@cache
def make_power_of_two_machine(*more: str) -> Machine:
    """edge16 with scales that are powers of two, int8 where nothing is asked for, and activations of `more` where they are."""
    scale = {"kind": "pow2", "multiplier_bits": 1, "shift_min": -31, "shift_max": 62}
    numerics = {"rounding": "single_half_up", "add_left_shift": 14, "scale": scale, "more_activations": [*more]}
    numerics |= {"table": {"entries": 256, "interpolation": "tosa"}} if "int16" in more else {}
    types = [{"activation": a, "weight": "int8"} for a in ("int8", *more) if a != "int32"]
    mac = {"types": types, "accumulators": {"bits": 48, "entries": 4096}}
    return _like_edge16("_".join(("edge16_pow2", *more)), numerics, mac, softmax=False)
