"""From a network and samples to its quantization: calibrated, and repaired as far as was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from quant.calibrate import OBSERVERS, ObserverName, calibrate, default_observer
from quant.calibration_data import random_data
from quant.decomposed_ranges import clip_ranges
from quant.file import read_parameters
from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.observe import Range
from quant.parameters import quant_range
from quant.repair.choices import Measure, Quantization
from quant.repair.file import Repair
from quant.structural_ranges import SILENT, adjust_ranges
from toolchain.errors import CompileError, InternalError, format_count
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Quant
from toolchain.ir.range_constraints import FixedRange
from toolchain.ops.kit.operator import FloatOp, operator_of
from toolchain.passes.decompose import decompose_all
from toolchain.repair.compensate_rounding import offset_zero_points
from toolchain.repair.network import Network, Progress
from toolchain.repair.repair_pipeline import EFFORTS, OBSERVERS_STEP, STEPS, Effort, RepairStep, StepResult, run_repair
from toolchain.repair.sample_folds import LEAST_JUDGES, STRETCH, Fold, folds
from toolchain.repair.sampled_rows import sample_rows
from toolchain.report import check_frontend

AUTO: Literal["auto"] = "auto"  # the observer that each tensor's own is chosen by
_ROOM = 4.0
_MAGNITUDES = (1.0, 100.0, 10_000.0)  # of random inputs: large ones pass a bias before a Relu
BY_DEFAULT: Effort = "fast"
LEAST_SAMPLES = 2 * LEAST_JUDGES  # to repair with: half of so few judge


@dataclass(frozen=True)
class CalibratedNetwork:
    """network: gone through what `quantization` changes in it. samples: that were calibrated on, None where a file gave it.
    unseen: tensors of which they showed no range; label: of the observers. judged: the same with ranges of fewer samples, where
    some were held out: what these judge."""

    network: Network
    quantization: Quantization
    samples: int | None = None
    notes: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    label: str = ""
    effort: Effort = "none"
    held_out: int = 0
    tried: tuple[StepResult, ...] = ()
    judged: CalibratedNetwork | None = None

    @property
    def repair(self) -> Repair | None:
        """For the parameters file; None where nothing was to be repaired."""
        if not self.tried:
            return None
        return Repair(self.quantization, self.effort, self.held_out, [t.as_json() for t in self.tried])

    @property
    def outputs(self) -> dict[str, Range | Quant]:
        """What the codes of the model's outputs are to hold, by what people call them; of those that the chip makes."""
        model, ranges = self.network.model, self.quantization.ranges
        return {model.name(n): ranges[n] for n in model.graph.outputs if n in ranges}

    def figures(self) -> dict[str, Any] | None:
        """For the report."""
        if not self.tried:
            return None
        return {"effort": self.effort, "held_out": self.held_out, "steps": [t.as_json() for t in self.tried]}


def steps_of(effort: Effort, observer: ObserverName | Literal["auto"] | None, *, quantized: bool = False) -> list[RepairStep]:
    """observer: asked for; where it is one of the three, none other is tried. quantized: the model is so already, and only layers
    whose codes are not its own are repaired."""
    if effort == "none":
        return [OBSERVERS_STEP] if observer == AUTO else []
    steps = [s for s in STEPS if effort in s.efforts and (s is not OBSERVERS_STEP or observer in (None, AUTO))]
    return [s for s in steps if s.by_layer or not quantized]


def effort_of(asked: Effort | None, network: Network, samples: Iterable[Sample], *, real: bool) -> Effort:
    """What is done; where nothing was asked for, BY_DEFAULT wherever there is something to repair by. real: the
    user's own data.

    Raises CompileError: asked for where there are no samples to repair with, or nothing to be repaired.
    """
    if asked == "none" or (asked is None and BY_DEFAULT == "none"):
        return "none"
    reason = _hindrance(network, samples, real)
    if reason is None:
        return asked or BY_DEFAULT
    if asked is None:
        return "none"
    raise CompileError(f"repair {asked}: {reason}")


