"""Quantize a network: calibrate it on samples and repair it with the requested effort, or take the qparams of a file.

A build calls `calibrate_network` on the network as selected, or `load_quantization` for `--quant FILE`. Further entries of
other shapes go through `reuse_quantization` and `widen_ranges`. All of them return a `CalibratedNetwork`, from which the
compiler makes the integer graph. Nothing is changed in place.

`AUTO` as an observer lets repair choose one for each tensor. `BY_DEFAULT` is the effort without a request. Repair takes
`LEAST_SAMPLES` samples at least, of which half judge its steps.
"""

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
from quant.fit_sample import Sample, get_sample_count
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
from toolchain.passes.decompose import decompose_all
from toolchain.repair.compensate_rounding import offset_zero_points
from toolchain.repair.float_room import add_room
from toolchain.repair.network import Network, Progress
from toolchain.repair.repair_pipeline import EFFORTS, OBSERVERS_STEP, STEPS, Effort, RepairStep, StepResult, run_repair
from toolchain.repair.sample_folds import LEAST_JUDGES, STRETCH, Fold, deal_folds
from toolchain.repair.sampled_rows import sample_rows
from toolchain.report import check_frontend

AUTO: Literal["auto"] = "auto"  # the observer that each tensor's own is chosen by
_MAGNITUDES = (1.0, 100.0, 10_000.0)  # of random inputs: large ones pass a bias before a Relu
BY_DEFAULT: Effort = "fast"
LEAST_SAMPLES = 2 * LEAST_JUDGES


@dataclass(frozen=True)
class CalibratedNetwork:
    """A network with its quantization, and how it came about.

    `network`: the network with the factors, types and host nodes that `quantization` asks for.
    `samples`: number of samples that were calibrated on; None where nothing was calibrated.
    `notes`: sentences for the user.
    `unseen`: tensors that were zero in all samples, though other data may fill them.
    `label`: the observer of the calibration, empty where nothing was calibrated.
    `effort`: the effort of repair; `held_out`: number of samples that judged its steps; `tried`: its steps in order.
    `judged`: the network without the samples that were held out to judge it, to be compared on these. None: none were.
    """

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
        """Return the repair for the parameters file, None where no step was tried."""
        if not self.tried:
            return None
        return Repair(self.quantization, self.effort, self.held_out, [t.as_json() for t in self.tried])

    @property
    def outputs(self) -> dict[str, Range | Quant]:
        """Return the range or qparams of each model output that the chip makes, by the name that users know."""
        model, ranges = self.network.model, self.quantization.ranges
        return {model.name(n): ranges[n] for n in model.graph.outputs if n in ranges}

    def figures(self) -> dict[str, Any] | None:
        """Return the figures of the repair for the report, None where no step was tried."""
        if not self.tried:
            return None
        return {"effort": self.effort, "held_out": self.held_out, "steps": [t.as_json() for t in self.tried]}


def steps_of(effort: Effort, observer: ObserverName | Literal["auto"] | None, *, quantized: bool = False) -> list[RepairStep]:
    """Return the repair steps of an effort, in order.

    `observer`: the requested observer; a named one leaves out the choice of observers, `auto` asks for it even without repair.
    `quantized`: the model gives scales of activations, so only steps that work layer by layer remain. The choice of observers
    that `auto` asks for without repair remains in any case.
    """
    if effort == "none":
        return [OBSERVERS_STEP] if observer == AUTO else []
    steps = [s for s in STEPS if effort in s.efforts and (s is not OBSERVERS_STEP or observer in (None, AUTO))]
    return [s for s in steps if s.by_layer or not quantized]


def effort_of(requested_effort: Effort | None, network: Network, samples: Iterable[Sample], *, real: bool) -> Effort:
    """Return the effort to run; without a request it is BY_DEFAULT wherever there is something to repair with, else `none`.

    `real`: the samples are the user's own data, none drawn at random.
    Raise CompileError where an effort is requested and the data are random, too few, or the model's own codes leave nothing to
    repair.
    """
    if requested_effort == "none" or (requested_effort is None and BY_DEFAULT == "none"):
        return "none"
    reason = _hindrance(network, samples, real)
    if reason is None:
        return requested_effort or BY_DEFAULT
    if requested_effort is None:
        return "none"
    raise CompileError(f"repair {requested_effort}: {reason}")


