"""What values a chip's programs use in each parameter: an instruction table must hold them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw import Chip, ConvolutionLimits, KeyPath, PoolLimits
from toolchain.isa.operations import OPERATIONS, ElementwiseKind, PoolKind, Space, untold
from toolchain.isa.plan import Isa, OperationPlan

# A window's parameter that the chip's limits leave open is at most this.
OPEN_LIMIT = (1 << 16) - 1
_FEW = 3  # so many fields that one key outgrows are reported one by one
ALWAYS: tuple[str, ...] = ("copy", "fill", "convolution", "signal", "wait", "end")
# The names of engines.vector.operations and the `kind` of each.
_POOLS = {"max_pool": PoolKind.MAX, "average_pool": PoolKind.AVERAGE}
_ELEMENTWISE = {
    "add": ElementwiseKind.ADD,
    "sub": ElementwiseKind.SUB,
    "mul": ElementwiseKind.MUL,
    "rescale": ElementwiseKind.RESCALE,
    "prelu": ElementwiseKind.PRELU,
}
_EXTENTS = frozenset(("channels", "columns", "height", "inner", "rows", "width"))  # also of an input or output


@dataclass(frozen=True)
class Need:
    """Every value low..high that `step` divides; `reason` is the key of the chip that says so."""

    low: int
    high: int
    reason: str
    step: int = 1


def broken_needs(chip: Chip, isa: Isa) -> list[tuple[KeyPath, str]]:
    """Operations that the chip needs and the table lacks, and fields too small for the chip."""
    found = list(_missing_operations(chip, isa))
    short: dict[str, list[_Short]] = {}
    for name, plan in isa.plans.items():
        for parameter in plan.operation.parameters():
            wanted = need(name, parameter, chip)
            reason = _unmet(plan, parameter, wanted)
            slot = plan.slot_of.get(parameter)
            if reason is None:
                continue
            path = _path(plan, parameter, isa)
            if slot is None or slot.lowest > wanted.low or slot.highest >= wanted.high:
                found.append((path, reason))
            else:
                key = "memories.sram.size" if wanted.reason == "memories.sram" else wanted.reason
                short.setdefault(key, []).append(_Short(path, name, parameter, slot.highest, wanted.high, reason))
    for key, fields in short.items():
        found += [(f.path, f.reason) for f in fields] if len(fields) <= _FEW else [_together(key, fields)]
    return [*found, *_folded_semaphores(chip, isa)]


@dataclass(frozen=True)
class _Short:
    """A field whose largest value `holds` is below the largest that the chip uses."""

    path: KeyPath
    operation: str
    parameter: str
    holds: int
    uses: int
    reason: str


def _together(key: str, fields: list[_Short]) -> tuple[KeyPath, str]:
    """One fault for many fields that one key of the chip outgrows, at the place of the first."""
    operations = dict.fromkeys(f.operation for f in fields)
    names = "; ".join(f"{o}: {' '.join(f.parameter for f in fields if f.operation == o)}" for o in operations)
    holds, uses = fields[0].holds, max(f.uses for f in fields)
    return fields[0].path, (
        f"holds at most {holds}, but this chip uses up to {uses} ({key}); widen this field and "
        f"{len(fields) - 1} others like it, or lower {key}: {names}"
    )


def need(operation: str, parameter: str, chip: Chip) -> Need:
    """The values `parameter` of `operation` may take in a program for `chip`; an unused parameter is 0 where it may be."""
    for rule in (_sync, _flags, _windows, _scales, _codes, _copies, _dimensions):
        found = rule(operation, parameter, chip)
        if found:
            return found
    sram = chip.memories.sram.size
    if parameter == "parameter_address":
        return Need(0, sram - 1, "memories.sram", _common(chip.memories.sram.alignment_bytes, 16))
    if parameter == "table_address":
        return Need(0, sram - 1, "memories.sram", chip.memories.sram.alignment_bytes)
    if parameter.endswith("_address") or "stride" in parameter:
        return Need(0, sram - 1, "memories.sram.size")
    if parameter in ("input_height", "input_width"):
        return Need(0, sram, "memories.sram.size")
    if parameter.removeprefix("input_").removeprefix("output_") in _EXTENTS:
        return Need(1, sram, "memories.sram.size")
    raise untold(OPERATIONS[operation], f"which values {parameter} takes (isa.needs)")


def _common(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def _unmet(plan: OperationPlan, parameter: str, wanted: Need) -> str | None:
    fixed = dict(plan.fixed)
    this_chip = f"this chip uses {wanted.low} to {wanted.high} ({wanted.reason})"
    if parameter in fixed:
        return None if wanted.low == wanted.high == fixed[parameter] else f"is fixed to {fixed[parameter]}, but {this_chip}"
    slot = plan.slot_of[parameter]
    highest = wanted.high - wanted.high % wanted.step
    if wanted.step % slot.step or (wanted.low != wanted.high and (wanted.low - slot.bias) % slot.step):
        return f"holds only multiples of {slot.step}, but {this_chip} in steps of {wanted.step}"
    if slot.lowest > wanted.low or slot.highest < highest:
        return f"{slot.width} bits hold {slot.lowest} to {slot.highest}, but {this_chip}"
    return None


def _path(plan: OperationPlan, parameter: str, isa: Isa) -> KeyPath:
    row = isa.table.operations[plan.operation.NAME]
    for place in ("fields", "bind", "fixed"):
        if parameter in getattr(row, place, {}):
            return ("operations", plan.operation.NAME, place, parameter)
    return ("operations", plan.operation.NAME)


def needed_operations(chip: Chip) -> dict[str, str]:
    """The operations that the chip's programs use, in the order of `OPERATIONS`, and the key that says so."""
    wanted = {name: _wanted(name, chip) for name in OPERATIONS}
    return {name: reason for name, reason in wanted.items() if reason}


