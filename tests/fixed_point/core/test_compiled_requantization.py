"""The pass that numba compiles against exact rational arithmetic: run as Python everywhere, and compiled where numba is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import exact_requant as exact
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.fixed_point import FixedPointError, Requant, Rounding, requantize
from quant.fixed_point.core import compiled_requantization as compiled
from quant.fixed_point.core.compiled_requantization import Kernel, run_kernels
from quant.fixed_point.sums.conv import finish_sums, requantize_sums
from tests.support.numba_faults import refuse_cache, refuse_import

AS_PYTHON = (compiled.requantize_channels, compiled.requantize_tensor)
WITHOUT_OFFSETS = (Rounding.FP32_RNE, Rounding.HALF_EVEN)
MODES = [r for r in Rounding if r not in WITHOUT_OFFSETS]
MULTIPLIER_BITS = {Rounding.SCALE16: 15, Rounding.POW2: 1}
LOWEST_SHIFT = {Rounding.REDUCED16: 17}


@pytest.fixture(autouse=True)
def forget_kernels() -> Iterator[None]:
    caches = (compiled._get_count, compiled._load_kernels, compiled.load_compiler)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@st.composite
def cases(draw: st.DrawFn, rounding: Rounding) -> tuple[np.ndarray, np.ndarray | None, Requant, np.dtype]:
    """Sums of every magnitude and at ties of their channel, a bias or none, and a requantization."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    channels = draw(st.sampled_from([1, 2, 5, 17]))
    many = draw(st.booleans())
    bits = MULTIPLIER_BITS.get(rounding, 31)
    multiplier = rng.integers(0 if bits > 1 else 1, 1 << rng.integers(1, bits + 1), channels if many else 1)
    if draw(st.booleans()):  # powers of two, whose sums lie on ties
        multiplier = 1 << rng.integers(0, bits, multiplier.size)
    shift = rng.integers(LOWEST_SHIFT.get(rounding, 0), 63, channels if draw(st.booleans()) else 1)
    dtype = np.dtype(draw(st.sampled_from([np.int8, np.uint8, np.int16, np.int32])))
    limits = np.iinfo(dtype)
    low, high = sorted(int(v) for v in rng.integers(int(limits.min), int(limits.max) + 1, 2))
    if draw(st.booleans()):
        low, high = int(limits.min), int(limits.max)
    r = Requant(multiplier, shift, rounding, draw(st.sampled_from([0, low, high])), low, high)
    targets = rng.integers(-300, 300, (8, channels))
    near = np.clip((2 * targets + 1) * np.ldexp(1.0, shift) / (2.0 * np.maximum(multiplier, 1)), -(2.0**31), 2.0**31 - 1)
    spread = (rng.integers(-(1 << 62), 1 << 62, (4, channels)) >> rng.integers(31, 62, (4, channels))).astype(np.int32)
    sums = np.concatenate([near.astype(np.int64).astype(np.int32), spread])
    bias = rng.integers(-(1 << 31), 1 << 31, channels) if draw(st.booleans()) else None
    return sums, bias, r, dtype


def compute_exactly(sums: np.ndarray, bias: np.ndarray | None, r: Requant, dtype: np.dtype) -> np.ndarray:
    wrapped = finish_sums(sums.copy(), bias, 32)
    multiplier, shift = (np.broadcast_to(p, sums.shape[-1]) for p in (r.multiplier, r.shift))
    out = np.empty(sums.shape, dtype)
    for at in np.ndindex(sums.shape):
        y = exact.scale_exactly(int(wrapped[at]), int(multiplier[at[-1]]), int(shift[at[-1]]), r.rounding)
        out[at] = exact.finish_exactly(y, r.zero_point, r.low, r.high)
    return out


def load_compiled() -> tuple[Kernel, Kernel]:
    pytest.importorskip("numba", reason="the extra fast is not installed")
    kernels = compiled._load_kernels()
    assert kernels is not None
    return kernels


@pytest.mark.parametrize("runs", ["python", "numba"])
@pytest.mark.parametrize("rounding", MODES, ids=str)
def test_one_pass_equals_exact_arithmetic(rounding: Rounding, runs: str) -> None:
    kernels = load_compiled() if runs == "numba" else AS_PYTHON

    @settings(max_examples=25)
    @given(case=cases(rounding))
    def check(case: tuple[np.ndarray, np.ndarray | None, Requant, np.dtype]) -> None:
        sums, bias, r, dtype = case
        expected = compute_exactly(sums, bias, r, dtype)
        with np.errstate(over="ignore"):  # as Python int32 warns where sums wrap
            codes = run_kernels(kernels, sums, None if bias is None else bias.astype(np.int32), r, dtype)
        assert codes.dtype == dtype and np.array_equal(codes, expected)

    check()


@pytest.mark.parametrize("rounding", WITHOUT_OFFSETS, ids=str)
def test_roundings_that_are_no_offset_have_none(rounding: Rounding) -> None:
    single = rounding is Rounding.FP32_RNE
    multiplier = int(np.float32(0.5).view(np.int32)) if single else 5
    r = Requant(np.array([multiplier]), np.array([0]), rounding, 0, -128, 127, kind="float32" if single else "multiplier")
    assert r.integer_offsets is None


def test_loads_once_as_many_elements_were_requantized_as_loading_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def over_channels(sums: np.ndarray, *rest: Any) -> None:
        calls.append(sums.size)
        compiled.requantize_channels(sums, *rest)

    monkeypatch.setattr(compiled, "_LOADING_ELEMENTS", 100)
    monkeypatch.setattr(compiled, "load_compiler", lambda: lambda f: over_channels if f is compiled.requantize_channels else f)
    r = Requant(np.array([1 << 30, 3 << 28]), np.array([32, 33]), Rounding.DOUBLE_ROUND, 3, -128, 127)
    sums, bias = np.arange(-60, 60, dtype=np.int32).reshape(60, 2), np.array([4, -5])
    first = requantize_sums(sums.copy(), bias, 32, r, np.dtype(np.int8))
    assert calls == []
    assert np.array_equal(requantize_sums(sums.copy(), bias, 32, r, np.dtype(np.int8)), first)
    assert np.array_equal(requantize(sums + bias.astype(np.int32), r), first)
    assert calls == [120, 120]
    # the kernel sees no wider accumulators, and no bias of another width
    assert np.array_equal(requantize_sums(sums.astype(np.int64), bias, 40, r, np.dtype(np.int8)), first)
    assert np.array_equal(requantize_sums(sums.copy(), bias, 24, r, np.dtype(np.int8)), first)
    assert calls == [120, 120, 120]
    with pytest.raises(FixedPointError, match=r"bias has shape \(3,\); must be \[2\]"):
        requantize_sums(sums.copy(), np.zeros(3, np.int64), 32, r, np.dtype(np.int8))


def test_numba_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_import(monkeypatch)
    monkeypatch.setattr(compiled, "_LOADING_ELEMENTS", 0)
    r = Requant(np.array([1 << 30]), np.array([31]), Rounding.SINGLE_HALF_UP, 0, -128, 127)
    assert compiled.find_kernels(1) is None
    assert requantize(np.array([9], np.int32), r).tolist() == [5]


def test_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_cache(monkeypatch)
    assert compiled._load_kernels() == AS_PYTHON