def _hindrance(network: Network, samples: Iterable[Sample], real: bool) -> str | None:
    """Why a network cannot be repaired."""
    if not real:
        return "random inputs say nothing of accuracy; give --calib DATA, or --repair none"
    as_given = Quantization({}, held=network.model.stored, weight_types={**network.made_weight_types, **network.weight_types})
    if _is_quantized(network) and not sample_rows(network, as_given, 1):
        return "the model is quantized already, and its codes are taken as they are; leave it out"
    return _too_few(samples)


def _is_quantized(network: Network) -> bool:
    return bool(network.selection.given.keys() - network.selection.fixed or network.model.stored)


def _too_few(samples: Iterable[Sample]) -> str | None:
    count = getattr(samples, "count", None)
    count = sum(1 for _ in islice(samples, LEAST_SAMPLES)) if count is None else count
    return None if count >= LEAST_SAMPLES else f"takes {LEAST_SAMPLES} calibration samples or more, there are {count}"


def calibrate_network(
    network: Network,
    samples: Iterable[Sample],
    observer: ObserverName | Literal["auto"] | None,
    effort: Effort,
    progress: Progress,
    every: Iterable[Sample] | None = None,
) -> CalibratedNetwork:
    """Ranges of what the samples show, and repaired by `effort`; then a part of the samples is held out from all steps.

    every: these and those that were held out to judge the network, None: there are none. Behind all choices ranges and
    offsets are made again of `every`, and what judging is of stays as `judged`.
    """
    if effort not in EFFORTS:
        raise InternalError(f"effort {effort!r}")
    steps = steps_of(effort, observer, quantized=_is_quantized(network))
    if not steps:
        plain = _calibrated(network, samples, observer, progress)
        return plain if every is None else replace(_calibrated(network, every, observer, progress), judged=plain)
    reason = _too_few(samples) if observer == AUTO else None
    if reason is not None:
        raise CompileError(f"observer auto: {reason}")
    dealt = folds(samples, stretch=STRETCH if network.model.states else 1)
    plain = _calibrated(network, dealt.every, observer, progress)
    found = run_repair(network, plain.quantization, dealt.seen, dealt.held, steps, progress)
    if found.network is not network:  # the user's file must still say the same
        check_frontend(replace(found.network.model, source=network.model.source), islice(dealt.seen, 1))
    notes = tuple(dict.fromkeys((*plain.notes, *(n for t in found.tried if t.kept for n in t.notes))))
    done = replace(plain, network=found.network, quantization=found.quantization, notes=notes)
    done = replace(done, effort=effort, held_out=found.held_out, tried=found.tried)
    return done if every is None else _refit(done, found.measure, every, observer, progress)


def _refit(
    done: CalibratedNetwork,
    measure: Measure | None,
    samples: Iterable[Sample],
    observer: ObserverName | Literal["auto"] | None,
    progress: Progress,
) -> CalibratedNetwork:
    """The choices of `done`, which is `judged` then, with ranges and offsets of these samples; as it is where the machine cannot
    express them. Biases stay with the codes that they were chosen with."""
    network, chosen, unseen = done.network, done.quantization, done.unseen
    if measure is None:
        plain = _calibrated(network, samples, observer, progress)
        ranges, unseen = plain.quantization.ranges, plain.unseen
    else:
        adjusted = measure(samples)
        ranges, unseen = {**adjusted.ranges, **network.selection.given}, tuple(n for n in unseen if n in adjusted.unseen)
    found = replace(chosen, ranges=ranges)
    try:
        if found.offsets:
            found = offset_zero_points(network, replace(found, offsets={}), (), progress).quantization
        network.integer(found)
    except CompileError as fault:
        said = f"ranges stay those of {format_count(done.samples or 0, 'sample')}, without those that judge: {fault}"
        return replace(done, notes=(*done.notes, said), judged=done)
    return replace(done, quantization=found, samples=Fold.of(samples).size, unseen=unseen, judged=done)


