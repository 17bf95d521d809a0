"""The test cases of operations that multiply windows with weights: convolution and depthwise.

A draw places operands and appends operations to the `CaseBuilder` it is given. `CASES` has a function for each
operation that yields (name of the case, draw).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from toolchain.hw import Chip
from toolchain.hw.unit_map import SUMS, Unit
from toolchain.machine import Convolution, Depthwise, MachineOp
from toolchain.vectors.case import Draw
from toolchain.vectors.case_builder import CaseBuilder, NotApplicable
from toolchain.vectors.draws.accumulator_draws import CLAMPS, addend, clamps, parameters, random_entries, rounding_entries, table
from toolchain.vectors.draws.weights import Array, Pair, Window, place_dense_weights, place_depthwise_weights

AXES = ("height", "width")
LARGEST = 16  # of a field without a limit of the machine: what is larger is tested by the fields of others


def add_window_operation(
    bench: CaseBuilder,
    operation: type[MachineOp],
    w: Window,
    values: Array | None = None,
    weights: Array | None = None,
    entries: tuple[Sequence[int], Sequence[Pair]] | None = None,
) -> Any:
    """Add a convolution or depthwise operation to the case and return it. Operands that are None are random.

    `values`: codes [h, w, c] of its input. `weights`: int8[outputs, inner], inner ky, kx, i; of a depthwise operation
    [taps, channels]. `entries`: (biases, scales) of its output channels. Raise NotApplicable where the machine has no
    such unit, or its memories are too small.
    """
    unit = bench.unit(operation, w.unit)
    inputs = w.inputs if operation is Convolution else w.outputs
    values = bench.codes((*w.size, inputs), w.input_type) if values is None else values
    source = bench.feature_map(unit, "input", values)
    f: dict[str, Any] = source.get_parameters("input")
    for name, (height, width) in (("kernel", w.kernel), ("stride", w.stride), ("dilation", w.dilation)):
        f |= {f"{name}_height": height, f"{name}_width": width}
    f |= {"input_height": w.size[0], "input_width": w.size[1], "pad_top": w.pad[0], "pad_left": w.pad[1]}
    f |= {"output_height": w.output[0], "output_width": w.output[1], "accumulate": w.accumulate}
    f |= {"input_type": w.input_type, "weight_type": w.weight_type, "unit": w.unit}
    f |= {"input_zero_point": bench.zero(operation, "input_zero_point", w.input_type)}
    if operation is Convolution:
        f |= {"input_channels": inputs, "output_channels": w.outputs, "group": w.group}
        f["weight_address"] = place_dense_weights(bench, unit, w, weights)
    else:
        f |= {"channels": w.outputs, "weight_address": place_depthwise_weights(bench, unit, w, weights)}
    if SUMS in unit.roles:
        f |= _make_sum_fields(bench, unit, w)
    elif w.emit:
        f |= _make_output_fields(bench, operation, unit, w, inputs, entries)
    return bench.add(operation, **(f | w.extra_fields))


def _make_output_fields(bench: CaseBuilder, operation: Any, unit: Unit, w: Window, inputs: int, entries: Any) -> dict[str, Any]:
    """Return the fields of the output: its place and type, requantization entries and clamp."""
    reached = w.taps * (inputs if operation is Convolution else 1)
    codes, weight = bench.type(w.input_type), bench.chip.weight_types[w.weight_type]
    spread = codes.bits + weight.bits - 9 + int(np.log2(reached) / 2 + 0.5) + (7 if w.group else 0)
    biases, scales = entries or random_entries(bench, w.outputs, max(spread - bench.type(w.output_type).bits + 8, 0))
    target = bench.output(unit, (*w.output, w.outputs), w.output_type)
    out = bench.type(w.output_type)
    f = target.get_parameters("output")
    f |= {"parameter_address": parameters(bench, operation, "parameters", biases, scales), "emit": 1}
    f |= {"output_zero_point": bench.zero(operation, "output_zero_point", w.output_type), "output_type": w.output_type}
    return f | {"clamp_low": out.low, "clamp_high": out.high}


def _make_sum_fields(bench: CaseBuilder, unit: Unit, w: Window) -> dict[str, Any]:
    """Return the field with the address of the sums, for arrays whose accumulators are a memory.

    A case that accumulates gets random sums there.
    """
    size = bench.chip.array.accumulators.sum_bytes
    total = w.output[0] * w.output[1] * w.outputs
    if not w.accumulate:
        return {"sums_address": bench.room(unit.roles[SUMS], total * size)}
    largest = bench.chip.numerics.largest_sum
    sums = bench.rng.integers(-largest, largest, total).astype(f"<i{size}")
    return {"sums_address": bench.block(unit.roles[SUMS], sums.tobytes(), size)}


# cases of both


def plain(bench: CaseBuilder, operation: Any) -> None:
    """A 3x3 window with a padding of 1 around the input."""
    add_window_operation(bench, operation, Window())


def in_granules(bench: CaseBuilder, operation: Any) -> None:
    """Feature maps in granules of channels; what fills the last one changes nothing, and is written as 0."""
    size = bench.granule
    add_window_operation(bench, operation, Window((3, 4), size + 1, size + 3, (2, 2), pad=(1, 0), output=(3, 4)))


def single(bench: CaseBuilder, operation: Any) -> None:
    """The least of every size: one element of each, no padding."""
    add_window_operation(bench, operation, Window((1, 1), 1, 1, (1, 1), pad=(0, 0), output=(1, 1)))


def largest_strides(bench: CaseBuilder, operation: Any) -> None:
    """The largest memory strides. Every size is 1, so no byte moves."""
    single(bench, operation)
    bench.stretch_last_operation()


def wide(bench: CaseBuilder, operation: Any) -> None:
    """Many columns; and many output channels, which are those of the input where the operation is depthwise."""
    entries = bench.chip.array.accumulators.entries
    columns = min(700, entries // 2)
    add_window_operation(bench, operation, Window((1, columns), 2, 2, (1, 2), pad=(0, 1), output=(1, columns)))
    add_window_operation(bench, operation, Window((1, 1), 2, min(600, entries), (1, 1), pad=(0, 0), output=(1, 1)))


def tall(bench: CaseBuilder, operation: Any) -> None:
    """Many rows; and many input channels where there are several."""
    rows = min(600, bench.chip.array.accumulators.entries // 2)
    add_window_operation(bench, operation, Window((rows, 1), 2, 2, (2, 1), pad=(1, 0), output=(rows, 1)))
    add_window_operation(bench, operation, Window((1, 1), 1500, 2, (1, 1), pad=(0, 0), output=(1, 1)))


def at_end(bench: CaseBuilder, operation: Any) -> None:
    """Operands on the last bytes of their memories."""
    # CaseBuilder places them there by the name of the case
    add_window_operation(bench, operation, Window())


def strided(bench: CaseBuilder, operation: Any) -> None:
    """Strides, and dilations, of different height and width; an even kernel."""
    value_by_name = {"stride_height": 2, "stride_width": 3, "dilation_height": 3, "dilation_width": 2}
    values = [min(value, operation.need(name, bench.chip).high) for name, value in value_by_name.items()]
    stride, dilation = (values[0], values[1]), (values[2], values[3])
    add_window_operation(
        bench, operation, Window((7, 9), kernel=(2, 3), stride=stride, dilation=dilation, pad=(2, 1), output=(3, 2))
    )


def padded(bench: CaseBuilder, operation: Any) -> None:
    """Windows that lie on padding alone, before and behind the input."""
    add_window_operation(bench, operation, Window((2, 2), kernel=(2, 2), pad=(3, 4), output=(7, 8)))


def only_padding(bench: CaseBuilder, operation: Any) -> None:
    """An input without rows: every window lies on padding."""
    add_window_operation(
        bench, operation, replace(Window((1, 3), kernel=(2, 2), output=(2, 3)), extra_fields={"input_height": 0})
    )


def passed_over(bench: CaseBuilder, operation: Any) -> None:
    """The input's height and width are the largest that their fields hold. Windows reach only the first few."""
    extra_fields = {name: operation.need(name, bench.chip).high for name in ("input_height", "input_width")}
    add_window_operation(bench, operation, Window((3, 4), kernel=(2, 2), pad=(0, 0), output=(2, 3), extra_fields=extra_fields))


