"""Calibrates a float ONNX model: runs it in onnxruntime over samples and returns the range of each tensor.

Samples come from `quant.calibration_data`. The ranges go to `quant.structural_ranges`, then become scales and zero points in
`quant.parameters`. `calibrate` measures by one observer. `observe_all` keeps histograms from which any observer's range can be
had later. `observe` feeds any sinks. Tensors that may hold an additive mask are allowed minus infinity (`quant.masks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import onnx

from quant.common_step import InputSink, Sink
from quant.decomposed_ranges import Decomposition, cut, get_original, get_range_owner
from quant.fit_sample import NotFinite, Sample, get_sample_count
from quant.fixed_point.core.numerics import Numerics
from quant.float_session import FloatModel, FloatSession, PlainModel
from quant.masks import LOWEST, MaskAwareObserver, RowFloor, find_masked_tensors, find_row_floors, mask_aware_range
from quant.observe import COMMON_PERCENT, Histogram, MinMax, Observer, Percentile, Range, percentile_range
from quant.parameters import least_error_range
from quant.piecewise_model import PiecewiseModel, tensor_bytes
from quant.suggestion import suggestion
from toolchain.errors import CompileError, InternalError
from toolchain.foundation.inference import InferenceError
from toolchain.ir.graph import TensorType

ObserverName = Literal["minmax", "percentile", "mse"]
SinkT = TypeVar("SinkT", bound=Sink)
Progress = Callable[[int, int | None], None]  # samples done, samples in all where known
OBSERVERS: tuple[ObserverName, ...] = ("minmax", "percentile", "mse")
NO_NUMERICS: Mapping[str, Numerics] = MappingProxyType({})
NO_ROWS: Mapping[str, RowFloor] = MappingProxyType({})
HELD_BYTES = 256 << 20  # of observed tensors that one run of the model may leave in memory; else it runs in pieces


class LeastError:
    """An observer: the range of least mean squared error for a machine's codes, by `quant.parameters.least_error_range`."""

    def __init__(self, numerics: Numerics) -> None:
        self._numerics = numerics
        self._histogram = Histogram()

    def update(self, x: np.ndarray) -> None:
        self._histogram.update(x)

    def range(self) -> Range:
        return least_error_range(self._histogram, self._numerics)


def default_observer(numerics: Numerics) -> ObserverName:
    """Return mse where scales are powers of two, since covering the extremes there costs up to a bit; else minmax."""
    return "mse" if numerics.scale.kind == "pow2" else "minmax"


def calibrate(
    model: onnx.ModelProto,
    data: Iterable[Sample],
    tensors: Sequence[str],
    *,
    observer: ObserverName = "minmax",
    numerics: Numerics | None = None,
    others: Mapping[str, Numerics] = NO_NUMERICS,
    percent: float = COMMON_PERCENT,
    progress: Progress | None = None,
    session_threads: int = 1,
    held_bytes: int = HELD_BYTES,
    computed_by: FloatModel | None = None,
    decomposition: Decomposition | None = None,
    few_runs: bool = False,
) -> dict[str, Range]:
    """Return the range of each of `tensors`, in their order, over all samples of `data`.

    One pass over `data` keeps one sample in memory. A model whose observed tensors take more than `held_bytes` runs in pieces.
    The range of an input that is measured alone has its `step`, where the values have one.

    `model`: static and float, such that onnxruntime runs it; it is not changed.
    `tensors`: float tensors, inputs among them.
    `observer`: `minmax`, `percentile` or `mse`.
    `numerics`: required by 'mse', which searches what the machine can express.
    `others`: numerics of tensors whose codes are of another type, by tensor; 'mse' alone reads them.
    `percent`: of 'percentile', above 50 and at most 100.
    `progress`: called after each sample with the samples done and those in all, None where that is not known.
    `session_threads`: threads of onnxruntime.
    `computed_by`: another form of the model that computes the tensors instead; not used where the model runs in pieces.
    `decomposition`: that of a model with steps in the place of operators. Values are clipped to its bounds, and tensors that
    share a range get the range of them all.
    `few_runs`: as in `quant.float_session.open_session`, for a few samples.

    Raise CompileError: no such tensor, an integer tensor, no sample, a bad observer, `percent` or model, or a sample that
    onnxruntime refuses. Raise its subclass NotFinite: NaN or infinity in a tensor, unless that is minus infinity of a mask. For
    made-up samples this is a plain CompileError.
    """
    _require_floats(model, tensors)
    make = _observer_factory(observer, numerics, percent)
    restored = get_original(model, decomposition)
    masks, rows = find_masked_tensors(restored), find_row_floors(restored, set(tensors))
    shared = dict[str, Observer]()
    for owner, names in _group_by_owner(tensors, decomposition).items():
        observer_of_all = make(others.get(names[0]))
        if masks.isdisjoint(names):
            shared[owner] = observer_of_all
        else:
            shared[owner] = MaskAwareObserver(observer_of_all, [rows[n] for n in names if n in rows])
    observers = {name: shared[get_range_owner(name, decomposition)] for name in tensors}
    steps = _steps_of_inputs(model, observers)
    observe(
        model,
        data,
        {**observers, **steps},
        progress=progress,
        session_threads=session_threads,
        held_bytes=held_bytes,
        computed_by=computed_by,
        few_runs=few_runs,
        decomposition=decomposition,
        rows=rows,
    )
    return {name: _with_step(observers[name].range(), steps.get(name)) for name in tensors}


