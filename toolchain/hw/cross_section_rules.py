"""Check the rules between the sections of a chip. Each broken rule is (path of the key, reason).

Pydantic has checked each key by itself before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import lcm

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.accumulators import broken_accumulators
from toolchain.hw.chip import Chip
from toolchain.hw.engines import Dma, Engine, MacArray, Memory, WeightGroups, get_grouped_arrays, group_sizes
from toolchain.hw.section import MOST_UNITS, write_bytes
from toolchain.hw.type_rules import Broken, broken_types, find_unused_types, pair_of
from toolchain.hw.unit_map import SUMS, operand_memories, unit_names
from toolchain.hw.validation import suggest
from toolchain.hw.yaml_source import KeyPath
from toolchain.input_limits import SRAM_BYTES

_LEAST_MINIMUM = 8  # bits: of a scale of 4 bits, a minimum of as many whole steps each way and 4 bits of fractions
MOST_SPACES = 16  # of Space in toolchain.machine.parameters.spaces
_WIDEST_ROW = 1 << 14  # bytes of all banks side by side
_LARGEST_SIDE = 1 << 14  # of the array: far above any that was built

# The scale forms each rounding is defined on (quant.fixed_point.core.requant refuses the rest).
ROUNDINGS = {
    "multiplier": ("single_half_up", "double_round", "half_away", "half_even", "truncate", "floor", "scale16", "reduced16"),
    "pow2": ("pow2", "single_half_up", "half_away", "half_even", "truncate", "floor"),
    "float32": ("fp32_rne", "single_half_up", "half_away", "half_even", "truncate", "floor"),
}


def find_broken_rules(chip: Chip) -> list[Broken]:
    """Return every rule that the chip breaks, as (path of the key, reason); empty where it is sound.

    Some rules are checked only where the rules before them hold.
    """
    maps = [*_maps(chip), *_units(chip)]
    broken_rules = [*_memories(chip), *_arrays(chip), *broken_accumulators(chip), *broken_groups(chip)]
    broken_rules += [*_numerics(chip), *_control(chip), *broken_layout(chip)]
    broken_rules += [] if maps else [*broken_types(chip), *_headroom(chip), *_sync(chip)]  # of units, whose memories are there
    return [*maps, *broken_rules] or [*find_unused_groups(chip), *find_unused_types(chip)] or [*narrow_scales(chip)]


def _control(chip: Chip) -> Iterator[Broken]:
    """Yield faults of base registers."""
    control = chip.control
    if control.host_bases > control.bases:
        yield ("control", "host_bases"), f"{control.host_bases} are more than the machine's control.bases={control.bases}"
    if control.operand_bases and not control.bases:
        yield ("control", "operand_bases"), "adds base registers to addresses, and control.bases is 0"
    if control.indirect is not None and not control.bases:
        yield ("control", "indirect"), "reads base registers from memory, and control.bases is 0"


def _memories(chip: Chip) -> Iterator[Broken]:
    """Yield faults of sizes, banks, bursts and alignments."""
    for name, memory in chip.memories.items():
        if memory.size % memory.banks:
            yield ("memories", name, "banks"), f"{memory.banks} banks do not divide {memory.size} bytes evenly"
        yield from _banks(name, memory)
        if memory.size % memory.alignment_bytes:
            yield (
                ("memories", name, "alignment_bytes"),
                f"{memory.alignment_bytes} does not divide the memory's {memory.size} bytes",
            )
        if memory.burst_bytes & (memory.burst_bytes - 1):
            yield ("memories", name, "burst_bytes"), f"{memory.burst_bytes} is no power of two, as bursts of memories are"
        if name != "dram" and memory.size > SRAM_BYTES:
            reason = f"{write_bytes(memory.size)} are more than the {write_bytes(SRAM_BYTES)} that the simulator holds"
            yield ("memories", name, "size"), reason
        item_bytes = max(codes.size_bytes for codes in chip.code_types)
        if name != "dram" and memory.alignment_bytes % item_bytes:
            yield (
                ("memories", name, "alignment_bytes"),
                f"{memory.alignment_bytes} splits the {item_bytes} bytes of an activation",
            )


def _banks(name: str, memory: Memory) -> Iterator[Broken]:
    """Check a memory whose words lie in banks."""
    if memory.bank_bytes is None or memory.size % memory.banks:
        return
    path, row = ("memories", name, "bank_bytes"), memory.banks * memory.bank_bytes
    description = f"{memory.banks} bank{'s' if memory.banks > 1 else ''} of {memory.bank_bytes} bytes"
    bytes_per_cycle = row / memory.bank_cycles
    required_bytes_per_cycle = max(memory.read_bytes_per_cycle, memory.write_bytes_per_cycle)
    if bytes_per_cycle < required_bytes_per_cycle:
        each = "" if memory.bank_cycles == 1 else f", each busy for {memory.bank_cycles:g} cycles with a word,"
        yield path, f"{description}{each} give {bytes_per_cycle:g} bytes a cycle, and a port {required_bytes_per_cycle:g}"
    if row > _WIDEST_ROW:
        yield path, f"{description} are {row} bytes side by side, more than {_WIDEST_ROW}, the widest memory that is planned for"
    elif memory.size % row:
        yield path, f"{description} do not divide the memory's {memory.size} bytes"


def _maps(chip: Chip) -> Iterator[Broken]:
    """Yield faults of the maps of memories and engines: what every machine must have, and names of one in the other."""
    for name in ("dram", "sram"):
        if name not in chip.memories:
            yield ("memories", name), "is missing"
    for kind, what in (("mac_array", "multiplies"), ("dma", "moves data")):
        if not any(e.kind == kind for e in chip.engines.values()):
            yield ("engines",), f"has no engine of kind {kind}: nothing {what}"
    for name, memory in chip.memories.items():
        owner = chip.engines.get(memory.private_to or "")
        if memory.private_to is not None and (owner is None or owner.kind == "dma"):
            candidates = [n for n, e in chip.engines.items() if e.kind != "dma"]
            yield (
                ("memories", name, "private_to"),
                f"no array or vector engine {memory.private_to!r}{suggest(memory.private_to, candidates)}",
            )
        elif memory.private_to is not None and name in ("dram", "sram"):
            yield ("memories", name, "private_to"), f"{name} is shared by all engines"
    for name, engine in chip.engines.items():
        for path, memory_name in _list_engine_memories(name, engine):
            memory = chip.memories.get(memory_name)
            if memory is None and memory_name in ("dram", "sram"):
                continue  # said above
            if memory is None:
                yield path, f"no memory {memory_name!r}{suggest(memory_name, chip.memories)}"
            elif memory.private_to not in (None, name) and not isinstance(engine, Dma):
                yield path, f"{memory_name} is private to {memory.private_to}"
            elif memory_name == "dram" and not isinstance(engine, Dma):
                yield path, "dram is reached by DMA only; name an on-chip memory"
    program = chip.isa.program_memory
    if program != "own" and program not in chip.memories:
        candidates = [*chip.memories, "own"]
        yield (
            ("isa", "program_memory"),
            f"no memory {program!r}{suggest(program, candidates)}; own is one that nothing else reads",
        )
    elif program != "own" and chip.memories[program].private_to is not None:
        yield ("isa", "program_memory"), f"{program} is private to {chip.memories[program].private_to}"
    names = [n for name, e in chip.engines.items() for n in unit_names(name, e)]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield ("engines",), f"two units would be named {name}; rename an engine"


def _list_engine_memories(name: str, engine: Engine) -> Iterator[tuple[KeyPath, str]]:
    """Yield (path, name) of every memory that an engine names."""
    if isinstance(engine, Dma):
        yield from ((("engines", name, "memories", i), memory) for i, memory in enumerate(engine.memories or ()))
        return
    for role, memory in operand_memories(engine).items():
        is_accumulator_memory = role == SUMS and isinstance(engine, MacArray)
        yield (
            ("engines", name, "accumulators", "memory") if is_accumulator_memory else ("engines", name, "memories", role),
            memory,
        )


def _arrays(chip: Chip) -> Iterator[Broken]:
    """Yield faults of arrays: types, epilogue steps, sizes, dataflows, accumulators."""
    arrays = [(name, e) for name, e in chip.engines.items() if isinstance(e, MacArray)]
    for name, mac in arrays:
        path: KeyPath = ("engines", name)
        pairs = [(t.activation, t.weight) for t in mac.types]
        if not any(mac.rate_of(*pair) is not None for pair in product(chip.operand_types, chip.weight_types)):
            yield (*path, "types"), f"has no {pair_of(chip.code_types[0], chip.weight_types[0])}, the types of numerics"
        for i, pair in enumerate(pairs):
            if pair in pairs[:i]:
                yield (*path, "types", i), f"{pair[0]} by {pair[1]} is given twice"
        for i, post in enumerate(mac.post):
            if post in mac.post[:i]:
                yield (*path, "post", i), f"{post} is given twice"
        for key, size in (("rows", mac.rows), ("columns", mac.columns), ("depth", mac.depth)):
            if size > _LARGEST_SIDE:
                yield (*path, key), f"{size} is more than {_LARGEST_SIDE}, the largest side of an array that is planned for"
        yield from (((*path, *key), reason) for key, reason in _more_than_one(mac))
        needed_entries = mac.rows * mac.columns if "os" in mac.dataflows else mac.columns
        if mac.accumulators.entries < needed_entries:
            flows = ", ".join(mac.dataflows)
            reason = (
                f"{mac.accumulators.entries} are fewer than the {needed_entries} of a {mac.rows} x {mac.columns} array ({flows})"
            )
            yield (*path, "accumulators", "entries"), reason
        first, bits = arrays[0][0], arrays[0][1].accumulators.bits
        if mac.accumulators.bits != bits:
            reason = (
                f"{mac.accumulators.bits}, and those of {first} have {bits}: a sum must not depend on the array that makes it"
            )
            yield (*path, "accumulators", "bits"), reason


def _more_than_one(mac: MacArray) -> Iterator[Broken]:
    """Check what an operation may choose beside the first dataflow and the first depthwise mode."""
    for i, flow in enumerate(mac.more_dataflows):
        if flow in mac.dataflows[: i + 1]:
            yield ("more_dataflows", i), f"{flow} is given twice"
    for i, mode in enumerate(mac.more_depthwise):
        if mac.depthwise == "none":
            yield ("more_depthwise", i), f"{mode} beside none: name the first mode in depthwise"
        elif mode in mac.depthwise_modes[: i + 1]:
            yield ("more_depthwise", i), f"{mode} is given twice"


def _copies(owner: str | None, chip: Chip) -> int:
    """Return how many memories one entry is: one for each unit of its owner."""
    engine = chip.engines.get(owner or "")
    return 1 if engine is None else len(unit_names(owner or "", engine))


def _units(chip: Chip) -> Iterator[Broken]:
    """Yield a fault where there are more memories or units than numbers for them."""
    counted = sum(len(unit_names(name, e)) for name, e in chip.engines.items())
    spaces = sum(_copies(memory.private_to, chip) for memory in chip.memories.values())
    if spaces > MOST_SPACES:
        yield (
            ("memories",),
            f"{spaces} address spaces (private ones of each unit together) are more than the {MOST_SPACES} there are codes for",
        )
    if counted > MOST_UNITS:
        yield ("engines",), f"{counted} units (counts and channels together) are more than the {MOST_UNITS} that are planned for"


def _numerics(chip: Chip) -> Iterator[Broken]:
    """Yield faults of scales, rounding, types, zero points and tables."""
    numerics = chip.numerics_keys
    scale, table, activation = numerics.scale, numerics.table, CodeType(numerics.activation)
    lowest = -31 if scale.kind == "pow2" else 0
    if scale.shift_min < lowest:
        yield ("numerics", "scale", "shift_min"), f"must be at least {lowest} for kind {scale.kind}, got {scale.shift_min}"
    if scale.shift_min > scale.shift_max:
        yield ("numerics", "scale", "shift_min"), f"{scale.shift_min} is above shift_max {scale.shift_max}"
    choices = ROUNDINGS[scale.kind]
    named = [(("numerics", "rounding"), numerics.rounding)]
    named += [(("numerics", "per_op", op), rule) for op, rule in numerics.per_op.items()]
    for path, rule in named:
        if rule not in choices:
            yield path, f"{rule} is not defined for scale kind {scale.kind}; it has {', '.join(choices)}"
        elif rule == "scale16" and scale.multiplier_bits > 15:
            yield ("numerics", "scale", "multiplier_bits"), f"{scale.multiplier_bits} bits; rounding scale16 takes at most 15"
        elif rule == "reduced16" and scale.shift_min < 17:
            yield ("numerics", "scale", "shift_min"), f"{scale.shift_min} is below 17, the least of rounding reduced16"
    sizes = group_sizes(chip.engines)
    if numerics.weight_group not in (0, *sizes):
        choices = f"sizes are {', '.join(map(str, sizes))}" if sizes else "are not given"
        reason = f"{numerics.weight_group} weights share a scale, and {chip.key('mac_array')}.groups {choices}"
        yield ("numerics", "weight_group"), reason
    types = chip.code_types
    for key, choices in (("more_activations", types), ("more_weights", chip.weight_types)):
        for i, codes in enumerate(choices[1:]):
            if codes in choices[: i + 1]:
                yield ("numerics", key, i), f"{codes} is given twice"
    unsigned = [codes for codes in types if codes.low == 0]
    if unsigned and numerics.symmetric_activations:
        reason = f"zero points of 0 leave {unsigned[0]} no code for a negative number; leave it false, or have signed activations"
        yield ("numerics", "symmetric_activations"), reason
    most = 31 - activation.bits
    if numerics.add_left_shift > most:
        reason = f"{numerics.add_left_shift} bits on {activation} codes overflow the 32 bits of a sum; give at most {most}"
        yield ("numerics", "add_left_shift"), reason
    if table.entries != activation.table_entries:
        reason = f"{activation} activations use {activation.table_entries} entries, got {table.entries}"
        yield ("numerics", "table", "entries"), reason
    interpolated = next((codes for codes in types if codes.interpolates), None)
    if not interpolated and table.entries == 256 and table.interpolation != "none":
        yield ("numerics", "table", "interpolation"), "256 entries hold every code; nothing is interpolated"
    if interpolated and table.interpolation == "none":
        reason = f"tables of {interpolated} activations have {interpolated.table_entries} entries, which need a rule between them"
        yield ("numerics", "table", "interpolation"), f"{reason}: tosa or tflite"


def _headroom(chip: Chip) -> Iterator[Broken]:
    """Check the headroom of a sum against the machine's scales.

    Operands that use their range leave the sum by a scale of 2**-headroom, which the machine has to have.
    """
    scale, post_steps = chip.numerics_keys.scale, (unit.array.post for unit in chip.of_kind("mac_array"))
    sums = chip.functions & {"add", "sub"} or any("add" in post for post in post_steps)
    bits = min(chip.numerics_keys.add_left_shift, 31 - min(codes.bits for codes in chip.code_types))
    if sums and scale.kind != "float32" and bits > scale.shift_max >= scale.shift_min:
        yield (
            ("numerics", "add_left_shift"),
            f"{bits} bits of headroom leave a sum by scales of 2**-{bits}, and shift_max {scale.shift_max} gives none below "
            f"2**-{scale.shift_max}; give at most {scale.shift_max}, or raise scale.shift_max to {bits} or more",
        )


def _sync(chip: Chip) -> Iterator[Broken]:
    """Yield a fault where there are too few semaphores for all engines to wait for one another."""
    idle = () if chip.functions else chip.of_kind("vector")
    engines = [u.name for u in chip.units if u.kind != "dma" and u not in idle] + ["a DMA channel"]
    if chip.sync.semaphores < len(engines):
        yield (
            ("sync", "semaphores"),
            f"{chip.sync.semaphores} are fewer than the {len(engines)} with which {', '.join(engines)} can wait for one another",
        )


def broken_groups(chip: Chip) -> Iterator[tuple[KeyPath, str]]:
    """Yield (path of the key, reason) for each broken rule about groups of weights."""
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
    """Yield (key, reason) for faults of one array's weight groups. `most`: limit of input channels, None: none."""
    for i, size in enumerate(groups.sizes):
        if size in groups.sizes[:i]:
            yield ("sizes", i), f"{size} is given twice"
        if most is not None and size > most:
            reason = f"{size} are more than limits.convolution.max_input_channels={most}: an operation has whole groups"
            yield ("sizes", i), reason
    if 0 < groups.minimum_bits < _LEAST_MINIMUM:
        yield ("minimum_bits",), f"{groups.minimum_bits} are too few for a minimum: {_LEAST_MINIMUM} to 16, or 0 for none"


def find_unused_groups(chip: Chip) -> Iterator[tuple[KeyPath, str]]:
    """Yield a fault where only arrays that programs do not use have the machine's group size. The chip must break no
    other rule.
    """
    group_size = chip.numerics_keys.weight_group
    if group_size not in (0, *group_sizes(chip.used_arrays)):
        having = [name for name, groups in get_grouped_arrays(chip.engines).items() if group_size in groups.sizes]
        yield ("numerics", "weight_group"), f"{group_size}, and no program uses {', '.join(having)}: {chip.unused[having[0]]}"


def broken_layout(chip: Chip) -> Iterator[tuple[KeyPath, str]]:
    """Yield (path of the key, reason) for each broken rule about the section layout."""
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
    """Yield a fault for each field of the parameter entry that the machine's scales do not fit. The chip must break no
    other rule.
    """
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
