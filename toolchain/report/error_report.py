"""Rank the layers of the integer network by the error that each adds, and name those to blame with cause and advice.

A build calls `worst_layers` on a few samples for its printed report, and `error_report` for the page of `--error-report`. Both
measure layers (report.layer_errors), diagnose them (report.diagnosis), and put the worst ones' errors into the float network to
see what an output loses. `network_of` prepares the network for them.

An effect within `SIMILAR_DB` of the worst counts as equally bad. `NO_SCORE`: a Sigmoid or Softmax whose output never exceeds it
has detected nothing. `WORST`: how many layers a build's report names.
"""

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
from toolchain.report.comparison_blocks import ComparisonBlock, cut_into_blocks, list_float_counterparts
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
NO_SCORE = 0.25
WORST = 3
_M = 1 << 20
_LAYER = 16384  # elements that take as long as what a layer costs whatever its size


@dataclass(frozen=True)
class Effort:
    """A budget of measurements, set by the elements of a network so that a report takes about as long as calibration.

    `looked_at`: samples for the worst layers of a build.
    `samples`: samples of an error report.
    `tried`: number of worst layers whose effect on the outputs is measured.
    `record_count`: number of samples, those of most output energy, on which that effect is measured.
    """

    looked_at: int
    samples: int
    tried: int
    record_count: int

    @classmethod
    def of(cls, network: ErrorNetwork) -> Effort:
        """Return the budget for a network: fewer samples and trials for more elements, within fixed limits."""
        elements = max(1, sum(network.integer.types[b.tensor].elements + _LAYER for b in network.blocks))
        bounded = (min(max(budget * _M // elements, low), high) for budget, low, high in ((16, 1, 4), (16, 2, 16), (40, 4, 12)))
        return cls(*bounded, record_count=1 if elements > 2 * _M else MAX_RECORDS)


@dataclass(frozen=True)
class ErrorReport:
    """The error of each layer, worst first.

    `rows`: all layers: those whose effect on the outputs was measured, worst first, then the others by their own error.
    `findings`: the layers to blame, in that order, each with its cause. A layer that loses nothing is not among them.
    `warnings`: sentences on clipped values and dead channels.
    `samples`: how many samples were measured.
    """

    rows: tuple[LayerError, ...]
    findings: tuple[LayerError, ...]
    warnings: tuple[str, ...]
    samples: int

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON, with the keys `samples`, `warnings`, `findings` and `layers`."""
        return {
            "samples": self.samples,
            "warnings": list(self.warnings),
            "findings": [f.as_json() for f in self.findings],
            "layers": [r.as_json() for r in self.rows],
        }


def concat_parts(chosen: Graph, origins: Mapping[str, tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Return (model tensor, layout) of each operand of the Concats of a graph, in order, by the name of the Concat's node.

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

    `model`: the canonical float model.
    `integer`: integer graph without fused epilogues.
    `chosen`: the same graph in float, with clamps fused.
    `origins`: (model tensor, layout) by chip tensor.
    `parts`: operands of Concat nodes (`concat_parts`).
    `ranges`: ranges or qparams of the model's tensors.
    `ended`: model tensors that a quantized model clips to the range of their codes.
    `factors`: factors of channels by model tensor, which figures divide out.
    """
    shown = list_float_counterparts(integer, model.types, origins, parts)
    silent = find_saturation_ranges(chosen, integer, ranges)
    return ErrorNetwork(model, integer, chosen, shown, tuple(cut_into_blocks(integer, shown)), silent, ended, factors)


@dataclass(frozen=True)
class Worst:
    """The worst layers, by the error that each adds alone, or by its measured effect on the outputs.

    `layers`: at most WORST layers to blame, worst first.
    `lost`: model tensors of poor layers that would be good in 16 bits or are in 16 bits already.
    Poor is below POOR_SQNR_DB, by the error of the layer alone or by its measured effect on the outputs.
    `silent`: model tensors in 16 bits whose values are below half a step.
    `warnings`: sentences on clipped values and dead channels, whatever the figures.
    `samples`: how many samples were measured.
    """

    layers: tuple[LayerError, ...]
    lost: frozenset[str]
    silent: frozenset[str]
    warnings: tuple[str, ...]
    samples: int


def worst_layers(
    network: ErrorNetwork, samples: Iterable[Sample], levels: Sequence[float], quantized: AdviceContext, *, poor: bool = False
) -> Worst:
    """Return the worst WORST layers, measured on those of the first samples whose outputs lose most.

    `samples`: samples from the first on, one for each of `levels`; later ones are not read.
    `levels`: by sample, the SQNR in dB of the output that suffers most. How many are measured, `Effort` says.
    `quantized`: the machine and the options that advice is for.
    `poor`: a part of the outputs is poor. Then the effect of the worst layers on the outputs is measured and decides the order.
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
    """Diagnose every layer, measure the effect of the worst ones on the outputs, and return them all, worst first.

    `samples`: samples with the network's own codes by tensor, read up to the budget of `Effort`.
    """
    effort = Effort.of(network)
    measurements = measure_layers(network, islice(samples, effort.samples))
    rows = _measure_effects(
        measurements, sorted((diagnose(measurements, b, quantized) for b in network.blocks), key=_alone), effort
    )
    findings = tuple(_findings(measurements, rows, quantized, len(rows)))
    return ErrorReport(tuple(rows), findings, tuple(layer_warnings(measurements, quantized.file)), measurements.samples)


def _measure_effects(measurements: LayerMeasurements, rows: Sequence[LayerError], effort: Effort) -> list[LayerError]:
    """Measure the effect of the first rows on the outputs and return all rows: those first, the worst effect first, then the
    others.

    Rows on which no judged output depends are not measured.

    `rows`: rows in the order of what each loses alone.
    """
    outputs = _Outputs(measurements, measurements.records[: effort.record_count])
    reachable_rows = [r for r in rows if outputs.depend_on(r.block)]  # of scores of what is not there every layer would be as bad
    tried = [replace(r, effect_db=outputs.level(r.block)) for r in reachable_rows[: effort.tried]]
    positions = {r.position for r in tried}
    return [*_worst_first(tried), *(r for r in rows if r.position not in positions)]


def _worst_first(rows: Sequence[LayerError]) -> Iterator[LayerError]:
    """Yield measured rows by their effect on the outputs, the worst first.

    Of rows within SIMILAR_DB of the worst effect, the one with the largest loss of its own comes first.
    """
    remaining = list(rows)
    while remaining:
        worst = min(r.effect_db for r in remaining if r.effect_db is not None)
        similar_rows = [r for r in remaining if r.effect_db is not None and r.effect_db <= worst + SIMILAR_DB]
        row = min(similar_rows, key=_alone)
        remaining.remove(row)
        yield row


def _alone(row: LayerError) -> float:
    """Return what sorts rows: the level that the layer leaves by itself, the worst first."""
    return row.alone_db


def _findings(
    measurements: LayerMeasurements, rows: Sequence[LayerError], quantized: AdviceContext, most: int
) -> Iterator[LayerError]:
    """Yield the layers to blame, at most `most`, each once, in the order of the rows.

    A row that loses nothing is left out. A row whose loss is that of its operand, or of a Concat's range, gives the operand's
    or the Concat's row. Of the steps of a sequence, which share a name, the first counts.
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
    """Return the row diagnosed, with its measured effect; a row with a cause comes back as it is."""
    return row if row.cause is not None else replace(diagnose(measurements, row.block, quantized), effect_db=row.effect_db)


def _least(a: float | None, b: float | None) -> float | None:
    """Return the lesser of two effects; None counts as unknown."""
    return min((v for v in (a, b) if v is not None), default=None)


class _Outputs:
    """Float's outputs on the recorded samples, to measure what is left of them when one tensor is replaced.

    Outputs of scores that detect nothing on these samples are left out, unless all are such.
    """

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

    def depend_on(self, block: ComparisonBlock) -> bool:
        """Return whether any of the judged outputs depends on the tensor of the block."""
        return self._measurements.network.shown[block.tensor].model in self._upstream

    def level(self, block: ComparisonBlock) -> float:
        """Return the SQNR in dB of the output that suffers most where the block's error alone is put into float.

        Float tensors behind it are clipped to the range of their codes, as on the chip. The result is infinite without outputs.
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
    """Return the range that each float32 tensor is clipped to: that of its codes, widened to float's own values on the samples.

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