def _group_by_owner(tensors: Sequence[str], decomposition: Decomposition | None) -> dict[str, list[str]]:
    """Return the tensors that share each range, by the name of the range, in their order."""
    groups: dict[str, list[str]] = {}
    for name in tensors:
        groups.setdefault(get_range_owner(name, decomposition), []).append(name)
    return groups


def _steps_of_inputs(model: onnx.ModelProto, sinks: Mapping[str, SinkT]) -> dict[str, InputSink[SinkT]]:
    """Return step sinks for inputs whose sink observes no other tensor. A state shares its sink with an output, so it has
    none."""
    constants, times = {i.name for i in model.graph.initializer}, Counter(map(id, sinks.values()))
    inputs = [i.name for i in model.graph.input if i.name not in constants]
    return {n: InputSink(sinks[n]) for n in inputs if n in sinks and times[id(sinks[n])] == 1}


def _with_step(r: Range, sink: InputSink[Any] | None) -> Range:
    """Return the range with the step that the sink found; the range itself where there is no sink or no step."""
    return r if sink is None or sink.step is None else replace(r, step=sink.step)


@dataclass(frozen=True)
class ObservedRanges:
    """The result of one pass over the data, from which `ranges` makes the range of each tensor by any observer.

    `histograms`: by tensor, in the order asked for; tensors that share a range share one.
    `steps`: by input of the model.
    `masks`: tensors that may hold a mask.
    `rows`: floors of the rows of masked tensors that a Softmax reads.
    """

    histograms: Mapping[str, Histogram]
    steps: Mapping[str, InputSink[Any]]
    masks: frozenset[str]
    rows: Mapping[str, RowFloor]

    def ranges(self, observer: ObserverName, numerics: Numerics) -> dict[str, Range]:
        """Return the range of each tensor by this observer, widened to ends that only a few samples reach (`with_rare_ends`).

        Where a tensor held a mask's values, its range is from the smallest to the largest value.
        `numerics`: of all tensors; 'mse' alone reads it.
        'percentile' takes COMMON_PERCENT. `calibrate` does not widen, so its ranges may be narrower.
        """
        range_by_tensor: dict[str, Range] = {}
        masked = {id(h) for name, h in self.histograms.items() if name in self.masks}
        rows: dict[int, list[RowFloor]] = {}
        for name, floor in self.rows.items():
            rows.setdefault(id(self.histograms[name]), []).append(floor)
        for name, histogram in self.histograms.items():
            observed = partial(_observed_range, observer, histogram, numerics)
            if id(histogram) in masked:
                r = mask_aware_range(observed, histogram.extremes, rows.get(id(histogram), ()))
            else:
                r = histogram.with_rare_ends(observed())
            range_by_tensor[name] = _with_step(r, self.steps.get(name))
        return range_by_tensor


