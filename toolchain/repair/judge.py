"""How far a quantized network is from float on samples that no step saw: what decides whether a step is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quant.error import Fidelity
from quant.float_session import FloatSession
from quant.links import Links
from quant.repair.step import Quantization
from quant.sample import Sample
from toolchain.errors import counted
from toolchain.ops.movement import Concat
from toolchain.repair.folds import LEAST_JUDGES
from toolchain.repair.network import Network
from toolchain.report.fidelity import Measured

CEILING_DB = 60.0  # beyond it a part counts as exact: what is gained there is nobody's gain
FLOOR_DB = -20.0
LEAST_GAIN_DB = 0.05  # a step that gains less is not worth what it changes
CHANCE = 2.0  # standard errors of the mean gain of the samples: what is within them may be chance
MOST_LOST_DB = 0.5  # by one part, whatever the others gain
TRIED_ON = 8  # samples, by steps that choose between ways...
EVERY = 3  # ...one of so many that they see, so that a run of like ones does not fill the trial
_KEPT_BYTES = 64 << 20  # of float's values that stay in memory


@dataclass(frozen=True)
class Verdict:
    """SQNR of each output and of each operand of a Concat that an output is made of: `parts` over all samples, `each` by its
    name, dB of every sample."""

    parts: tuple[Fidelity, ...]
    each: Mapping[str, tuple[float, ...]]

    @property
    def decibels(self) -> float:
        """The mean over the parts."""
        return float(np.mean([_held(p.sqnr_db) for p in self.parts])) if self.parts else CEILING_DB

    def objection(self, before: Verdict, *, tested: bool = True) -> str | None:
        """Why this is no better than `before`, or None where it is. What only one of them has is not compared. tested: a paired
        test over the samples says too whether the gain is more than chance."""
        earlier = {p.name: _held(p.sqnr_db) for p in before.parts}
        pairs = [(p.name, earlier[p.name], _held(p.sqnr_db)) for p in self.parts if p.name in earlier]
        if not pairs:
            return "no output to judge it by"
        gain = float(np.mean([after - was for _, was, after in pairs]))
        if gain < LEAST_GAIN_DB:
            return f"the outputs gain {gain:.2f} dB"
        chance = (
            None
            if not tested
            else _by_chance(np.mean([np.subtract(self.each[name], before.each[name]) for name, *_ in pairs], axis=0))
        )
        if chance is not None:
            return f"the outputs gain {gain:.2f} dB, {chance}"
        name, was, after = min(pairs, key=lambda pair: pair[2] - pair[1])
        return f"{name} falls from {was:.2f} to {after:.2f} dB" if after < was - MOST_LOST_DB else None


def _by_chance(gains: NDArray[np.float64]) -> str | None:
    """gains: dB of each sample. Why they may come from the choice of samples; None where their mean is beyond CHANCE standard
    errors."""
    if gains.size < LEAST_JUDGES:
        return f"on {counted(gains.size, 'sample')}: it takes {LEAST_JUDGES} to tell"
    mean, error = float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(gains.size)
    return None if mean > CHANCE * error else f"which may be chance: {mean:.2f} dB a sample, with a standard error of {error:.2f}"


def _held(decibels: float) -> float:
    return FLOOR_DB if math.isnan(decibels) else min(max(decibels, FLOOR_DB), CEILING_DB)


@dataclass
class Judge:
    """samples: the same each time they are iterated. Float's values are computed once for a model, and kept where few."""

    samples: Iterable[Sample]
    _values: dict[int, tuple[object, list[dict[str, np.ndarray]]]] = field(default_factory=dict)

    def verdict(self, network: Network, quantization: Quantization) -> Verdict:
        """By the integer reference. Raises CompileError: the machine cannot express the quantization."""
        session = network.session(quantization)
        told = _told_parts(network)
        measured, each = Measured(session.container, told), dict[str, list[float]]()
        for sample, values in self._with_values(network, measured.wanted):
            run, alone = session.run_detailed(sample), Measured(session.container, told)
            for sums in (measured, alone):
                sums.update(values, run)
            for part in (*alone.outputs, *alone.concats):
                each.setdefault(part.name, []).append(_held(part.sqnr_db))
        return Verdict((*measured.outputs, *measured.concats), {name: tuple(levels) for name, levels in each.items()})

    def _with_values(self, network: Network, wanted: Sequence[str]) -> Iterable[tuple[Sample, Mapping[str, np.ndarray]]]:
        model = network.model
        if id(model) in self._values:
            yield from zip(self.samples, self._values[id(model)][1], strict=True)
            return
        session, kept, room = FloatSession(model, wanted), list[dict[str, np.ndarray]](), _KEPT_BYTES
        for sample in self.samples:
            values = dict(zip(wanted, session.run(sample), strict=True))
            room -= sum(v.nbytes for v in values.values())
            if room >= 0:
                kept.append(values)
            yield sample, values
        if room >= 0:
            self._values = {id(model): (model, kept)}  # of the latest model alone; held, so that its id stays its own


def _told_parts(network: Network) -> dict[str, list[tuple[str, str]]]:
    """Of the Concats that reach an output as they are: what is small in an output is judged by itself."""
    graph = Links(network.model.proto.graph)
    constants = frozenset(network.model.graph.constants)
    return {
        node.name: [network.origins[name] for name in node.inputs]
        for node in network.selection.graph.nodes
        if isinstance(node.op, Concat) and graph.outputs_reached(network.origins[node.outputs[0]][0], constants)
    }
