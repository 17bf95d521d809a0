"""From ranges and weights to what a machine computes with: scales, zero points, codes, biases, rounding offsets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.rounding import Rounding
from quant.grid import rounding_error
from quant.observe import Histogram, Range
from toolchain.errors import CompileError, InternalError
from toolchain.ir.graph import Quant

Array = NDArray[Any]

# A tensor that never leaves +-1e-10 is rounding noise: a smaller scale would only ask for multipliers no machine has.
SMALLEST_SCALE = 2.0**-40
# A channel this much below the largest cannot reach one step of the output they share, at 16 bits either.
SMALLEST_CHANNEL = 2.0**-32
_BLOCK = 1 << 14
_COARSE_STEPS = 2.0**10  # multipliers below this round a scale by more than 2**-11
_LARGEST_SUM = 2**62 - 1  # that int64 holds together with another
_FLOAT32 = 2.0**-22  # of a ratio of two float32 numbers, each rounded


def weight_code_range(weight: CodeType) -> tuple[int, int]:
    """The codes that weights take: int8 leaves -128 out, so that a product of two codes never meets (-128)**2; int4 needs all
    of its 16."""
    return (-127, 127) if weight is CodeType.INT8 else weight.limits


# --- activations


def activation_quant(r: Range, numerics: Numerics) -> Quant:
    """The scale and zero point whose codes cover `r` and 0.

    Where scales are powers of two: the power and zero point of least squared error for values spread evenly over `r`,
    which may clip up to 4 % of the range rather than lose a bit. A range made from a scale and zero point gives them back.
    """
    r = r.with_zero()
    if numerics.scale.kind == "pow2":
        low, high, count = np.array([r.low]), np.array([r.high]), np.ones(1)
        return _least_error(low, high, count, _pow2_candidates(r, numerics), numerics)
    return _covering(r, numerics)


def quant_range(quant: Quant, numerics: Numerics) -> Range:
    """The real values of the least and the largest code."""
    low, high = numerics.activation.limits
    return Range(float(quant.scale * (low - quant.zero_point)), float(quant.scale * (high - quant.zero_point)))


def least_error_range(histogram: Histogram, numerics: Numerics) -> Range:
    """The range of least mean squared rounding and clipping error over the values seen, within what `numerics` can express."""
    full = histogram.extremes.with_zero()
    low, high, counts = histogram.bins()
    if not counts.size or full.span == 0:
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


def _covering(r: Range, numerics: Numerics) -> Quant:
    first, last = numerics.activation.limits
    if numerics.symmetric_activations:
        return Quant(float(max(r.high / last, r.low / first, SMALLEST_SCALE)), 0)
    scale = float(max(r.span / (last - first), SMALLEST_SCALE))
    return Quant(scale, _zero_point(r.low / scale, first, last))


def _zero_point(low_steps: float, first: int, last: int) -> int:
    return int(np.clip(np.rint(first - low_steps), first, last))


def _pow2_candidates(r: Range, numerics: Numerics) -> list[Quant]:
    """The covering power of two and the three below it, each with zero points that keep the low end, the high end, the middle."""
    first, last = numerics.activation.limits
    exponent = int(np.ceil(np.log2(_covering(r, numerics).scale)))
    found: dict[Quant, None] = {}
    for e in range(exponent, exponent - 4, -1):
        scale = max(2.0**e, SMALLEST_SCALE)
        low, high = r.low / scale, r.high / scale
        points = (0,) if numerics.symmetric_activations else (
            _zero_point(low, first, last),
            _zero_point(high - (last - first), first, last),
            _zero_point((low + high - (last - first)) / 2, first, last),
        )  # fmt: skip
        found |= {Quant(scale, zero_point): None for zero_point in points}
    return list(found)


def _least_error(low: Array, high: Array, counts: Array, candidates: list[Quant], numerics: Numerics) -> Quant:
    """The candidate of least error; among equals the first."""
    first, last = numerics.activation.limits
    step = np.array([c.scale for c in candidates])
    zero = np.array([c.zero_point for c in candidates])
    return candidates[int(np.argmin(rounding_error(low, high, counts, step, first - zero, last - zero)))]


# --- weights


@dataclass(frozen=True, eq=False)
class WeightQuant:
    """real = scales (along `axis`; one for all where it has one entry) x codes. codes: int8, in the weights' shape."""

    codes: Array
    scales: Array
    axis: int

    def dequantized(self) -> Array:
        """float64, in the weights' shape."""
        return self.codes * along(self.scales, self.axis, self.codes.ndim)