def _observed_range(observer: ObserverName, histogram: Histogram, numerics: Numerics) -> Range:
    """Return the range that the observer chooses, widened to the ends of rare samples."""
    return histogram.with_rare_ends(_range_by(observer, histogram, numerics))


def _range_by(observer: ObserverName, histogram: Histogram, numerics: Numerics) -> Range:
    """Return the observer's range of a histogram. Raise InternalError for an unknown observer."""
    if observer == "minmax":
        return histogram.extremes
    if observer == "percentile":
        return percentile_range(histogram)
    if observer == "mse":
        return least_error_range(histogram, numerics)
    raise InternalError(f"observer {observer!r} has no range of a histogram")


def observe_all(
    model: onnx.ModelProto,
    data: Iterable[Sample],
    tensors: Sequence[str],
    *,
    progress: Progress | None = None,
    computed_by: FloatModel | None = None,
    decomposition: Decomposition | None = None,
) -> ObservedRanges:
    """Return histograms of `tensors` from one pass over the data, of which every observer's range can be had.

    Its arguments mean what they do in `calibrate`, and its errors are the same, but integer tensors are not refused.
    """
    shared = dict[str, Histogram]()
    histograms = {name: shared.setdefault(get_range_owner(name, decomposition), Histogram()) for name in tensors}
    restored = get_original(model, decomposition)
    rows = {name: floor for name, floor in find_row_floors(restored, histograms).items() if name in histograms}
    steps = _steps_of_inputs(model, histograms)
    observe(
        model, data, {**histograms, **steps}, progress=progress, computed_by=computed_by, decomposition=decomposition, rows=rows
    )
    return ObservedRanges(histograms, steps, find_masked_tensors(restored), rows)


def observe(
    model: onnx.ModelProto,
    data: Iterable[Sample],
    sinks: Mapping[str, Sink],
    *,
    progress: Progress | None = None,
    session_threads: int = 1,
    held_bytes: int = HELD_BYTES,
    computed_by: FloatModel | None = None,
    few_runs: bool = False,
    decomposition: Decomposition | None = None,
    rows: Mapping[str, RowFloor] = NO_ROWS,
) -> None:
    """Run the model over the samples and pass each tensor's values to its sink, sample by sample.

    `sinks`: by tensor. A sink that stands for several tensors gets the values of all of them at once, as one flat array. Others
    get an array in the tensor's shape. Bools and integers come as float32, minus infinity of a mask as the lowest float32.
    `rows`: by tensor, a further sink that needs its values in its own shape.
    `few_runs`: as in `quant.float_session.open_session`.

    All other arguments and errors are those of `calibrate`; integer tensors are not refused.
    """
    sizes = tensor_bytes(model)
    inputs = {i.name for i in model.graph.input} - {i.name for i in model.graph.initializer}
    _check_names(list(sinks), sizes, inputs)
    session = _session(model, list(sinks), sizes, session_threads, held_bytes, computed_by, few_runs)
    masks, made_up = find_masked_tensors(get_original(model, decomposition)), bool(getattr(data, "random", False))
    total = get_sample_count(data)
    of_several = {sink for sink, count in Counter(map(id, sinks.values())).items() if count > 1}
    done = 0
    for done, sample in enumerate(data, 1):
        where, together = _Sample(done - 1, made_up), dict[int, tuple[Sink, list[np.ndarray]]]()
        for name, value in _values(session, sample, where):
            sink, values = sinks[name], _finite(cut(name, value, decomposition), name, where, model, masks)
            if name in rows:
                rows[name].update(values)
            if id(sink) in of_several:
                together.setdefault(id(sink), (sink, []))[1].append(values.ravel())
            else:
                sink.update(values)
        for sink, parts in together.values():
            sink.update(np.concatenate(parts))
        if progress:
            progress(done, total)
    if done == 0:
        raise CompileError("calibration data: holds 0 samples; calibration needs at least 1")


