"""Chooses the scale and zero point of an activation from its range, and the range itself from a histogram or its tails.

`activation_quant` is the entry of the quantizer. `with_room` widens a measured range for unseen values before that.
`least_error_range` is what the observer `mse` chooses.

SMALLEST_SCALE is the least scale of a tensor. A tensor that never leaves +-1e-10 is rounding noise, and a smaller scale would
need multipliers that no machine has. SEQUENCE_ROOM is how many times its measured range a state of a sequence gets. A state
adds up from step to step, and unseen sequences add up to more: of 16 bits one is for that. Room is weighed against
_MOST_STEPS steps of a range at most, since finer ones serve small numbers, which a mean of squares does not see. Scales that
differ by less than _AS_ONE of themselves count as one: less than 1/16 of a code of 16 bits. After _ROUNDS rounds room and
span agree to far less than a code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.pointwise.tables import TABLE16_STEP_BITS
from quant.observe import Histogram, Range
from quant.rounding_grid import rounding_error
from toolchain.ir.graph import Quant
from toolchain.ir.range_constraints import ClippedRange

Array = NDArray[Any]

SMALLEST_SCALE = 2.0**-40
SEQUENCE_ROOM = 2.0
_MOST_STEPS = 2.0**12  # docs/quantization.md, room for unseen values
_AS_ONE = 1e-6
_ROUNDS = 8


def activation_quant(r: Range, numerics: Numerics, *, zero_at_entry: bool = False) -> Quant:
    """Return the scale and zero point whose codes cover `r` and 0, with the `spare_bits` of their type unused.

    `numerics`: of the tensor's codes, whose type is `numerics.activation`.
    `zero_at_entry`: an interpolated table shall have an entry for zero; the range grows by one of its intervals at most.

    Where scales are powers of two, the result has least squared error for values spread evenly over `r`. Such a scale may clip up
    to 4 % of the range rather than lose a bit, but never of 32-bit codes. A range made from a scale and zero point of other
    codes gives them back. Elsewhere the scale of values with a step is that step over an integer, where the step is no finer
    than the codes. No scale is below SMALLEST_SCALE, so that [0, 0] is valid. With symmetric activations the zero point is 0.
    """
    step, r = r.step, r.with_zero()
    if numerics.scale.kind == "pow2":
        low, high, count = np.array([r.low]), np.array([r.high]), np.ones(1)
        return _least_error(low, high, count, _pow2_candidates(r, numerics), numerics)
    interpolated = numerics.activation.interpolates and not numerics.symmetric_activations
    if zero_at_entry and interpolated and step is None and r.low < 0 < r.high:
        return _cover_from_entry(r, numerics)
    return _covering(r, numerics, step)


def with_room(r: Range, within: ClippedRange | None, numerics: Numerics) -> Range:
    """Return `r` with room for unseen values beyond its ends: as much as its tails make worth the coarser codes.

    A range without tails gets none, nor do codes of 32 bits and scales that are powers of two. A range whose step the codes hold
    exactly keeps its ends where room would spoil that.
    A tensor that depends on all earlier steps of a sequence gets twice the range, where its codes have bits to spare.
    `numerics`: of these codes.
    `within`: bounds of the values of such a tensor, which room does not pass; None: it is no such tensor.
    """
    wider = _with_tails(r, numerics)
    if r.step is not None and _covering(r, numerics).scale <= r.step < _covering(wider, numerics).scale:
        wider = r  # what has steps ends where the codes of its converter do
    if within is None:
        return wider
    if numerics.activation.interpolates:
        wider = wider.union(Range(min(SEQUENCE_ROOM * r.low, r.low), max(SEQUENCE_ROOM * r.high, r.high)))
    return Range(max(wider.low, min(r.low, within.low)), min(wider.high, max(r.high, within.high)))  # which may be infinite


def _with_tails(r: Range, numerics: Numerics) -> Range:
    """Return the range of least expected squared error.

    Steps of size d cost d² / 12. After n values the next lies beyond an end with chance 1 / n. It lies x beyond with exp(-x / a)
    of that, a the mean excess; clipped there it costs 2 a² / n exp(-x / a). The sum is least at x = a ln(12 a steps² / (n span)).
    The span includes its room, which is at most as much again. Scales that are powers of two leave room anyhow, and a little
    more would double them.
    """
    span, tails, codes = r.with_zero().span, r.tails, numerics.activation
    if tails is None or span == 0 or codes.is_wide or numerics.scale.kind == "pow2":
        return r
    below = above = 0.0
    for _ in range(_ROUNDS):
        gain = 12 * min(codes.high - codes.low, _MOST_STEPS) ** 2 / (tails.values * (span + below + above))
        below, above = _room(tails.below, gain), _room(tails.above, gain)
        share = span / max(below + above, span)
        below, above = below * share, above * share
    return Range(r.low - below, r.high + above, step=r.step) if below or above else r


def _room(mean: float, gain: float) -> float:
    """Return the room beyond an end of mean excess `mean`, in its unit: 0 where it is not worth its codes."""
    return mean * math.log(mean * gain) if mean * gain > 1 else 0.0


def quant_range(quant: Quant, numerics: Numerics) -> Range:
    """Return the range from the real value of the least code of `numerics.activation` to that of the largest."""
    low, high = numerics.activation.limits
    return Range(float(quant.scale * (low - quant.zero_point)), float(quant.scale * (high - quant.zero_point)))


def least_error_range(histogram: Histogram, numerics: Numerics) -> Range:
    """Return the range of least mean squared rounding and clipping error over the values, within what `numerics` can express.

    Where the tails are worth room, the error counts another value beyond each end too. Codes of 32 bits get the whole range and
    clip nothing.
    """
    extremes = histogram.extremes
    roomy = with_room(extremes, None, numerics)
    full = roomy.with_zero()
    low, high, counts = histogram.bins() if roomy is extremes else _with_others(extremes, histogram)
    if not counts.size or full.span == 0 or numerics.activation.is_wide:  # what is clipped costs more than bits to spare
        return full
    if numerics.scale.kind == "pow2":
        return quant_range(_least_error(low, high, counts, _pow2_candidates(full, numerics), numerics), numerics)
    best = full
    for share in (np.geomspace(1, 0.1, 24), np.linspace(1.1, 0.85, 11)):  # coarse, then fine around the best
        candidates = [_covering(Range(best.low * f, best.high * f), numerics) for f in share]
        best = quant_range(_least_error(low, high, counts, candidates, numerics), numerics)
    if numerics.symmetric_activations or full.low == 0 or full.high == 0:
        return best
    share = np.linspace(1, 0.4, 13)  # each end by itself
    ends = [Range(best.low * f, best.high) for f in share] + [Range(best.low, best.high * f) for f in share]
    return quant_range(_least_error(low, high, counts, [_covering(r, numerics) for r in ends], numerics), numerics)


def _with_others(extremes: Range, histogram: Histogram) -> tuple[Array, Array, Array]:
    """Return the bins of the histogram with one more value beyond each end, spread as its tail is.

    Bins are (lower edges, upper edges, counts), float64[n] each.
    """
    low, high, counts = histogram.bins()
    assert extremes.tails is not None
    edges = np.linspace(0, 8, 17)  # in means of an exponential tail
    share = np.exp(-edges[:-1]) - np.exp(-edges[1:])
    for end, mean in ((extremes.low, -extremes.tails.below), (extremes.high, extremes.tails.above)):
        if mean:
            beyond = np.sort(end + mean * np.stack([edges[:-1], edges[1:]]), axis=0)
            low, high, counts = np.append(low, beyond[0]), np.append(high, beyond[1]), np.append(counts, share)
    return low, high, counts


def _covering(r: Range, numerics: Numerics, step: float | None = None) -> Quant:
    """Return the scale and zero point that cover a range.

    `step`: the scale shall be this step over an integer where possible; then multiples of it lose nothing.
    """
    first, last = (limit >> numerics.activation.spare_bits for limit in numerics.activation.limits)
    if numerics.symmetric_activations:
        return Quant(_part_of(step, float(max(r.high / last, r.low / first, SMALLEST_SCALE))), 0)
    least = float(max(r.span / (last - first), SMALLEST_SCALE))
    scale = _part_of(step, least)
    spare = (last - first - r.span / scale) // 2 if scale > least and r.low < 0 < r.high else 0  # codes at either end
    return Quant(scale, _zero_point(r.low / scale - spare, first, last))


def _cover_from_entry(r: Range, numerics: Numerics) -> Quant:
    """Return the finest scale that covers a range around zero and whose zero point is an entry of an interpolated table."""
    (first, last), interval = numerics.activation.limits, 1 << TABLE16_STEP_BITS
    entry = (first - r.low / r.span * (last - first)) / interval
    points = [p for p in (math.floor(entry) * interval, math.ceil(entry) * interval) if first < p < last]
    candidates = [Quant(max(r.low / (first - p), r.high / (last - p), SMALLEST_SCALE), p) for p in points]
    return min(candidates, key=lambda q: q.scale)


def _part_of(step: float | None, scale: float) -> float:
    """Return the least scale of at least `scale` that divides `step`; `scale` itself where there is none, or no `step`."""
    parts = 0 if step is None else math.floor(step / scale * (1 + _AS_ONE))
    if step is None or not parts or abs(scale * parts / step - 1) <= _AS_ONE:
        return scale
    return step / parts


def _zero_point(low_steps: float, first: int, last: int) -> int:
    """Return the code of real 0 where the code `first` stands for `low_steps` steps, clipped to [first, last]."""
    return int(np.clip(np.rint(first - low_steps), first, last))


def _pow2_candidates(r: Range, numerics: Numerics) -> list[Quant]:
    """Return the power of two that covers the range and the three below it, each with up to three zero points.

    These keep the low end, the high end, or the middle of the range. Symmetric activations have 0 alone. Codes of 32 bits
    get no power below: it would take their spare bits, which the upper plane of a bit-sliced tensor need not hold.
    """
    first, last = numerics.activation.limits
    exponent = int(np.ceil(np.log2(_covering(r, numerics).scale)))
    candidates: dict[Quant, None] = {}
    for e in range(exponent, exponent - (1 if numerics.activation.is_wide else 4), -1):
        scale = max(2.0**e, SMALLEST_SCALE)
        low, high = r.low / scale, r.high / scale
        points = (0,) if numerics.symmetric_activations else (
            _zero_point(low, first, last),
            _zero_point(high - (last - first), first, last),
            _zero_point((low + high - (last - first)) / 2, first, last),
        )  # fmt: skip
        candidates |= {Quant(scale, zero_point): None for zero_point in points}
    return list(candidates)


def _least_error(low: Array, high: Array, counts: Array, candidates: list[Quant], numerics: Numerics) -> Quant:
    """Return the candidate of least squared rounding and clipping error over the bins; among equals the first."""
    first, last = numerics.activation.limits
    step = np.array([c.scale for c in candidates])
    zero = np.array([c.zero_point for c in candidates])
    return candidates[int(np.argmin(rounding_error(low, high, counts, step, first - zero, last - zero)))]