def along(values: Array, axis: int, rank: int) -> Array:
    """values[c] shaped so that it broadcasts along `axis` of an array of `rank`."""
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def weight_quant(
    w: Array, axis: int, numerics: Numerics, *, method: Literal["minmax", "mse"] | None = None, name: str = "weights"
) -> WeightQuant:
    """Symmetric codes, a scale for each index of `axis` where the machine has them, else one for all.

    method: 'minmax' covers the largest weight; 'mse' searches the clipping of least squared error, which pays at int4.
    None: minmax at int8, mse at int4. Powers of two are always searched. Weights in small whole ratios, such as 1:3:9 of a
    linear interpolation, take the finest scale that holds them exactly. A channel of zeros takes the largest scale of the
    others, so that its bias keeps its bits. Raises CompileError: NaN or infinity.
    """
    if not np.isfinite(w).all():
        at = [int(i) for i in np.argwhere(~np.isfinite(w))[0]]
        raise CompileError(f"{name}: holds {float(w[tuple(at)])} at {at}; weights must be finite, mend the model")
    axis = axis % max(w.ndim, 1)
    rows = np.moveaxis(np.asarray(w, np.float64), axis, 0).reshape(w.shape[axis], -1)
    if not numerics.weights_per_channel:
        rows = rows.reshape(1, -1)
    method = method or ("mse" if numerics.weight is CodeType.INT4 else "minmax")
    scales = _weight_scales(rows, numerics, method)
    return requantized(w, WeightQuant(np.zeros(w.shape, np.int8), scales, axis), scales, numerics)


def requantized(w: Array, weight: WeightQuant, scales: Array, numerics: Numerics) -> WeightQuant:
    """The weights `w` at other scales."""
    first, last = weight_code_range(numerics.weight)
    steps = np.asarray(w, np.float64) / along(scales, weight.axis, w.ndim)
    return WeightQuant(np.clip(np.rint(steps), first, last).astype(np.int8), scales, weight.axis)


def taken_weight(chosen: WeightQuant, w: Array, numerics: Numerics, *, name: str) -> WeightQuant:
    """Codes that were chosen for the weights `w`. Raises CompileError: they are of other weights, or of another machine."""
    first, last = weight_code_range(numerics.weight)
    scales = w.shape[chosen.axis] if numerics.weights_per_channel else 1
    faults = []
    if chosen.codes.shape != w.shape:
        faults.append(f"their shape is {list(chosen.codes.shape)}, the weights' {list(w.shape)}")
    low, high = int(chosen.codes.min(initial=0)), int(chosen.codes.max(initial=0))
    if low < first or high > last:
        faults.append(f"they reach from {low} to {high}, the machine's {numerics.weight} from {first} to {last}")
    if chosen.scales.shape != (scales,):
        faults.append(f"they have {chosen.scales.size} scales, the machine takes {scales}")
    if numerics.scale.kind == "pow2" and (np.frexp(chosen.scales)[0] != 0.5).any():
        faults.append("their scales are no powers of two, and the machine has no others (numerics.scale.kind)")
    if faults:
        raise CompileError(f"{name}: the codes chosen for it do not fit: {'; '.join(faults)}; repair it for this machine")
    return chosen


