"""Draws the cases of the conformance kit for the arithmetic of one machine: inputs and parameters, without the outputs.

Tables, softmax and norms are in `nonlinear`, float32 ties in `ties`. `vectors` computes the expected outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quant.fixed_point.conformance.draw import Array, CaseDraw, Contents, Drawn, clip_to_form, requant_values
from quant.fixed_point.conformance.nonlinear import nonlinear_cases
from quant.fixed_point.conformance.ties import tie_cases
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.requant import make_requant
from quant.fixed_point.core.rounding import Rounding


def draw_cases(numerics: Numerics, contents: Contents, seed: int) -> Drawn:
    """Yield (name, op, inputs, parameters) of every case that `contents` asks for.

    A requantization stands in the parameters as `requant_values` under its own name.
    """
    w = CaseDraw(numerics, contents, seed)
    for cases in (_requantize_cases, _product_cases, _elementwise_cases, _window_cases, nonlinear_cases, tie_cases):
        yield from (case for case in cases(w) if case[1] in contents.operators)


def _requantize_cases(w: CaseDraw) -> Drawn:
    """Yield the cases of the machine's rounding, and of each other rounding that an operator has."""
    yield from _requantize_cases_of(w, w.n.rounding, "")
    for rounding in sorted({*w.n.per_op.values()} - {w.n.rounding}):
        yield from _requantize_cases_of(w, rounding, f"{rounding.value}_")


def _requantize_cases_of(w: CaseDraw, rounding: Rounding, prefix: str) -> Drawn:
    """Yield the cases of requantization by one rounding; `prefix` sets their names apart."""
    bits = min(w.n.accumulator_bits, 63)
    for name, channels, real, relu in [
        ("per_tensor", 1, 1e-3, False),
        ("per_channel", 16, 1e-3, False),
        ("relu", 16, 3e-4, True),
        ("smallest", 16, 2.0**-24, False),
        ("largest", 16, 0.9, False),
    ]:
        r = w.requant("requantize", real, channels, relu=relu, rounding=rounding)
        acc = w.rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (64, 16)) >> w.rng.integers(0, bits - 2, (64, 16))
        acc[0, :6] = -(1 << (bits - 1)), (1 << (bits - 1)) - 1, 0, 1, -1, 2
        # values at, below and above ties
        step = np.broadcast_to(1 / r.real_scale, 16)
        ties = np.rint((np.arange(-12, 12)[:, None] + 0.5) * step)
        inside = np.clip(ties, -(2.0 ** (bits - 2)), 2.0 ** (bits - 2)).astype(np.int64)
        acc = np.concatenate([acc, inside - 1, inside, inside + 1])
        acc = acc.astype(np.int64 if w.n.accumulator_bits > 32 else np.int32)
        parameters = {"requant": requant_values(r), "dtype": np.dtype(w.dtype).name}
        yield f"requantize_{prefix}{name}", "requantize", {"acc": acc}, parameters


_CONVOLUTIONS: list[tuple[str, str, tuple[int, int], int, int, dict[str, Any]]] = [
    # name, op, kernel, ic, oc, geometry
    ("3x3", "conv2d", (3, 3), 8, 8, {"pads": [1, 1, 1, 1]}),
    ("1x1", "conv2d", (1, 1), 16, 8, {}),
    ("stride_dilation", "conv2d", (3, 2), 4, 8, {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}),
    ("depthwise", "conv2d", (3, 3), 8, 8, {"pads": [1, 1, 1, 1], "groups": 8}),
    ("groups", "conv2d", (3, 3), 8, 8, {"groups": 2}),
    ("transposed", "conv_transpose2d", (3, 3), 4, 8, {"pads": [1, 1, 0, 0], "strides": [2, 2]}),
]


