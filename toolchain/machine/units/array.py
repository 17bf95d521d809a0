"""Cycles of the MAC array, and how often it reads its operands.

Sources: the fold counts and the cycles a fold are SCALE-Sim 3.0's (`K + R + C - 2` os, `P + 2R + C - 2` ws,
`M + 2R + C - 2` is; equal to its simulation of 360 layers), taken here per operation and generalised by `depth`, `rate`,
`folds_overlap`, the two depthwise modes and the terms of `timing`. `docs/simulator.md` lists every formula.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.engines import MacArray
from toolchain.hw.timing import DENSE, UNLIMITED, given
from toolchain.machine.columns import Whole, at_rate, by_name, ceil_div, least, most, where
from toolchain.machine.traffic import Compute, Lost


class Operands(NamedTuple):
    """Of an operation: the array's share of its peak with their types, and bits of an activation and of a weight."""

    rate: float = 1.0
    activation_bits: int = 8
    weight_bits: int = 8


class _Fold(NamedTuple):
    """One of alike folds. steps: of all rows and columns at work; paced: cycles that they take; edge: fill and drain; load: of
    what stays in the array, which a fold that overlaps the one before lasts at least; scaled: scaling of groups' sums."""

    steps: Whole
    paced: Whole
    edge: Whole
    load: Whole
    scaled: Whole = 0


def product_cycles(
    mac: MacArray,
    pixels: Whole,
    inner: Whole,
    outputs: Whole,
    operands: Operands,
    repeats: Whole = 1,
    dataflow: Whole = 0,
    group: Whole = 0,
    taps: Whole = 1,
) -> Compute:
    """Cycles of `repeats` matrix products [pixels, inner] x [inner, outputs] one after another on the array; dataflow: which of
    `mac.dataflows`; group: weights along `inner` that share a scale, 0: all; taps: of a window, which `inner` is a multiple of.

    With R rows, C columns, K' = ceil(inner / depth), of several taps with `reduction: per_tap` taps times that of one, in blocks
    that of whole blocks:
    os: ceil(P/R) ceil(M/C) folds of K' / rate steps, fill and drain R + C - 2.
    ws: ceil(K'/R) ceil(M/C) folds of P / rate steps, fill (R to load weights) and drain 2R + C - 2.
    is: ceil(K'/R) ceil(P/C) folds of M / rate steps, fill and drain 2R + C - 2.
    A step lasts as long as the edges take what enters in it; so does loading.
    folds_overlap: fill and drain are paid once; a ws or is fold then takes at least the cycles its successor loads in.
    A fold has products of one group alone: groups are products one after another, each of `group` (the last one too), whose folds
    take `groups.fold_cycles` more each.
    """
    useful = _full(mac, repeats * pixels * inner * outputs, operands.rate)
    repeats = repeats * where(group, ceil_div(inner, most(group, 1)), 1)
    taps, products = _reduced(mac, inner, taps, group)
    each = ceil_div(products, mac.depth)
    scaled = 0 if mac.groups is None else where(group, mac.groups.fold_cycles, 0)

    def cycles(flow: str) -> Compute:
        if flow == "os":
            folds = ceil_div(pixels, mac.rows) * ceil_div(outputs, mac.columns)
            steps = taps * each
            fed = steps * _taken(mac, pixels, mac.rows) * mac.depth, steps * _taken(mac, outputs, mac.columns) * mac.depth
            fold = _fold(mac, steps, fed, operands, None, scaled)
        elif flow == "ws":
            folds = taps * ceil_div(each, mac.rows) * ceil_div(outputs, mac.columns)
            rows = _taken(mac, each, mac.rows) * mac.depth
            held = rows * _taken(mac, outputs, mac.columns)
            fold = _fold(mac, pixels, (pixels * rows, 0), operands, (0, held), scaled)
        else:
            folds = taps * ceil_div(each, mac.rows) * ceil_div(pixels, mac.columns)
            rows = _taken(mac, each, mac.rows) * mac.depth
            held = rows * _taken(mac, pixels, mac.columns)
            fold = _fold(mac, outputs, (0, outputs * rows), operands, (held, 0), scaled)
        return _folds(mac, folds * repeats, fold, useful, operands.rate)

    return by_name(mac.dataflows, dataflow, cycles)