def partial_folds(bench: CaseBuilder, operation: Any) -> None:
    """One more output channel, product and pixel than the array has rows, columns and depth."""
    array = bench.unit(operation).array
    size, inner = (1, array.rows + 1), array.rows * array.depth + 1
    add_window_operation(bench, operation, Window(size, inner, array.columns + 1, (1, 1), pad=(0, 0), output=size))


def largest_fields(bench: CaseBuilder, operation: Any) -> None:
    """The largest kernel, stride, dilation and padding (16 where the machine has no limit)."""
    limits: dict[str, Pair] = {}
    for name, ends in (("kernel", AXES), ("stride", AXES), ("dilation", AXES), ("pad", ("top", "left"))):
        height, width = (min(operation.need(f"{name}_{end}", bench.chip).high, LARGEST) for end in ends)
        limits[name] = (height, width)
    kernel, stride = limits["kernel"], limits["stride"]
    pad = tuple(min(p, k) for p, k in zip(limits["pad"], kernel))
    size = tuple(2 + s + (k - 1) * d - p for k, s, d, p in zip(kernel, stride, limits["dilation"], pad))
    add_window_operation(
        bench, operation, Window((size[0], size[1]), 1, 2, kernel, stride, limits["dilation"], (pad[0], pad[1]), (2, 2))
    )


