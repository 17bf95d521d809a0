"""Compute the cycles of a MAC array for one operation, and how often it reads its operands.

A fold is one pass of the array: the part of the work that its R rows and C columns hold at a time. Sources: fold counts
and cycles per fold are those of SCALE-Sim 3.0, and equal its simulation of 360 layers. In os a fold takes `K + R + C -
2` cycles. In ws it takes `P + 2R + C - 2`, in is `M + 2R + C - 2`. They are generalised by `depth`, `rate`,
`folds_overlap`, the two depthwise modes and the terms of `timing`. `docs/simulator.md` lists every formula.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.engines import MacArray
from toolchain.hw.timing import DENSE, UNLIMITED, get_rate
from toolchain.machine.columns import IntOrColumn, at_rate, by_name, ceil_div, least, most, where
from toolchain.machine.traffic import Compute, Lost


class Operands(NamedTuple):
    """The types of an operation's operands: the array's rate with them, as a share of its peak, and bits of activation
    and weight.
    """

    rate: float = 1.0
    activation_bits: int = 8
    weight_bits: int = 8


class _Fold(NamedTuple):
    """One of several equal folds, in cycles.

    `steps`: steps of the reduction or stream, at the array's peak. `paced`: cycles that these steps take. `edge`: fill
    and drain. `load`: loading of stationary operands; a fold that overlaps the one before lasts at least as long.
    `scaled`: scaling of groups' sums.
    """

    steps: IntOrColumn
    paced: IntOrColumn
    edge: IntOrColumn
    load: IntOrColumn
    scaled: IntOrColumn = 0


def product_cycles(
    mac: MacArray,
    pixels: IntOrColumn,
    inner: IntOrColumn,
    outputs: IntOrColumn,
    operands: Operands,
    repeats: IntOrColumn = 1,
    dataflow: IntOrColumn = 0,
    group: IntOrColumn = 0,
    taps: IntOrColumn = 1,
) -> Compute:
    """Return the cycles of `repeats` matrix products [pixels, inner] x [inner, outputs] one after another on the
    array.

    `dataflow`: which of `mac.dataflows`.
    `group`: weights along `inner` that share a scale, 0: all.
    `taps`: of a window; `inner` is a multiple of them.

    P are the pixels and M the outputs; there are R rows, C columns, and K' = ceil(inner / depth).
    For several taps with `reduction: per_tap`, K' is taps times that of one; in blocks, it is that of whole
    blocks.
    `os`: ceil(P/R) ceil(M/C) folds of K' / rate steps, fill and drain R + C - 2.
    `ws`: ceil(K'/R) ceil(M/C) folds of P / rate steps, fill (R to load weights) and drain 2R + C - 2.
    `is`: ceil(K'/R) ceil(P/C) folds of M / rate steps, fill and drain 2R + C - 2.
    A step lasts as long as the edges need for the operands that enter in it; so does loading.
    `folds_overlap`: fill and drain are paid once; a ws or is fold then takes at least its successor's load
    cycles.
    A fold has products of one group alone.
    Groups are products one after another, each of `group` (the last one too), whose folds take
    `groups.fold_cycles` more each.
    """
    useful = _full(mac, repeats * pixels * inner * outputs, operands.rate)
    repeats = repeats * where(group, ceil_div(inner, most(group, 1)), 1)
    taps, products = _split_reduction(mac, inner, taps, group)
    each = ceil_div(products, mac.depth)
    scaled = 0 if mac.groups is None else where(group, mac.groups.fold_cycles, 0)

    def cycles(flow: str) -> Compute:
        if flow == "os":
            folds = ceil_div(pixels, mac.rows) * ceil_div(outputs, mac.columns)
            steps = taps * each
            fed = (
                steps * _count_fold_places(mac, pixels, mac.rows) * mac.depth,
                steps * _count_fold_places(mac, outputs, mac.columns) * mac.depth,
            )
            fold = _fold(mac, steps, fed, operands, None, scaled)
        elif flow == "ws":
            folds = taps * ceil_div(each, mac.rows) * ceil_div(outputs, mac.columns)
            rows = _count_fold_places(mac, each, mac.rows) * mac.depth
            resident_elements = rows * _count_fold_places(mac, outputs, mac.columns)
            fold = _fold(mac, pixels, (pixels * rows, 0), operands, (0, resident_elements), scaled)
        else:
            folds = taps * ceil_div(each, mac.rows) * ceil_div(pixels, mac.columns)
            rows = _count_fold_places(mac, each, mac.rows) * mac.depth
            resident_elements = rows * _count_fold_places(mac, pixels, mac.columns)
            fold = _fold(mac, outputs, (0, outputs * rows), operands, (resident_elements, 0), scaled)
        return _folds(mac, folds * repeats, fold, useful, operands.rate)

    return by_name(mac.dataflows, dataflow, cycles)


def depthwise_cycles(
    mac: MacArray,
    pixels: IntOrColumn,
    taps: IntOrColumn,
    channels: IntOrColumn,
    operands: Operands,
    dataflow: IntOrColumn = 0,
    mode: IntOrColumn = 0,
) -> Compute:
    """Return the cycles of a depthwise convolution of `pixels` outputs a channel; T' = ceil(taps / depth).

    `dataflow`, `mode`: which of `mac.dataflows` and `mac.depthwise_modes`.

    Column (and none): one channel after another, each the product [pixels, taps] x [taps, 1] (as SCALE-Sim).
    Diagonal: `columns` channels at once, taps padded to whole `timing.depthwise_taps`.
    Diagonal with os: rows hold pixels, and there are ceil(P/R) ceil(channels/C) folds of T' / rate steps.
    In each step every row and column takes an input of its own.
    Diagonal with ws, is: the diagonal holds one tap (`depth` taps) of each channel and streams the pixels.
    There are T' ceil(channels/C) folds of P / rate steps, with partial sums in the accumulators.
    """
    useful, channels_at_once = _full(mac, pixels * taps * channels, operands.rate), _count_fold_places(mac, channels, mac.columns)
    together = get_rate(mac.timing.depthwise_taps, mac.depth)
    padded = ceil_div(taps, together) * together
    groups, steps, across = ceil_div(channels, mac.columns), ceil_div(padded, mac.depth), channels_at_once * mac.depth

    def diagonal(flow: str) -> Compute:
        if flow == "os":
            folds, entering = ceil_div(pixels, mac.rows) * groups, padded * channels_at_once
            fed = entering * _count_fold_places(mac, pixels, mac.rows), entering
            return _folds(mac, folds, _fold(mac, steps, fed, operands), useful, operands.rate)
        return _folds(mac, steps * groups, _fold(mac, pixels, (pixels * across, 0), operands, (0, across)), useful, operands.rate)

    def cycles(mode: str) -> Compute:
        if mode != "diagonal":
            return product_cycles(mac, pixels, taps, 1, operands, channels, dataflow)
        return by_name(mac.dataflows, dataflow, diagonal)

    return by_name(mac.depthwise_modes, mode, cycles)


def with_output(
    mac: MacArray,
    folds: Compute,
    pixels: IntOrColumn,
    outputs: IntOrColumn,
    tabled: IntOrColumn,
    added: IntOrColumn,
    emitted: IntOrColumn,
) -> Compute:
    """Return the cycles with the output added: ceil(outputs / lanes) cycles a pixel where the operation emits.

    It comes after the folds, or overlaps them where the machine says so. `folds`: cycles without output. `tabled`,
    `added`, `emitted`: 1 where outputs pass through a table, take an addend, are written at all.
    """
    terms = mac.timing.output
    lanes = get_rate(terms.lanes, mac.columns)
    plain = _passes(outputs, lanes)
    looked_up = most(plain, where(tabled, _passes(outputs, terms.table_lanes), 0))
    summed = most(looked_up, where(added, _passes(outputs, get_rate(terms.addend_lanes, lanes)), 0))
    leaving = where(emitted, pixels * summed, 0)
    beyond = most(leaving - folds.cycles, 0) if terms.overlaps else leaving
    return Compute(folds.cycles + beyond, folds.lost._replace(output_cycles=folds.lost.output_cycles + beyond))


def _split_reduction(mac: MacArray, inner: IntOrColumn, taps: IntOrColumn, group: IntOrColumn) -> tuple[IntOrColumn, IntOrColumn]:
    """Return (taps that fill the depth by themselves, products of each), for the sums that are made at once."""
    spanned = where(group, least(taps, ceil_div(group, ceil_div(inner, taps))), taps)
    products = where(group, least(group, inner), inner)
    if mac.timing.reduction == DENSE:
        return 1, products
    channels = ceil_div(products, spanned)
    if not mac.timing.reduction:
        return spanned, channels
    return 1, reduce(least, (ceil_div(channels, c) * c * ceil_div(spanned, t) * t for c, t in mac.timing.reduction))


def _count_fold_places(mac: MacArray, n: IntOrColumn, places: int) -> IntOrColumn:
    """Return how many rows or columns of the array a fold of `n` in all takes."""
    return n / ceil_div(n, places) if mac.even else least(n, places)


def _entering(mac: MacArray, bits: IntOrColumn, edge_bits: int) -> IntOrColumn:
    """Return the cycles in which so many bits of a fold enter."""
    return bits / edge_bits if mac.even else ceil_div(bits, edge_bits)


def _passes(outputs: IntOrColumn, lanes: int) -> IntOrColumn:
    """Return the cycles in which the outputs of a pixel pass."""
    return 0 if lanes == UNLIMITED else ceil_div(outputs, lanes)


def _full(mac: MacArray, macs: IntOrColumn, rate: float) -> IntOrColumn:
    """Return the cycles of so many products on a full array, at its rate for their types."""
    return at_rate(ceil_div(macs, mac.multipliers), rate)


def _fold(
    mac: MacArray,
    steps: IntOrColumn,
    fed: tuple[IntOrColumn, IntOrColumn],
    operands: Operands,
    resident: tuple[IntOrColumn, IntOrColumn] | None = None,
    scaled: IntOrColumn = 0,
) -> _Fold:
    """Return a fold.

    `fed`: activations and weights that enter in all steps.
    `resident`: activations and weights that it begins with, a row a cycle at best.
    """
    bits = operands.activation_bits, operands.weight_bits
    paced = at_rate(steps, operands.rate)
    for n, size, edge_bytes in zip(fed, bits, mac.edge_bytes):
        paced = most(paced, _entering(mac, n * size, 8 * edge_bytes))
    load: IntOrColumn = 0 if resident is None else mac.rows
    for n, size, edge_bytes in zip(resident or (0, 0), bits, mac.edge_bytes):
        load = most(load, _entering(mac, n * size, 8 * edge_bytes))
    return _Fold(steps, paced, mac.rows + mac.columns - 2 + load, load, scaled)


def _folds(mac: MacArray, folds: IntOrColumn, fold: _Fold, useful_cycles: IntOrColumn, rate: float) -> Compute:
    """Return the cycles of all folds.

    `useful_cycles`: of products, on a full array.
    """
    stream, fold_cycles = fold.paced + fold.scaled, mac.timing.fold_cycles
    if not mac.folds_overlap:
        fill = folds * (fold.edge + fold_cycles)
    else:
        waiting = (folds - 1) * (most(stream, fold.load) - stream)
        fill = where(folds > 0, waiting + fold.edge + folds * fold_cycles, 0)
    at_peak = at_rate(fold.steps, rate)
    lost = Lost(fill, folds * at_peak - useful_cycles, folds * fold.scaled, folds * (fold.paced - at_peak))
    return Compute(folds * stream + fill, lost)


def operands_of(mac: MacArray, activation: CodeType, weight: CodeType) -> Operands:
    """Return the rate and the bits of operands of these types. The rate is 1.0 of the peak where the machine gives none."""
    rate = mac.rate_of(activation, weight)
    return Operands(1.0 if rate is None else rate, activation.bits, weight.bits)


def matrix_operands(mac: MacArray, a: CodeType, b: CodeType) -> Operands:
    """Return rate and bits of the operands of a product of two activations.

    b goes through the weight port. With 16 bits it is two planes of 8, at half the rate.
    """
    rate = operands_of(mac, a, CodeType.INT8).rate
    return Operands(rate / b.size_bytes, a.bits, b.bits)


def operand_reads(
    mac: MacArray, pixels: IntOrColumn, outputs: IntOrColumn, dataflow: IntOrColumn = 0
) -> tuple[IntOrColumn, IntOrColumn]:
    """Return how often one operation reads its inputs and its weights from SRAM.

    The counts are SCALE-Sim's, with three differences. An input byte is read once for `timing.shared_outputs`
    channels.
    It is not read once for each tap where a window buffer holds it.
    In os a weight stays for as many row folds as the accumulators hold.
    `dataflow`: which of `mac.dataflows`.
    """

    def inputs(flow: str) -> IntOrColumn:
        shared = get_rate(mac.timing.shared_outputs, mac.columns)
        return 1 if flow == "is" else ceil_div(outputs, shared)

    def weights(flow: str) -> IntOrColumn:
        resident_rows = mac.rows * max(1, mac.accumulators.entries // (mac.rows * mac.columns))
        return {"os": ceil_div(pixels, resident_rows), "ws": 1, "is": ceil_div(pixels, mac.columns)}[flow]

    return by_name(mac.dataflows, dataflow, inputs), by_name(mac.dataflows, dataflow, weights)


def window_reads(
    mac: MacArray, reached: IntOrColumn, by_row: IntOrColumn, by_tap: IntOrColumn, kernel_bytes: tuple[IntOrColumn, IntOrColumn]
) -> IntOrColumn:
    """Return the input bytes that an operation reads in one pass through the window buffer.

    `reached`: bytes that windows reach, each once. `by_row`: each again for each row of the kernel. `by_tap`: each
    again for each tap. `kernel_bytes`: (bytes of all rows of a kernel, bytes that one row of it reaches), to be held by
    the buffer.
    """
    size = mac.timing.window_bytes
    rows, row = kernel_bytes
    return where(rows <= size, reached, where(row <= size, most(by_row, reached), most(by_tap, reached)))
