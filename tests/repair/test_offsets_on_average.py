"""Sums and averages on machines that round down or toward zero are right on average with offsets, on the integer reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unequal_networks import network, nothing, plain, samples

from quant.repair.choices import Offset, Quantization
from tests.support.numerics_variants import with_numerics
from toolchain.errors import CompileError
from toolchain.repair.compensate_rounding import offset_zero_points
from toolchain.repair.network import Network


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


def errors(net: Network, quantization: Quantization) -> np.ndarray:
    """Return the errors of y against the sum of the real values of a and b, in steps of y, where no clamp cuts it."""
    types, session = net.integer(quantization).types, net.session(quantization)
    output_errors = []
    for sample in samples((1, 3, 8, 8), 8):
        codes = session.run_detailed(sample).codes

        def steps(name: str, codes=codes) -> np.ndarray:
            q, y = types[name].quant, types["y"].quant
            assert q is not None and y is not None
            return (codes[name].astype(np.float64) - q.zero_point) * q.scale / y.scale

        inner = (codes["y"] > -128) & (codes["y"] < 127)
        sign = -1 if net.model.graph.nodes[-1].op.op_type == "Sub" else 1
        output_errors.append((steps("y") - steps("a") - sign * steps("b"))[inner])
    return np.concatenate(output_errors)


@pytest.mark.parametrize("rounding", ["floor", "truncate"])
@pytest.mark.parametrize("kind", ["Add", "Sub"])
def test_right_on_average_and_nearest(tmp_path: Path, kind: str, rounding: str) -> None:
    net = sums(tmp_path, rounding, kind)
    before_step = plain(net, samples((1, 3, 8, 8), 8))
    outcome = offset_zero_points(net, before_step, (), nothing)
    before, after = errors(net, before_step), errors(net, outcome.quantization)
    assert np.abs(before).max() > 0.9 and np.abs(after).max() < 0.6
    assert abs(after.mean()) < 0.03 and np.square(after).mean() < 0.35 * np.square(before).mean()


def averages(folder: Path, rounding: str, pool: str, size: int) -> Network:
    net = network(
        f"g (float[1,3,12,12] x) => (float[1,8,{size},{size}] y) {{ a = Conv(x, w1) y = {pool}(a) }}",
        {"w1": np.random.default_rng(0).standard_normal((8, 3, 1, 1))},
        folder,
        "ethos_u55_256",  # whose vector engine has strides of 3 at most
    )
    return Network(net.model, net.selection, with_numerics(net.machine, rounding=rounding, per_op={}))


@pytest.mark.parametrize(
    ("pool", "size", "kernel", "rounding", "tolerance"),
    [
        ("AveragePool <kernel_shape=[2,2], strides=[2,2]>", 6, 2, "floor", 0.03),
        ("AveragePool <kernel_shape=[2,2], strides=[2,2]>", 6, 2, "truncate", 0.2),  # one shift alone is possible
        ("AveragePool <kernel_shape=[4,4], strides=[4,4]>", 3, 4, "floor", 0.06),
    ],
    ids=["vector engine, floor", "vector engine, truncate", "array, floor"],
)
def test_averages_are_right_on_average(
    tmp_path: Path, pool: str, size: int, kernel: int, rounding: str, tolerance: float
) -> None:
    """Check y against the mean of the real values of a, in steps of y, where no clamp cuts it.

    `tolerance`: share of a step.
    """
    net, data = averages(tmp_path, rounding, pool, size), samples((1, 3, 12, 12), 24)
    before_step = plain(net, data)
    outcome = offset_zero_points(net, before_step, (), nothing)

    def errors(quantization: Quantization) -> np.ndarray:
        types, session, output_errors = net.integer(quantization).types, net.session(quantization), []
        a, y = types["a"].quant, types["y"].quant
        assert a is not None and y is not None
        for sample in data:
            codes = session.run_detailed(sample).codes
            view = np.lib.stride_tricks.sliding_window_view(
                codes["a"].astype(np.float64) - a.zero_point, (kernel, kernel), (1, 2)
            )
            expected = view.mean((4, 5))[:, ::kernel, ::kernel] * a.scale / y.scale
            inner = (codes["y"] > -128) & (codes["y"] < 127)
            output_errors.append((codes["y"].astype(np.float64) - y.zero_point - expected)[inner])
        return np.concatenate(output_errors)

    before, after = errors(before_step), errors(outcome.quantization)
    assert np.abs(before).max() > 0.9 and np.abs(after).max() < 0.55 + tolerance
    assert abs(after.mean()) < tolerance and np.square(after).mean() < 0.4 * np.square(before).mean()


def test_an_average_whose_padding_counts_is_left_alone(tmp_path: Path) -> None:
    """Padding is the zero point, and would not grow with the others."""
    pool = "AveragePool <kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad={}>"
    data = samples((1, 3, 12, 12), 8)
    for counts in (0, 1):
        net = averages(tmp_path, "floor", pool.format(counts), 12)
        before_step = plain(net, data)
        assert (offset_zero_points(net, before_step, (), nothing).quantization is before_step) == bool(counts)


def test_a_machine_that_rounds_to_nearest_is_left_alone(tmp_path: Path) -> None:
    net = sums(tmp_path, "single_half_up")
    before_step = plain(net, samples((1, 3, 8, 8), 8))
    assert offset_zero_points(net, before_step, (), nothing).quantization is before_step


@pytest.mark.parametrize("offset", [Offset((0, 0), 0), Offset((300,), 0), Offset((0,), 300)])
def test_offsets_of_an_average_that_are_no_codes_are_refused(tmp_path: Path, offset: Offset) -> None:
    net = averages(tmp_path, "floor", "AveragePool <kernel_shape=[2,2], strides=[2,2]>", 6)
    before_step = plain(net, samples((1, 3, 12, 12), 8))
    with pytest.raises(CompileError, match=r"1 operand and an output, each moved within -128\.\.127; mend or remove the entry"):
        net.integer(replace(before_step, offsets={net.graph.nodes[-1].name: offset}))


@pytest.mark.parametrize("offset", [Offset((1,), 0), Offset((0, 300), 0), Offset((0, 0), -300)])
def test_offsets_that_are_no_codes_are_refused(tmp_path: Path, offset: Offset) -> None:
    net = sums(tmp_path, "floor")
    before_step = plain(net, samples((1, 3, 8, 8), 8))
    with pytest.raises(CompileError, match="mend or remove the entry"):
        net.integer(replace(before_step, offsets={net.graph.nodes[-1].name: offset}))