def depthwise_cycles(
    mac: MacArray,
    pixels: Whole,
    taps: Whole,
    channels: Whole,
    operands: Operands,
    dataflow: Whole = 0,
    mode: Whole = 0,
) -> Compute:
    """Cycles of a depthwise convolution of `pixels` outputs a channel; T' = ceil(taps / depth). dataflow, mode: which of
    `mac.dataflows` and `mac.depthwise_modes`.

    column (and none): one channel after another, each the product [pixels, taps] x [taps, 1] (as SCALE-Sim).
    diagonal: `columns` channels at once, taps padded to whole `timing.depthwise_taps`. os: rows hold pixels, ceil(P/R)
    ceil(channels/C) folds of T' / rate steps, in each of which every row and column takes an input of its own.
    ws, is: the diagonal holds one tap (`depth` taps) of each channel and streams the pixels,
    T' ceil(channels/C) folds of P / rate steps, partial sums in the accumulators.
    """
    useful, channels_at_once = _full(mac, pixels * taps * channels, operands.rate), _taken(mac, channels, mac.columns)
    together = given(mac.timing.depthwise_taps, mac.depth)
    padded = ceil_div(taps, together) * together
    groups, steps, across = ceil_div(channels, mac.columns), ceil_div(padded, mac.depth), channels_at_once * mac.depth

    def diagonal(flow: str) -> Compute:
        if flow == "os":
            folds, entering = ceil_div(pixels, mac.rows) * groups, padded * channels_at_once
            fed = entering * _taken(mac, pixels, mac.rows), entering
            return _folds(mac, folds, _fold(mac, steps, fed, operands), useful, operands.rate)
        return _folds(mac, steps * groups, _fold(mac, pixels, (pixels * across, 0), operands, (0, across)), useful, operands.rate)

    def cycles(mode: str) -> Compute:
        if mode != "diagonal":
            return product_cycles(mac, pixels, taps, 1, operands, channels, dataflow)
        return by_name(mac.dataflows, dataflow, diagonal)

    return by_name(mac.depthwise_modes, mode, cycles)


def with_output(
    mac: MacArray, made: Compute, pixels: Whole, outputs: Whole, tabled: Whole, added: Whole, emitted: Whole
) -> Compute:
    """With the way out: ceil(outputs / lanes) cycles a pixel where the operation emits, behind the folds or beside them. tabled,
    added: whether outputs pass through a table, or take an addend."""
    terms = mac.timing.output
    own = given(terms.lanes, mac.columns)
    plain = _passes(outputs, own)
    looked_up = most(plain, where(tabled, _passes(outputs, terms.table_lanes), 0))
    summed = most(looked_up, where(added, _passes(outputs, given(terms.addend_lanes, own)), 0))
    leaving = where(emitted, pixels * summed, 0)
    beyond = most(leaving - made.cycles, 0) if terms.overlaps else leaving
    return Compute(made.cycles + beyond, made.lost._replace(output_cycles=made.lost.output_cycles + beyond))


def _reduced(mac: MacArray, inner: Whole, taps: Whole, group: Whole) -> tuple[Whole, Whole]:
    """Taps that fill the depth for themselves, and the products of each, of one of the sums that are taken together."""
    spanned = where(group, least(taps, ceil_div(group, ceil_div(inner, taps))), taps)
    products = where(group, least(group, inner), inner)
    if mac.timing.reduction == DENSE:
        return 1, products
    channels = ceil_div(products, spanned)
    if not mac.timing.reduction:
        return spanned, channels
    return 1, reduce(least, (ceil_div(channels, c) * c * ceil_div(spanned, t) * t for c, t in mac.timing.reduction))


def _taken(mac: MacArray, n: Whole, places: int) -> Whole:
    """Of so many rows or columns, by a fold."""
    return n / ceil_div(n, places) if mac.even else least(n, places)


def _entering(mac: MacArray, bits: Whole, taken: int) -> Whole:
    """Cycles in which so many bits of a fold enter."""
    return bits / taken if mac.even else ceil_div(bits, taken)


