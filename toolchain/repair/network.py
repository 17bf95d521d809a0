"""What the steps of a repair work on: a network in float, on its machine, and the integers that a quantization makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from quant.repair.step import Outcome, Quantization
from quant.sample import Sample
from toolchain.frontend import NormalModel
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph
from toolchain.passes.quantize import quantize

Progress = Callable[[str, int, int | None], None]  # step, done, total


@dataclass(frozen=True)
class Network:
    """model: in float; graph: its chip operators as selected, clamps fused, in float; origins: as Selection has them."""

    model: NormalModel
    graph: Graph
    origins: Mapping[str, tuple[str, str]]
    chip: Chip

    def integer(self, quantization: Quantization) -> Graph:
        """The integer graph, nothing fused behind its layers: its bits are those of the program."""
        return quantize(self.graph, self.chip, quantization, self.origins)


# samples start afresh each time they are iterated, and are what this step may see.
Step = Callable[[Network, Quantization, Iterable[Sample], Progress], Outcome]