def with_clamp(bench: CaseBuilder, operation: Any, name: str) -> None:
    """A clamp of a small range, and of one code."""
    _require_own_output(bench, operation)
    low, high = clamps(bench, name)
    add_window_operation(bench, operation, replace(Window(), extra_fields={"clamp_low": low, "clamp_high": high}))


def rounding(bench: CaseBuilder, operation: Any) -> None:
    """Weights of 0: sums are the biases, on every edge of the rounding, with the smallest and largest shifts."""
    _require_own_output(bench, operation)
    biases, scales = rounding_entries(bench)
    w = Window((1, 1), 1, len(biases), (1, 1), pad=(0, 0), output=(1, 1))
    shape = (len(biases), 1) if operation is Convolution else (1, len(biases))
    add_window_operation(bench, operation, w, weights=np.zeros(shape, np.int8), entries=(biases, scales))


def wrapped(bench: CaseBuilder, operation: Any) -> None:
    """Sums and biases that pass the ends of the accumulators, and wrap."""
    _require_own_output(bench, operation)
    bits = bench.chip.numerics.accumulator_bits
    top = (1 << (bits - 1)) - 1
    biases = [top, top - 5, -top - 1, -top + 5, top, 0]
    scales = [bench.scale(bits - 9 if bits <= 40 else 31)] * len(biases)
    add_window_operation(bench, operation, Window(outputs=len(biases)), entries=(biases, scales))


def accumulated(bench: CaseBuilder, operation: Any) -> None:
    """Three operations: the first starts the sums, the second adds to them, the third adds and emits.

    A machine with a memory of sums gets one, which adds to random sums.
    """
    w = Window(output=(3, 4))
    if SUMS in bench.unit(operation).roles:
        add_window_operation(bench, operation, replace(w, accumulate=1))
        return
    add_window_operation(bench, operation, replace(w, emit=0))
    add_window_operation(bench, operation, replace(w, kernel=(1, 2), pad=(0, 0), inputs=2, accumulate=1, emit=0))
    add_window_operation(bench, operation, replace(w, kernel=(2, 1), accumulate=1))


