"""Open the data that a build is calibrated and judged on, choose which samples judge it, and word what the report says of it.

The options `--calib` and `--judge` name the data. Of `--calib` some samples may be held out to judge the network. Further
entries, of other shapes, get the same data if they fit.

Of HELD_FROM samples or fewer none is held out; of more at least LEAST_HELD, since fewer say little of other samples. For a gate
one of _EVERY samples judges up to the first _MANY, and one of _EVERY_LATER beyond. Without a gate it is one of _EVERY_LATER,
and _MOST_HELD at most. A gate that judges fewer than _FEW_OF_A_GATE samples gives a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from quant.calibration_data import Samples, random_data, repeat_data
from quant.near_copies import find_similar_lag
from toolchain.errors import CompileError, first_line, format_count
from toolchain.frontend import NormalModel, to_graph
from toolchain.input_limits import CLAIMED_ELEMENTS
from toolchain.ir.graph import TensorType
from toolchain.judging.stateful_samples import open_samples
from toolchain.options import BuildOptions
from toolchain.repair.sample_folds import NONE, STRETCH, Fold, HoldOut, hold_out
from toolchain.report.accuracy import JudgedOn
from toolchain.report.report_text import RANDOM, REPEATED

HELD_FROM = 16
LEAST_HELD = 4
_MOST_HELD = 8
_EVERY, _EVERY_LATER = 4, 8
_MANY = 128
_FEW_OF_A_GATE = 8


@dataclass(frozen=True)
class BuildData:
    """The samples of a build.

    `calibration`: samples of `--calib`, or random ones.
    `judge`: samples of `--judge`; None without the option.
    `on`: kind of `calibration` as samples that judge; None where the build decides it later.
    `notes`: sentences for the user, such as why samples are random.
    """

    calibration: Samples | Fold
    judge: Samples | None
    on: JudgedOn | None = None
    notes: tuple[str, ...] = ()


def open_build_data(model: NormalModel, options: BuildOptions, loose: Collection[str] = ()) -> BuildData:
    """Open the calibration and judging data of a model.

    Inputs are drawn at random without `--calib`, and for a model all of whose inputs are bound to values.

    `loose`: inputs that may hold NaN and infinity.
    Raise CompileError where there are no such data, they have other shapes, or random inputs would be very large.
    """
    inputs = inputs_of(model)
    if options.calibration is None or (model.bound and not inputs):  # nothing is left that a sample could hold
        _require_confirmed(inputs, options)
        calibration, notes = random_data(inputs), ()
    else:
        calibration, notes = open_samples(options.calibration, model, inputs, options.samples, loose)
    if options.judge is None or (model.bound and not inputs):
        return BuildData(calibration, None, None, notes)
    judge, more = open_samples(options.judge, model, inputs, loose=loose)
    return BuildData(calibration, judge, None, (*notes, *more))


def _require_confirmed(inputs: Mapping[str, TensorType], options: BuildOptions) -> None:
    """Raise CompileError where random inputs would be very large for no more reason than that the model says so."""
    for name, t in inputs.items():
        if t.elements > CLAIMED_ELEMENTS and name not in options.shapes:
            raise CompileError(
                f'input "{name}": has {t.elements:,} elements by the model alone; {CLAIMED_ELEMENTS:,} are the most\n'
                f"  help: give data, --calib DATA, or confirm the shape, --shape {name}={','.join(map(str, t.shape))}"
            )


def data_in_other_shapes(model: NormalModel, options: BuildOptions, calibrated: NormalModel) -> BuildData:
    """Return the data of an entry that is not calibrated.

    These are the same data where they fit its shapes, as images are made to. Else they are repeated or cut to the shapes, which
    shows clipping, and a note says so. They are random where that is not possible.

    `calibrated`: the model in the shapes of the entry that is calibrated.
    Raise CompileError where the data do not fit and an accuracy gate asks for judging.
    """
    inputs = inputs_of(model)
    if options.calibration is None and options.judge is None:
        return BuildData(random_data(inputs), None, RANDOM)
    try:
        limit = None if options.judge else options.samples
        samples, notes = open_samples(options.judge or options.calibration or "", model, inputs, limit)
        next(iter(samples))
    except CompileError as fault:
        if options.judged:
            raise CompileError(
                f"cannot be judged as --{options.judged} asks: {first_line(fault)}\n"
                "  help: give data of its own, --judge ENTRY:DATA"
            ) from None
        return _in_shapes(model, options, calibrated, f"the data do not fit its shapes: {first_line(fault)}")
    if options.judge is not None:
        return BuildData(samples, None, "judge", notes)
    batches = {name: kind.shape[:1] for name, kind in inputs_of(calibrated).items()}
    has_same_batches = batches == {name: kind.shape[:1] for name, kind in inputs.items()}
    return BuildData(samples, None, None if has_same_batches or options.parameters is not None else "calibration", notes)


def calibration_in_other_shapes(model: NormalModel, options: BuildOptions, calibrated: NormalModel) -> Samples | None:
    """Return the calibration data in the shapes of another entry, to widen the ranges by.

    Return None where they do not fit these, or where only the batch size differs, which shows nothing new.
    """
    shapes, others = ({n: t.shape[1:] for n, t in inputs_of(m).items()} for m in (model, calibrated))
    if shapes == others:
        return None
    try:
        samples, _ = open_samples(options.calibration or "", model, inputs_of(model), options.samples)
        next(iter(samples))
    except CompileError:
        return None
    return samples


def _in_shapes(model: NormalModel, options: BuildOptions, calibrated: NormalModel, why: str) -> BuildData:
    """Return data in the model's shapes, repeated or cut, or random ones. `why`: reason for not taking the data as they are."""
    inputs = inputs_of(model)
    try:
        samples, _ = open_samples(options.judge or options.calibration or "", calibrated, inputs_of(calibrated))
        repeated = repeat_data(samples, inputs)
        next(iter(repeated))
    except CompileError:
        return BuildData(random_data(inputs), None, RANDOM, (f"checked on random inputs, not judged: {why}",))
    what = "calibrated in the shapes of another entry, and judged on its data, repeated or cut"
    return BuildData(repeated, None, REPEATED, (f"{what}: {why}",))


