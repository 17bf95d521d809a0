"""Factors change no float output, move a clamp only where no data can reach it, and give unequal channels their codes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from unequal_networks import UNEQUAL, convolutions, make_norm_network, network, nothing, plain, residual, samples

from quant.float_session import FloatSession
from quant.repair.choices import Quantization
from toolchain.errors import CompileError
from toolchain.repair.channel_groups import find_groups
from toolchain.repair.channel_scaling import scale_model
from toolchain.repair.equalize import equalize, free_ends
from toolchain.repair.evaluate_outputs import OutputEvaluator
from toolchain.repair.network import Network

LARGEST = 1e-5  # of the largest magnitude: float's own rounding


def largest_difference(before: Network, after: Network, data: list[dict[str, np.ndarray]]) -> float:
    names = [n for n in before.model.graph.outputs if before.model.types[n].dtype == "float32"]
    runs = [[FloatSession(net.model, names).run(sample) for sample in data] for net in (before, after)]
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for x, y in zip(*runs) for a, b in zip(x, y))


def drawn(net: Network, seed: int = 0) -> dict[str, np.ndarray]:
    """Factors for every group, whatever they are good for."""
    rng, factors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for group in find_groups(net):
        if group.makers and not group.bounds:
            shape = net.model.types[group.tensors[0]].shape
            channels = shape[1] if len(shape) == 4 else shape[-1]
            factors |= dict.fromkeys(group.tensors, rng.uniform(0.1, 8, channels))
    return factors


@pytest.mark.parametrize("make", [convolutions, residual, make_norm_network])
def test_factors_change_no_float_output(make, tmp_path: Path) -> None:
    net = make(tmp_path)
    factors = drawn(net)
    assert factors
    through = net.through(Quantization({}, factors=factors))
    shape = net.model.types["x"].shape
    assert largest_difference(net, through, samples(shape, 4, seed=9)) < LARGEST


def test_the_groups_of_a_residual_network(tmp_path: Path) -> None:
    """The sum's operands carry what the sum carries; its readers take it out."""
    groups = {frozenset(g.tensors): ([n.outputs[0] for n in g.makers], len(g.takers)) for g in find_groups(residual(tmp_path))}
    assert groups[frozenset({"a", "b", "s", "r", "m"})] == (["a", "b"], 3)


@pytest.mark.parametrize(("machine", "per_tensor", "gain_db"), [("edge16", True, 6.0), ("ws8_pow2", False, 4.0)])
def test_unequal_channels_get_their_codes_back(machine: str, per_tensor: bool, gain_db: float, tmp_path: Path) -> None:
    net = convolutions(tmp_path, machine, per_tensor=per_tensor)
    data, held_out = samples((1, 3, 8, 8), 16), samples((1, 3, 8, 8), 8, seed=1)
    before = plain(net, data)
    after = equalize(net, before, data, nothing).quantization
    through, judge = net.through(after), OutputEvaluator(held_out)
    assert largest_difference(net, through, held_out) < LARGEST
    gained = judge.verdict(through, after).decibels - judge.verdict(net, before).decibels
    assert gained > gain_db, gained


@pytest.mark.parametrize("operator", ["Identity", "Relu"])
def test_parts_of_a_concat_of_unlike_ranges_get_their_codes_back(operator: str, tmp_path: Path) -> None:
    """One operand is a fiftieth of the other; what reads both makes up for it."""
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(s) for n, s in {"a": (8, 8, 1, 1), "b": (8, 8, 1, 1), "c": (8, 16, 1, 1)}.items()}
    weights["a"] /= 50
    weights["c"][:, :8] *= 50
    net = network(
        f"""g (float[1,8,8,8] x) => (float[1,8,8,8] y) {{
            d = Conv(x, a) e = Conv(x, b) p = {operator}(d) q = {operator}(e) z = Concat <axis=1> (p, q) y = Conv(z, c)
        }}""",
        weights,
        tmp_path,
    )
    data, held_out = samples((1, 8, 8, 8), 16), samples((1, 8, 8, 8), 8, seed=1)
    before = plain(net, data)
    after = equalize(net, before, data, nothing).quantization
    judge = OutputEvaluator(held_out)
    gained = judge.verdict(net.through(after), after).decibels - judge.verdict(net, before).decibels
    assert gained > 18, gained


def test_only_the_way_that_is_chosen_is_measured_on_all_samples(tmp_path: Path) -> None:
    net, data, read = convolutions(tmp_path, per_tensor=True), samples((1, 3, 8, 8), 40), list[int]()
    once = (read.append(i) or s for i, s in enumerate(data))
    assert equalize(net, plain(net, data), data, nothing, measured=once).quantization.factors
    assert read == list(range(40))


def test_a_clamp_moves_only_where_no_data_reaches_it(tmp_path: Path) -> None:
    """r is clamped at 1, whose input nothing bounds: its channels stay. e has a bounded input, but no clamp: its channels go."""
    net = convolutions(tmp_path, per_tensor=True, clamp=1.0)
    data = samples((1, 3, 8, 8), 16)
    after = equalize(net, plain(net, data), data, nothing).quantization
    assert "d" in after.factors and "r" not in after.factors
    wild = [{"x": 100 * s["x"]} for s in samples((1, 3, 8, 8), 4, seed=5)]
    assert largest_difference(net, net.through(after), wild) < LARGEST


def test_what_only_the_host_reads_is_not_squeezed(tmp_path: Path) -> None:
    net = make_norm_network(tmp_path)
    data, held_out = samples((1, 16, 8), 16), samples((1, 16, 8), 8, seed=1)
    before = plain(net, data)
    outcome = free_ends(net, before, data, nothing)
    after = outcome.quantization
    assert len(after.hosted) == 1 and outcome.notes[-1].startswith("on the host, since only the host reads them: ")
    end = next(f for f in after.factors.values())
    assert end[0] / end[-1] == pytest.approx(UNEQUAL[-1], rel=0.9)  # the small channels are made large
    through, judge = net.through(after), OutputEvaluator(held_out)
    assert largest_difference(net, through, held_out) < LARGEST
    assert judge.verdict(through, after).decibels > judge.verdict(net, before).decibels + 3


def test_factors_that_do_not_fit(tmp_path: Path) -> None:
    net = convolutions(tmp_path)
    with pytest.raises(CompileError) as caught:
        scale_model(net.model, {"cc": np.ones(8), "c": np.ones(7), "r": np.zeros(8)})
    assert str(caught.value).split("\n") == [
        "factors: the model has no tensor 'cc'; repair it again",
        "factors of 'c': are 7 numbers; its 8 channels need one above 0 each",
        "factors of 'r': are 8 numbers; its 8 channels need one above 0 each",
    ]
