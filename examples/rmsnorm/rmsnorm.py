"""RMSNorm of the domain my.org, as a plug-in: attributes, type rule, computation, and steps of ONNX (README.md)."""

from dataclasses import dataclass

import numpy as np

from toolchain.plugin import Array, Example, Operator, Plugin, Steps, TensorType


@dataclass(frozen=True)
class RMSNorm(Operator):
    """y = x / sqrt(mean(x^2) + epsilon) * scale, the mean over all dimensions from `axis` on."""

    DOMAIN = "my.org"
    axis: int = -1
    epsilon: float = 1e-5

    def infer(self, x: TensorType, scale: TensorType) -> TensorType:
        if scale.shape != x.shape[self.axis :]:
            raise ValueError(f"scale is {list(scale.shape)}; it must be {list(x.shape[self.axis :])}")
        return TensorType(x.shape, x.dtype)

    def compute(self, x: Array, scale: Array) -> Array:
        axes = self._axes(x.ndim)
        mean = np.mean(x * x, axes, keepdims=True, dtype=np.float64)
        return (x / np.sqrt(mean + self.epsilon) * scale).astype(np.float32)

    def steps(self, build: Steps, x: str, scale: str) -> str:
        axes = self._axes(len(build.shape(x)))
        mean = build.add("ReduceMean", build.add("Mul", x, x), axes)
        root = build.add("Sqrt", build.add("Add", mean, self.epsilon))
        return build.add("Mul", build.add("Div", x, root), scale)

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(self.axis % rank, rank))


PLUGIN = Plugin(
    "rmsnorm",
    "1.0",
    (RMSNorm,),
    examples=(
        Example(RMSNorm(), ((2, 16, 64), np.linspace(0.5, 1.5, 64, dtype=np.float32)), least_db=30.0),
        Example(RMSNorm(axis=1, epsilon=1e-3), ((4, 6, 10), np.linspace(0.9, 1.1, 60, dtype=np.float32).reshape(6, 10))),
    ),
)
