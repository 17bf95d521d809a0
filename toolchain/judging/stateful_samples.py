"""Open calibration data of a model with states, also data that hold nothing of the states.

Such samples are taken as one sequence. The float model runs over them in order, and each begins with the states that the run
before left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from quant.calibration_data import Samples, Types, open_data
from quant.fit_sample import MissingArray, Sample
from quant.float_session import FloatSession
from quant.memory_data import MemoryData
from toolchain.errors import CompileError
from toolchain.foundation.inference import InferenceError
from toolchain.frontend import ModelData, NormalModel
from toolchain.ir.states import StatePair


def open_samples(
    spec: str | MemoryData, model: NormalModel, inputs: Types, limit: int | None = None, loose: Collection[str] = ()
) -> tuple[Samples, tuple[str, ...]]:
    """Open data that hold the states like other inputs, or none of them, and return samples and notes.

    Where data lack a state, all states are zero at first and go from sample to sample. What the data hold of other states is
    not read. A note says both.

    `inputs`: types of all inputs of the model.
    `limit`: the first so many samples at most; None: all.
    `loose`: inputs that may hold NaN and infinity.
    Raise CompileError, here or when samples are read, for data that cannot be read or do not fit. It says where a missing input
    may be a state.
    """
    pasts = [pair.past for pair in model.states]
    try:
        samples = open_data(spec, inputs, limit=limit, loose=loose)
        if pasts:
            next(iter(samples))
    except MissingArray as fault:
        missing = [name for name in pasts if name in fault.inputs]
        if not missing:
            raise _explain_missing(fault, model) from None
    else:
        return _explain_samples(samples, model), samples.notes
    others = {name: kind for name, kind in inputs.items() if name not in pasts}
    try:
        rest = open_data(spec, others, limit=limit, loose=loose)
    except MissingArray as fault:
        raise _explain_missing(fault, model) from None
    note = f"{spec} has no {', '.join(missing)}: the samples are taken as one sequence, in order, with states of the float model"
    unread = [name for name in pasts if name not in missing]
    note += " from zeros on" + (f"; what it holds of {', '.join(unread)} is not read" if unread else "")
    return run_states_in_float(_explain_samples(rest, model), model, inputs), (*rest.notes, note)


def model_data(
    spec: str | MemoryData | None, limit: int | None = None, judge: str | MemoryData | None = None
) -> ModelData | None:
    """Return the data for `load_model`, which opens them for the inputs that they hold; None where `spec` is None.

    `limit`: the first so many samples at most. `judge`: more data, without a limit.
    """
    if spec is None:
        return None
    return ModelData(
        str(spec),
        partial(_open_available, spec, limit),
        None if judge is None else (str(judge), partial(_open_available, judge, None)),
    )


def _open_available(spec: str | MemoryData, limit: int | None, types: Types) -> Iterator[Sample]:
    """Return the samples of all inputs that the data hold, nothing where they hold none. Raise CompileError as `open_data`
    does."""
    try:
        samples = open_data(spec, types, limit=limit)
        next(iter(samples))
    except MissingArray as fault:
        available_types = {n: t for n, t in types.items() if n not in fault.inputs}
        if not available_types:
            return iter(())
        samples = open_data(spec, available_types, limit=limit)
    return iter(samples)


def _explain_missing(fault: MissingArray, model: NormalModel) -> CompileError:
    """Return the fault, with the options `--state` that would explain inputs without data as outputs of the run before."""
    state_names = {name for pair in model.states for name in pair}
    pairs = [(x, y) for x in fault.inputs for y in model.graph.outputs if model.types[x] == model.types[y]]
    likely = [f"--state {x}={y}" for x, y in pairs if state_names.isdisjoint((x, y))]
    if not likely:
        return fault
    return CompileError(f"{fault}\n  help: what is an output of the run before needs no data: {' or '.join(likely[:3])}")


def _explain_samples(samples: Samples, model: NormalModel) -> Samples:
    """Return the samples; a missing input that shows only when they are read is explained as `_explain_missing` does."""

    def start() -> Iterator[Sample]:
        try:
            yield from samples
        except MissingArray as fault:
            raise _explain_missing(fault, model) from None

    return replace(samples, start=start)


def run_states_in_float(samples: Samples, model: NormalModel, inputs: Types) -> Samples:
    """Return the samples with the states that a sequence of them has in float, zeros at first. The model runs as they are
    iterated.

    Iterating raises CompileError where onnxruntime cannot run the model on a sample.
    """

    def start() -> Iterator[Sample]:
        session = FloatSession(model, [pair.present for pair in model.states])
        state = {pair.past: np.zeros(inputs[pair.past].shape, np.float32) for pair in model.states}
        for index, sample in enumerate(samples):
            values = {**sample, **state}
            yield {name: values[name] for name in inputs}
            state = _next(session, values, model.states, f"{samples.source}: sample {index}")

    return Samples(samples.source, samples.count, start, samples.random)


def _next(session: FloatSession, values: Sample, states: Sequence[StatePair], where: str) -> Sample:
    """Run the model once and return the states for the next sample. Raise CompileError, beginning with `where`, if it cannot
    run."""
    try:
        outputs = session.run(values)
    except InferenceError as fault:
        raise CompileError(f"{where}: onnxruntime cannot run the model on it: {fault.reason}") from None
    return {pair.past: np.asarray(value, np.float32) for pair, value in zip(states, outputs)}