def _product_cases(w: CaseDraw) -> Drawn:
    """Yield cases of convolutions and matrix products, with random codes and with extreme ones."""
    span = (w.high - w.low) / 255
    w_zero = 128 if w.n.weight is CodeType.UINT8 else 0
    for extreme in (False, True):
        tail = "_extreme" if extreme else ""
        for name, op, kernel, ic, oc, geometry in _CONVOLUTIONS:
            groups = geometry.get("groups", 1)
            inputs = {
                "x": w.codes(w.n.activation, (1, 9, 8, ic), extreme),
                "w": w.codes(w.n.weight, (oc, *kernel, ic // groups), extreme),
                "bias": w.rng.integers(-2000, 2000, oc),
            }
            depth = kernel[0] * kernel[1] * ic // groups
            r = w.requant(op, 1 / (60 * span * np.sqrt(depth)), oc, relu=name == "1x1")
            yield (
                f"{op}_{name}{tail}",
                op,
                inputs,
                {
                    "geometry": geometry,
                    "x_zero_point": w.zero(),
                    "w_zero_point": w_zero,
                    "accumulator_bits": w.n.accumulator_bits,
                    "requant": requant_values(r),
                },
            )
        inputs = {
            "a": w.codes(w.n.activation, (12, 70), extreme),
            "b": w.codes(w.n.weight, (70, 16), extreme),
            "bias": w.rng.integers(-2000, 2000, 16),
        }
        yield (
            f"matmul{tail}",
            "matmul",
            inputs,
            {
                "a_zero_point": w.zero(),
                "b_zero_point": w_zero,
                "accumulator_bits": w.n.accumulator_bits,
                "requant": requant_values(w.requant("matmul", 1 / (600 * span), 16)),
            },
        )


def _pairs(w: CaseDraw) -> dict[str, Array]:
    """Return every pair of codes on a grid of at most 64 x 64, extremes among them, as a and b."""
    a, b = np.meshgrid(w.grid(64), w.grid(64))
    return {"a": np.ascontiguousarray(a), "b": np.ascontiguousarray(b)}


def _elementwise_cases(w: CaseDraw) -> Drawn:
    """Yield cases of operators element by element, over grids of codes."""
    zeros = {"a_zero_point": w.zero(), "b_zero_point": w.zero()}
    for op in ("add", "sub"):
        left_shift = 0 if w.n.sums_in_float32(op) else w.n.add_left_shift
        parameters = {
            "a_requant": requant_values(w.requant(op, 0.45, wide=True)),
            "b_requant": requant_values(w.requant(op, 0.2, wide=True)),
            "requant": requant_values(w.requant(op, 1.3 / (1 << left_shift))),
            "left_shift": left_shift,
        }
        yield op, op, _pairs(w), zeros | parameters
    span = w.high - w.low
    yield "mul", "mul", _pairs(w), zeros | {"requant": requant_values(w.requant("mul", 2 / span))}
    x = w.grid(1024)
    yield "rescale", "rescale", {"x": x}, {"x_zero_point": w.zero(), "requant": requant_values(w.requant("rescale", 0.4))}
    pairs = _pairs(w)
    yield (
        "prelu",
        "prelu",
        {"x": pairs["a"], "alpha": pairs["b"]},
        {"x_zero_point": w.middle_zero(), "alpha_zero_point": w.zero(), **_by_sign(w, "prelu", 1 / span)},
    )
    yield "leaky_relu", "leaky_relu", {"x": x}, {"x_zero_point": w.middle_zero(), **_by_sign(w, "leaky_relu", 0.1)}


def _by_sign(w: CaseDraw, op: str, ratio: float) -> dict[str, Any]:
    """Return requantizations of the values at and above zero, and of those below: `ratio` of the former's scale."""
    positive = w.requant(op, 0.7, zero_point=w.middle_zero())
    negative = make_requant(
        clip_to_form(positive.real_scale[:1] * ratio, w.n.scale),
        w.n.scale,
        positive.rounding,
        zero_point=positive.zero_point,
        low=positive.low,
        high=positive.high,
        wrap=positive.wrap,
        width_bits=positive.width_bits,
    )
    return {"positive": requant_values(positive), "negative": requant_values(negative)}


def _window_cases(w: CaseDraw) -> Drawn:
    """Yield cases of pools and resizing."""
    for name, kernel, strides, pads in [
        ("2x2", [2, 2], [2, 2], [0, 0, 0, 0]),
        ("3x3_pad", [3, 3], [1, 1], [1, 1, 1, 1]),
        ("global", [8, 6], [1, 1], [0, 0, 0, 0]),
    ]:
        window = {"kernel": kernel, "strides": strides, "pads": pads}
        x = {"x": w.codes(w.n.activation, (1, 8, 6, 8), False)}
        yield f"max_pool_{name}", "max_pool", x, window
        r = w.requant("average_pool", 1 / (kernel[0] * kernel[1]))
        yield (
            f"average_pool_{name}",
            "average_pool",
            x,
            window
            | {
                "x_zero_point": w.zero(),
                "requant": requant_values(r),
            },
        )
    for mode in ("nearest", "bilinear"):
        parameters: dict[str, Any] = {"mode": mode, "size": [15, 11], "scale": [4, 2, 4, 2], "offset": [0, 0]}
        parameters["x_zero_point"] = w.zero()
        if mode == "bilinear":
            parameters["requant"] = requant_values(w.requant("resize", 1 / 16))
        yield f"resize_{mode}", "resize", {"x": w.codes(w.n.activation, (1, 8, 6, 4), False)}, parameters
