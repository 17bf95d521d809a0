"""What the conformance kit holds: inputs and parameters drawn for the arithmetic of one machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.errors import FixedPointError
from quant.fixed_point.requant import Requant, make_requant
from quant.fixed_point.rounding import Rounding
from quant.fixed_point.scale import ScaleForm

Array = NDArray[Any]
Drawn = Iterator[tuple[str, str, dict[str, Array], dict[str, Any]]]
OPERATORS = (
    "requantize",
    "conv2d",
    "conv_transpose2d",
    "matmul",
    "add",
    "mul",
    "rescale",
    "leaky_relu",
    "max_pool",
    "average_pool",
    "resize",
)
_CODES = {"int4": (np.int8, -8, 7), "int8": (np.int8, -128, 127), "uint8": (np.uint8, 0, 255)}
_CODES |= {"int16": (np.int16, -32768, 32767)}
_INT32 = (-(1 << 31), (1 << 31) - 1)


@dataclass(frozen=True)
class MachineNumerics:
    """The arithmetic of a machine, in plain values.

    activation: 'int4', 'int8', 'uint8' or 'int16'; weight: 'int4', 'int8' or 'uint8'; rounding for the machine, per_op
    where an operator differs; wrap: overflow wraps instead of saturating; left_shift: bits that ADD shifts its operands
    by before they meet (0: none).
    """

    activation: str = "int8"
    weight: str = "int8"
    form: ScaleForm = field(default_factory=ScaleForm)
    rounding: Rounding = Rounding.DOUBLE_ROUND
    per_op: Mapping[str, Rounding] = field(default_factory=dict)
    per_channel: bool = True
    wrap: bool = False
    accumulator_bits: int = 32
    left_shift: int = 20

    def __post_init__(self) -> None:
        for name, known in (("activation", tuple(_CODES)), ("weight", ("int4", "int8", "uint8"))):
            if getattr(self, name) not in known:
                raise FixedPointError(f"vectors: {name}={getattr(self, name)!r}; must be one of {', '.join(known)}")
        unknown = sorted(set(self.per_op) - set(OPERATORS))
        if unknown:
            raise FixedPointError(f"vectors: per_op names {', '.join(unknown)}; known are {', '.join(OPERATORS)}")


def requant_values(r: Requant) -> dict[str, Any]:
    return {
        "kind": r.kind,
        "multiplier": r.multiplier.tolist(),
        "shift": r.shift.tolist(),
        "rounding": r.rounding.value,
        "zero_point": r.zero_point,
        "low": r.low,
        "high": r.high,
        "wrap": r.wrap,
        "width_bits": r.width_bits,
    }


class _Draw:
    """Draws inputs and parameters for one machine."""

    def __init__(self, numerics: MachineNumerics, seed: int) -> None:
        self.n, self.rng = numerics, np.random.default_rng(seed)
        self.dtype, self.low, self.high = _CODES[numerics.activation]
        self.symmetric = numerics.activation == "int16"

    def codes(self, kind: str, shape: tuple[int, ...], extreme: bool) -> Array:
        dtype, low, high = _CODES[kind]
        if extreme:
            return self.rng.choice(np.array([low, high], dtype), shape)
        return self.rng.integers(low, high + 1, shape).astype(dtype)

    def zero(self) -> int:
        return 0 if self.symmetric else int(self.rng.integers(self.low, self.high + 1))

    def requant(self, op: str, real: float, channels: int = 1, *, relu: bool = False, wide: bool = False) -> Requant:
        """A Requant about `real`, moved into the machine's scale range where it lies outside."""
        spread = self.rng.uniform(0.6, 1.6, channels if self.n.per_channel else 1)
        zero = 0 if wide else self.zero()
        if relu and not self.symmetric:
            zero = self.low + (zero - self.low) // 4
        low, high = _INT32 if wide else (max(self.low, zero) if relu else self.low, self.high)
        rounding = self.n.per_op.get(op, self.n.rounding)
        width = 4 if self.n.activation == "int4" and not wide else None
        scale = _into_range(real * spread, self.n.form)
        return make_requant(
            scale,
            self.n.form,
            rounding,
            zero_point=zero,
            low=low,
            high=high,
            wrap=self.n.wrap and not wide,
            width_bits=width,
        )


def _into_range(real: Array, form: ScaleForm) -> Array:
    if form.kind == "float32":
        return real
    top = 2.0**-form.shift_min * (1 if form.kind == "pow2" else (1 << form.multiplier_bits) - 1)
    return np.clip(real, 2.0**-form.shift_max, top)


def draw_cases(numerics: MachineNumerics, seed: int) -> Drawn:
    """(name, op, inputs, parameters) of every case. A requantization stands as `requant_values` under its own name."""
    w = _Draw(numerics, seed)
    yield from _requantize_cases(w)
    yield from _product_cases(w)
    yield from _elementwise_cases(w)
    yield from _window_cases(w)


