"""Sums on machines that round down or toward zero are right on average, with the offsets, on the integer reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unequal_networks import network, nothing, plain, samples

from quant.repair.step import Offset, Quantization
from tests.other_numerics import with_numerics
from toolchain.errors import CompileError
from toolchain.repair.network import Network
from toolchain.repair.offsets import offset_sums


def sums(folder: Path, rounding: str, kind: str = "Add") -> Network:
    rng = np.random.default_rng(0)
    net = network(
        f"""g (float[1,3,8,8] x) => (float[1,8,8,8] y) {{
            a = Conv(x, w1)
            b = Conv(x, w2)
            y = {kind}(a, b)
        }}""",
        {"w1": rng.standard_normal((8, 3, 1, 1)), "w2": 0.6 * rng.standard_normal((8, 3, 1, 1))},
        folder,
    )
    return Network(net.model, net.selection, with_numerics(net.machine, rounding=rounding, per_op={}))


def errors(net: Network, given: Quantization) -> np.ndarray:
    """Of y from the sum of what a's and b's codes stand for, in steps of y, where no clamp cuts it."""
    types, session = net.integer(given).types, net.session(given)
    found = []
    for sample in samples((1, 3, 8, 8), 8):
        codes = session.run_detailed(sample).codes

        def steps(name: str, codes=codes) -> np.ndarray:
            q, y = types[name].quant, types["y"].quant
            assert q is not None and y is not None
            return (codes[name].astype(np.float64) - q.zero_point) * q.scale / y.scale

        inner = (codes["y"] > -128) & (codes["y"] < 127)
        sign = -1 if net.model.graph.nodes[-1].op.op_type == "Sub" else 1
        found.append((steps("y") - steps("a") - sign * steps("b"))[inner])
    return np.concatenate(found)


@pytest.mark.parametrize("rounding", ["floor", "truncate"])
@pytest.mark.parametrize("kind", ["Add", "Sub"])
def test_right_on_average_and_nearest(tmp_path: Path, kind: str, rounding: str) -> None:
    net = sums(tmp_path, rounding, kind)
    given = plain(net, samples((1, 3, 8, 8), 8))
    outcome = offset_sums(net, given, (), nothing)
    before, after = errors(net, given), errors(net, outcome.quantization)
    assert np.abs(before).max() > 0.9 and np.abs(after).max() < 0.6
    assert abs(after.mean()) < 0.03 and np.square(after).mean() < 0.35 * np.square(before).mean()


def test_a_machine_that_rounds_to_nearest_is_left_alone(tmp_path: Path) -> None:
    net = sums(tmp_path, "single_half_up")
    given = plain(net, samples((1, 3, 8, 8), 8))
    assert offset_sums(net, given, (), nothing).quantization is given


@pytest.mark.parametrize("offset", [Offset((1,), 0), Offset((0, 300), 0), Offset((0, 0), -300)])
def test_offsets_that_are_no_codes_are_refused(tmp_path: Path, offset: Offset) -> None:
    net = sums(tmp_path, "floor")
    given = plain(net, samples((1, 3, 8, 8), 8))
    with pytest.raises(CompileError, match="mend or remove the entry"):
        net.integer(replace(given, offsets={net.graph.nodes[-1].name: offset}))