@dataclass(frozen=True)
class _Sample:
    """A description of the sample at which a fault occurred.

    `made_up`: the sample holds random numbers, which need not lie where the model is defined.
    """

    index: int
    made_up: bool

    def fault(self, reason: str, way_out: str) -> CompileError:
        """Return an error of this sample; for random numbers the way out is real data instead of `way_out`."""
        return CompileError(self._sentence(reason, way_out))

    def not_finite(self, tensor: str, producer_note: str, kind: str, wrong: np.ndarray, by_constant: bool) -> CompileError:
        """Return a NotFinite, or a plain CompileError where the sample is made up.

        `producer_note`: the producer of the tensor for the message, or empty.
        `kind`: NaN or infinity.
        `by_constant`: the producer has a constant operand that is not finite itself, so no sample is to blame.
        `wrong`: bool[...], the elements that are not finite.
        """
        reason = f"tensor {tensor!r}{producer_note} holds {kind}"
        if by_constant:
            sentence = f"calibration: {reason}, for a constant operand is not finite; mend the model"
        else:
            sentence = self._sentence(reason, "no range covers it, mend the model or remove the sample")
        return CompileError(sentence) if self.made_up else NotFinite(sentence, tensor, kind, wrong)

    def _sentence(self, reason: str, way_out: str) -> str:
        """Return the message: the sample's index, the reason and the way out."""
        if self.made_up:
            way_out = "random inputs need not lie where the model is defined: give --calib DATA of the kind it was trained on"
        return f"calibration: sample {self.index}: {reason}; {way_out}"


def _observer_factory(observer: str, numerics: Numerics | None, percent: float) -> Callable[[Numerics | None], Observer]:
    """Return a function that makes the observer of a tensor; its argument is the tensor's own numerics, or None.

    Raise CompileError for an unknown observer, a bad `percent`, or 'mse' without `numerics`.
    """
    if observer == "minmax":
        return lambda _: MinMax()
    if observer == "percentile":
        Percentile(percent)  # refuses a bad figure before the first run
        return lambda _: Percentile(percent)
    if observer == "mse":
        if numerics is None:
            raise CompileError("observer 'mse': searches what a machine can express, and no machine was named; give --hw")
        return lambda others: LeastError(others or numerics)
    raise CompileError(f"observer {observer!r}: no such observer; known: {', '.join(OBSERVERS)}{suggestion(observer, OBSERVERS)}")


def _require_floats(model: onnx.ModelProto, tensors: Sequence[str]) -> None:
    """Raise CompileError for a tensor that the model declares as an integer."""
    graph = model.graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    for name in (n for n in tensors if n in kinds):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kinds[name])
        if dtype.kind in "iu":
            raise CompileError(f"tensor {name!r}: is {dtype.name}; only float tensors are calibrated")


def _check_names(tensors: Sequence[str], sizes: Mapping[str, int], inputs: set[str]) -> None:
    """Raise CompileError for the first tensor that is neither an input of the model nor made by it."""
    unknown = [name for name in tensors if name not in sizes and name not in inputs]
    if unknown:
        raise CompileError(f"tensor {unknown[0]!r}: not in the model, so it cannot be calibrated{suggestion(unknown[0], sizes)}")