def load_quantization(network: Network, file: Path) -> CalibratedNetwork:
    """As a parameters file says. Raises ConfigError, CompileError."""
    changed, tensors = network, list[str]()

    def needed(repair: Quantization) -> list[str]:
        nonlocal changed, tensors
        changed = network.through(repair)
        tensors = changed.tensors
        return tensors

    everywhere = decompose_all(network.model.undivided or network.model)
    known = {*network.model.types, *network.model.own.values(), *everywhere.types, *everywhere.own.values()}
    found = read_parameters(
        file,
        tensors=needed,
        known=known,
        called=network.model.own,
        layers=lambda: [n.name for n in changed.weighted],
        numerics=network.chip.numerics,
    ).quantization
    named, kinds = network.model.in_all_shapes(found.ranges), network.model.in_all_shapes(found.types)
    measured = clip_ranges({name: named[name] for name in tensors}, changed.model.divided)
    types = {**changed.selection.types, **changed.on_chip(_with_fixed(changed.model, kinds)), **network.types}
    ranges = {**_in_types(measured, kinds, types, network.chip.numerics), **changed.given(types)}
    made = {n: codes for n, codes in changed.made_weight_types.items() if n not in found.layers}
    weights = {**made, **found.weight_types, **network.weight_types}
    said = replace(found, ranges=ranges, types=types, weight_types=weights)
    return CalibratedNetwork(changed, _of_model(said, changed.model))


def _in_types(
    ranges: Mapping[str, Range | Quant], said: Mapping[str, CodeType], types: Mapping[str, CodeType], numerics: Numerics
) -> dict[str, Range | Quant]:
    """A scale of a file is one of the codes that it says, or of the machine's first: what has others has the range of these."""

    def read(name: str, entry: Range | Quant) -> Range | Quant:
        own = said.get(name, numerics.activation)
        if isinstance(entry, Quant) and types.get(name, own) is not own:
            return quant_range(entry, numerics.of(own))
        return entry

    return {name: read(name, entry) for name, entry in ranges.items()}


def _with_fixed(model: NormalModel, types: Mapping[str, CodeType]) -> dict[str, CodeType]:
    """And those of tensors whose range is fixed, which are in no file: of what they are made from."""
    found = dict(types)
    for node in model.graph.nodes:
        read = next((found[n] for n in node.inputs if n in found), None)
        fixed = [n for n in node.outputs if n not in found and isinstance(model.inner.get(n), FixedRange)]
        found |= {} if read is None else dict.fromkeys(fixed, read)
    return found


def reuse_quantization(network: Network, other: CalibratedNetwork) -> CalibratedNetwork:
    """As the same model in other shapes is. Raises CompileError: it has tensors that the other has not."""
    if other.judged is not None:
        alone = reuse_quantization(network, replace(other, judged=None))
        return replace(alone, judged=reuse_quantization(network, other.judged))
    changed = network.through(other.quantization)
    said_of = {**other.network.model.by_name(other.quantization.ranges), **other.quantization.ranges}
    known = _arranged(changed.model, changed.model.in_all_shapes(said_of))
    missing = next((name for name in changed.tensors if name not in known), None)
    if missing is not None:
        raise CompileError(
            f"tensor {missing!r} is none of the entry's that was calibrated, since what is folded depends on the shapes; "
            f"build it into a file of its own, or give --quant FILE with a range of it"
        )
    types = {**other.quantization.types, **changed.said_types}
    ranges = {**{name: known[name] for name in changed.tensors}, **changed.given(types)}
    weights = {**changed.made_weight_types, **other.quantization.weight_types, **changed.weight_types}
    said = replace(other.quantization, ranges=ranges, types=types, weight_types=weights)
    return CalibratedNetwork(changed, _of_model(said, changed.model), label=other.label)


def widened(first: CalibratedNetwork, network: Network, samples: Iterable[Sample], progress: Progress) -> CalibratedNetwork:
    """`first`, whose ranges hold what the same model shows in other shapes too. Ranges that the model gives stay. Raises
    CompileError: as `reuse_quantization`."""
    alike = reuse_quantization(network, first)
    observer = first.label if first.label in OBSERVERS else None
    seen = _calibrated(alike.network, samples, observer, progress).quantization.ranges  # type: ignore[arg-type]
    said_of, model = {**alike.network.model.by_name(seen), **seen}, first.network.model
    known = _arranged(model, model.in_all_shapes(said_of))
    ranges = dict(first.quantization.ranges)
    for name, own in ranges.items():
        other = known.get(name)
        if isinstance(own, Range) and isinstance(other, Range) and not (own.low <= other.low and other.high <= own.high):
            ranges[name] = own.union(other)
    return replace(first, quantization=replace(first.quantization, ranges=ranges))


