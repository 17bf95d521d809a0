"""Second-order rounding against all codes there are and against the nearest."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from quant.repair.damping import LEAST, add_damping
from quant.repair.gptq_rounding import WAYS, best_sizes, fit_group_scales, output_error, refine_codes, round_weights
from quant.repair.moments import moments

FIRST, LAST = -2, 1
EVERY = np.array(list(product(range(FIRST, LAST + 1), repeat=4)), np.float64)


def draw_correlated(rng: np.random.Generator, groups: int, rows: int, k: int) -> np.ndarray:
    """float32[groups, rows, k] whose columns have much in common."""
    mixed = rng.standard_normal((groups, k, k)) + 2
    return (rng.standard_normal((groups, rows, k)) @ mixed).astype(np.float32)


def test_against_every_code() -> None:
    rng = np.random.default_rng(0)
    hessian = moments(draw_correlated(rng, 200, 64, 4), None).hessian
    w = rng.uniform(FIRST - 0.5, LAST + 0.5, (200, 1, 4)) * 0.3
    scales = np.full((1, 1, 1), 0.3)
    errors = output_error(w - round_weights(w, scales, hessian, FIRST, LAST) * scales, hessian)[:, 0]
    least = np.array([output_error(w[i : i + 1] - EVERY * 0.3, hessian[i : i + 1]).min() for i in range(200)])
    nearest = output_error(w - np.clip(np.rint(w / scales), FIRST, LAST) * scales, hessian)[:, 0]
    assert (errors >= least * (1 - 1e-9)).all()  # or the brute force is none
    assert (errors <= nearest).all()
    assert np.mean(errors <= least * (1 + 1e-9)) > 0.5 > 0.35 > np.mean(nearest <= least * (1 + 1e-9))
    assert errors.sum() < 1.7 * least.sum() < 0.4 * nearest.sum()


@pytest.mark.parametrize(
    ("groups", "outputs", "k"), [(1, 12, 150), (16, 1, 9), (4, 3, 18)], ids=["dense", "depthwise", "grouped"]
)
def test_no_output_is_worse_than_nearest_and_most_are_much_better(groups: int, outputs: int, k: int) -> None:
    rng = np.random.default_rng(1)
    hessian = moments(draw_correlated(rng, groups, 8 * k, k), None).hessian
    w = rng.standard_normal((groups, outputs, k))
    scales = np.abs(w).max(2, keepdims=True) / 7
    codes = round_weights(w, scales, hessian, -8, 7)
    assert codes.min() >= -8 and codes.max() <= 7 and (codes == np.rint(codes)).all()
    errors, nearest = (output_error(w - c * scales, hessian) for c in (codes, np.clip(np.rint(w / scales), -8, 7)))
    assert (errors <= nearest).all() and errors.sum() < 0.3 * nearest.sum()


@pytest.mark.parametrize("max_weights", [1 << 22, 1])
def test_of_several_ways_the_best_is_found(max_weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mostly the best of all codes: of each weight two are looked at. held: rows together, or one after the other."""
    monkeypatch.setattr("quant.repair.gptq_rounding._MAX_WEIGHTS", max_weights)
    rng = np.random.default_rng(0)
    hessian = moments(draw_correlated(rng, 200, 64, 4), None).hessian
    w = rng.uniform(FIRST - 0.5, LAST + 0.5, (200, 2, 4)) * 0.3
    scales = np.full((1, 1, 1), 0.3)
    errors = output_error(w - round_weights(w, scales, hessian, FIRST, LAST, ways=WAYS) * scales, hessian)
    every = [
        [output_error(w[i : i + 1, o : o + 1] - EVERY * 0.3, hessian[i : i + 1]).min() for o in range(2)] for i in range(200)
    ]
    assert (errors >= np.array(every) * (1 - 1e-9)).all()
    assert np.mean(errors <= np.array(every) * (1 + 1e-9)) > 0.85


@pytest.mark.parametrize(
    ("groups", "outputs", "k"), [(1, 12, 150), (64, 1, 9), (4, 3, 40)], ids=["dense", "depthwise", "grouped"]
)
def test_more_ways_lose_less(groups: int, outputs: int, k: int) -> None:
    rng = np.random.default_rng(6)
    mixed = np.eye(k) + rng.standard_normal((groups, k, k)) / np.sqrt(k)
    hessian = add_damping(moments((rng.standard_normal((groups, 8 * k, k)) @ mixed).astype(np.float32), None).hessian, LEAST)
    w = rng.standard_normal((groups, outputs, k))
    w[0, 0, 3] = 40  # clipped: its next code is the same
    scales = np.abs(w).max(2, keepdims=True) / 7
    scales[0, 0] = 0.3
    scales[-1, -1] = 0.0
    errors = []
    for ways in (1, 3, WAYS):
        codes = round_weights(w, scales, hessian, -8, 7, ways=ways)
        assert codes.min() >= -8 and codes.max() <= 7 and (codes == np.rint(codes)).all() and not codes[-1, -1].any()
        errors.append(np.delete(output_error(w - codes * scales, hessian).reshape(-1), [0, -1]).sum())
    assert errors[2] < errors[1] < errors[0] and errors[2] < 0.9 * errors[0]