def _passes(outputs: Whole, lanes: int) -> Whole:
    """Cycles in which a pixel's outputs pass."""
    return 0 if lanes == UNLIMITED else ceil_div(outputs, lanes)


def _full(mac: MacArray, macs: Whole, rate: float) -> Whole:
    """Cycles of so many products on all of the array, at its rate for their types."""
    return at_rate(ceil_div(macs, mac.multipliers), rate)


def _fold(
    mac: MacArray,
    steps: Whole,
    fed: tuple[Whole, Whole],
    operands: Operands,
    held: tuple[Whole, Whole] | None = None,
    scaled: Whole = 0,
) -> _Fold:
    """fed: activations and weights that enter in all steps; held: those that it begins with, a row a cycle at best."""
    bits = operands.activation_bits, operands.weight_bits
    paced = at_rate(steps, operands.rate)
    for n, size, taken in zip(fed, bits, mac.edge_bytes):
        paced = most(paced, _entering(mac, n * size, 8 * taken))
    load: Whole = 0 if held is None else mac.rows
    for n, size, taken in zip(held or (0, 0), bits, mac.edge_bytes):
        load = most(load, _entering(mac, n * size, 8 * taken))
    return _Fold(steps, paced, mac.rows + mac.columns - 2 + load, load, scaled)


def _folds(mac: MacArray, folds: Whole, fold: _Fold, useful_cycles: Whole, rate: float) -> Compute:
    """useful_cycles: of products, on a full array."""
    stream, own = fold.paced + fold.scaled, mac.timing.fold_cycles
    if not mac.folds_overlap:
        fill = folds * (fold.edge + own)
    else:
        waiting = (folds - 1) * (most(stream, fold.load) - stream)
        fill = where(folds > 0, waiting + fold.edge + folds * own, 0)
    at_peak = at_rate(fold.steps, rate)
    lost = Lost(fill, folds * at_peak - useful_cycles, folds * fold.scaled, folds * (fold.paced - at_peak))
    return Compute(folds * stream + fill, lost)


def operands_of(mac: MacArray, activation: CodeType, weight: CodeType) -> Operands:
    """The array's share of its peak is 1.0 where the table is silent."""
    rate = mac.rate_of(activation, weight)
    return Operands(1.0 if rate is None else rate, activation.bits, weight.bits)


def matrix_operands(mac: MacArray, a: CodeType, b: CodeType) -> Operands:
    """Both are activations: b goes through the weight port, of 16 bits as two planes of 8 at half the rate."""
    rate = operands_of(mac, a, CodeType.INT8).rate
    return Operands(rate / b.size_bytes, a.bits, b.bits)


def operand_reads(mac: MacArray, pixels: Whole, outputs: Whole, dataflow: Whole = 0) -> tuple[Whole, Whole]:
    """How often one operation reads its inputs and its weights from SRAM; dataflow: which of `mac.dataflows`.

    SCALE-Sim's counts, with three differences: an input byte is read once for `timing.shared_outputs` channels, and not once for
    each tap where a window buffer holds it; and os keeps a weight for as many row folds as the accumulators hold.
    """

    def inputs(flow: str) -> Whole:
        shared = given(mac.timing.shared_outputs, mac.columns)
        return 1 if flow == "is" else ceil_div(outputs, shared)

    def weights(flow: str) -> Whole:
        kept = mac.rows * max(1, mac.accumulators.entries // (mac.rows * mac.columns))
        return {"os": ceil_div(pixels, kept), "ws": 1, "is": ceil_div(pixels, mac.columns)}[flow]

    return by_name(mac.dataflows, dataflow, inputs), by_name(mac.dataflows, dataflow, weights)


def window_reads(mac: MacArray, reached: Whole, by_row: Whole, by_tap: Whole, held: tuple[Whole, Whole]) -> Whole:
    """Bytes of the input that an operation reads once through the window buffer. reached: what windows reach; by_row: that again
    for each row of the kernel; by_tap: for each tap; held: bytes of the rows of a kernel, and of what one row of it reaches."""
    size = mac.timing.window_bytes
    rows, row = held
    return where(rows <= size, reached, where(row <= size, most(by_row, reached), most(by_tap, reached)))