def inputs_of(model: NormalModel) -> dict[str, TensorType]:
    """Return the types of the inputs that a sample must hold, by name."""
    return {n: model.types[n] for n in to_graph(model).inputs}


def hold_out_evaluation_data(data: BuildData, options: BuildOptions, *, chooses: bool, states: bool) -> HoldOut:
    """Deal the samples of `--calib` into those for calibration and those held out to judge the network on.

    None are held out with `--judge`, on random inputs, with a parameters file, or where neither a choice nor the accuracy gate
    needs them. With a gate, `count_judges` says how many; else at most eight. At least HELD_FROM stay for calibration.

    `chooses`: repair or the choice of an observer compares candidates on samples.
    `states`: the network keeps states from sample to sample, so that neighbouring samples are held out together.
    """
    calibration_fold = Fold.of(data.calibration)
    if data.judge is not None or options.calibration is None or options.parameters is not None:
        return HoldOut(calibration_fold, calibration_fold, NONE)
    if not (chooses or options.gate):
        return HoldOut(calibration_fold, calibration_fold, NONE)
    count = count_judges if options.gate else _count_few_judges
    held_out = hold_out(calibration_fold, count, stretch=STRETCH if states else 1, least_seen=HELD_FROM)
    if states or not held_out.indices:
        return held_out
    return replace(held_out, similar_lag=find_similar_lag(calibration_fold.traits))


def count_judges(count: int) -> int:
    """Return how many of `count` samples are held out where the user set an accuracy gate; 0 where HELD_FROM or fewer are
    there."""
    many = min(count, _MANY) // _EVERY + max(count - _MANY, 0) // _EVERY_LATER
    return max(min(count - HELD_FROM, max(many, LEAST_HELD)), 0)


