"""What must hold between the sections of a chip: each broken rule is a path and a reason."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.bounds import SRAM_BYTES
from toolchain.hw.chip import Chip
from toolchain.hw.source import KeyPath
from toolchain.hw.units import write_bytes

Broken = tuple[KeyPath, str]

_LARGEST_SIDE = 1 << 14  # of the array: far above any that was built

# The scale forms each rounding is defined on (quant.fixed_point.requant refuses the rest).
_ROUNDINGS = {
    "multiplier": ("single_half_up", "double_round", "half_away", "half_even", "truncate", "floor", "scale16", "reduced16"),
    "pow2": ("pow2", "single_half_up", "half_away", "half_even", "truncate", "floor"),
    "float32": ("fp32_rne", "single_half_up", "half_away", "half_even", "truncate", "floor"),
}


def broken_rules(chip: Chip) -> list[Broken]:
    """Every rule that `chip` breaks, as (path of the value, reason)."""
    return [*_memories(chip), *_mac(chip), *_vector(chip), *_numerics(chip), *_sync(chip)]


def _memories(chip: Chip) -> Iterator[Broken]:
    for name in ("dram", "sram"):
        memory = getattr(chip.memories, name)
        if memory.size % memory.banks:
            yield ("memories", name, "banks"), f"{memory.banks} banks do not divide {memory.size} bytes evenly"
        if memory.size % memory.alignment_bytes:
            yield (
                ("memories", name, "alignment_bytes"),
                f"{memory.alignment_bytes} does not divide the memory's {memory.size} bytes",
            )
        if memory.burst_bytes & (memory.burst_bytes - 1):
            yield ("memories", name, "burst_bytes"), f"{memory.burst_bytes} is no power of two, as bursts of memories are"
    if chip.memories.sram.size > SRAM_BYTES:
        reason = f"{write_bytes(chip.memories.sram.size)} are more than the {write_bytes(SRAM_BYTES)} that the simulator holds"
        yield ("memories", "sram", "size"), reason
    if chip.memories.sram.alignment_bytes % chip.activation_bytes:
        yield (
            ("memories", "sram", "alignment_bytes"),
            f"{chip.memories.sram.alignment_bytes} splits the {chip.activation_bytes} bytes of an activation",
        )


def _mac(chip: Chip) -> Iterator[Broken]:
    mac, numerics = chip.engines.mac, chip.numerics
    pairs = [(t.activation, t.weight) for t in mac.types]
    if (numerics.activation, numerics.weight) not in pairs:
        wanted = f"{{activation: {numerics.activation}, weight: {numerics.weight}}}"
        yield ("engines", "mac", "types"), f"has no {wanted}, the types of numerics"
    for i, pair in enumerate(pairs):
        if pair in pairs[:i]:
            yield ("engines", "mac", "types", i), f"{pair[0]} by {pair[1]} is given twice"
    yield from _repeated(mac.post, ("engines", "mac", "post"))
    for key, size in (("rows", mac.rows), ("columns", mac.columns), ("depth", mac.depth)):
        if size > _LARGEST_SIDE:
            yield (
                ("engines", "mac", key),
                f"{size} is more than {_LARGEST_SIDE}, the largest side of an array that is planned for",
            )
    held = mac.rows * mac.columns if mac.dataflow == "os" else mac.columns
    if mac.accumulators.entries < held:
        reason = f"{mac.accumulators.entries} are fewer than the {held} of a {mac.rows} x {mac.columns} array ({mac.dataflow})"
        yield ("engines", "mac", "accumulators", "entries"), reason


def _vector(chip: Chip) -> Iterator[Broken]:
    yield from _repeated(chip.engines.vector.operations, ("engines", "vector", "operations"))


def _repeated(names: tuple[str, ...], path: KeyPath) -> Iterator[Broken]:
    for i, name in enumerate(names):
        if name in names[:i]:
            yield (*path, i), f"{name} is given twice"


def _numerics(chip: Chip) -> Iterator[Broken]:
    numerics, scale, table = chip.numerics, chip.numerics.scale, chip.numerics.table
    lowest = -31 if scale.kind == "pow2" else 0
    if scale.shift_min < lowest:
        yield ("numerics", "scale", "shift_min"), f"must be at least {lowest} for kind {scale.kind}, got {scale.shift_min}"
    if scale.shift_min > scale.shift_max:
        yield ("numerics", "scale", "shift_min"), f"{scale.shift_min} is above shift_max {scale.shift_max}"
    known = _ROUNDINGS[scale.kind]
    named = [(("numerics", "rounding"), numerics.rounding)]
    named += [(("numerics", "per_op", op), rule) for op, rule in numerics.per_op.items()]
    for path, rule in named:
        if rule not in known:
            yield path, f"{rule} is not defined for scale kind {scale.kind}; it has {', '.join(known)}"
        elif rule == "scale16" and scale.multiplier_bits > 15:
            yield ("numerics", "scale", "multiplier_bits"), f"{scale.multiplier_bits} bits; rounding scale16 takes at most 15"
        elif rule == "reduced16" and scale.shift_min < 17:
            yield ("numerics", "scale", "shift_min"), f"{scale.shift_min} is below 17, the least of rounding reduced16"
    if numerics.activation == "int16" and numerics.add_left_shift > 15:
        reason = f"{numerics.add_left_shift} bits on int16 codes overflow the 32 bits of a sum; give at most 15"
        yield ("numerics", "add_left_shift"), reason
    entries = 513 if numerics.activation == "int16" else 256
    if table.entries != entries:
        yield ("numerics", "table", "entries"), f"{numerics.activation} activations use {entries} entries, got {table.entries}"
    if table.entries == 256 and table.interpolation != "none":
        yield ("numerics", "table", "interpolation"), "256 entries hold every code; nothing is interpolated"
    if table.entries == 513 and table.interpolation == "none":
        yield ("numerics", "table", "interpolation"), "513 entries need a rule between them: tosa or tflite"


def _sync(chip: Chip) -> Iterator[Broken]:
    engines = ["mac", "vector", "a DMA channel"] if chip.engines.vector.operations else ["mac", "a DMA channel"]
    if chip.sync.semaphores < len(engines):
        yield (
            ("sync", "semaphores"),
            f"{chip.sync.semaphores} are fewer than the {len(engines)} with which {', '.join(engines)} can wait for one another",
        )