def _requantize_cases(w: _Draw) -> Drawn:
    bits = min(w.n.accumulator_bits, 63)
    for name, channels, real, relu in [
        ("per_tensor", 1, 1e-3, False),
        ("per_channel", 16, 1e-3, False),
        ("relu", 16, 3e-4, True),
        ("smallest", 16, 2.0**-24, False),
        ("largest", 16, 0.9, False),
    ]:
        r = w.requant("requantize", real, channels, relu=relu)
        acc = w.rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (64, 16)) >> w.rng.integers(0, bits - 2, (64, 16))
        acc[0, :6] = -(1 << (bits - 1)), (1 << (bits - 1)) - 1, 0, 1, -1, 2
        # values at, below and above ties
        step = np.broadcast_to(1 / r.real_scale, 16)
        ties = np.rint((np.arange(-12, 12)[:, None] + 0.5) * step)
        inside = np.clip(ties, -(2.0 ** (bits - 2)), 2.0 ** (bits - 2)).astype(np.int64)
        acc = np.concatenate([acc, inside - 1, inside, inside + 1])
        acc = acc.astype(np.int64 if w.n.accumulator_bits > 32 else np.int32)
        yield (
            f"requantize_{name}",
            "requantize",
            {"acc": acc},
            {
                "requant": requant_values(r),
                "dtype": np.dtype(w.dtype).name,
            },
        )


_CONVOLUTIONS: list[tuple[str, str, tuple[int, int], int, int, dict[str, Any]]] = [
    # name, op, kernel, ic, oc, geometry
    ("3x3", "conv2d", (3, 3), 8, 8, {"pads": [1, 1, 1, 1]}),
    ("1x1", "conv2d", (1, 1), 16, 8, {}),
    ("stride_dilation", "conv2d", (3, 2), 4, 8, {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}),
    ("depthwise", "conv2d", (3, 3), 8, 8, {"pads": [1, 1, 1, 1], "groups": 8}),
    ("groups", "conv2d", (3, 3), 8, 8, {"groups": 2}),
    ("transposed", "conv_transpose2d", (3, 3), 4, 8, {"pads": [1, 1, 0, 0], "strides": [2, 2]}),
]


def _product_cases(w: _Draw) -> Drawn:
    span = (w.high - w.low) / 255
    w_zero = 128 if w.n.weight == "uint8" else 0
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


def _pairs(w: _Draw) -> dict[str, Array]:
    """Every pair of codes on a grid of at most 64 x 64, extremes among them."""
    grid = np.unique(np.linspace(w.low, w.high, 64).astype(w.dtype))
    a, b = np.meshgrid(grid, grid)
    return {"a": np.ascontiguousarray(a), "b": np.ascontiguousarray(b)}


def _elementwise_cases(w: _Draw) -> Drawn:
    zeros = {"a_zero_point": w.zero(), "b_zero_point": w.zero()}
    left_shift = w.n.left_shift
    for name, subtract in (("add", False), ("sub", True)):
        yield (
            name,
            "add",
            _pairs(w),
            zeros
            | {
                "a_requant": requant_values(w.requant("add", 0.45, wide=True)),
                "b_requant": requant_values(w.requant("add", 0.2, wide=True)),
                "requant": requant_values(w.requant("add", 1.3 / (1 << left_shift))),
                "left_shift": left_shift,
                "subtract": subtract,
            },
        )
    span = w.high - w.low
    yield "mul", "mul", _pairs(w), zeros | {"requant": requant_values(w.requant("mul", 2 / span))}
    x = np.unique(np.linspace(w.low, w.high, 1024).astype(w.dtype))
    yield (
        "rescale",
        "rescale",
        {"x": x},
        {
            "x_zero_point": w.zero(),
            "requant": requant_values(w.requant("rescale", 0.4)),
        },
    )
    positive = w.requant("leaky_relu", 0.7)
    negative = make_requant(
        _into_range(positive.real_scale[:1] * 0.1, w.n.form),
        w.n.form,
        positive.rounding,
        zero_point=positive.zero_point,
        low=positive.low,
        high=positive.high,
        wrap=positive.wrap,
        width_bits=positive.width_bits,
    )
    yield (
        "leaky_relu",
        "leaky_relu",
        {"x": x},
        {
            "x_zero_point": w.zero(),
            "positive": requant_values(positive),
            "negative": requant_values(negative),
        },
    )


def _window_cases(w: _Draw) -> Drawn:
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
        parameters = {"mode": mode, "size": [15, 11], "scale": [4, 2, 4, 2], "offset": [0, 0], "x_zero_point": w.zero()}
        if mode == "bilinear":
            parameters["requant"] = requant_values(w.requant("resize", 1 / 16))
        yield f"resize_{mode}", "resize", {"x": w.codes(w.n.activation, (1, 8, 6, 4), False)}, parameters
