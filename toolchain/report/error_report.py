"""The error report: what each layer loses, worst first, with cause and remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from quant.error import POOR_SQNR_DB, Compared
from quant.float_session import FloatSession
from quant.sample import Sample
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Graph
from toolchain.ir.part import Part
from toolchain.report.blocks import blocks, shown_tensors
from toolchain.report.diagnosis import LayerError, Quantized, diagnosed, to_blame, undiagnosed
from toolchain.report.layer_errors import Codes, Measured, Network, effect, measured
from toolchain.report.warnings import layer_warnings

TRIED = 12  # of the worst layers: what each does to the outputs
ALIKE_DB = 3.0
WORST = 3
SAMPLES = 4  # that the worst are looked for on, ...
ELEMENTS = 16 << 20  # ... fewer where their tensors have more than this together


@dataclass(frozen=True)
class ErrorReport:
    """rows: every layer's, worst first; findings: of the layers to blame, worst first, each with its cause."""

    rows: tuple[LayerError, ...]
    findings: tuple[LayerError, ...]
    warnings: tuple[str, ...]
    samples: int

    def as_json(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "warnings": list(self.warnings),
            "findings": [f.as_json() for f in self.findings],
            "layers": [r.as_json() for r in self.rows],
        }


def network_of(
    model: NormalModel,
    integer: Graph,
    chosen: Graph,
    origins: Mapping[str, tuple[str, str]],
    parts: Mapping[str, Sequence[tuple[str, str]]],
) -> Network:
    """integer: nothing fused behind its layers; chosen: the same in float, clamps fused; parts: operands of Concat nodes."""
    shown = shown_tensors(integer, model.types, origins, parts)
    return Network(model, integer, chosen, shown, tuple(blocks(integer, shown)))


@dataclass(frozen=True)
class Worst:
    """The worst layers, by the error that each adds alone; lost: the model's tensors whose layers lose what 16 bits would
    keep; warnings: of tensors and layers, whatever the figures."""

    layers: tuple[LayerError, ...]
    lost: frozenset[str]
    warnings: tuple[str, ...]
    samples: int


def worst_layers(network: Network, samples: Iterable[Sample], quantized: Quantized) -> Worst:
    """The worst three."""
    most = max(1, min(SAMPLES, ELEMENTS // max(1, sum(network.integer.types[b.tensor].elements for b in network.blocks))))
    found = measured(network, ((sample, {}) for sample in islice(samples, most)))
    rows = sorted((undiagnosed(found, b) for b in network.blocks), key=_alone)
    lost = frozenset(r.tensor for r in rows if r.alone_db < POOR_SQNR_DB <= r.at_int16_db)
    return Worst(
        tuple(_findings(found, rows, quantized, WORST)), lost, tuple(layer_warnings(found, quantized.file)), found.samples
    )


def error_report(network: Network, samples: Iterable[tuple[Sample, Codes]], quantized: Quantized) -> ErrorReport:
    """samples: with the network's own codes. Every layer is diagnosed, and the worst are tried on the outputs."""
    found = measured(network, samples)
    rows = sorted((diagnosed(found, b, quantized) for b in network.blocks), key=_alone)
    tried = _Outputs(network.model, found.kept.sample)
    rows = [replace(r, effect_db=effect(found, r.block, tried.level)) for r in rows[:TRIED]] + rows[TRIED:]
    rows = [*_worst_first(rows[:TRIED]), *rows[TRIED:]]
    findings = tuple(_findings(found, rows, quantized, len(rows)))
    return ErrorReport(tuple(rows), findings, tuple(layer_warnings(found, quantized.file)), found.samples)


def _worst_first(rows: Sequence[LayerError]) -> Iterator[LayerError]:
    """By what each does to the outputs. Of those that do about as much the one that loses most by itself comes first: others
    only show in it, as operands do in a difference."""
    left = list(rows)
    while left:
        worst = min(r.effect_db for r in left if r.effect_db is not None)
        alike = [r for r in left if r.effect_db is not None and r.effect_db <= worst + ALIKE_DB]
        row = min(alike, key=_alone)
        left.remove(row)
        yield row


def _alone(row: LayerError) -> float:
    return row.alone_db


def _findings(found: Measured, rows: Sequence[LayerError], quantized: Quantized, most: int) -> Iterator[LayerError]:
    """The layers to blame, each once: a row whose loss is that of what it reads is put down to what makes that."""
    by_tensor = {b.tensor: b for b in found.network.blocks}
    known = {r.block.tensor: r for r in rows}
    named: set[str] = set()
    for row in rows:
        if len(named) == most:
            return
        row = row if row.cause is not None else diagnosed(found, row.block, quantized)
        while (feed := to_blame(found, row.block, row)) is not None:
            before = known[feed]
            made = before if before.cause is not None else diagnosed(found, by_tensor[feed], quantized)
            row = replace(made, effect_db=_least(made.effect_db, row.effect_db))
        if row.block.tensor not in named:
            named.add(row.block.tensor)
            yield row


def _least(a: float | None, b: float | None) -> float | None:
    return min((v for v in (a, b) if v is not None), default=None)


@dataclass(frozen=True)
class _Behind:
    """The float network with one tensor given beside its inputs."""

    model: NormalModel
    tensor: str

    @property
    def inputs(self) -> Sequence[str]:
        return (*self.model.inputs, self.tensor)

    def parts(self, names: Sequence[str]) -> Iterator[Part]:
        yield self.model.normal_part(self.inputs, names)


class _Outputs:
    """Float's outputs on one sample, and what is left of them where one tensor is another."""

    def __init__(self, model: NormalModel, sample: Sample) -> None:
        self._model, self._sample = model, sample
        self._names = [n for n in model.graph.outputs if model.types[n].dtype.startswith("float")]
        self._values = FloatSession(model, self._names).run(sample) if self._names else []

    def level(self, tensor: str, value: np.ndarray) -> float:
        """dB of the output that suffers most."""
        if tensor in self._model.inputs:
            got = FloatSession(self._model, self._names).run({**self._sample, tensor: value}) if self._names else []
        else:
            behind = FloatSession(_Behind(self._model, tensor), self._names, few_runs=True)
            got = behind.run({**self._sample, tensor: value})
        return min((_level(x, y) for x, y in zip(self._values, got)), default=math.inf)


def _level(x: np.ndarray, y: np.ndarray) -> float:
    sums = Compared()
    sums.update(x, y)
    return sums.sqnr_db
