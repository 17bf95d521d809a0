"""What a build is calibrated and judged on, and what is said of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from quant.calibration_data import HELD_FROM, LEAST_HELD, Samples, random_data, repeated_data, split_calibration, split_holdout
from toolchain.errors import CompileError, first_line
from toolchain.frontend import NormalModel, to_graph
from toolchain.input_limits import CLAIMED_ELEMENTS
from toolchain.ir.graph import TensorType
from toolchain.options import BuildOptions
from toolchain.report.accuracy import JudgedOn
from toolchain.report.report_text import RANDOM, REPEATED
from toolchain.stateful_samples import open_samples

_FEW_OF_A_GATE = 8


@dataclass(frozen=True)
class BuildData:
    """given: of --calib, or random; judge: of --judge. on: what `given` are, where that is known already. notes: why they are
    random all the same."""

    given: Samples
    judge: Samples | None
    on: JudgedOn | None = None
    notes: tuple[str, ...] = ()


def open_build_data(model: NormalModel, options: BuildOptions, loose: Collection[str] = ()) -> BuildData:
    """loose: inputs that may hold NaN and infinity. Raises CompileError: no such data, or of other shapes."""
    inputs = inputs_of(model)
    if options.calibration is None or (model.bound and not inputs):  # nothing is left that a sample could hold
        _require_confirmed(inputs, options)
        given, notes = random_data(inputs), ()
    else:
        given, notes = open_samples(options.calibration, model, inputs, options.samples, loose)
    if options.judge is None or (model.bound and not inputs):
        return BuildData(given, None, None, notes)
    judge, more = open_samples(options.judge, model, inputs, loose=loose)
    return BuildData(given, judge, None, (*notes, *more))


def _require_confirmed(inputs: Mapping[str, TensorType], options: BuildOptions) -> None:
    """Raises CompileError where random inputs would be large for no more reason than that the model says so."""
    for name, t in inputs.items():
        if t.elements > CLAIMED_ELEMENTS and name not in options.shapes:
            raise CompileError(
                f'input "{name}": has {t.elements:,} elements by the model alone; {CLAIMED_ELEMENTS:,} are the most\n'
                f"  help: give data, --calib DATA, or confirm the shape, --shape {name}={','.join(map(str, t.shape))}"
            )


def data_in_other_shapes(model: NormalModel, options: BuildOptions, calibrated: NormalModel) -> BuildData:
    """Of an entry that is not calibrated: the same data where they fit its shapes, as images are made to, else repeated or cut to
    them, which shows what its ranges clip. Random inputs where that is not possible.
    calibrated: the model in the shapes of the entry that is. Raises CompileError: they do not fit, and judging is asked for."""
    inputs = inputs_of(model)
    if options.calibration is None and options.judge is None:
        return BuildData(random_data(inputs), None, RANDOM)
    try:
        limit = None if options.judge else options.samples
        found, notes = open_samples(options.judge or options.calibration or "", model, inputs, limit)
        next(iter(found))
    except CompileError as fault:
        if options.judged:
            raise CompileError(
                f"cannot be judged as --{options.judged} asks: {first_line(fault)}\n"
                "  help: give data of its own, --judge ENTRY:DATA"
            ) from None
        return _in_shapes(model, options, calibrated, f"the data do not fit its shapes: {first_line(fault)}")
    if options.judge is not None:
        return BuildData(found, None, "judge", notes)
    batches = {name: kind.shape[:1] for name, kind in inputs_of(calibrated).items()}
    alike = batches == {name: kind.shape[:1] for name, kind in inputs.items()}
    return BuildData(found, None, None if alike or options.parameters is not None else "calibration", notes)


def calibration_in_other_shapes(model: NormalModel, options: BuildOptions, calibrated: NormalModel) -> Samples | None:
    """The data that are calibrated on, in the shapes of another entry; None where they do not fit these, or where these differ in
    the number of samples alone, which shows nothing new."""
    shapes, others = ({n: t.shape[1:] for n, t in inputs_of(m).items()} for m in (model, calibrated))
    if shapes == others:
        return None
    try:
        found, _ = open_samples(options.calibration or "", model, inputs_of(model), options.samples)
        next(iter(found))
    except CompileError:
        return None
    return found if options.judge is not None else split_calibration(found)


def _in_shapes(model: NormalModel, options: BuildOptions, calibrated: NormalModel, why: str) -> BuildData:
    """why: the data are not taken as they are."""
    inputs = inputs_of(model)
    try:
        given, _ = open_samples(options.judge or options.calibration or "", calibrated, inputs_of(calibrated))
        repeated = repeated_data(given, inputs)
        next(iter(repeated))
    except CompileError:
        return BuildData(random_data(inputs), None, RANDOM, (f"checked on random inputs, not judged: {why}",))
    what = "calibrated in the shapes of another entry, and judged on its data, repeated or cut"
    return BuildData(repeated, None, REPEATED, (f"{what}: {why}",))


def inputs_of(model: NormalModel) -> dict[str, TensorType]:
    return {n: model.types[n] for n in to_graph(model).inputs}


def split_evaluation_data(data: BuildData, options: BuildOptions, calibrated_on: int | None) -> tuple[JudgedOn, Samples]:
    """What was not calibrated on, where there is any."""
    if data.on is not None:
        return data.on, data.given
    if data.judge is not None:
        return "judge", data.judge
    if options.calibration is None:
        return RANDOM, data.given
    if options.parameters is not None or calibrated_on is None:  # a quantized model may give all ranges itself
        return "calib", data.given
    held = split_holdout(data.given)
    few = calibrated_on is not None and calibrated_on < HELD_FROM
    return ("calibration", data.given) if few or next(iter(held), None) is None else ("held out", held)


def evaluation_warnings(on: JudgedOn, count: int, data: BuildData, options: BuildOptions) -> list[str]:
    """count: samples that were judged."""
    asked = "the gate judges" if options.gate else "judged"
    if on == "held out" and count < (_FEW_OF_A_GATE if options.gate else LEAST_HELD):
        alone = f"{count} sample{'s' if count != 1 else ''} alone, held out of calibration"
        return [f"{asked} on {alone}: others may do worse; give --calib more samples, or --judge DATA"]
    if on != "calibration" or (data.on is not None and not options.gate):
        return []
    more = f"more than {HELD_FROM} samples, or " if data.on is None else ""  # other batches have samples of both kinds
    return [f"{asked} on the data it was calibrated on: others may do worse; give {more}--judge DATA"]


def random_warnings(options: BuildOptions) -> list[str]:
    if options.calibration is not None or options.judge is not None:
        return []
    what = "calibrated and judged" if options.parameters is None else "judged"
    return [f"{what} on RANDOM inputs: bits and cycles are right, accuracy means NOTHING; give --calib DATA"]