def _arranged(model: NormalModel, known: Mapping[str, Range | Quant]) -> dict[str, Range | Quant]:
    """And of tensors that are one of these in another order or shape: what only moves axes of size 1 is folded."""
    found = dict(known)
    moves = [(n.inputs[0], n.outputs[0]) for n in model.graph.nodes if n.op.op_type in ("Reshape", "Transpose")]
    back = [(y, x) for x, y in reversed(moves)]
    for source, made in (*moves, *back, *moves):
        if source in found:
            found.setdefault(made, found[source])
    return found


def _of_model(found: Quantization, model: NormalModel) -> Quantization:
    """With what is known of the model, whoever said the ranges."""
    return replace(found, held=model.stored, over_sequences=model.over_sequences, alike=model.alike)


def _with_room(ranges: Mapping[str, Range], network: Network, types: Mapping[str, CodeType]) -> dict[str, Range]:
    """What a quantized model leaves in float has no end there: where its codes are finer than those of 8 bits, so much of them
    goes to values beyond what calibration saw, but where what makes them has an end."""
    fine = {n for n in network.selection.left & ranges.keys() if types[n].bits > 8}
    roomy = {n: Range(min(r.low, _ROOM * r.low), max(r.high, _ROOM * r.high)) if n in fine else r for n, r in ranges.items()}
    for node in (n for n in network.selection.graph.nodes if isinstance(n.op, FloatOp)):
        y, x = (network.origins[n].tensor if n in network.origins else "" for n in (node.outputs[0], node.inputs[0]))
        if y not in fine or x not in roomy:
            continue
        low, high = operator_of(node, FloatOp).reach(roomy[x])
        seen, wide = ranges[y], roomy[y]
        roomy[y] = Range(
            wide.low if low is None else max(wide.low, min(seen.low, low)),
            wide.high if high is None else min(wide.high, max(seen.high, high)),
        )
    return roomy


def _always_zero(model: NormalModel, tensors: Sequence[str]) -> set[str]:
    """Those that stay zero for random inputs of every magnitude, and so for any data; none where onnxruntime refuses all."""
    inputs = {name: model.types[name] for name in model.graph.inputs}
    left, answers = list(dict.fromkeys(tensors)), 0
    for magnitude in _MAGNITUDES:
        try:
            ranges = calibrate(
                model.proto, random_data(inputs, magnitude=magnitude), left, computed_by=model, divided=model.divided
            )
        except CompileError:  # an index beyond its table, a number beyond float32
            continue
        left, answers = [n for n in left if max(-ranges[n].low, ranges[n].high) <= SILENT], answers + 1
        if not left:
            break
    return set(left) if answers else set()


def _calibrated(
    network: Network, samples: Iterable[Sample], observer: ObserverName | Literal["auto"] | None, progress: Progress
) -> CalibratedNetwork:
    numerics, seen, types = network.chip.numerics, 0, network.said_types
    given = network.given(types)

    def step(done: int, total: int | None) -> None:
        nonlocal seen
        seen = done
        progress("calibrate", done, total)

    chosen: ObserverName = default_observer(numerics) if observer is None or observer == AUTO else observer
    model, tensors = network.model, network.tensors
    if not tensors:
        return CalibratedNetwork(
            network,
            _of_model(
                Quantization(given, types=types, weight_types={**network.made_weight_types, **network.weight_types}), model
            ),
        )
    ranges = calibrate(
        model.proto,
        samples,
        tensors,
        observer=chosen,
        numerics=numerics,
        others={name: numerics.of(codes) for name, codes in types.items()},
        progress=step,
        computed_by=model,
        divided=model.divided,
    )
    adjusted = adjust_ranges(model.proto, ranges, model.divided, model.name, partial(_always_zero, model))
    ranges = _with_room(adjusted.ranges, network, types)
    found = Quantization({**ranges, **given}, types=types, weight_types={**network.made_weight_types, **network.weight_types})
    return CalibratedNetwork(network, _of_model(found, model), seen, adjusted.notes, adjusted.unseen, chosen)