def _hindrance(network: Network, samples: Iterable[Sample], real: bool) -> str | None:
    """Return why a network cannot be repaired; None where it can."""
    if not real:
        return "random inputs say nothing of accuracy; give --calib DATA, or --repair none"
    as_given = Quantization(
        {},
        file_weights=network.model.stored,
        weight_types=network.weight_types,
        compiler_weights=network.compiler_weights,
    )
    if _has_file_scales(network) and not sample_rows(network, as_given, 1):
        return "the model is quantized already, and its codes are taken as they are; leave it out"
    return _too_few(samples)


def _has_file_scales(network: Network) -> bool:
    """Return whether the model gives scales of activations; a model whose weights alone are codes gives none."""
    return bool(network.selection.file_ranges.keys() - network.selection.fixed)


def _too_few(samples: Iterable[Sample]) -> str | None:
    """Return a text where there are fewer than LEAST_SAMPLES samples, else None."""
    count = get_sample_count(samples)
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
    """Calibrate a network, repair it, and return it with its quantization.

    With repair a part of the samples is held out from all steps and judges them. Where the repair changed the float model, that
    is checked against the user's file.

    `samples`: samples that all choices are made on; they start afresh each time that they are iterated.
    `observer`: None: the machine's own; `auto`: each tensor's is chosen by repair.
    `progress`: is called with a stage, how much is done, and how much there is (or None).
    `every`: these samples and those held out to judge the network; None: none are. Behind all choices, ranges and offsets are
    made again of `every`, and the network without them stays as `judged`.
    Raise CompileError where `auto` has too few samples or the data cannot be calibrated on.
    """
    if effort not in EFFORTS:
        raise InternalError(f"effort {effort!r}")
    steps = steps_of(effort, observer, quantized=_has_file_scales(network))
    if not steps:
        plain = _calibrate_ranges(network, samples, observer, progress)
        return plain if every is None else replace(_calibrate_ranges(network, every, observer, progress), judged=plain)
    reason = _too_few(samples) if observer == AUTO else None
    if reason is not None:
        raise CompileError(f"observer auto: {reason}")
    dealt = deal_folds(samples, stretch=STRETCH if network.model.states else 1)
    plain = _calibrate_ranges(network, dealt.every, observer, progress)
    repair_result = run_repair(network, plain.quantization, dealt.seen, dealt.held, steps, progress)
    if repair_result.network is not network:  # the user's file must still say the same
        check_frontend(replace(repair_result.network.model, source=network.model.source), islice(dealt.seen, 1))
    step_notes = (n for t in repair_result.tried for n in (*(t.notes if t.is_kept else ()), *t.advice))
    notes = tuple(dict.fromkeys((*plain.notes, *step_notes, *repair_result.list_low_samples())))
    done = replace(plain, network=repair_result.network, quantization=repair_result.quantization, notes=notes)
    done = replace(done, effort=effort, held_out=repair_result.held_out, tried=repair_result.tried)
    return done if every is None else _refit(done, repair_result.measure, every, observer, progress)


def _refit(
    done: CalibratedNetwork,
    measure: Measure | None,
    samples: Iterable[Sample],
    observer: ObserverName | Literal["auto"] | None,
    progress: Progress,
) -> CalibratedNetwork:
    """Return the choices of `done` with ranges and offsets measured anew on these samples, and `done` as `judged`.

    Biases stay with the codes that they were chosen with. Where the machine cannot express the new ranges, the old ones stay
    and a note says so.

    `measure`: measures ranges as the last step that was kept did; None: as calibration does.
    """
    network, chosen, unseen = done.network, done.quantization, done.unseen
    if measure is None:
        plain = _calibrate_ranges(network, samples, observer, progress)
        ranges, unseen = plain.quantization.ranges, plain.unseen
    else:
        adjusted = measure(samples)
        ranges, unseen = {**adjusted.ranges, **network.selection.file_ranges}, tuple(n for n in unseen if n in adjusted.unseen)
    remeasured = replace(chosen, ranges=ranges)
    try:
        if remeasured.offsets:
            remeasured = offset_zero_points(network, replace(remeasured, offsets={}), (), progress).quantization
        network.integer(remeasured)
    except CompileError as fault:
        note = f"ranges stay those of {format_count(done.samples or 0, 'sample')}, without those that judge: {fault}"
        return replace(done, notes=(*done.notes, note), judged=done)
    return replace(done, quantization=remeasured, samples=Fold.of(samples).size, unseen=unseen, judged=done)