def _session(
    model: onnx.ModelProto,
    names: Sequence[str],
    sizes: Mapping[str, int],
    threads: int,
    held_bytes: int,
    computed_by: FloatModel | None,
    few_runs: bool,
) -> FloatSession:
    """Return a session that gives the named tensors, in pieces where they take more than `held_bytes`.

    Pieces are of `model` itself, so that `computed_by` is not used then. Raise CompileError where onnxruntime does not load it.
    """
    lean = sum(sizes.get(name, 0) for name in names) > held_bytes
    source = PiecewiseModel(model, held_bytes // 4) if lean else computed_by or PlainModel(model)
    try:
        return FloatSession(source, names, threads=threads, few_runs=few_runs, lean=lean)
    except InferenceError as fault:
        raise CompileError(f"calibration: onnxruntime does not load the model: {fault.reason}") from None


def _values(session: FloatSession, sample: Sample, where: _Sample) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (tensor, value) as the session computes them. Raise CompileError where onnxruntime cannot run the sample."""
    stream = session.stream(sample)
    while True:
        try:
            tensor_value = next(stream, None)
        except InferenceError as fault:
            raise _make_refusal(session, sample, where, fault.reason) from None
        if tensor_value is None:
            return
        yield tensor_value
        del tensor_value


def _make_refusal(session: FloatSession, sample: Sample, where: _Sample, reason: str) -> CompileError:
    """Return the error of a run that failed. It blames the sample where the model runs on zeros or ones, and else the model."""
    for number in (0, 1):
        try:
            session.run({name: np.full_like(value, number) for name, value in sample.items()})
        except InferenceError:
            continue
        way_out = "mend the sample, or give data of the kind that the model was trained on"
        return where.fault(f"onnxruntime cannot run the model on it: {reason}", way_out)
    return CompileError(f"calibration: onnxruntime cannot run the model, whatever it is given: {reason}; mend the model")


def _finite(x: np.ndarray, name: str, where: _Sample, model: onnx.ModelProto, masks: Container[str]) -> np.ndarray:
    """Return `x` with the lowest float32 for a mask's minus infinity; bools and integers become float32.

    Raise CompileError or NotFinite: NaN, or another infinity.
    `masks`: tensors that may hold minus infinity.
    """
    if x.dtype.kind != "f":
        return x.astype(np.float32)
    if not x.size or (np.isfinite(x.min()) and np.isfinite(x.max())):  # both are NaN where one element is
        return x
    if name in masks and x.max() < np.inf:  # no comparison holds for NaN
        return np.maximum(x, LOWEST, dtype=x.dtype)
    kind = "NaN" if np.isnan(x).any() else "infinity"
    node = next((node for node in model.graph.node if name in node.output), None)
    producer_note = f", the output of {node.name or 'a node'} ({node.op_type})," if node else ""
    by_constant = node is not None and _has_infinite_operand(node, model, name in masks)
    raise where.not_finite(name, producer_note, kind, ~np.isfinite(x), by_constant)


def _has_infinite_operand(node: onnx.NodeProto, model: onnx.ModelProto, is_mask: bool) -> bool:
    """Return whether a constant operand of the node holds NaN or infinity. Constants outside the model are not read.

    `is_mask`: the node may add a mask, so minus infinity is no fault.
    """
    for tensor in model.graph.initializer:
        if tensor.name in node.input and tensor.data_location != onnx.TensorProto.EXTERNAL:
            value = onnx.numpy_helper.to_array(tensor)
            if value.dtype.kind == "f" and not (np.isfinite(value) | (is_mask & np.isneginf(value))).all():
                return True
    return False


def list_calibrated_tensors(model: onnx.ModelProto, types: Mapping[str, TensorType]) -> list[str]:
    """Return the float32 tensors that have no constant value: inputs first, then what nodes make, in graph order.

    `types`: by tensor; one without a type is left out.
    """
    constants = {i.name for i in model.graph.initializer}
    node_outputs = [o for node in model.graph.node if node.op_type != "Constant" for o in node.output]
    names = [i.name for i in model.graph.input if i.name not in constants] + node_outputs
    return [n for n in dict.fromkeys(names) if n in types and types[n].dtype == "float32"]


def tensor_sources(model: onnx.ModelProto) -> dict[str, str]:
    """Return by tensor `node (Operator)`, or `input`, for the comments of a parameters file."""
    inputs = {i.name: "input" for i in model.graph.input}
    return inputs | {o: f"{n.name or o} ({n.op_type})" for n in model.graph.node for o in n.output if o}
