"""Computes bias codes from float biases, and enlarges scales of weights where an accumulator could overflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.numerics import Numerics
from quant.parameters.weight_groups import form_of
from quant.parameters.weights import WeightQuant, requantize_weight
from toolchain.errors import CompileError, InternalError
from toolchain.ir.graph import Quant

Array = NDArray[Any]

_LARGEST_SUM = 2**62 - 1  # that int64 holds together with another


@dataclass(frozen=True)
class RaisedScale:
    """A record: the weights of `channel` got a scale `factor` times larger, so that its sums fit the accumulators.

    `cause`: `products` where the channel's products by themselves did not fit. `bias` where only the bias did not, or where
    the channel shares its scale with one that did not fit.
    """

    channel: int
    factor: float
    cause: Literal["bias", "products"]


@dataclass(frozen=True, eq=False)
class BiasQuant:
    """Bias codes and the weights that go with them.

    `codes`: int32[oc] (int64 with weights in groups), at scale input x weight.
    `weight`: the weights that must be used with them; their scales may be larger than before.
    `peak`: int64[oc], the largest magnitude that the accumulator, or accumulator and bias together, can reach with any input.
    `enlarged`: channels whose scale was enlarged, in order; all of them where they share one scale.
    """

    codes: Array
    weight: WeightQuant
    peak: Array
    enlarged: tuple[RaisedScale, ...]


def bias_quant(
    bias: Array | None,
    w: Array,
    weight: WeightQuant,
    input_quant: Quant,
    numerics: Numerics,
    *,
    name: str = "bias",
) -> BiasQuant:
    """Return bias codes such that no input overflows an accumulator, in any order of summation.

    `bias`: float[oc], real; None: zeros.
    `w`: the float weights that `weight` holds codes of.
    `input_quant`: qparams of the layer's input, whose codes are of `numerics.activation`.
    `name`: of the layer, in errors.

    Where a channel's bias or products do not fit, its weight scale is enlarged and noted in `enlarged`. It is a power of two
    where the machine has only those. For a bias that costs nothing, since the weights' rounding stays far below a step of an
    output that holds such a bias. In groups the channel's scale grows, and the integer scales of its groups shrink.
    Raise CompileError where the bias is not oc finite numbers, or a channel whose products do not fit loses more than half of
    its bits.
    The loss includes the bias' share. The bits are the weight's; in groups they are those of the groups' scales.
    Raise InternalError where 20 enlargements are not enough.
    """
    channels = w.shape[weight.axis]
    real = np.zeros(channels) if bias is None else np.asarray(bias, np.float64).reshape(-1)
    if real.shape != (channels,) or not np.isfinite(real).all():
        raise CompileError(f"{name}: bias must be {channels} finite numbers, one for each output channel; mend the model")
    limit = min(numerics.largest_sum, _LARGEST_SUM)
    # Groups divide the scale by a bit of theirs each, and a bias has that much more of them: entries in memory hold int64.
    most = 2**31 - 1 if weight.groups is None else limit
    total = np.ones(len(weight.scales))
    original, causes = weight, np.zeros(channels, bool)
    products, peak, codes = _peaks(real, weight, input_quant, numerics)
    for attempt in range(20):  # rounding may leave an enlargement a little short, small codes more often: then by more
        code_over = np.abs(codes) / most
        over = np.maximum(peak / limit, code_over)
        if not (over > 1).any():
            break
        causes |= products / limit > 1
        factor = _enlargement(over, len(total), numerics, spare=2.0 ** (max(attempt - 7, 0) - 10))
        total = total * factor
        weight = requantize_weight(w, original, original.scales * total, numerics)
        products, peak, codes = _peaks(real, weight, input_quant, numerics)
        _refuse_lost_bits(total, causes, original, numerics, name)
    else:
        raise InternalError(f"{name}: enlarging the weight scales does not converge (peak {peak.max():.0f}, limit {limit})")
    enlarged = tuple(
        RaisedScale(c, float(f), "products" if causes[c] else "bias")
        for c, f in enumerate(np.broadcast_to(total, (channels,)))
        if f > 1
    )
    return BiasQuant(codes.astype(np.int32 if weight.groups is None else np.int64), weight, peak.astype(np.int64), enlarged)


def _peaks(real: Array, weight: WeightQuant, x: Quant, numerics: Numerics) -> tuple[Array, Array, Array]:
    """Return float64[oc] each: peak of the products, peak of products and bias, bias codes.

    A peak is the largest magnitude that a sum reaches for any input codes.
    `real`: float64[oc], the biases as real numbers.
    """
    first, last = numerics.activation.limits
    rows = np.moveaxis(weight.integers, weight.axis, 0).reshape(len(real), -1).astype(np.float64)
    at_first, at_last = rows * (first - x.zero_point), rows * (last - x.zero_point)
    low, high = np.minimum(at_first, at_last).sum(1), np.maximum(at_first, at_last).sum(1)
    codes = np.rint(real / (x.scale * weight.scales))
    products = np.maximum(high, -low)
    return products, np.maximum(products, np.maximum(high + codes, -(low + codes))), codes


def _enlargement(over: Array, scales: int, numerics: Numerics, spare: float) -> Array:
    """Return float64[scales]: the factor of each scale, 1 where nothing is over the limit, a power of two where there are only
    those.

    `over`: float64[oc], peak over limit.
    `spare`: share by which factors above 1 are larger than needed.
    """
    factor = np.maximum(over, 1.0)
    factor = factor.max(keepdims=True) if scales == 1 else factor
    if numerics.scale.kind == "pow2":
        return np.exp2(np.ceil(np.log2(factor)))
    return np.where(factor > 1, factor * (1 + spare), 1.0)


def _refuse_lost_bits(total: Array, causes: Array, weight: WeightQuant, numerics: Numerics, name: str) -> None:
    """Raise CompileError where enlarged scales cost more than half of the bits; in groups it is the groups' scales that lose
    them.
    """
    bits, what = numerics.weight.bits, "its weights"
    if weight.groups is not None:
        bits, what = form_of(numerics).scale_bits, "the scales of its groups"
    accumulator_bits = numerics.accumulator_bits
    lost = np.where(causes, np.log2(np.broadcast_to(total, causes.shape)), 0.0)
    if lost.max(initial=0.0) <= bits / 2:
        return
    c = int(np.argmax(lost))
    raise CompileError(
        f"{name}: the products of output channel {c} outgrow {accumulator_bits}-bit accumulators "
        f"(engines.mac.accumulators.bits), and shrinking {what} to fit would cost {lost[c]:.1f} of their {bits} bits; "
        f"accumulators of {accumulator_bits + int(np.ceil(lost[c]))} bits would do, or fewer input channels"
    )
