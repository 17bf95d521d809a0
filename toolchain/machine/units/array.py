"""Cycles of the MAC array, and how often it reads its operands.

Sources: the fold counts and the cycles a fold are SCALE-Sim 3.0's (`K + R + C - 2` os, `P + 2R + C - 2` ws,
`M + 2R + C - 2` is; equal to its simulation of 360 layers), taken here per operation and generalised by `depth`, `rate`,
`folds_overlap` and the two depthwise modes. `docs/simulator.md` lists every formula.
"""

from __future__ import annotations

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.engines import MacArray
from toolchain.machine.columns import Whole, at_rate, by_name, ceil_div, least, most, where
from toolchain.machine.traffic import Compute, Lost


def product_cycles(
    mac: MacArray,
    pixels: Whole,
    inner: Whole,
    outputs: Whole,
    rate: float,
    repeats: Whole = 1,
    dataflow: Whole = 0,
    group: Whole = 0,
) -> Compute:
    """Cycles of `repeats` matrix products [pixels, inner] x [inner, outputs] one after another on the array; dataflow: which of
    `mac.dataflows`; group: weights along `inner` that share a scale, 0: all.

    With R rows, C columns, K' = ceil(inner / depth):
    os: ceil(P/R) ceil(M/C) folds of K' / rate steps, fill and drain R + C - 2.
    ws: ceil(K'/R) ceil(M/C) folds of P / rate steps, fill (R to load weights) and drain 2R + C - 2.
    is: ceil(K'/R) ceil(P/C) folds of M / rate steps, fill and drain 2R + C - 2.
    folds_overlap: fill and drain are paid once; a ws or is fold then takes at least the R cycles its successor loads in.
    A fold has products of one group alone: groups are products one after another, each of `group` (the last one too), whose folds
    take `groups.fold_cycles` more each.
    """
    rows, columns = mac.rows, mac.columns
    useful = _full(mac, repeats * pixels * inner * outputs, rate)
    repeats = repeats * where(group, ceil_div(inner, most(group, 1)), 1)
    steps = ceil_div(where(group, least(group, inner), inner), mac.depth)
    scaled = 0 if mac.groups is None else where(group, mac.groups.fold_cycles, 0)

    def cycles(flow: str) -> Compute:
        if flow == "os":
            folds = ceil_div(pixels, rows) * ceil_div(outputs, columns)
            stream, edge, load = steps, rows + columns - 2, 0
        elif flow == "ws":
            folds = ceil_div(steps, rows) * ceil_div(outputs, columns)
            stream, edge, load = pixels, 2 * rows + columns - 2, rows
        else:
            folds = ceil_div(steps, rows) * ceil_div(pixels, columns)
            stream, edge, load = outputs, 2 * rows + columns - 2, rows
        return _folds(mac, folds * repeats, at_rate(stream, rate), scaled, edge, load, useful)

    return by_name(mac.dataflows, dataflow, cycles)


def depthwise_cycles(
    mac: MacArray, pixels: Whole, taps: Whole, channels: Whole, rate: float, dataflow: Whole = 0, mode: Whole = 0
) -> Compute:
    """Cycles of a depthwise convolution of `pixels` outputs a channel; T' = ceil(taps / depth). dataflow, mode: which of
    `mac.dataflows` and `mac.depthwise_modes`.

    column (and none): one channel after another, each the product [pixels, taps] x [taps, 1] (as SCALE-Sim).
    diagonal: `columns` channels at once. os: rows hold pixels, ceil(P/R) ceil(channels/C) folds of T' / rate steps.
    ws, is: the diagonal holds one tap (`depth` taps) of each channel and streams the pixels,
    T' ceil(channels/C) folds of P / rate steps, partial sums in the accumulators.
    """
    groups, steps = ceil_div(channels, mac.columns), ceil_div(taps, mac.depth)
    useful = _full(mac, pixels * taps * channels, rate)

    def diagonal(flow: str) -> Compute:
        if flow == "os":
            folds, edge = ceil_div(pixels, mac.rows) * groups, mac.rows + mac.columns - 2
            return _folds(mac, folds, at_rate(steps, rate), 0, edge, 0, useful)
        return _folds(mac, steps * groups, at_rate(pixels, rate), 0, 2 * mac.rows + mac.columns - 2, mac.rows, useful)

    def cycles(mode: str) -> Compute:
        if mode != "diagonal":
            return product_cycles(mac, pixels, taps, 1, rate, channels, dataflow)
        return by_name(mac.dataflows, dataflow, diagonal)

    return by_name(mac.depthwise_modes, mode, cycles)


def _full(mac: MacArray, macs: Whole, rate: float) -> Whole:
    """Cycles of so many products on all of the array, at its rate for their types."""
    return at_rate(ceil_div(macs, mac.multipliers), rate)


def _folds(
    mac: MacArray, folds: Whole, steps: Whole, scaled: Whole, edge_cycles: int, load_cycles: int, useful_cycles: Whole
) -> Compute:
    """steps, scaled: cycles of each fold with products and of scaling their sums. useful_cycles: of products, on a full array."""
    stream = steps + scaled
    if not mac.folds_overlap:
        fill = folds * edge_cycles
    else:
        fill = where(folds > 0, (folds - 1) * (most(stream, load_cycles) - stream) + edge_cycles, 0)
    return Compute(folds * stream + fill, Lost(fill, folds * steps - useful_cycles, folds * scaled))


def operand_rate(mac: MacArray, activation: CodeType, weight: str) -> float:
    """The array's share of its peak with operands of these types; 1.0 where the table is silent."""
    rate = mac.rate_of(activation, weight)
    return 1.0 if rate is None else rate


def matrix_rate(mac: MacArray, a: CodeType, b: CodeType) -> float:
    """Both operands are activations: b goes through the weight port, of 16 bits as two planes of 8 at half the rate."""
    return operand_rate(mac, a, "int8") / b.size_bytes


def operand_reads(mac: MacArray, pixels: Whole, outputs: Whole, dataflow: Whole = 0) -> tuple[Whole, Whole]:
    """How often one operation reads its inputs and its weights from SRAM; dataflow: which of `mac.dataflows`.

    SCALE-Sim's counts, with two differences: a window buffer feeds the array, so an input byte is read once a column
    fold and not once a tap; and os keeps a weight for as many row folds as the accumulators hold.
    """

    def inputs(flow: str) -> Whole:
        return 1 if flow == "is" else ceil_div(outputs, mac.columns)

    def weights(flow: str) -> Whole:
        kept = mac.rows * max(1, mac.accumulators.entries // (mac.rows * mac.columns))
        return {"os": ceil_div(pixels, kept), "ws": 1, "is": ceil_div(pixels, mac.columns)}[flow]

    return by_name(mac.dataflows, dataflow, inputs), by_name(mac.dataflows, dataflow, weights)
