"""Figures of fidelity: known values, edge cases, and a bad part beside a good whole."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quant.fidelity import ErrorSums, cosine, fidelity, part_fidelities, sqnr_db, warnings


def test_known_figures() -> None:
    x = np.array([3.0, 4.0])
    assert sqnr_db(x, x * 1.1) == pytest.approx(20)
    assert sqnr_db(x, x) == math.inf and sqnr_db(np.zeros(2), x) == -math.inf and sqnr_db(np.zeros(2), np.zeros(2)) == math.inf
    assert cosine(x, 5 * x) == pytest.approx(1) and cosine(x, np.array([4.0, -3.0])) == pytest.approx(0)
    assert cosine(np.zeros(2), np.zeros(2)) == 1 and cosine(x, np.zeros(2)) == 0
    figure = fidelity("y", x, x + np.array([0.5, 1]))
    assert (figure.largest_error, figure.bias) == (1, 0.75)
    assert fidelity("y", np.zeros(0), np.zeros(0)).sqnr_db == math.inf
    assert fidelity("y", x, x).as_json() == {"name": "y", "sqnr_db": None, "cosine": 1.0, "exact": True}


@pytest.mark.parametrize("degrees", [0, 10, 60, 90, 120, 180])
@pytest.mark.parametrize("lengths", [(1.0, 1.0), (5.0, 0.01), (0.01, 300.0)])
def test_a_cosine_is_that_of_the_angle(degrees: float, lengths: tuple[float, float]) -> None:
    """Whatever both lengths, and in as many steps as there are parts."""
    angle = math.radians(degrees)
    x, y = lengths[0] * np.array([1.0, 0.0]), lengths[1] * np.array([math.cos(angle), math.sin(angle)])
    assert cosine(x, y) == pytest.approx(math.cos(angle), abs=1e-9)
    parts, times = ErrorSums(), 3
    for _ in range(times):
        parts.update(x, y)
    assert parts.cosine == pytest.approx(math.cos(angle), abs=1e-9)
    total = fidelity("y", np.tile(x, ErrorSums.CHUNK), np.tile(y, ErrorSums.CHUNK))  # of two chunks
    assert total.cosine == pytest.approx(math.cos(angle), abs=1e-9)
    assert total.sqnr_db == pytest.approx(parts.sqnr_db)


def test_a_bad_part_does_not_hide_in_a_good_whole() -> None:
    """Boxes of hundreds beside scores that came out as zero: the whole has a cosine of 0.99999."""
    rng = np.random.default_rng(0)
    boxes, scores = rng.uniform(0, 640, (4, 100)), rng.uniform(0, 1, (80, 100))
    reference = np.concatenate([boxes, scores])
    got = np.concatenate([boxes, 0 * scores])
    assert not fidelity("whole", reference, got).poor
    parts = part_fidelities(reference, got, 0, {"boxes": 4, "scores": 80})
    assert [p.poor for p in parts] == [False, True]
    assert warnings(parts) == ["scores: SQNR 0.0 dB, cosine 0.0000 (poor below 10 dB or 0.99)"]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_each_part_has_its_own_figure(count: int) -> None:
    reference = np.random.default_rng(count).normal(size=(2, 3 * count))
    got = reference + np.repeat(np.arange(count), 3)
    parts = part_fidelities(reference, got, 1, dict.fromkeys("abcd"[:count], 3))
    assert [(p.name, round(p.largest_error, 9)) for p in parts] == [(name, i) for i, name in enumerate("abcd"[:count])]


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"^reference \[2\] and result \[3\] differ in shape$"):
        sqnr_db(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match=r"^parts of \[1, 2\] do not make the 4 of axis 0$"):
        part_fidelities(np.zeros(4), np.zeros(4), 0, {"a": 1, "b": 2})
