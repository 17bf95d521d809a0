"""The error report: what each layer loses, worst first, with cause and remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np

from quant.fidelity import POOR_SQNR_DB, ErrorSums
from quant.fit_sample import Sample
from quant.float_session import FloatSession
from quant.observe import Range
from quant.producer_links import SHAPE_OPS
from toolchain.frontend import NormalModel
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.ir.graph import Graph, OnnxGraph, Quant
from toolchain.ops.data_movement import ModelConcat
from toolchain.passes.saturation_ranges import find_saturation_ranges
from toolchain.report.comparison_blocks import ComparisonBlock, blocks, shown_tensors
from toolchain.report.diagnosis import (
    diagnose,
    find_blamed_input,
    find_range_source,
    is_fine,
    is_silent,
    keeps_all,
    measure_without_cause,
)
from toolchain.report.findings import AdviceContext, LayerError
from toolchain.report.layer_errors import KEPT, Codes, ErrorNetwork, LayerMeasurements, SampleRecord, alone_values, measure_layers
from toolchain.report.warnings import layer_warnings

ALIKE_DB = 10.0
NO_SCORE = 0.25  # a Sigmoid's or Softmax's output that never passes it has found nothing
WORST = 3
_M = 1 << 20
_LAYER = 16384  # elements that take as long as what a layer costs whatever its size


@dataclass(frozen=True)
class Effort:
    """How much is measured of a network, by its elements, so that a report takes about as long as calibration does.

    looked_at: samples for the worst layers of a build; samples: of a report; tried: of its worst layers, what each does to the
    outputs, on so many samples that are kept."""

    looked_at: int
    samples: int
    tried: int
    kept: int

    @classmethod
    def of(cls, network: ErrorNetwork) -> Effort:
        elements = max(1, sum(network.integer.types[b.tensor].elements + _LAYER for b in network.blocks))
        bounded = (min(max(budget * _M // elements, low), high) for budget, low, high in ((16, 1, 4), (16, 2, 16), (40, 4, 12)))
        return cls(*bounded, kept=1 if elements > 2 * _M else KEPT)


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


def concat_parts(chosen: Graph, origins: Mapping[str, tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Concat node -> (model tensor, layout) of each operand. chosen: the graph as selected."""
    return {n.name: [origins[name] for name in n.inputs] for n in chosen.nodes if isinstance(n.op, ModelConcat)}