def _wanted(operation: str, chip: Chip) -> str:
    """The key that asks for an operation; empty: none does."""
    kinds = {"pool": set(_POOLS), "elementwise": set(_ELEMENTWISE), "table": {"table"}}.get(operation)
    if kinds is not None:
        used = kinds & set(chip.engines.vector.operations)
        return f"engines.vector.operations has {', '.join(sorted(used))}" if used else ""
    if operation == "depthwise":
        return "" if chip.engines.mac.depthwise == "none" else f"engines.mac.depthwise is {chip.engines.mac.depthwise}"
    if operation == "matrix_product":
        return "limits.matrix_product.computed_operand is true" if chip.limits.matrix_product.computed_operand else ""
    if operation in ALWAYS:
        return "every machine needs it"
    raise untold(OPERATIONS[operation], "which machines need it (isa.needs)")


def _missing_operations(chip: Chip, isa: Isa) -> Iterator[tuple[KeyPath, str]]:
    for name, reason in needed_operations(chip).items():
        if not isa.supports(name):
            yield ("operations",), f"has no {name}; {reason}"


def _folded_semaphores(chip: Chip, isa: Isa) -> Iterator[tuple[KeyPath, str]]:
    sync = getattr(isa.table, "sync", None)
    if sync is None:
        return
    last = chip.sync.semaphores - 1
    for name in ("wait_semaphore", "signal_semaphore"):
        high, low = getattr(sync, name)
        largest = (1 << (high - low + 1)) - 1
        if largest < last:
            reason = f"{high - low + 1} bits hold 0 to {largest}, but this chip uses 0 to {last} (sync.semaphores)"
            yield ("sync", name), reason


def _sync(operation: str, parameter: str, chip: Chip) -> Need | None:
    channels = chip.engines.dma.channels
    if parameter == "semaphore":
        return Need(0, chip.sync.semaphores - 1, "sync.semaphores")
    if parameter == "engine":
        return Need(0, 1 + channels, "mac, vector and engines.dma.channels")
    if parameter == "channel":
        return Need(0, channels - 1, "engines.dma.channels")
    return None


def _flags(operation: str, parameter: str, chip: Chip) -> Need | None:
    post = chip.engines.mac.post
    if parameter in ("accumulate", "emit"):
        return Need(0, 1, "a flag")
    if parameter == "use_table":
        return Need(0, int("table" in post), "engines.mac.post")
    if parameter == "use_add":
        return Need(0, int("add" in post), "engines.mac.post")
    if "add" not in post and parameter.startswith(("add_", "addend_")):
        return Need(0, 0, "engines.mac.post has no add")
    if "table" not in post and parameter == "table_address" and operation in ("convolution", "depthwise"):
        return Need(0, 0, "engines.mac.post has no table")
    if parameter.endswith("_space"):
        return Need(0, max(Space), "dram 0, sram 1")
    if parameter == "kind":
        kinds = _POOLS if operation == "pool" else _ELEMENTWISE
        used = [int(kinds[name]) for name in chip.engines.vector.operations if name in kinds] or [0]
        return Need(min(used), max(used), "engines.vector.operations")
    return None


