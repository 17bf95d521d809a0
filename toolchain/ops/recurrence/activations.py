"""The functions that a recurrent layer may have, as ONNX defines them for its `activations`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from toolchain.ir.range_constraints import ClippedRange, FixedRange

_DEFAULTS = {"Elu": (1.0, 0.0), "HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01, 0.0)}
_SAID = ("Affine", "ScaledTanh", "ThresholdedRelu")  # whose parameters ONNX and onnxruntime have no common defaults of
_WITH_BETA = ("Affine", "HardSigmoid", "ScaledTanh")
_BOUNDS = {"HardSigmoid": (0.0, 1.0), "Sigmoid": (0.0, 1.0), "Softsign": (-1.0, 1.0), "Tanh": (-1.0, 1.0)}
# Beyond these a function is within 1e-4 of its end; a table over less is finer between its entries.
_TELLING = {"Sigmoid": 10.0, "Tanh": 5.0}
_ATTRIBUTES = {"Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "LeakyRelu": ("alpha",), "ThresholdedRelu": ("alpha",)}
_PLAIN = ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
KNOWN = frozenset((*_PLAIN, *_DEFAULTS, *_SAID))


class Make(Protocol):
    def __call__(self, what: str, op_type: str, *inputs: str | float, range: FixedRange | None, **attributes: float) -> str: ...


@dataclass(frozen=True)
class Activation:
    """name: of ONNX."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def bounds(self) -> FixedRange | None:
        """What its values lie in, whatever the data."""
        if self.name == "ScaledTanh":
            return FixedRange(-abs(self.alpha), abs(self.alpha))
        return FixedRange(*_BOUNDS[self.name]) if self.name in _BOUNDS else None

    def read(self, as_one: str, interpolates: bool) -> ClippedRange:
        """What it reads, as far as that tells it anything. as_one: the name that all that it reads is measured by."""
        end = _TELLING.get(self.name, math.inf) if interpolates else math.inf
        return ClippedRange(-end, end, as_one)

    def made(self, make: Make, what: str, x: str) -> str:
        """Steps, of which the last is called `what`."""
        if self.name == "Affine":
            return make(what, "Add", make(f"{what}, times alpha", "Mul", x, self.alpha, range=None), self.beta, range=None)
        if self.name == "ScaledTanh":
            scaled = make(f"{what}, times beta", "Mul", x, self.beta, range=None)
            tanh = make(f"{what}, tanh", "Tanh", scaled, range=FixedRange(-1.0, 1.0))
            return make(what, "Mul", tanh, self.alpha, range=self.bounds)
        given = {name: getattr(self, name) for name in _ATTRIBUTES.get(self.name, ())}
        return make(what, self.name, x, range=self.bounds, **given)


def activations(names: tuple[str, ...], alphas: tuple[float, ...], betas: tuple[float, ...]) -> tuple[Activation, ...]:
    """As a node lists them, the parameters of those that have some in one row. ValueError: a function has none that are known."""
    spelled = {name.lower(): name for name in KNOWN}
    found: list[Activation] = []
    left, more = list(alphas), list(betas)
    for given in names:
        name = spelled[given.lower()]
        if name in _SAID and (not left or (name in _WITH_BETA and not more)):
            raise ValueError(name)
        alpha, beta = _DEFAULTS.get(name, (0.0, 0.0))
        if name not in _PLAIN and left:
            alpha = left.pop(0)
        if name in _WITH_BETA and more:
            beta = more.pop(0)
        found.append(Activation(name, alpha, beta))
    return tuple(found)