def _weight_scales(rows: Array, numerics: Numerics, method: str) -> Array:
    """rows: float64[channels, n] -> float64[channels]."""
    first, last = weight_code_range(numerics.weight)
    peaks = np.maximum(rows.max(1, initial=0.0), -rows.min(1, initial=0.0))
    covering = peaks / last
    if numerics.scale.kind == "pow2":
        exponent = np.ceil(np.log2(np.where(covering > 0, covering, 1.0)))
        scales = _best_scales(rows, [np.exp2(exponent - i) for i in range(4)], first, last)
    elif method == "mse":
        safe = np.where(covering > 0, covering, 1.0)
        scales = _best_scales(rows, [safe * f for f in np.linspace(1.0, 0.4, 31)], first, last)
    else:
        scales = covering
    if numerics.scale.kind != "pow2":
        scales = _exact_scales(rows, peaks, scales, last)
    largest = float(scales[covering > 0].max()) if (covering > 0).any() else 2.0**-7
    return np.where(covering > 0, np.maximum(scales, largest * SMALLEST_CHANNEL), largest)


def _exact_scales(rows: Array, peaks: Array, scales: Array, last: int) -> Array:
    """`scales`, but where a row is whole multiples of a unit, and its peak at most `last` of them: the least that holds it."""
    codes, fractions = _ratios(last)
    head = np.abs(rows[:, :4]) / np.where(peaks > 0, peaks, 1.0)[:, None]
    at = np.minimum(np.searchsorted(fractions, head - _FLOAT32), len(fractions) - 1)
    left = np.flatnonzero((peaks > 0) & (np.abs(fractions[at] - head) <= _FLOAT32).all(1))  # of common weights next to none
    scales = scales.copy()
    for code in codes if left.size else ():
        found = left[_whole(rows, left, peaks / code, last * _FLOAT32)]
        scales[found] = peaks[found] / code
        left = np.setdiff1d(left, found)
    return scales