def tabled(bench: CaseBuilder, operation: Any) -> None:
    """Results pass through a table."""
    _require_own_output(bench, operation)
    if not operation.need("use_table", bench.chip).high:
        raise NotApplicable("no table behind the array")
    extra_fields = {"use_table": 1, "table_address": table(bench, operation, "parameters", 0)}
    add_window_operation(bench, operation, replace(Window(), extra_fields=extra_fields))


def with_types(bench: CaseBuilder, operation: Any, type_numbers: tuple[int, int, int]) -> None:
    """Input, output and weights of other types, by their numbers."""
    add_window_operation(
        bench, operation, replace(Window(), input_type=type_numbers[0], output_type=type_numbers[1], weight_type=type_numbers[2])
    )


def with_choice(bench: CaseBuilder, operation: Any, extra_fields: dict[str, int]) -> None:
    """Another dataflow or mode of the array, or another array: the codes are the same, the time differs."""
    add_window_operation(bench, operation, replace(Window(), extra_fields=extra_fields, unit=extra_fields.get("unit", 0)))


def with_groups(bench: CaseBuilder, operation: Any, size: int, number: int) -> None:
    """Weights in groups; the last group of each channel is smaller."""
    add_window_operation(
        bench, operation, replace(Window((2, 3), size + 8, 3, (1, 1), pad=(0, 0), output=(2, 3)), group=size, weight_type=number)
    )


def _require_own_output(bench: CaseBuilder, operation: Any) -> None:
    """Raise NotApplicable where the sums leave by another operation."""
    if SUMS in bench.unit(operation).roles:
        raise NotApplicable("sums leave by the operation emit")


def with_addend(bench: CaseBuilder, operation: Any, table_too: bool) -> None:
    """A feature map is added to the results, behind the table where one is used."""
    _require_own_output(bench, operation)
    if not operation.need("use_add", bench.chip).high:
        raise NotApplicable("no sum behind the array")
    bench_unit, w = bench.unit(operation), Window()
    source = bench.feature_map(bench_unit, "input", bench.codes((*w.output, w.outputs)))
    extra_fields: dict[str, Any] = source.get_parameters("addend")
    extra_fields |= {"use_add": 1, **addend(bench, operation)}
    if table_too:
        extra_fields |= {"use_table": 1, "table_address": table(bench, operation, "parameters", 0)}
    add_window_operation(bench, operation, replace(w, extra_fields=extra_fields))


BOTH = (
    plain,
    in_granules,
    single,
    at_end,
    largest_strides,
    wide,
    tall,
    strided,
    padded,
    only_padding,
    passed_over,
    partial_folds,
    largest_fields,
    rounding,
    wrapped,
    accumulated,
    tabled,
)


def _cases(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for draw in BOTH:
        yield draw.__name__, partial(draw, operation=operation)
    for name in CLAMPS:
        yield f"clamped_{name}", partial(with_clamp, operation=operation, name=name)
    types, weights = range(len(chip.code_types)), range(len(chip.weight_types))
    for kinds in ((i, o, w) for i in types for o in types for w in weights if (i, o, w) != (0, 0, 0)):
        yield "typed_{}_{}_{}".format(*kinds), partial(with_types, operation=operation, type_numbers=kinds)
    for name in ("unit", "dataflow", "mode"):
        most = operation.need(name, chip).high if name in operation.parameters() else 0
        for number in range(1, most + 1):
            yield f"{name}_{number}", partial(with_choice, operation=operation, extra_fields={name: number})


def _convolution(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    yield from _cases(operation, chip)
    yield "added", partial(with_addend, operation=operation, table_too=False)
    yield "tabled_and_added", partial(with_addend, operation=operation, table_too=True)
    for size in chip.numerics.groups.sizes if chip.numerics.groups else ():
        for number in range(len(chip.weight_types)):
            yield f"grouped_{size}_{number}", partial(with_groups, operation=operation, size=size, number=number)


CASES = {Convolution: _convolution, Depthwise: _cases}