def load_quantization(network: Network, file: Path) -> CalibratedNetwork:
    """Return the network with the quantization of a parameters file. Types that the user sets win over the file's.

    Raise ConfigError or CompileError for a file that cannot be read or does not fit the model.
    """
    changed, tensors = network, list[str]()

    def list_repaired_tensors(repair: Quantization) -> list[str]:
        nonlocal changed, tensors
        changed = network.through(repair)
        tensors = changed.tensors
        return tensors

    everywhere = decompose_all(network.model.undivided or network.model)
    known_names = {
        *network.model.types,
        *network.model.source_name_by_tensor.values(),
        *everywhere.types,
        *everywhere.source_name_by_tensor.values(),
    }
    file_quantization = read_parameters(
        file,
        tensors=list_repaired_tensors,
        allowed=known_names,
        source_names=network.model.source_name_by_tensor,
        layers=lambda: [n.name for n in changed.weighted],
        numerics=network.chip.numerics,
    ).quantization
    named, kinds = network.model.in_all_shapes(file_quantization.ranges), network.model.in_all_shapes(file_quantization.types)
    measured = clip_ranges({name: named[name] for name in tensors}, changed.model.decomposition)
    types = {**changed.selection.types, **changed.on_chip(_with_fixed(changed.model, kinds)), **network.types}
    ranges = {**_in_types(measured, kinds, types, network.chip.numerics), **changed.get_model_ranges(types)}
    weights = {**file_quantization.weight_types, **network.weight_types}
    quantization = replace(
        file_quantization, ranges=ranges, types=types, weight_types=weights, compiler_weights=changed.compiler_weights
    )
    return CalibratedNetwork(changed, _of_model(quantization, changed.model))


def _in_types(
    ranges: Mapping[str, Range | Quant], file_types: Mapping[str, CodeType], types: Mapping[str, CodeType], numerics: Numerics
) -> dict[str, Range | Quant]:
    """Return the entries of a file, qparams converted to their range where the tensor now has another type of codes.

    A scale of a file belongs to the type that the file names, or to the first type of the machine.
    """

    def read(name: str, entry: Range | Quant) -> Range | Quant:
        entry_type = file_types.get(name, numerics.activation)
        if isinstance(entry, Quant) and types.get(name, entry_type) is not entry_type:
            return quant_range(entry, numerics.of(entry_type))
        return entry

    return {name: read(name, entry) for name, entry in ranges.items()}


def _with_fixed(model: NormalModel, types: Mapping[str, CodeType]) -> dict[str, CodeType]:
    """Return the types with those of tensors that have a fixed range, which no file names; each takes the type of its
    operand."""
    type_by_tensor = dict(types)
    for node in model.graph.nodes:
        read = next((type_by_tensor[n] for n in node.inputs if n in type_by_tensor), None)
        fixed = [n for n in node.outputs if n not in type_by_tensor and isinstance(model.inner.get(n), FixedRange)]
        type_by_tensor |= {} if read is None else dict.fromkeys(fixed, read)
    return type_by_tensor


def reuse_quantization(network: Network, other: CalibratedNetwork) -> CalibratedNetwork:
    """Return the network with the quantization of the same model in other shapes.

    `network`: the network in its own shapes, not yet repaired.
    `other`: the calibrated network in the first entry's shapes; its `judged` is reused as well.
    Raise CompileError where the network has tensors that the other one lacks.
    """
    if other.judged is not None:
        alone = reuse_quantization(network, replace(other, judged=None))
        return replace(alone, judged=reuse_quantization(network, other.judged))
    changed = network.through(other.quantization)
    said_of = {**other.network.model.by_name(other.quantization.ranges), **other.quantization.ranges}
    range_by_tensor = _add_rearranged(changed.model, changed.model.in_all_shapes(said_of))
    missing = next((name for name in changed.tensors if name not in range_by_tensor), None)
    if missing is not None:
        raise CompileError(
            f"tensor {missing!r} is none of the entry's that was calibrated, since what is folded depends on the shapes; "
            f"build it into a file of its own, or give --quant FILE with a range of it"
        )
    types = {**other.quantization.types, **changed.requested_types}
    ranges = {**{name: range_by_tensor[name] for name in changed.tensors}, **changed.get_model_ranges(types)}
    weights = {**other.quantization.weight_types, **changed.weight_types}
    quantization = replace(
        other.quantization, ranges=ranges, types=types, weight_types=weights, compiler_weights=changed.compiler_weights
    )
    return CalibratedNetwork(changed, _of_model(quantization, changed.model), label=other.label)