@pytest.mark.parametrize("size", [9, 4])
def test_fitted_sizes_are_the_least_squares_of_the_output(size: int) -> None:
    rng = np.random.default_rng(7)
    hessian = moments(draw_correlated(rng, 5, 100, 9), None).hessian
    w = rng.standard_normal((5, 2, 9))
    quantized = w + 0.2 * rng.standard_normal(w.shape)
    quantized[0, 0, :size] = 0.0
    sizes_found = fit_group_scales(w, quantized, hessian, size)
    assert sizes_found.shape == (5, 2, -(-9 // size)) and sizes_found[0, 0, 0] == 1.0

    def error(sizes: np.ndarray) -> np.ndarray:
        return output_error(w - quantized * np.repeat(sizes, size, 2)[:, :, :9], hessian)

    least = error(sizes_found)
    assert (least < error(np.ones_like(sizes_found)) * (1 - 1e-6))[1:].all()
    for part in range(sizes_found.shape[2]):
        for step in (-0.01, 0.01):
            other = sizes_found.copy()
            other[:, :, part] += step
            assert (error(other) >= least).all() and (error(other) > least)[1:].all()


def test_wide_layers_are_rounded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    hessian = moments(draw_correlated(rng, 1, 400, 40), None).hessian
    w = rng.standard_normal((1, 3, 40))
    monkeypatch.setattr("quant.repair.gptq_rounding.WIDEST", 16)
    codes = round_weights(w, np.full((1, 1, 1), 0.3), hessian, -8, 7)
    parts = [
        round_weights(w[:, :, s], np.full((1, 1, 1), 0.3), hessian[:, s, s], -8, 7) for s in map(slice, (0, 16, 32), (16, 32, 40))
    ]
    assert np.array_equal(codes, np.concatenate(parts, 2))


def test_inputs_that_are_always_zero_keep_the_nearest_codes() -> None:
    rows = np.zeros((2, 10, 3), np.float32)
    rows[1, :, 1] = 1.0
    w = np.array([[[0.26, 0.5, -0.74]], [[0.26, 0.74, -0.26]]])
    codes = round_weights(w, np.full((1, 1, 1), 0.5), add_damping(moments(rows, None).hessian, LEAST), -8, 7)
    assert np.array_equal(codes, [[[1, 1, -1]], [[1, 1, -1]]])


@pytest.mark.parametrize(
    ("groups", "outputs", "k"), [(1, 12, 150), (64, 1, 9), (4, 3, 18)], ids=["dense", "depthwise", "grouped"]
)
def test_sweeps_leave_no_code_that_is_better_changed_alone(groups: int, outputs: int, k: int) -> None:
    rng = np.random.default_rng(4)
    mixed = np.eye(k) + rng.standard_normal((groups, k, k)) / np.sqrt(k)
    hessian = moments((rng.standard_normal((groups, 8 * k, k)) @ mixed).astype(np.float32), None).hessian
    w = rng.standard_normal((groups, outputs, k))
    scales = np.abs(w).max(2, keepdims=True) / 7
    once, swept = (round_weights(w, scales, hessian, -8, 7, sweeps=n) for n in (0, 50))
    before, after = (output_error(w - codes * scales, hessian) for codes in (once, swept))
    assert after.sum() < 0.99 * before.sum()
    assert swept.min() >= -8 and swept.max() <= 7 and (swept == np.rint(swept)).all()
    least = output_error(w - swept * scales, hessian)
    nearest = (swept == np.clip(np.rint(w / scales), -8, 7)).all(2)  # kept where nothing that was found is better
    assert nearest.mean() < 0.5
    for j in range(k):
        for step in (-1, 1):
            other = swept.copy()
            other[:, :, j] = np.clip(other[:, :, j] + step, -8, 7)
            assert (output_error(w - other * scales, hessian) >= least * (1 - 1e-9))[~nearest].all()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("least", [0.0, -0.2])
def test_scales_take_the_size_whose_codes_lose_least(shared: bool, least: float) -> None:
    """One weight of each row is far larger than the others, of inputs that hardly vary: cutting it off is the better bargain."""
    rng = np.random.default_rng(5)
    rows = draw_correlated(rng, 6, 200, 9)
    rows[:, :, 0] *= np.float32(0.01)
    w = rng.standard_normal((6, 2, 9))
    w[:, :, 0] = 12
    if not shared:
        w[3:] = rng.uniform(-12, 12, (3, 2, 9))  # these would lose by it
    hessian, scales = moments(rows, None).hessian, np.full((6, 2, 1), 12 / 7)
    base = np.full(w.shape, least)
    sizes = np.broadcast_to(np.array([1.0, 0.5, 0.25])[:, None, None], (3, 6, 2))

    def error(size: np.ndarray) -> np.ndarray:
        target, step = w - base * size[:, :, None], scales * size[:, :, None]
        return output_error(target - round_weights(target, step, hessian, -8, 7) * step, hessian)

    best = best_sizes(w, scales, base, hessian, -8, 7, sizes=sizes, shared=shared)
    each = np.stack([error(size) for size in sizes])
    if shared:
        assert (best == best[0, 0]).all() and error(best).sum() == each.sum((1, 2)).min()
    else:
        assert np.array_equal(error(best), each.min(0)) and len(np.unique(best)) > 1
    assert error(best)[:3].sum() < 0.5 * each[0, :3].sum()


def test_refined_codes_take_scales_that_broadcast() -> None:
    w, hessian, codes = np.array([[[1.1, -0.6], [0.2, 0.9]]]), np.array([[[2.0, 1.0], [1.0, 2.0]]]), np.zeros((1, 2, 2))
    full = refine_codes(w, np.full(w.shape, 0.5), hessian, codes, -8, 7, 5)
    assert np.array_equal(refine_codes(w, np.full((1, 1, 1), 0.5), hessian, codes, -8, 7, 5), full)