def _windows(operation: str, parameter: str, chip: Chip) -> Need | None:
    words = ("kernel_", "stride_", "dilation_")
    if parameter not in ("pad_top", "pad_left") and not parameter.startswith(words):
        return None
    limits: ConvolutionLimits | PoolLimits = getattr(chip.limits, operation)
    across = parameter.endswith(("_width", "_left"))
    name = "max_pad" if parameter.startswith("pad") else f"max_{parameter.partition('_')[0]}"
    limit = getattr(limits, name, None)
    reason = f"limits.{operation}.{name}" if limit else f"limits.{operation} sets no {name}"
    if operation == "pool" and name in ("max_pad", "max_dilation"):
        # A pool is padded by less than its kernel; its dilation has no limit of its own.
        limit = limits.max_kernel
        if limit and name == "max_pad":
            limit = (limit[0] - 1, limit[1] - 1)
        reason = f"limits.pool.max_kernel{'' if limit else ' is not set'}"
    least = 0 if name == "max_pad" else 1
    return Need(least, limit[across] if limit is not None else OPEN_LIMIT, reason)


def _scales(operation: str, parameter: str, chip: Chip) -> Need | None:
    numerics = chip.numerics
    if parameter.endswith("multiplier"):
        bits = {"pow2": 1, "float32": 31}.get(numerics.scale.kind, numerics.scale.multiplier_bits)
        return Need(0, (1 << bits) - 1, f"numerics.scale, kind {numerics.scale.kind}")
    if parameter.endswith("left_shift"):
        return Need(0, numerics.add_left_shift, "numerics.add_left_shift")
    if parameter.endswith("shift"):
        low, high = min(0, numerics.scale.shift_min), numerics.scale.shift_max
        return Need(low, 0 if numerics.scale.kind == "float32" else high, "numerics.scale")
    return None


def _codes(operation: str, parameter: str, chip: Chip) -> Need | None:
    numerics = chip.numerics
    half = 1 << (8 * chip.activation_bytes - 1)
    if parameter.endswith("zero_point") and numerics.symmetric_activations:
        return Need(0, 0, "numerics.symmetric_activations")
    if parameter.endswith(("zero_point", "clamp_low", "clamp_high")) or parameter == "value":
        return Need(-half, half - 1, f"numerics.activation {numerics.activation}")
    return None


def _dimensions(operation: str, parameter: str, chip: Chip) -> Need | None:
    keys = {
        ("convolution", "input_channels"): ("convolution", "max_input_channels"),
        ("convolution", "output_channels"): ("convolution", "max_output_channels"),
        ("convolution", "output_width"): ("convolution", "max_width"),
        ("depthwise", "channels"): ("depthwise", "max_output_channels"),
        ("depthwise", "output_width"): ("depthwise", "max_width"),
        ("matrix_product", "inner"): ("matrix_product", "max_k"),
        ("matrix_product", "columns"): ("matrix_product", "max_n"),
    }
    section, key = keys.get((operation, parameter), ("", ""))
    limit = getattr(getattr(chip.limits, section), key) if section else None
    return Need(1, limit, f"limits.{section}.{key}") if limit else None


def _copies(operation: str, parameter: str, chip: Chip) -> Need | None:
    if operation not in ("copy", "fill"):
        return None
    sram, dram, dimensions = chip.memories.sram.size, chip.memories.dram.size, chip.engines.dma.dimensions
    if parameter[:-1] in ("count", "source_stride", "destination_stride") and int(parameter[-1]) < 3 - dimensions:
        value = int(parameter.startswith("count"))
        return Need(value, value, f"engines.dma.dimensions {dimensions}")
    if parameter.endswith("_address") or "stride" in parameter:
        return Need(0, max(sram, dram) - 1, "memories.dram.size")
    return Need(1, sram, "memories.sram.size")
