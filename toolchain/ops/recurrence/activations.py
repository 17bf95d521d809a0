"""Define the activation functions that a recurrent layer may name, as steps of its decomposition."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from toolchain.ir.range_constraints import ClippedRange, FixedRange

_DEFAULTS = {"Elu": (1.0, 0.0), "HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01, 0.0)}
_WITHOUT_DEFAULTS = (
    "Affine",
    "ScaledTanh",
    "ThresholdedRelu",
)  # whose parameters ONNX and onnxruntime have no common defaults of
_WITH_BETA = ("Affine", "HardSigmoid", "ScaledTanh")
_BOUNDS = {"HardSigmoid": (0.0, 1.0), "Sigmoid": (0.0, 1.0), "Softsign": (-1.0, 1.0), "Tanh": (-1.0, 1.0)}
# Beyond these a function is within 1e-4 of its end; a table over less is finer between its entries.
_EFFECTIVE_LIMITS = {"Sigmoid": 10.0, "Tanh": 5.0}
_ATTRIBUTES = {"Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "LeakyRelu": ("alpha",), "ThresholdedRelu": ("alpha",)}
_PLAIN = ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
ACTIVATION_NAMES = frozenset((*_PLAIN, *_DEFAULTS, *_WITHOUT_DEFAULTS))


class Make(Protocol):
    """A function that adds a step and returns its tensor. `what`: the tensor in words. `range`: its fixed range, None:
    calibrated.
    """

    def __call__(self, what: str, op_type: str, *inputs: str | float, range: FixedRange | None, **attributes: float) -> str: ...


@dataclass(frozen=True)
class Activation:
    """An activation function of a recurrent layer. `name`: of the ONNX operator. `alpha`, `beta`: 0 where the function has
    none.
    """

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def bounds(self) -> FixedRange | None:
        """The bounds of its values, whatever the data; None where it has none."""
        if self.name == "ScaledTanh":
            return FixedRange(-abs(self.alpha), abs(self.alpha))
        return FixedRange(*_BOUNDS[self.name]) if self.name in _BOUNDS else None

    def read(self, as_one: str, interpolates: bool) -> ClippedRange:
        """Return the range that its input is clipped to for calibration.

        `as_one`: the name under which all its inputs are measured together.
        `interpolates`: whether its table is interpolated; only then is the range limited.
        """
        end = _EFFECTIVE_LIMITS.get(self.name, math.inf) if interpolates else math.inf
        return ClippedRange(-end, end, as_one)

    def make_steps(self, make: Make, what: str, x: str) -> str:
        """Add the steps of the function of `x` and return its tensor, which is called `what`."""
        if self.name == "Affine":
            return make(what, "Add", make(f"{what}, times alpha", "Mul", x, self.alpha, range=None), self.beta, range=None)
        if self.name == "ScaledTanh":
            scaled = make(f"{what}, times beta", "Mul", x, self.beta, range=None)
            tanh = make(f"{what}, tanh", "Tanh", scaled, range=FixedRange(-1.0, 1.0))
            return make(what, "Mul", tanh, self.alpha, range=self.bounds)
        attributes = {name: getattr(self, name) for name in _ATTRIBUTES.get(self.name, ())}
        return make(what, self.name, x, range=self.bounds, **attributes)


def activations(names: tuple[str, ...], alphas: tuple[float, ...], betas: tuple[float, ...]) -> tuple[Activation, ...]:
    """Return the activations as a node lists them.

    `alphas`, `betas`: parameters of those functions that have some, in order. Where they end, defaults of ONNX follow.
    More of them than the functions take are ignored.
    Names are case-insensitive and must be known.
    Raise ValueError with the name where a function without defaults lacks its parameters.
    """
    name_by_lower = {name.lower(): name for name in ACTIVATION_NAMES}
    chosen: list[Activation] = []
    remaining_alphas, more = list(alphas), list(betas)
    for text in names:
        name = name_by_lower[text.lower()]
        if name in _WITHOUT_DEFAULTS and (not remaining_alphas or (name in _WITH_BETA and not more)):
            raise ValueError(name)
        alpha, beta = _DEFAULTS.get(name, (0.0, 0.0))
        if name not in _PLAIN and remaining_alphas:
            alpha = remaining_alphas.pop(0)
        if name in _WITH_BETA and more:
            beta = more.pop(0)
        chosen.append(Activation(name, alpha, beta))
    return tuple(chosen)