def network_of(
    model: NormalModel,
    integer: Graph,
    chosen: Graph,
    origins: Mapping[str, tuple[str, str]],
    parts: Mapping[str, Sequence[tuple[str, str]]],
    ranges: Mapping[str, Range | Quant],
    ended: frozenset[str] = frozenset(),
    factors: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> ErrorNetwork:
    """integer: nothing fused behind its layers; chosen: the same in float, clamps fused; parts: operands of Concat nodes; ranges:
    of the model's tensors, or their scales; ended: as `Selection` has them; factors: as of `Network`."""
    shown = shown_tensors(integer, model.types, origins, parts)
    silent = find_saturation_ranges(chosen, integer, ranges)
    return ErrorNetwork(model, integer, chosen, shown, tuple(blocks(integer, shown)), silent, ended, factors)


@dataclass(frozen=True)
class Worst:
    """The worst layers, by the error that each adds alone, or by what that does to the outputs where it was tried; lost: the
    model's tensors whose layers lose what 16 bits would keep, or lose it in 16 bits; silent: those that hold nothing in 16 bits;
    warnings: of tensors and layers, whatever the figures."""

    layers: tuple[LayerError, ...]
    lost: frozenset[str]
    silent: frozenset[str]
    warnings: tuple[str, ...]
    samples: int


def worst_layers(
    network: ErrorNetwork, samples: Iterable[Sample], levels: Sequence[float], quantized: AdviceContext, *, poor: bool = False
) -> Worst:
    """The worst three, on those of the first samples of which these are the levels whose outputs lose most. poor: a part of the
    network is; then the worst are tried on the outputs, for in a layer's own tensor large values hide what small ones lose."""
    effort = Effort.of(network)
    chosen = sorted(sorted(range(len(levels)), key=lambda i: levels[i])[: effort.looked_at])
    found = measure_layers(network, ((sample, {}) for i, sample in enumerate(islice(samples, len(levels))) if i in chosen))
    rows = sorted((measure_without_cause(found, b) for b in network.blocks), key=_alone)
    fine = {r.tensor: is_silent(found, r.block) for r in rows if is_fine(found, r.block)}
    mendable = [r for r in rows if r.tensor in fine or r.at_int16_db >= POOR_SQNR_DB]
    lost = {r.tensor for r in mendable if r.alone_db < POOR_SQNR_DB}
    if poor:
        rows = _tried(found, rows, effort)
        heard = {r.tensor for r in rows if r.effect_db is not None and r.effect_db < POOR_SQNR_DB}
        lost |= heard & {r.tensor for r in mendable}
    findings, warnings = _findings(found, rows, quantized, WORST), layer_warnings(found, quantized.file)
    silent = (name for name, nothing in fine.items() if nothing)
    return Worst(tuple(findings), frozenset(lost), frozenset(silent), tuple(warnings), found.samples)


def error_report(network: ErrorNetwork, samples: Iterable[tuple[Sample, Codes]], quantized: AdviceContext) -> ErrorReport:
    """samples: with the network's own codes. Every layer is diagnosed, and the worst are tried on the outputs."""
    effort = Effort.of(network)
    found = measure_layers(network, islice(samples, effort.samples))
    rows = _tried(found, sorted((diagnose(found, b, quantized) for b in network.blocks), key=_alone), effort)
    findings = tuple(_findings(found, rows, quantized, len(rows)))
    return ErrorReport(tuple(rows), findings, tuple(layer_warnings(found, quantized.file)), found.samples)


def _tried(found: LayerMeasurements, rows: Sequence[LayerError], effort: Effort) -> list[LayerError]:
    """rows: by what each loses alone. The first of them have what each does to the outputs, and come in that order."""
    outputs = _Outputs(found, found.kept[: effort.kept])
    heard = [r for r in rows if outputs.hear(r.block)]  # of scores of what is not there every layer would be as bad
    tried = [replace(r, effect_db=outputs.level(r.block)) for r in heard[: effort.tried]]
    known = {r.position for r in tried}
    return [*_worst_first(tried), *(r for r in rows if r.position not in known)]


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


def _findings(found: LayerMeasurements, rows: Sequence[LayerError], quantized: AdviceContext, most: int) -> Iterator[LayerError]:
    """The layers to blame, each once, of steps of a sequence the worst: a row whose loss is that of what it reads is put down
    to what makes that. None that lose nothing."""
    known = {r.block.tensor: r for r in rows}
    named: set[str] = set()
    for row in rows:
        if len(named) == most:
            return
        if keeps_all(found, row.block):
            continue
        row = _with_cause(found, row, quantized)
        while (feed := find_blamed_input(found, row.block, row)) is not None:
            made = _with_cause(found, known[feed], quantized)
            row = replace(made, effect_db=_least(made.effect_db, row.effect_db))
        if (whole := find_range_source(found, row.block)) is not None and whole in known:
            made = _with_cause(found, known[whole], quantized)
            row = replace(made, effect_db=_least(made.effect_db, row.effect_db))
        if row.name not in named:
            named.add(row.name)
            yield row


def _with_cause(found: LayerMeasurements, row: LayerError, quantized: AdviceContext) -> LayerError:
    return row if row.cause is not None else replace(diagnose(found, row.block, quantized), effect_db=row.effect_db)


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

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        yield self.model.normal_part(self.inputs, names)


def _ends(graph: OnnxGraph) -> list[str]:
    """The float tensors that the outputs hold, in parts where they are joined: a part cannot hide behind a larger one."""
    producers, found, pending = graph.producers(), dict[str, None](), list(reversed(graph.outputs))
    while pending:
        name = pending.pop()
        node = producers.get(name)
        if node is None or node.op.op_type not in SHAPE_OPS:
            found[name] = None
        else:
            pending += [n for n in reversed(node.inputs[: None if node.op.op_type == "Concat" else 1]) if n]
    return [n for n in found if graph.types[n].dtype.startswith("float") and n not in graph.constants]


class _Outputs:
    """What float's outputs hold on the samples that are kept, and what is left of it where one tensor is another."""

    def __init__(self, found: LayerMeasurements, kept: Sequence[SampleRecord]) -> None:
        self._found, self._kept, self._model = found, kept, found.network.model
        names = _ends(self._model.graph)
        session = FloatSession(self._model, names) if names else None
        values = [session.run(k.sample) if session else [] for k in kept]
        told = [any(_tells(self._model.graph, n, v[i]) for v in values) for i, n in enumerate(names)]
        chosen = [i for i, tells in enumerate(told) if tells or not any(told)]
        self._names = [names[i] for i in chosen]
        self._values = [[v[i] for i in chosen] for v in values]
        self._behind = _behind(self._model.graph, self._names)

    def hear(self, block: ComparisonBlock) -> bool:
        """Whether any of them is made of what the block makes."""
        return self._found.network.shown[block.tensor].model in self._behind

    def level(self, block: ComparisonBlock) -> float:
        """dB of the output that suffers most where the block's error alone is put into float."""
        tensor = self._found.network.shown[block.tensor].model
        within = tensor in self._model.inputs
        network = self._model if within else _Behind(self._model, tensor)
        session = FloatSession(network, self._names, few_runs=True) if self._names else None
        sums = [ErrorSums() for _ in self._names]
        for kept, values in zip(self._kept, self._values):
            got = session.run({**kept.sample, tensor: alone_values(self._found, block, kept)}) if session else []
            for total, x, y in zip(sums, values, got):
                total.update(x, y)
        return min((total.sqnr_db for total in sums), default=math.inf)


def _behind(graph: OnnxGraph, names: Iterable[str]) -> set[str]:
    """The tensors that these are made of, and themselves."""
    found = set(names)
    for node in reversed(graph.nodes):
        if found.intersection(node.outputs):
            found.update(n for n in node.inputs if n)
    return found


def _tells(graph: OnnxGraph, name: str, value: np.ndarray) -> bool:
    """False of the scores of what is not there."""
    maker = graph.producers().get(name)
    scores = maker is not None and maker.op.op_type in ("Sigmoid", "Softmax")
    return not scores or bool(value.max(initial=0.0) > NO_SCORE)
