"""Scales of weights fitted to their codes: never a row worse, whatever shares them, and nothing that the machine cannot have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.scale import ScaleForm
from quant.fixed_point.core.weight_scaling import GroupForm, WeightScaling
from quant.parameters import WeightQuant, check_chosen_weight, weight_code_range, weight_quant
from quant.repair.damping import LEAST, add_damping
from quant.repair.gptq_rounding import output_error
from quant.repair.moments import moments
from toolchain.repair.weight_scale_search import ScaleSearch

K, ROWS = 80, 12
FREE = Numerics(CodeType.INT16, CodeType.INT4, scale=ScaleForm())
GROUPED = replace(FREE, groups=GroupForm((32,)))
WITH_MINIMA = replace(FREE, groups=GroupForm((32,), minimum_bits=12))


def sought(numerics: Numerics, ratio: float = 1e-3) -> ScaleSearch:
    rng = np.random.default_rng(3)
    rows = (rng.standard_normal((1, 8 * K, K)) @ (np.eye(K) + rng.standard_normal((K, K)) / 9)).astype(np.float32)
    w = rng.standard_normal((1, ROWS, K)) * np.exp(rng.standard_normal((1, ROWS, 1)))
    w[0, 4] = 0.0
    hessian = add_damping(moments(rows, None).hessian, LEAST)
    return ScaleSearch(w, hessian, weight_code_range(numerics.weight), 2, numerics, ratio)


def plain(search: ScaleSearch) -> WeightQuant:
    scaling = WeightScaling(0, 32) if search.numerics.groups is not None else None
    return weight_quant(search.target.reshape(ROWS, 1, 1, K), 0, search.numerics, scaling=scaling)


def errors(search: ScaleSearch, weight: WeightQuant) -> np.ndarray:
    return output_error(search.target - weight.dequantize().reshape(search.target.shape), search.hessian)[0]


@pytest.mark.parametrize("numerics", [FREE, GROUPED, WITH_MINIMA], ids=["a channel", "groups", "groups with minima"])
def test_no_row_is_worse_and_most_are_better(numerics: Numerics) -> None:
    search = sought(numerics)
    before = search.round_codes(plain(search))
    after = search.fit_scales(before)
    old, new = errors(search, before), errors(search, after)
    assert (new <= old).all() and np.mean(new < old) > 0.6 and np.mean(new[old > 0] / old[old > 0]) < 0.99
    w = search.target.reshape(ROWS, 1, 1, K)
    assert check_chosen_weight(after, w, numerics, name="w") is after
    assert not after.codes[4].any() and after.scales[4] == before.scales[4]


@pytest.mark.parametrize(
    "numerics",
    [replace(FREE, scale=ScaleForm("pow2")), replace(FREE, weights_per_channel=False), replace(FREE, weight=CodeType.INT8)],
    ids=["powers of two", "one for all channels", "many codes"],
)
def test_scales_that_are_not_free_stay(numerics: Numerics) -> None:
    search = sought(numerics)
    before = search.round_codes(plain(search))
    assert search.fit_scales(before) is before


def test_groups_move_where_scales_of_channels_are_powers_of_two() -> None:
    search = sought(replace(GROUPED, scale=ScaleForm("pow2")))
    before = search.round_codes(plain(search))
    after = search.fit_scales(before)
    assert errors(search, after).sum() < errors(search, before).sum() and (np.frexp(after.scales)[0] == 0.5).all()


def test_scales_that_the_machine_has_only_coarsely_stay() -> None:
    """A multiplier of 8 bits is whole multiples of 2^-9 there."""
    free, coarse = (sought(replace(FREE, scale=ScaleForm(multiplier_bits=8, shift_max=most)), 1.0) for most in (40, 9))
    before = free.round_codes(plain(free))
    assert np.mean(free.fit_scales(before).scales != before.scales) > 0.6
    assert np.array_equal(coarse.fit_scales(before).scales, before.scales)


@pytest.mark.parametrize(("weight", "long"), [(CodeType.INT4, True), (CodeType.INT8, False)])
def test_a_long_search_is_for_few_codes(weight: CodeType, long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    search = sought(replace(FREE, weight=weight))
    search_calls: list[tuple[str, int]] = []

    def noted_sizes(*_: object, sizes: np.ndarray, **_more: object) -> np.ndarray:
        search_calls.append(("sizes", len(sizes)))
        return sizes[0]

    def noted_codes(w: np.ndarray, *_: object, ways: int, **_more: object) -> np.ndarray:
        search_calls.append(("ways", ways))
        return np.zeros_like(w)

    monkeypatch.setattr("toolchain.repair.weight_scale_search.best_sizes", noted_sizes)
    monkeypatch.setattr("toolchain.repair.weight_scale_search.round_weights", noted_codes)
    search.round_codes(search.resize_scales(plain(search)))
    assert search_calls == [("sizes", 13 if long else 5), ("ways", 16 if long else 1)]