def _count_few_judges(count: int) -> int:
    """Return how many of `count` samples are held out where no gate asks for more."""
    return min(count_judges(count), max(count // _EVERY_LATER, LEAST_HELD), _MOST_HELD)


def choose_evaluation_data(
    data: BuildData, options: BuildOptions, calibrated_on: int | None, held_out: HoldOut
) -> tuple[JudgedOn, Samples | Fold]:
    """Return the kind and the samples that the network is judged on; nothing is dealt here.

    These are the data of `--judge`, else the held-out ones, else those that were calibrated on, or random inputs.

    `calibrated_on`: number of samples calibrated on, None where the file gave all ranges.
    `held_out`: how the samples of the first entry were dealt.
    """
    if data.on is not None:
        return data.on, data.calibration
    if data.judge is not None:
        return "judge", data.judge
    if options.calibration is None:
        return RANDOM, data.calibration
    if options.parameters is not None or calibrated_on is None:  # a quantized model may give all ranges itself
        return "calib", data.calibration
    if not held_out.indices:
        return "calibration", data.calibration
    return "held out", held_out.held_of(data.calibration)


def evaluation_warnings(
    on: JudgedOn, count: int, data: BuildData, options: BuildOptions, calibrated_on: int | None, copies: int
) -> list[str]:
    """Return a warning where other data may do worse: near-copies judge, few samples judge, or the samples of calibration do.

    `on`: kind of the samples that judged; `count`: their number.
    `calibrated_on`: number of samples calibrated on, None without.
    `copies`: number of held-out samples that are near-copies of calibration samples.
    """
    judged_as = "the gate judges" if options.gate else "judged"
    if on == "held out" and copies:
        like = f"{format_count(copies, 'near-copy' if copies == 1 else 'near-copie')} of samples calibrated on"
        among = f"{judged_as} on {format_count(count, 'sample')}, among which are {like}"
        return [
            f"{among}, as duplicates and neighbouring frames are: others may do worse; give --calib others too, or --judge DATA"
        ]
    if on == "held out" and count < (_FEW_OF_A_GATE if options.gate else LEAST_HELD):
        alone = f"{count} sample{'s' if count != 1 else ''} alone, held out of calibration"
        return [f"{judged_as} on {alone}: others may do worse; give --calib more samples, or --judge DATA"]
    if on != "calibration" or (not options.gate and (data.on is not None or (calibrated_on or 0) > HELD_FROM)):
        return []
    more = f"more than {HELD_FROM} samples, or " if data.on is None else ""  # other batches have samples of both kinds
    return [f"{judged_as} on the data it was calibrated on: others may do worse; give {more}--judge DATA"]


def similarity_notes(on: JudgedOn, held_out: HoldOut) -> list[str]:
    """Return a note where the order of the samples shows that they are alike and no near-copies are told; else nothing.

    `on`: kind of the samples that judged; `held_out`: how the samples were dealt.
    """
    lag = held_out.similar_lag
    if on != "held out" or lag is None or held_out.copies:
        return []
    which = "neighbours in --calib" if lag == 1 else f"samples {lag} places apart in --calib"
    return [
        f"{which} are less than half as far from each other as samples usually are, as frames of a clip and crops of a "
        "photograph are: so are those that judge and those calibrated on, and others may do worse; --judge DATA tells"
    ]


def refit_notes(on: JudgedOn, shipped: int | None, judged: int | None) -> list[str]:
    """Return a note where the file's ranges come from more samples than those of the network that was judged; else nothing.

    `shipped`, `judged`: numbers of samples of both; None without calibration.
    """
    if on != "held out" or shipped is None or judged is None or shipped == judged:
        return []
    return [
        f"the file has ranges of all {shipped} samples; figures against float are of the same choices with those of "
        f"{judged}, on samples that neither saw"
    ]


def random_warnings(options: BuildOptions) -> list[str]:
    """Return a warning where neither calibration nor judging data were given."""
    if options.calibration is not None or options.judge is not None:
        return []
    what = "calibrated and judged" if options.parameters is None else "judged"
    return [f"{what} on RANDOM inputs: bits and cycles are right, accuracy means NOTHING; give --calib DATA"]
