"""Check that factors pass through homogeneous operators to their power and stop at all others.

The networks are front ends that make spectra, in their various forms.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_equalize import LARGEST, largest_difference
from unequal_networks import Network, network, nothing, plain, samples

from quant.repair.choices import Quantization
from toolchain.errors import InternalError
from toolchain.repair.channel_groups import Group, find_groups
from toolchain.repair.channel_scaling import scale_model
from toolchain.repair.equalize import equalize
from toolchain.repair.evaluate_outputs import OutputEvaluator

BINS, OUT, TAPS, FRAMES = 6, 4, 16, 8
LENGTH = 4 * (FRAMES - 1) + TAPS
TIMED, BATCHED = "float[1,1,L] x", "float[1,1,1,L] x"
LOUD = 4.0 ** np.arange(BINS)

# Between `s`, all real parts and then all imaginary ones, or `a` and `b`, and `m`, which the last layer reads.
HALVES = "a = Slice(s, n0, n1, one) b = Slice(s, n1, n2, one) "
FORMS = {
    "slices": HALVES + "p = Mul(a, a) q = Mul(b, b) t = Add(p, q) m = Sqrt(t)",
    "split": "a, b = Split<axis = 1>(s, parts) p = Mul(a, a) q = Mul(b, b) t = Add(p, q) m = Sqrt(t)",
    "powers": HALVES + "p = Pow(a, two) q = Pow(b, two) t = Add(p, q) m = Pow(t, half)",
    "two convolutions": "p = Mul(a, a) q = Pow(b, two) t = Add(q, p) m = Sqrt(t)",
    "power, no root": HALVES + "p = Mul(a, a) q = Mul(b, b) m = Add(p, q)",
    "sum over pairs": "r = Reshape(s, pairs) p = Mul(r, r) t = ReduceSum<keepdims = 0>(p, one) m = Reshape(t, bins)",
    "norm of pairs": "r = Reshape(s, pairs) t = ReduceL2<axes = [1], keepdims = 0>(r) m = Reshape(t, bins)",
    "norm of squares": "r = Reshape(s, pairs) t = ReduceSumSquare<axes = [1], keepdims = 0>(r) u = Sqrt(t) m = Reshape(u, bins)",
    "magnitudes": HALVES + "p = Abs(a) q = Abs(b) t = Max(p, q) u = Min(p, q) v = Mul(u, half) m = Add(t, v)",
    "stacked": HALVES + "u = Unsqueeze(a, zero) v = Unsqueeze(b, zero) w = Concat<axis = 0>(u, v) p = Mul(w, w) "
    "t = ReduceSum<keepdims = 0>(p, zero) m = Sqrt(t)",
    "joined": HALVES + "p = Abs(a) q = Abs(b) t = Add(p, q) c = Slice(t, n0, n3, one) d = Slice(t, n3, n1, one) "
    "u = LeakyRelu(d) m = Concat<axis = 1>(u, c)",
    "other powers": HALVES + "p = Abs(a) q = Abs(b) u = Pow(p, odd) v = Pow(q, odd) m = Add(u, v)",
    "raised": HALVES + "p = Abs(a) q = Abs(b) t = Add(p, q) u = Sub(t, raised) m = Relu(u)",
    "flat and back": HALVES + "p = Abs(a) q = Abs(b) u = Reshape(p, row) v = Reshape(q, row) t = Max(u, v) m = Reshape(t, bins)",
    "in parts": HALVES + "t = Sub(a, b) u = Neg(t) v = Div(u, two) m = Relu(v)",
}


def front_end(form: str, folder: Path, machine: str = "edge16", rank: int = 4, loud: np.ndarray = LOUD) -> Network:
    """x -> one convolution or two -> a magnitude for each bin, as loud as that -> a layer that hears each bin alike."""
    rng = np.random.default_rng(3)
    real, imaginary = (rng.standard_normal((BINS, 1, TAPS)) * loud[:, None, None] / 16 for _ in range(2))
    space = (1,) * (rank - 3)
    last = rng.standard_normal((OUT, BINS, 3)) / (loud**2 if form.endswith("no root") else loud)[:, None]
    weights = {"wa": real, "wb": imaginary, "kernel": np.concatenate([real, imaginary]), "last": last}
    weights = {n: w.reshape(*w.shape[:2], *space, w.shape[2]) for n, w in weights.items()}
    weights |= {"two": np.array(2.0), "half": np.array(0.5), "odd": np.array(1.5), "ramp": rng.standard_normal(FRAMES)}
    weights |= {"raised": rng.uniform(0, 1, (BINS, *space, 1)), "across": rng.standard_normal((BINS, FRAMES, *space, 3))}
    numbers = {"zero": [0], "one": [1], "n0": [0], "n1": [BINS], "n2": [2 * BINS], "n3": [2], "parts": [BINS, BINS]}
    numbers |= {"pairs": [1, 2, BINS, FRAMES], "row": [1, BINS * FRAMES], "bins": [1, BINS, *space, FRAMES]}
    constants = " ".join(f"{n} = Constant<value_ints = {v}>()" for n, v in numbers.items())
    pads = [0, 1, 0, 1] if rank == 4 else [1, 1]
    strides = [1, 4] if rank == 4 else [4]
    first = f"s = Conv<strides = {strides}>(x, kernel)"
    if form == "two convolutions":
        first = f"a = Conv<strides = {strides}>(x, wa) b = Conv<strides = {strides}>(x, wb)"
    shape = ",".join(map(str, (1, 1, *space, LENGTH)))
    text = (
        f"g (float[{shape}] x) => (float[{','.join(map(str, (1, OUT, *space, FRAMES)))}] y) {{ {constants} {first} {FORMS[form]} "
    )
    return network(f"{text} y = Conv<pads = {pads}>(m, last) }}", weights, folder, machine)


def between(net: Network) -> list[Group]:
    return [g for g in find_groups(net) if g.makers and g.takers]


@pytest.mark.parametrize(("rank", "machine"), [(3, "edge16"), (4, "edge16"), (3, "transformer64")])
@pytest.mark.parametrize("form", FORMS)
def test_a_bin_has_one_factor_on_its_whole_way(form: str, rank: int, machine: str, tmp_path: Path) -> None:
    net = front_end(form, tmp_path, machine, rank)
    (group,) = between(net)
    assert group.size == BINS
    factors = group.by_tensor(np.random.default_rng(5).uniform(0.1, 8, BINS))
    assert len(factors) >= 4
    through = net.through(Quantization({}, factors=factors))
    assert largest_difference(net, through, samples(net.model.types["x"].shape, 4, seed=9)) < LARGEST


@pytest.mark.parametrize("form", ["slices", "two convolutions", "sum over pairs", "magnitudes"])
def test_quiet_bins_get_their_codes_back(form: str, tmp_path: Path) -> None:
    net = front_end(form, tmp_path)
    shape = net.model.types["x"].shape
    data, held_out = samples(shape, 16), samples(shape, 8, seed=1)
    before = plain(net, data)
    after = equalize(net, before, data, nothing).quantization
    through, judge = net.through(after), OutputEvaluator(held_out)
    assert largest_difference(net, through, held_out) < LARGEST
    gained = judge.verdict(through, after).decibels - judge.verdict(net, before).decibels
    assert gained > 6, gained


@pytest.mark.parametrize(
    ("between_them", "size"),
    [
        (HALVES + "m = Mul(a, b)", None),  # of two factors
        (HALVES + "p = Mul(a, a) m = Add(p, b)", None),  # of two powers
        (HALVES + "p = Sigmoid(a) m = Add(p, b)", None),  # not homogeneous
        (HALVES + "p = Clip(a, half, two) m = Add(p, b)", None),
        (HALVES + "p = Add(a, b) m = Clip(p, none, two)", None),  # a sum reaches further than its operands
        (HALVES + "p = Slice(a, n0, less, one) q = Slice(a, one, n1, one) r = Pad(p, pads) t = Pad(q, pads) m = Add(r, t)", None),
        (HALVES + "p = Add(a, ramp) m = Add(p, b)", None),  # which would be as large as the tensor
        (
            HALVES + "p = Transpose<perm = [0, 2, 3, 1]>(a) q = MaxPool<kernel_shape = [1, 3], pads = [0, 1, 0, 1]>(p) "
            "m = Transpose<perm = [0, 3, 1, 2]>(q)",
            None,
        ),  # the largest of neighbouring bins
        (HALVES + "p = Transpose<perm = [0, 3, 2, 1]>(a) m = Conv<pads = [0, 2, 0, 2]>(p, across)", BINS),  # a sum of bins
        (HALVES + "p = ReduceMean<axes = [1]>(a) m = Sub(a, p)", 1 + BINS),  # a mean over the bins: one factor for all
    ],
)
def test_what_is_no_chain_is_left_alone(between_them: str, size: int | None, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(FORMS, "other", f"none = Constant<value_float = 0.0>() less = Constant<value_ints = [{BINS - 1}]>() "
                        f"pads = Constant<value_ints = [0,0,0,0,0,1,0,0]>() {between_them}")  # fmt: skip
    groups = between(front_end("other", tmp_path))
    assert [g.size for g in groups] == ([] if size is None else [size])


def test_factors_that_are_not_what_a_bin_has_before_are_refused(tmp_path: Path) -> None:
    net = front_end("slices", tmp_path)
    (group,) = between(net)
    factors = group.by_tensor(np.linspace(1, 2, BINS))
    factors["t"] = np.sqrt(factors["t"])
    with pytest.raises(InternalError, match="its operands and its output have different factors"):
        scale_model(net.model, factors)
