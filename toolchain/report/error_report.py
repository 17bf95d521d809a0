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
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Graph, OnnxGraph, Quant
from toolchain.ops.data_movement import ModelConcat
from toolchain.passes.saturation_ranges import find_saturation_ranges
from toolchain.report.comparison_blocks import ComparisonBlock, blocks, shown_tensors
from toolchain.report.diagnosis import (
    diagnose,
    find_blamed_input,
    find_range_source,
    has_wide_codes,
    is_silent,
    keeps_all,
    measure_without_cause,
)
from toolchain.report.findings import AdviceContext, LayerError
from toolchain.report.layer_errors import (
    MAX_RECORDS,
    Codes,
    ErrorNetwork,
    LayerMeasurements,
    SampleRecord,
    alone_values,
    measure_layers,
)
from toolchain.report.model_with_tensor import ModelWithTensor, list_ends
from toolchain.report.warnings import layer_warnings

SIMILAR_DB = 10.0
NO_SCORE = 0.25  # a Sigmoid's or Softmax's output that never passes it has found nothing
WORST = 3
_M = 1 << 20
_LAYER = 16384  # elements that take as long as what a layer costs whatever its size


@dataclass(frozen=True)
class Effort:
    """A budget of measurements, set by the elements of a network so that a report takes about as long as calibration.

    `looked_at`: samples for the worst layers of a build.
    `samples`: samples of a report.
    `tried`: number of worst layers whose effect on the outputs is measured.
    `record_count`: number of recorded samples that this uses.
    """

    looked_at: int
    samples: int
    tried: int
    record_count: int

    @classmethod
    def of(cls, network: ErrorNetwork) -> Effort:
        elements = max(1, sum(network.integer.types[b.tensor].elements + _LAYER for b in network.blocks))
        bounded = (min(max(budget * _M // elements, low), high) for budget, low, high in ((16, 1, 4), (16, 2, 16), (40, 4, 12)))
        return cls(*bounded, record_count=1 if elements > 2 * _M else MAX_RECORDS)


@dataclass(frozen=True)
class ErrorReport:
    """A report of the error of each layer.

    `rows`: rows of all layers, worst first.
    `findings`: rows of the layers to blame, worst first, each with its cause.
    """

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
    """Return (model tensor, layout) of each operand of the Concats of a graph, by the name of the Concat.

    `chosen`: the graph as selected.
    `origins`: (model tensor, layout) by chip tensor.
    """
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
    """Return the network that layer errors are measured on.

    `integer`: integer graph without fused epilogues.
    `chosen`: the same graph in float, with clamps fused.
    `parts`: operands of Concat nodes.
    `ranges`: ranges or qparams of the model's tensors.
    `ended`: as in `Selection`.
    `factors`: as in `Network`.
    """
    shown = shown_tensors(integer, model.types, origins, parts)
    silent = find_saturation_ranges(chosen, integer, ranges)
    return ErrorNetwork(model, integer, chosen, shown, tuple(blocks(integer, shown)), silent, ended, factors)


@dataclass(frozen=True)
class Worst:
    """A record of the worst layers, by the error that each adds alone, or by its measured effect on the outputs.

    `lost`: model tensors whose layers lose what 16 bits would keep, or lose it in 16 bits.
    `silent`: tensors that hold nothing in 16 bits.
    `warnings`: warnings on tensors and layers, whatever the figures.
    """

    layers: tuple[LayerError, ...]
    lost: frozenset[str]
    silent: frozenset[str]
    warnings: tuple[str, ...]
    samples: int


def worst_layers(
    network: ErrorNetwork, samples: Iterable[Sample], levels: Sequence[float], quantized: AdviceContext, *, poor: bool = False
) -> Worst:
    """Return the worst three layers, measured on those of the first samples whose outputs lose most.

    `levels`: dB of the first samples.
    `poor`: a part of the network is poor. Then the worst layers are tried on the outputs, since large values of a tensor hide the
    loss of small ones.
    """
    effort = Effort.of(network)
    chosen = sorted(sorted(range(len(levels)), key=lambda i: levels[i])[: effort.looked_at])
    measurements = measure_layers(network, ((sample, {}) for i, sample in enumerate(islice(samples, len(levels))) if i in chosen))
    rows = sorted((measure_without_cause(measurements, b) for b in network.blocks), key=_alone)
    fine = {r.tensor: is_silent(measurements, r.block) for r in rows if has_wide_codes(measurements, r.block)}
    mendable = [r for r in rows if r.tensor in fine or r.at_int16_db >= POOR_SQNR_DB]
    lost = {r.tensor for r in mendable if r.alone_db < POOR_SQNR_DB}
    if poor:
        rows = _measure_effects(measurements, rows, effort)
        poor_tensors = {r.tensor for r in rows if r.effect_db is not None and r.effect_db < POOR_SQNR_DB}
        lost |= poor_tensors & {r.tensor for r in mendable}
    findings, warnings = _findings(measurements, rows, quantized, WORST), layer_warnings(measurements, quantized.file)
    silent = (name for name, nothing in fine.items() if nothing)
    return Worst(tuple(findings), frozenset(lost), frozenset(silent), tuple(warnings), measurements.samples)


def error_report(network: ErrorNetwork, samples: Iterable[tuple[Sample, Codes]], quantized: AdviceContext) -> ErrorReport:
    """Diagnose every layer and measure the effect of the worst ones on the outputs.

    `samples`: samples with the network's own codes.
    """
    effort = Effort.of(network)
    measurements = measure_layers(network, islice(samples, effort.samples))
    rows = _measure_effects(
        measurements, sorted((diagnose(measurements, b, quantized) for b in network.blocks), key=_alone), effort
    )
    findings = tuple(_findings(measurements, rows, quantized, len(rows)))
    return ErrorReport(tuple(rows), findings, tuple(layer_warnings(measurements, quantized.file)), measurements.samples)


def _measure_effects(measurements: LayerMeasurements, rows: Sequence[LayerError], effort: Effort) -> list[LayerError]:
    """Measure the effect of the first rows on the outputs and put them first, worst effect first.

    `rows`: rows in the order of what each loses alone.
    """
    outputs = _Outputs(measurements, measurements.records[: effort.record_count])
    reachable_rows = [r for r in rows if outputs.hear(r.block)]  # of scores of what is not there every layer would be as bad
    tried = [replace(r, effect_db=outputs.level(r.block)) for r in reachable_rows[: effort.tried]]
    positions = {r.position for r in tried}
    return [*_worst_first(tried), *(r for r in rows if r.position not in positions)]


def _worst_first(rows: Sequence[LayerError]) -> Iterator[LayerError]:
    """Yield rows by their effect on the outputs.
    Of rows with a similar effect, the one with the largest loss of its own comes first.
    Others only show in it, as operands do in a difference.
    """
    remaining = list(rows)
    while remaining:
        worst = min(r.effect_db for r in remaining if r.effect_db is not None)
        similar_rows = [r for r in remaining if r.effect_db is not None and r.effect_db <= worst + SIMILAR_DB]
        row = min(similar_rows, key=_alone)
        remaining.remove(row)
        yield row


def _alone(row: LayerError) -> float:
    return row.alone_db


def _findings(
    measurements: LayerMeasurements, rows: Sequence[LayerError], quantized: AdviceContext, most: int
) -> Iterator[LayerError]:
    """Yield the layers to blame, each once, and of the steps of a sequence the worst; layers without a loss are left out.
    A row whose loss is that of its operand is attributed to the operand's producer.
    """
    row_by_tensor = {r.block.tensor: r for r in rows}
    named: set[str] = set()
    for row in rows:
        if len(named) == most:
            return
        if keeps_all(measurements, row.block):
            continue
        row = _with_cause(measurements, row, quantized)
        while (feed := find_blamed_input(measurements, row.block, row)) is not None:
            source_row = _with_cause(measurements, row_by_tensor[feed], quantized)
            row = replace(source_row, effect_db=_least(source_row.effect_db, row.effect_db))
        if (range_source := find_range_source(measurements, row.block)) is not None and range_source in row_by_tensor:
            source_row = _with_cause(measurements, row_by_tensor[range_source], quantized)
            row = replace(source_row, effect_db=_least(source_row.effect_db, row.effect_db))
        if row.name not in named:
            named.add(row.name)
            yield row


def _with_cause(measurements: LayerMeasurements, row: LayerError, quantized: AdviceContext) -> LayerError:
    return row if row.cause is not None else replace(diagnose(measurements, row.block, quantized), effect_db=row.effect_db)


def _least(a: float | None, b: float | None) -> float | None:
    return min((v for v in (a, b) if v is not None), default=None)


class _Outputs:
    """A cache of float's outputs on the recorded samples; it tells how much is left of them when one tensor is replaced."""

    def __init__(self, measurements: LayerMeasurements, records: Sequence[SampleRecord]) -> None:
        self._measurements, self._records, self._model = measurements, records, measurements.network.model
        names = list_ends(self._model.graph)
        session = FloatSession(self._model, names) if names else None
        values = [session.run(k.sample) if session else [] for k in records]
        informative = [any(_tells(self._model.graph, n, v[i]) for v in values) for i, n in enumerate(names)]
        chosen = [i for i, tells in enumerate(informative) if tells or not any(informative)]
        self._names = [names[i] for i in chosen]
        self._values = [[v[i] for i in chosen] for v in values]
        self._upstream = _find_upstream_tensors(self._model.graph, self._names)
        self._ends = _list_ends_of_codes(measurements)

    def hear(self, block: ComparisonBlock) -> bool:
        """Return whether any of the outputs depends on the tensor of the block."""
        return self._measurements.network.shown[block.tensor].model in self._upstream

    def level(self, block: ComparisonBlock) -> float:
        """Return the SQNR in dB of the output that suffers most where the block's error alone is put into float.
        What follows saturates as codes do: a root that is rounded to zero has no infinite reciprocal on the chip.
        """
        tensor = self._measurements.network.shown[block.tensor].model
        within = tensor in self._model.inputs
        network = (
            self._model
            if within
            else ModelWithTensor(self._model, tensor, {n: ends for n, ends in self._ends.items() if n != tensor})
        )
        session = FloatSession(network, self._names, few_runs=True) if self._names else None
        sums = [ErrorSums() for _ in self._names]
        for record, values in zip(self._records, self._values):
            got = session.run({**record.sample, tensor: alone_values(self._measurements, block, record)}) if session else []
            for total, x, y in zip(sums, values, got):
                total.update(x, y)
        return min((total.sqnr_db for total in sums), default=math.inf)


def _list_ends_of_codes(measurements: LayerMeasurements) -> dict[str, tuple[float, float]]:
    """Return the least and largest value of the codes of float tensors, and of float where that is beyond them.
    Tensors that mask are left out, since their least code stands for minus infinity.
    """
    network, ends_by_tensor = measurements.network, dict[str, tuple[float, float]]()
    for block in network.blocks:
        tensor, values = network.shown[block.tensor].model, measurements.sums[block.tensor].rounding_error
        if tensor not in network.masks and network.model.types[tensor].dtype == "float32":
            low, high = network.ends(block.tensor)
            ends_by_tensor[tensor] = min(low, values.low), max(high, values.high)
    return ends_by_tensor


def _find_upstream_tensors(graph: OnnxGraph, names: Iterable[str]) -> set[str]:
    """Return the names of the tensors that these depend on, and their own."""
    upstream = set(names)
    for node in reversed(graph.nodes):
        if upstream.intersection(node.outputs):
            upstream.update(n for n in node.inputs if n)
    return upstream


def _tells(graph: OnnxGraph, name: str, value: np.ndarray) -> bool:
    """Return False for an output of a Sigmoid or Softmax that never exceeds NO_SCORE: it has detected nothing. Else True."""
    maker = graph.producers().get(name)
    scores = maker is not None and maker.op.op_type in ("Sigmoid", "Softmax")
    return not scores or bool(value.max(initial=0.0) > NO_SCORE)
