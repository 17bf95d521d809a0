"""Check that the canonical form computes what the user's file computes, both in float under onnxruntime.

A build calls `check_frontend` behind the frontend, on a few samples. A difference that rounding does not explain is a fault of
the frontend. Such rounding is measured: the file runs again with its inputs and intermediate results slightly moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

import numpy as np

from quant.float_session import FloatSession, trust_optimizer
from toolchain.errors import InternalError
from toolchain.foundation.inference import InferenceError
from toolchain.frontend import NormalModel
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.report.qdq_piece_check import fed_outputs, list_rounding_points, piece_errors

Sample = Mapping[str, np.ndarray]
TOLERANCE = 1e-4  # of a tensor's largest magnitude; sums in another order stay far below
ROUNDING = 1e-6  # relative change of each number that stands for float's own rounding...
NEIGHBOURS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # relative distance, where coarser than float32's
AMPLIFIED = 10.0  # ...and how many times its effect two spellings of one network may differ
DRAWS = 3
SQUARED = 2.0**56  # magnitudes up to this, and from one over it on, have squares whose sums float32 holds
HELD_ELEMENTS = 32 << 20  # of tensors that are compared at once
_MOST_QUOTED = 200  # source: characters of a warning, of which the rest says what follows


@dataclass(frozen=True)
class _Alone:
    """Either the file or its canonical form, as the float network of one submodel that FloatSession runs.

    `part`: makes the submodel that computes the named tensors.
    """

    inputs: Sequence[str]
    part: Callable[[Sequence[str]], FloatSubmodel]

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        """Yield the one submodel that computes the named tensors."""
        yield self.part(names)


def _file(model: NormalModel) -> _Alone:
    """Return the user's file as a float network; the model must still have it (`source`)."""
    assert model.source is not None
    return _Alone(model.inputs, model.source.part)


def _normal(model: NormalModel) -> _Alone:
    """Return the canonical form as a float network."""
    return _Alone(model.inputs, lambda names: model.normal_part(model.inputs, names))


def check_frontend(model: NormalModel, samples: Iterable[Sample]) -> tuple[NormalModel, tuple[str, ...]]:
    """Check the canonical form against the file on these samples and return the model with notes for the user.

    A model without its file (`source` None) is returned unchecked. Where onnxruntime does not run the file, the model is
    returned with `source` None, and a note says so. Other notes name outputs that are NaN in the file alone, and outputs that
    differ only on inputs whose squares float32 does not hold.

    Raise InternalError where an output of the file and of the canonical form differ by more than float's rounding.
    """
    if model.source is None:
        return model, ()
    names = [n for n in model.graph.outputs if n in model.source.types]
    try:
        file = FloatSession(_file(model), names, few_runs=True)
        expected = [(sample, file.run(sample)) for sample in samples]
        for sample, values in expected[:1]:
            _compare_optimized(model, dict(zip(names, values)), sample)
    except InferenceError as fault:
        reason = shorten(fault.reason, _MOST_QUOTED, placeholder=" ...")
        return replace(model, source=None), (
            f"onnxruntime does not run the file as it is ({reason}); calibrated and judged on its normal form, "
            "so that a fault in reading the file would not show",
        )
    del file
    normal = FloatSession(_normal(model), names, few_runs=True)
    undefined: Counter[str] = Counter()
    beyond = dict[str, str]()
    for sample, values in expected:
        for name, value, normal_value in zip(names, values, normal.run(sample)):
            compared, lost = _comparable(model, name, value, normal_value)
            if lost:
                undefined[name] += lost
            if _agree(model, name, sample, value, compared):
                continue
            outside = _outside_squares(sample)
            if not outside or not _agree_inside(model, name, sample, outside):
                raise InternalError(_difference(model, name, sample, distance(value, compared)))
            beyond.setdefault(name, outside[0])
    return model, (*_make_nan_notes(undefined), *_beyond_notes(beyond))


def _compare_optimized(model: NormalModel, values: Mapping[str, Any], sample: Sample) -> None:
    """Run the file with onnxruntime's optimizer too, on the first sample. A change of its outputs becomes a note of the build.

    Where nothing changes, later sessions of the build do not compare again. `values`: its outputs without the optimizer, by name.
    """
    trust_optimizer(False)
    session = FloatSession(_file(model), [*values], plain_values=values)
    session.run(sample)
    trust_optimizer(session.is_optimized)


