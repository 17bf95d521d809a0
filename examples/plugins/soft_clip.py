"""SoftClip of the domain my.org: a function of each element with two parameters."""

from dataclasses import dataclass

import numpy as np

from toolchain.plugin import Array, Example, Operator, Plugin, Steps, TensorType


@dataclass(frozen=True)
class SoftClip(Operator):
    """y = limit tanh(slope x / limit)."""

    DOMAIN = "my.org"
    limit: float
    slope: float = 1.0

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.shape, x.dtype)

    def compute(self, x: Array) -> Array:
        return (self.limit * np.tanh(self.slope * x / self.limit)).astype(np.float32)

    def steps(self, build: Steps, x: str) -> str:
        return build.add("Mul", build.add("Tanh", build.add("Mul", x, self.slope / self.limit)), self.limit)


PLUGIN = Plugin(
    "soft_clip",
    "1.0",
    (SoftClip,),
    examples=(
        Example(SoftClip(limit=2.0), ((1, 8, 6, 6),), least_db=30.0, low=-4.0, high=4.0),
        Example(SoftClip(limit=0.5, slope=3.0), ((4, 30),)),
    ),
)
