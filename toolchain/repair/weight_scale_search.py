"""Choose codes of a layer's weights and their scales together, by the error of the layer's output.

It is the inner search of repair.weight_rounding: scales from a few sizes, codes by second-order rounding, then scales fitted to
the codes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quant.fixed_point.core.numerics import Numerics
from quant.parameters import WeightQuant, chosen_rows, expressible_weight, rescale_groups
from quant.repair.gptq_rounding import (
    FINER_SIZES,
    POWERS,
    SIZES,
    WAYS,
    best_sizes,
    fit_group_scales,
    output_error,
    refine_codes,
    round_weights,
)
from toolchain.ops.kit.operator import Array

_MANY = 20.0  # docs/repair.md: the root mean square of codes of 8 bits with a scale each is 40, of 4 bits 3
_FARTHEST = 2.0  # times as large, or as small, as it was: a fitted scale beyond that is one of codes that say next to nothing


@dataclass(frozen=True, eq=False)
class ScaleSearch:
    """A search for scales and codes of one layer's weights. Each method returns a new weight.

    `target`: float64[g, o, k], the real weights that are aimed at.
    `hessian`: float64[g, k, k] of the layer's inputs, damped.
    `limits`: least and largest code.
    `sweeps`: how often at most all codes are looked at again in turn.
    `ratio`: scale of the input over scale of the output.
    """

    target: Array
    hessian: Array
    limits: tuple[int, int]
    sweeps: int
    numerics: Numerics
    ratio: float

    def round_codes(self, weight: WeightQuant) -> WeightQuant:
        """Return the weight with codes rounded to second order at the scales that it has."""
        each, least = self._steps(weight)
        ways = WAYS if _coarse(weight) else 1
        codes = round_weights(self.target - least, each, self.hessian, *self.limits, ways=ways, sweeps=self.sweeps)
        return self._with_codes(weight, codes)

    def resize_scales(self, weight: WeightQuant) -> WeightQuant:
        """Return the weight with the scales that serve its output best, of a few sizes that the machine can express; codes are
        chosen later.
        """
        shared = len(weight.scales) == 1
        free = FINER_SIZES if _coarse(weight) else SIZES
        tried = np.array([1.0, *(POWERS if self.numerics.scale.kind == "pow2" else free)])
        sizes = np.repeat(tried[:, None], len(weight.scales), 1)
        for size in sizes[1:]:
            size[~self._expressible(weight, weight.scales * size)] = 1.0
        each, least = self._steps(weight)
        groups, outputs, _ = self.target.shape
        sizes = np.broadcast_to(sizes, (len(sizes), groups * outputs)).reshape(-1, groups, outputs)
        best = best_sizes(
            self.target, each, least, self.hessian, *self.limits, sizes=sizes, shared=shared, sweeps=self.sweeps
        ).reshape(-1)
        return replace(weight, scales=weight.scales * (best[:1] if shared else best))

    def fit_scales(self, weight: WeightQuant) -> WeightQuant:
        """Return the weight with scales moved to where its codes serve best, and codes chosen anew there; rows that would lose
        by it stay.

        Nothing moves where channels share a scale, where it is to be a power of two, or where weights take many codes. No scale
        moves by more than a factor of two.
        """
        alone = weight.groups is None
        if len(weight.scales) == 1 or (alone and self.numerics.scale.kind == "pow2") or not _coarse(weight):
            return weight
        each, least = self._steps(weight)
        codes = weight.codes.reshape(self.target.shape).astype(np.float64)
        size = self.target.shape[2] if weight.groups is None else weight.groups.size
        fitted_factors = fit_group_scales(self.target - least, codes * each, self.hessian, size).reshape(len(weight.scales), -1)
        times = np.clip(fitted_factors, 1 / _FARTHEST, _FARTHEST)
        moved = replace(weight, scales=weight.scales * times[:, 0]) if alone else rescale_groups(weight, times, self.numerics)
        each_moved, least_moved = self._steps(moved)
        better = refine_codes(self.target - least_moved, each_moved, self.hessian, codes, *self.limits, self.sweeps)
        losing = output_error(self.target - least_moved - better * each_moved, self.hessian) >= output_error(
            self.target - least - codes * each, self.hessian
        )
        unchanged = losing.reshape(-1) | ~self._expressible(weight, moved.scales)
        return chosen_rows(unchanged, weight, self._with_codes(moved, better))

    def _steps(self, weight: WeightQuant) -> tuple[Array, Array]:
        """Return the step of each weight's code and the value of code 0, in the shape of the target."""
        each, least = weight.steps()
        return each.reshape(self.target.shape), least.reshape(self.target.shape)

    def _with_codes(self, weight: WeightQuant, codes: Array) -> WeightQuant:
        return replace(weight, codes=codes.reshape(weight.codes.shape).astype(np.int8))

    def _expressible(self, weight: WeightQuant, scales: Array) -> Array:
        """Return bool of each scale, True where the machine can express it."""
        grown = replace(weight, scales=scales)
        return expressible_weight(weight.dequantize(), grown, self.ratio, self.numerics).scales == scales


def _coarse(weight: WeightQuant) -> bool:
    """Return whether the root mean square of the codes is below 20, so few codes that a long search for the best ones pays."""
    return float(np.square(weight.codes, dtype=np.float32).mean()) < _MANY**2