def _comparable(model: NormalModel, name: str, value: np.ndarray, normal_value: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the value of the canonical form to compare with the file's, and in how many places the file alone has NaN.
    In these places, and where the file clears a cache, the returned value is the file's.
    """
    assert model.source is not None
    compared_value = (
        np.where(value == 0, value, normal_value)
        if name in model.source.cleared and _has_same_type(value, normal_value)
        else normal_value
    )
    lost = _find_nan_places(value, compared_value)
    return (compared_value, 0) if lost is None else (np.where(lost, value, compared_value), int(lost.sum()))


def _agree(model: NormalModel, name: str, sample: Sample, value: np.ndarray, normal_value: np.ndarray) -> bool:
    """Return whether an output is equal but for rounding, as a whole or between the tensors that a quantized file rounds."""
    if distance(value, normal_value) <= TOLERANCE or (
        _has_same_type(value, normal_value) and _piece_by_piece(model, name, sample)
    ):
        return True
    return same_but_for_rounding(model, name, sample, value, normal_value)


def _outside_squares(sample: Sample) -> list[str]:
    """Return the float inputs whose largest magnitude has a square that float32 does not hold.
    Operators that square inside, as norms do, then give what their decomposition makes of infinity or zero.
    """
    outside: list[str] = []
    for name, x in sample.items():
        largest = float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) if x.dtype.kind == "f" else 0.0
        if largest and not 1 / SQUARED <= largest <= SQUARED:
            outside.append(name)
    return outside


def _agree_inside(model: NormalModel, name: str, sample: Sample, outside: Sequence[str]) -> bool:
    """Return whether an output is equal in both where the inputs `outside` are scaled to a largest magnitude between 1 and 2."""

    def scaled(x: np.ndarray) -> np.ndarray:
        _, exponent = np.frexp(np.abs(x[np.isfinite(x)]).max())
        return np.ldexp(x, 1 - exponent).astype(x.dtype)

    inside = {n: scaled(x) if n in outside else x for n, x in sample.items()}
    value, normal_value = (FloatSession(side(model), [name], few_runs=True).run(inside)[0] for side in (_file, _normal))
    return _agree(model, name, inside, value, _comparable(model, name, value, normal_value)[0])


def _beyond_notes(beyond: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note for each output that differs only on inputs out of scale.

    `beyond`: the first input of `_outside_squares`, by output name.
    """
    return tuple(
        f"input {read!r} of the data is so large or so small that float32 does not hold its squares: output {name!r} of "
        "the file and of its normal form differ on it, and agree where it is scaled; mind its scale (of images: mean and std)"
        for name, read in beyond.items()
    )


def _make_nan_notes(undefined: Mapping[str, int]) -> tuple[str, ...]:
    """Return a note for each output that is NaN in the file alone.

    `undefined`: number of places where the file alone has NaN, by output name.
    """
    return tuple(
        f"output {name!r} of the file is no number (NaN) in {count} of the places that were looked at, where its normal form has "
        "numbers; so has the chip, which are held to nothing"
        for name, count in undefined.items()
    )


def same_but_for_rounding(model: NormalModel, name: str, sample: Sample, value: np.ndarray, normal_value: np.ndarray) -> bool:
    """Return whether an output of the file and of the canonical form differ by no more than rounding.

    The limit is TOLERANCE, or AMPLIFIED times the effect of float's own rounding within the file, measured by runs of it.

    `sample`: inputs of both.
    `value`: output of the file.
    `normal_value`: output of the canonical form.
    """
    error = distance(value, normal_value)
    return error <= TOLERANCE or (
        _has_same_type(value, normal_value) and error <= AMPLIFIED * _rounding(model, name, sample, value)
    )


def _piece_by_piece(model: NormalModel, output: str, sample: Sample) -> bool:
    """Return whether both are equal where a quantized file's own codes feed each piece between the tensors that it rounds.

    Return False for a file that rounds nothing. Raise InternalError with the node where a rounded tensor differs.
    """
    if not list_rounding_points(model):
        return False

    def on_file(names: Sequence[str]) -> Sequence[np.ndarray]:
        return FloatSession(_file(model), names, few_runs=True).run(sample)

    types = (*model.types.values(), *(model.source.types.values() if model.source is not None else ()))
    most = max(TOLERANCE, *(2 * NEIGHBOURS.get(t.dtype, 0.0) for t in types))
    for tensor, error in piece_errors(model, sample, on_file):
        if error > most:
            node = model.graph.producers()[tensor]
            raise InternalError(
                f"the frontend changed the model: tensor {tensor!r}, made of the file's own codes, is {error:.2g} of its largest "
                f"magnitude from what the file rounds: node {node.name} ({node.op.op_type}), made of {', '.join(node.sources)}"
            )
    return all(distance(value, normal_value) <= most for _, value, normal_value in fed_outputs(model, sample, [output], on_file))


def distance(reference: np.ndarray, got: np.ndarray) -> float:
    """Return the largest error as a share of the reference's largest finite magnitude; of integers, the share of elements that
    differ.

    Return 0 for equal arrays. Return infinity where shapes or types differ, or NaN and infinity stand in different places.
    """
    if not _has_same_type(reference, got):
        return np.inf
    if reference.dtype.kind != "f":
        differs: np.ndarray = reference != got
        return float(np.mean(differs)) if reference.size else 0.0
    finite = np.isfinite(reference)
    if not np.array_equal(reference[~finite], got[~finite], equal_nan=True):
        return np.inf
    largest = float(np.abs(reference[finite]).max(initial=0.0))
    error = float(np.abs(got[finite] - reference[finite]).max(initial=0.0))
    return 0.0 if error == 0 else np.inf if largest == 0 or not np.isfinite(error) else error / largest


def _find_nan_places(reference: np.ndarray, got: np.ndarray) -> np.ndarray | None:
    """Return bool[...], True where the reference alone is NaN; None where it is nowhere, or shapes or types differ."""
    if not _has_same_type(reference, got) or reference.dtype.kind != "f":
        return None
    lost = np.isnan(reference) & ~np.isnan(got)
    return lost if lost.any() else None


def _has_same_type(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _rounding(model: NormalModel, name: str, sample: Sample, value: np.ndarray) -> float:
    """Return the distance that an output of the file moves by in DRAWS runs with inputs and intermediate results rounded at
    random.

    Inputs move by the step of the coarsest float type in the model. Intermediate results move by the step of their type, or by
    the error of steps that only approximate their operator where that is larger.
    """
    assert model.source is not None

    def least(dtype: str) -> float:
        return max(_step(dtype), model.steps_error)

    rounded, step = (
        model.source.make_noisy_model([name], least),
        max(_step(t.dtype) for t in (*model.types.values(), *model.source.types.values())),
    )
    session, rng = FloatSession(_Alone(model.inputs, lambda _: rounded.part), [name], few_runs=True), np.random.default_rng(0)

    def draw() -> np.ndarray:
        noise = rng.standard_normal(rounded.numbers, np.float32)
        return session.run({**_round_sample(sample, step, rng), rounded.noise: noise})[0]

    return max(distance(value, draw()) for _ in range(DRAWS))


def _step(dtype: str) -> float:
    """Return the relative distance of neighbouring numbers of a float type, at least ROUNDING."""
    return max(ROUNDING, NEIGHBOURS.get(dtype, 0.0))


def _round_sample(sample: Sample, step: float, rng: np.random.Generator) -> dict[str, Any]:
    """Return the sample with its float inputs moved at random by about this relative step."""

    def moved(x: np.ndarray) -> np.ndarray:
        return np.asarray(x * (1 + step * rng.standard_normal(x.shape)), x.dtype) if x.dtype.kind == "f" else x

    return {n: moved(x) for n, x in sample.items()}


def _difference(model: NormalModel, output: str, sample: Sample, error: float) -> str:
    """Return the message of the fault, with the first tensor of the canonical form that differs and its nodes."""
    message = f"the frontend changed the model: output {output!r} of the file and of its normal form differ {_amount(error)}"
    first = _first(model, sample)
    if first is None:
        return message
    tensor, tensor_error = first
    node = model.graph.producers()[tensor]
    return (
        f"{message}; the first tensor that differs is {tensor!r}, {_amount(tensor_error)}: node {node.name} ({node.op.op_type}), "
        f"made of {', '.join(node.sources)}"
    )


def _amount(error: float) -> str:
    return f"by {error:.2g} of its largest magnitude" if np.isfinite(error) else "in shape, type, or where it is infinite"


def _first(model: NormalModel, sample: Sample) -> tuple[str, float] | None:
    """Return the first tensor, in the order of the canonical form, that differs from the file's of that name, and the distance.

    Return None where there is none.
    """
    assert model.source is not None
    file_types, types = model.source.types, model.types
    names = [n for node in model.graph.nodes for n in node.outputs if n in file_types and file_types[n] == types[n]]
    for group in _groups(names, {n: types[n].elements for n in names}):
        values = FloatSession(_file(model), group).run(sample)
        for name, value, normal_value in zip(group, values, FloatSession(_normal(model), group).run(sample)):
            error = distance(value, normal_value)
            if error > TOLERANCE:
                return name, error
    return None


def _groups(names: Sequence[str], elements: Mapping[str, int]) -> list[list[str]]:
    """Return the names in order, cut into groups of at most HELD_ELEMENTS elements (a larger tensor is a group alone)."""
    groups: list[list[str]] = [[]]
    group_elements = 0
    for name in names:
        if groups[-1] and group_elements + elements[name] > HELD_ELEMENTS:
            groups.append([])
            group_elements = 0
        groups[-1].append(name)
        group_elements += elements[name]
    return groups
