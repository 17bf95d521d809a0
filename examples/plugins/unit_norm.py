"""UnitNorm of the domain my.org: vectors along the last dimension, scaled to a length of about 1, by steps of ONNX."""

from dataclasses import dataclass

import numpy as np

from toolchain.plugin import Array, Example, Operator, Plugin, Steps, TensorType


@dataclass(frozen=True)
class UnitNorm(Operator):
    """y = gain x / sqrt(sum(x^2) + epsilon), over the last dimension; without `gain` it is 1."""

    DOMAIN = "my.org"
    epsilon: float = 1e-6

    def infer(self, x: TensorType, gain: TensorType | None = None) -> TensorType:
        if gain is not None and gain.shape != x.shape[-1:]:
            raise ValueError(f"gain is {list(gain.shape)}; it must be {list(x.shape[-1:])}")
        return TensorType(x.shape, x.dtype)

    def compute(self, x: Array, gain: Array | None = None) -> Array:
        length = np.sqrt(np.sum(x * x, -1, keepdims=True) + self.epsilon)
        return (x / length * (1 if gain is None else gain)).astype(np.float32)

    def steps(self, build: Steps, x: str, gain: str | None = None) -> str:
        square = build.add("ReduceSum", build.add("Mul", x, x), [-1])
        length = build.add("Sqrt", build.add("Add", square, self.epsilon))
        y = build.add("Div", x, length)
        return y if gain is None else build.add("Mul", y, gain)


PLUGIN = Plugin(
    "unit_norm",
    "1.0",
    (UnitNorm,),
    examples=(
        Example(UnitNorm(), ((3, 8, 32), np.linspace(0.5, 1.5, 32, dtype=np.float32))),
        Example(UnitNorm(epsilon=1e-2), ((20, 16),)),
    ),
)