@cache
def _ratios(last: int) -> tuple[Array, Array]:
    """The codes that a peak may have (a smaller one can be doubled), and every ratio of a code to one of them, rising."""
    codes = np.arange(last, last // 2, -1)
    return codes, np.unique(np.concatenate([np.arange(n + 1) / n for n in codes]))


def _whole(rows: Array, at: Array, scales: Array, tolerance: float) -> Array:
    """bool: which of the rows `at` are whole multiples of their scales. The first columns tell most of those that are not."""
    whole = np.ones(len(at), bool)
    for left, right in ((0, 64), (64, 4096), (4096, rows.shape[1])):
        some = at[whole]
        steps = rows[some, left:right] / scales[some, None]
        whole[whole] = (np.abs(steps - np.rint(steps)) <= tolerance).all(1)
    return whole


def _best_scales(rows: Array, candidates: list[Array], first: int, last: int) -> Array:
    """For each row the candidate of least squared error; among equals the first. In blocks that stay in the cache."""
    scales = np.stack(candidates)
    errors = np.zeros(scales.shape)
    columns = min(rows.shape[1], _BLOCK) or 1
    height = max(_BLOCK // columns, 1)
    for top in range(0, rows.shape[0], height):
        for left in range(0, rows.shape[1], columns):
            block = rows[top : top + height, left : left + columns]
            for i, scale in enumerate(scales[:, top : top + height, None]):
                steps = block / scale
                steps -= np.clip(np.rint(steps), first, last)
                errors[i, top : top + height] += np.einsum("rc,rc->r", steps, steps)
    return scales[np.argmin(errors * scales**2, 0), np.arange(rows.shape[0])]


def expressible_weight(w: Array, weight: WeightQuant, ratio: float, numerics: Numerics) -> WeightQuant:
    """`weight` at scales that make ratio x scale a requantization of the machine, where that is coarse among those it has: near
    its shift_max few are left, and rounding to one of them would scale a whole channel wrongly.

    ratio: the input's scale over the output's. Scales grow; where that would cost more than half of the weights' bits they stay.
    """
    form = numerics.scale
    if form.kind == "float32":
        return weight
    steps = weight.scales * ratio / form.extremes[0]
    grown = np.ceil(steps) / steps
    wanted = (steps < _COARSE_STEPS) & (grown <= 2.0 ** (numerics.weight.bits / 2)) & (grown > 1)
    return requantized(w, weight, np.where(wanted, weight.scales * grown, weight.scales), numerics) if wanted.any() else weight


def product_scale(x: float, w: Any, y: float, numerics: Numerics) -> Array:
    """What sums of products of codes at scales x and w are multiplied by for codes at scale y. In float32, step by step, where
    the machine's scales are such, as onnxruntime's QLinearConv and QLinearMatMul have it."""
    if numerics.scale.kind != "float32":
        return np.asarray(x * w / y)
    return np.asarray(np.float32(x) * np.asarray(w, np.float32) / np.float32(y)).astype(np.float64)


# --- biases


@dataclass(frozen=True)
class Enlarged:
    """Weights of `channel` were given a scale `factor` times larger, so that its sums fit the accumulators."""

    channel: int
    factor: float
    cause: Literal["bias", "products"]


@dataclass(frozen=True, eq=False)
class BiasQuant:
    """codes: int32[oc], at scale input x weight; `weight` as it must be used with them; peak: int64[oc], the largest magnitude
    that the accumulator, or accumulator and bias together, can reach with any input."""

    codes: Array
    weight: WeightQuant
    peak: Array
    enlarged: tuple[Enlarged, ...]


def bias_quant(
    bias: Array | None,
    w: Array,
    weight: WeightQuant,
    input_quant: Quant,
    numerics: Numerics,
    *,
    name: str = "bias",
) -> BiasQuant:
    """Bias codes such that no input whatever overflows an accumulator, in any order of summation.

    bias: float[oc] or None; w: the float weights that `weight` holds codes of. Where a channel's bias or products do not fit,
    its weight scale is enlarged (a power of two where the machine has only those) and noted in `enlarged`.
    For a bias that costs nothing: the weights' rounding stays far below a step of an output that holds such a bias.
    Raises CompileError where the products alone would cost more than half of the weight's bits.
    """
    channels = w.shape[weight.axis]
    real = np.zeros(channels) if bias is None else np.asarray(bias, np.float64).reshape(-1)
    if real.shape != (channels,) or not np.isfinite(real).all():
        raise CompileError(f"{name}: bias must be {channels} finite numbers, one for each output channel; mend the model")
    limit = min(numerics.largest_sum, _LARGEST_SUM)
    total = np.ones(len(weight.scales))
    original, causes = weight, np.zeros(channels, bool)
    products, peak, codes = _peaks(real, weight, input_quant, numerics)
    for attempt in range(20):  # rounding may leave an enlargement a little short, small codes more often: then by more
        code_over = np.abs(codes) / (2**31 - 1)
        over = np.maximum(peak / limit, code_over)
        if not (over > 1).any():
            break
        causes |= products / limit > 1
        factor = _enlargement(over, len(total), numerics, spare=2.0 ** (max(attempt - 7, 0) - 10))
        total = total * factor
        weight = requantized(w, original, original.scales * total, numerics)
        products, peak, codes = _peaks(real, weight, input_quant, numerics)
        _refuse_lost_bits(total, causes, numerics, name)
    else:
        raise InternalError(f"{name}: enlarging the weight scales does not converge (peak {peak.max():.0f}, limit {limit})")
    enlarged = tuple(
        Enlarged(c, float(f), "products" if causes[c] else "bias")
        for c, f in enumerate(np.broadcast_to(total, (channels,)))
        if f > 1
    )
    return BiasQuant(codes.astype(np.int32), weight, peak.astype(np.int64), enlarged)


def _peaks(real: Array, weight: WeightQuant, x: Quant, numerics: Numerics) -> tuple[Array, Array, Array]:
    """-> float64[oc] peak of the products, peak with the bias, bias codes."""
    first, last = numerics.activation.limits
    rows = np.moveaxis(weight.codes, weight.axis, 0).reshape(len(real), -1).astype(np.float64)
    at_first, at_last = rows * (first - x.zero_point), rows * (last - x.zero_point)
    low, high = np.minimum(at_first, at_last).sum(1), np.maximum(at_first, at_last).sum(1)
    codes = np.rint(real / (x.scale * weight.scales))
    products = np.maximum(high, -low)
    return products, np.maximum(products, np.maximum(high + codes, -(low + codes))), codes


def _enlargement(over: Array, scales: int, numerics: Numerics, spare: float) -> Array:
    factor = np.maximum(over, 1.0)
    factor = factor.max(keepdims=True) if scales == 1 else factor
    if numerics.scale.kind == "pow2":
        return np.exp2(np.ceil(np.log2(factor)))
    return np.where(factor > 1, factor * (1 + spare), 1.0)


def _refuse_lost_bits(total: Array, causes: Array, numerics: Numerics, name: str) -> None:
    bits, accumulator_bits = numerics.weight.bits, numerics.accumulator_bits
    lost = np.where(causes, np.log2(np.broadcast_to(total, causes.shape)), 0.0)
    if lost.max(initial=0.0) <= bits / 2:
        return
    c = int(np.argmax(lost))
    raise CompileError(
        f"{name}: the products of output channel {c} outgrow {accumulator_bits}-bit accumulators "
        f"(engines.mac.accumulators.bits), and shrinking its weights to fit would cost {lost[c]:.1f} of their {bits} bits; "
        f"accumulators of {accumulator_bits + int(np.ceil(lost[c]))} bits would do, or fewer input channels"
    )


# --- rounding offsets


@dataclass(frozen=True, eq=False)
class Compensation:
    """offsets: int64[oc], to be added to the bias codes; output_zero_point: to be given to the machine in the place of the
    tensor's. With both, rounding is to nearest, halves up: exactly so where `exact` (bool[oc]), else off by at most half an
    accumulator step. `complete`: False where this machine cannot be brought to round to nearest."""

    offsets: Array
    output_zero_point: int
    exact: Array
    complete: bool


def bias_compensation(
    scale: Array,
    output: Quant,
    numerics: Numerics,
    *,
    clamp_low: int | None = None,
    operation: Literal["convolution", "matrix_product"] = "convolution",
    peak: Array | None = None,
    name: str = "bias",
) -> Compensation:
    """What makes a machine that rounds by `floor` or `truncate` round to nearest, through the bias alone.

    scale: float64[oc], the requantization (multiplier / 2**shift, exact); clamp_low: the least output code that is let through.
    floor: half an output step, in accumulator units. truncate is toward zero, so the sum is moved to where no value that
    survives the clamp is negative, and the output zero point moves back. Machines without zero points can do so only for outputs
    clamped at zero (after Relu); for others no offset is taken.
    Other roundings need nothing. Raises CompileError where the offset overflows.
    """
    scale = np.atleast_1d(np.asarray(scale, np.float64))
    rounding = numerics.rounding_of(operation)
    clamp_low = numerics.activation.low if clamp_low is None else clamp_low
    unchanged = np.zeros(scale.shape, np.int64)
    if rounding not in (Rounding.FLOOR, Rounding.TRUNCATE):
        return Compensation(unchanged, output.zero_point, np.ones(scale.shape, bool), True)
    lift = output.zero_point - clamp_low if rounding is Rounding.TRUNCATE else 0
    power = np.frexp(scale)[0] == 0.5
    whole = power & (scale >= 1)  # a left shift rounds nothing
    complete = not (lift and numerics.symmetric_activations)
    if complete:
        steps = lift + np.where(whole, 0.0, 0.5)
    else:
        # truncation errs alike on both sides of zero: an offset that mends one worsens the other
        lift, steps = 0, np.zeros(scale.shape)
    wanted = steps / scale
    offsets = np.rint(wanted)
    if peak is not None:
        # An offset is half a step of the output: where that outgrows the accumulators, every sum rounds to nothing anyway.
        room = numerics.largest_sum - peak
        offsets = offsets if lift else np.clip(offsets, -room, room)
        _refuse_overflow(np.abs(offsets) + peak, numerics, name)
    exact = power & (offsets == wanted) & (complete | whole)
    return Compensation(offsets.astype(np.int64), output.zero_point - lift, exact, complete)


def _refuse_overflow(sums: Array, numerics: Numerics, name: str) -> None:
    limit, accumulator_bits = numerics.largest_sum, numerics.accumulator_bits
    if (sums > limit).any():
        c = int(np.argmax(sums))
        raise CompileError(
            f"{name}: output channel {c} reaches {int(sums[c])} with its rounding offset, {accumulator_bits}-bit accumulators "
            f"{limit} (engines.mac.accumulators.bits); wider accumulators would do, or another rounding"
        )
