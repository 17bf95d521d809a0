"""Samples that say nothing of a model's states: the float model runs over them in order, from where the run before ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from quant.data import Samples, Types, open_data
from quant.float_session import FloatSession
from quant.sample import Sample
from toolchain.errors import CompileError, first_line
from toolchain.frontend import NormalModel
from toolchain.ir.states import StatePair


def open_samples(spec: str, model: NormalModel, inputs: Types, limit: int | None = None) -> tuple[Samples, tuple[str, ...]]:
    """Data that hold the states as they hold other inputs, or none of them: then those are zero at first, and go from sample to
    sample. And a note of that. Raises CompileError as `open_data`."""
    pasts = [pair.past for pair in model.states]
    others = {name: kind for name, kind in inputs.items() if name not in pasts}
    if not pasts:
        return open_data(spec, inputs, limit=limit), ()
    try:
        whole = open_data(spec, inputs, limit=limit)
        next(iter(whole))
    except CompileError as fault:
        if not any(f"input {past!r}" in str(fault) for past in pasts):
            raise
        rest = open_data(spec, others, limit=limit)
        named = ", ".join(pasts)
        how = "the samples are taken as one sequence, in order, with states of the float model from zeros on"
        note = f"{spec} has no {named}: {how}"
        return stepped(rest, model, inputs), (note,)
    return whole, ()


def stepped(samples: Samples, model: NormalModel, inputs: Types) -> Samples:
    """With the states that a sequence of these samples has in float."""

    def start() -> Iterator[Sample]:
        session = FloatSession(model, [pair.present for pair in model.states])
        state = {pair.past: np.zeros(inputs[pair.past].shape, np.float32) for pair in model.states}
        for index, sample in enumerate(samples):
            whole = {**sample, **state}
            yield {name: whole[name] for name in inputs}
            state = _next(session, whole, model.states, f"{samples.source}: sample {index}")

    return Samples(samples.source, samples.count, start, samples.random)


def _next(session: FloatSession, whole: Sample, states: Sequence[StatePair], where: str) -> Sample:
    try:
        made = session.run(whole)
    except Exception as fault:  # onnxruntime's errors share no base class
        raise CompileError(f"{where}: onnxruntime cannot run the model on it: {first_line(fault)}") from None
    return {pair.past: np.asarray(value, np.float32) for pair, value in zip(states, made)}
