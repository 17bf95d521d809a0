"""A Hessian is believed as far as it holds on rows that it is not made of."""

from __future__ import annotations

import numpy as np
import pytest

from quant.repair.damping import DAMPINGS, LEAST, PULLS, add_damping, best_damping, best_pull, fit_weight_change
from quant.repair.gptq_rounding import round_weights
from quant.repair.moments import moments

K = 48


def drawn(rng: np.random.Generator, rows: int, noise: float) -> np.ndarray:
    """float32[1, rows, K]: four causes that all inputs share, and as much of their own as `noise` says."""
    causes = np.random.default_rng(9).standard_normal((4, K))
    return (rng.standard_normal((1, rows, 4)) @ causes + noise * rng.standard_normal((1, rows, K))).astype(np.float32)


def layer(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    w = rng.standard_normal((1, 40, K))
    return w, np.abs(w).max(2, keepdims=True) / 7


@pytest.mark.parametrize(("rows", "believed"), [(24, False), (4000, True)])
def test_few_rows_are_believed_less(rows: int, believed: bool) -> None:
    rng = np.random.default_rng(0)
    fit_moments, unseen, fresh = moments(drawn(rng, rows, 1.0), None), drawn(rng, rows, 1.0), drawn(rng, 8000, 1.0)
    w, scales = layer(rng)
    damping = best_damping(w, scales, fit_moments, moments(unseen, None), -8, 7)
    assert damping in DAMPINGS and (damping == LEAST) is believed

    def error(share: float) -> float:
        codes = round_weights(w, scales, add_damping(fit_moments.hessian, share), -8, 7)
        return float(np.square((fresh - fit_moments.mean[:, None]) @ (w - codes * scales).transpose(0, 2, 1)).sum())

    assert believed or error(damping) < 0.8 * error(LEAST)


def test_a_mean_that_others_do_not_share_counts() -> None:
    """Check that a mean over the fitted rows does not fit rows with another mean, where all inputs are high."""
    rng = np.random.default_rng(1)
    rows, others = drawn(rng, 4000, 0.3), drawn(rng, 4000, 0.3)
    w, scales = layer(rng)
    fit_moments, shifted = moments(rows, None), others + 30 * rng.standard_normal((1, 1, K)).astype(np.float32)
    near, far = (best_damping(w, scales, fit_moments, moments(x, None), -8, 7) for x in (others, shifted))
    assert near < far


def test_inputs_that_are_always_zero_have_an_inverse() -> None:
    assert np.array_equal(add_damping(np.zeros((2, 3, 3)), LEAST), np.stack([np.eye(3)] * 2))


def test_weights_answer_for_the_error_of_their_inputs() -> None:
    """Check that adapted weights restore float's output from the machine's inputs, which are a mixture of float's."""
    rng = np.random.default_rng(3)
    real = rng.standard_normal((1, 6000, 6)).astype(np.float32)
    read = (real @ (np.eye(6) + 0.2 * rng.standard_normal((6, 6)))).astype(np.float32)
    w = rng.standard_normal((1, 5, 6))
    output_gap = (real - read) @ w.transpose(0, 2, 1)
    fit_moments = moments(read[:, :4000], output_gap[:, :4000])
    assert best_pull(fit_moments, moments(read[:, 4000:], output_gap[:, 4000:])) == PULLS[-1]  # the more they do so the better
    moved = w + fit_weight_change(fit_moments, PULLS[-1])
    expected = real @ w.transpose(0, 2, 1)
    before, after = (np.square(read @ v.transpose(0, 2, 1) - expected).mean() for v in (w, moved))
    assert after < 0.1 * before


def test_weights_do_not_answer_for_noise() -> None:
    """Eight rows of 64 inputs can be fitted exactly, noise and all, which is of no use to others."""
    rng = np.random.default_rng(4)
    real = rng.standard_normal((1, 808, 64)).astype(np.float32)
    read = real + np.float32(0.1) * rng.standard_normal(real.shape).astype(np.float32)
    output_gap = (real - read) @ rng.standard_normal((1, 64, 5))
    assert best_pull(moments(read[:, :8], output_gap[:, :8]), moments(read[:, 8:], output_gap[:, 8:])) is None


def test_what_is_wrong_on_average_no_weight_answers_for() -> None:
    """The bias does: by it nothing is left here, on rows seen or not."""
    rng = np.random.default_rng(5)
    read = rng.standard_normal((1, 800, 16)).astype(np.float32)
    output_gap = 40 * rng.standard_normal((1, 1, 5)) + 0.01 * rng.standard_normal((1, 800, 5))
    assert best_pull(moments(read[:, :20], output_gap[:, :20]), moments(read[:, 20:], output_gap[:, 20:])) is None