def widen_ranges(first: CalibratedNetwork, network: Network, samples: Iterable[Sample], progress: Progress) -> CalibratedNetwork:
    """Return `first` with each range widened to what the same model shows in other shapes; none gets narrower.

    Ranges that the model gives, entries that are qparams, and tensors that are not in both, stay.

    `network`: the model in the other shapes; `samples`: samples of these shapes.
    Raise CompileError as `reuse_quantization` does.
    """
    reused_calibration = reuse_quantization(network, first)
    observer = first.label if first.label in OBSERVERS else None
    observed_ranges = _calibrate_ranges(reused_calibration.network, samples, observer, progress).quantization.ranges  # type: ignore[arg-type]
    said_of, model = {**reused_calibration.network.model.by_name(observed_ranges), **observed_ranges}, first.network.model
    range_by_tensor = _add_rearranged(model, model.in_all_shapes(said_of))
    ranges = dict(first.quantization.ranges)
    for name, first_range in ranges.items():
        other = range_by_tensor.get(name)
        if (
            isinstance(first_range, Range)
            and isinstance(other, Range)
            and not (first_range.low <= other.low and other.high <= first_range.high)
        ):
            ranges[name] = first_range.union(other)
    return replace(first, quantization=replace(first.quantization, ranges=ranges))


def _add_rearranged(model: NormalModel, ranges: Mapping[str, Range | Quant]) -> dict[str, Range | Quant]:
    """Return the ranges with those of tensors that are a listed one in another order or shape.

    Moves of axes of size 1 alone are folded, so either tensor may be missing.
    """
    extended_ranges = dict(ranges)
    moves = [(n.inputs[0], n.outputs[0]) for n in model.graph.nodes if n.op.op_type in ("Reshape", "Transpose")]
    back = [(y, x) for x, y in reversed(moves)]
    for source, result in (*moves, *back, *moves):
        if source in extended_ranges:
            extended_ranges.setdefault(result, extended_ranges[source])
    return extended_ranges


def _of_model(quantization: Quantization, model: NormalModel) -> Quantization:
    """Return the quantization with what the model itself states: file weights, sequences, repeated blocks."""
    return replace(
        quantization, file_weights=model.stored, over_sequences=model.over_sequences, range_owners=model.twin_by_tensor
    )


def _always_zero(model: NormalModel, tensors: Sequence[str]) -> set[str]:
    """Return the tensors that stay zero for random inputs of every magnitude, and so for any data.

    The set is empty where onnxruntime refuses all of the inputs.
    """
    inputs = {name: model.types[name] for name in model.graph.inputs}
    pending, answers = list(dict.fromkeys(tensors)), 0
    for magnitude in _MAGNITUDES:
        try:
            ranges = calibrate(
                model.proto,
                random_data(inputs, magnitude=magnitude),
                pending,
                computed_by=model,
                decomposition=model.decomposition,
            )
        except CompileError:  # an index beyond its table, a number beyond float32
            continue
        pending, answers = [n for n in pending if max(-ranges[n].low, ranges[n].high) <= SILENT], answers + 1
        if not pending:
            break
    return set(pending) if answers else set()


def _calibrate_ranges(
    network: Network, samples: Iterable[Sample], observer: ObserverName | Literal["auto"] | None, progress: Progress
) -> CalibratedNetwork:
    """Return the network with calibrated ranges and no repair. `auto` counts as the machine's own observer here."""
    numerics, sample_count, types = network.chip.numerics, 0, network.requested_types
    model_ranges = network.get_model_ranges(types)

    def step(done: int, total: int | None) -> None:
        nonlocal sample_count
        sample_count = done
        progress("calibrate", done, total)

    chosen: ObserverName = default_observer(numerics) if observer is None or observer == AUTO else observer
    model, tensors = network.model, network.tensors
    quantization = Quantization(
        model_ranges, types=types, weight_types=network.weight_types, compiler_weights=network.compiler_weights
    )
    if not tensors:
        return CalibratedNetwork(network, _of_model(quantization, model))
    ranges = calibrate(
        model.proto,
        samples,
        tensors,
        observer=chosen,
        numerics=numerics,
        others={name: numerics.of(codes) for name, codes in types.items()},
        progress=step,
        computed_by=model,
        decomposition=model.decomposition,
    )
    adjusted = adjust_ranges(model.proto, ranges, model.decomposition, model.name, partial(_always_zero, model))
    ranges = add_room(adjusted.ranges, network, types)
    quantization = replace(quantization, ranges={**ranges, **model_ranges})
    return CalibratedNetwork(network, _of_model(quantization, model), sample_count, adjusted.notes, adjusted.unseen, chosen)
