#!/usr/bin/env python3
"""Builds the decoder of make_decoder.py for a machine and lets it write, letter by letter; its caches stay on the chip.

    python examples/decoder/generate.py [--hw transformer64] [--form standard] [--letters 40] [--backend simulator]

form: standard ONNX, or as onnxruntime-genai writes it (make_genai.py). What float writes from the same letters is shown beside
it: how near the logits are, over all steps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import make_decoder
import make_genai
import numpy as np
import onnx
import onnxruntime

from toolchain.api import Build, BuildOptions, build
from toolchain.errors import CompileError, ConfigError
from toolchain.runtime import Session


@dataclass(frozen=True)
class Form:
    """Of the decoder's file. feeds: of these tokens behind so many others; shapes: of inputs, for so many tokens at once;
    bits: of weights, None: they are float."""

    model: Callable[[], onnx.ModelProto]
    feeds: Callable[[Sequence[int], int], dict[str, np.ndarray]]
    shapes: Callable[[int], dict[str, tuple[int, ...]]]
    bits: int | None = None


def feeds(tokens: Sequence[int], before: int) -> dict[str, np.ndarray]:
    return {"token": np.array([tokens]), "step": np.array([before])}


def genai_feeds(tokens: Sequence[int], before: int) -> dict[str, np.ndarray]:
    seen = np.arange(make_decoder.PLACES) < before + len(tokens)
    return {"input_ids": np.array([tokens]), "attention_mask": seen[None].astype(np.int64)}


def genai_shapes(count: int) -> dict[str, tuple[int, ...]]:
    places = make_decoder.PLACES
    cache = (1, make_decoder.GROUPS, places, make_decoder.DEPTH)
    return {"input_ids": (1, count), "attention_mask": (1, places), "past_key_values.0.key": cache}


FORMS = {
    "standard": Form(lambda: make_decoder.decoder(None, True), feeds, lambda count: {"token": (1, count)}),
    "genai": Form(make_genai.genai, genai_feeds, genai_shapes, make_genai.BITS),
}


class Float:
    """The model in onnxruntime, which is handed its caches at every step. bits: of its weights, None: float."""

    def __init__(self, bits: int | None = None) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of every cache that it copies
        self._session = onnxruntime.InferenceSession(make_decoder.decoder(None, True, bits).SerializeToString(), options)
        self._caches = {i.name: np.zeros(i.shape, np.float32) for i in self._session.get_inputs() if i.name.startswith("past")}

    def run(self, token: int, step: int) -> np.ndarray:
        logits, *caches = self._session.run(None, {**feeds([token], step), **self._caches})
        self._caches = dict(zip(self._caches, map(np.asarray, caches)))
        return np.asarray(logits)[0, 0]


def drawn(logits: np.ndarray, rng: np.random.Generator) -> int:
    chances = np.exp(logits - logits.max())
    return int(rng.choice(len(chances), p=chances / chances.sum()))


def letters(count: int, seed: int) -> Iterator[int]:
    """What the model writes in float, from a space on."""
    rng, model, token = np.random.default_rng(seed), Float(), 0
    for step in range(count):
        yield token
        token = drawn(model.run(token, step), rng)


def built_for(machine: str, folder: Path, form: Form = FORMS["standard"]) -> Build:
    """Calibrated on a text of its own, which holds no caches."""
    onnx.save(form.model(), folder / "step.onnx")
    steps = [form.feeds([token], step) for step, token in enumerate(letters(make_decoder.SEQUENCE, 2))]
    data: Mapping[str, np.ndarray] = {name: np.stack([feed[name] for feed in steps]) for name in steps[0]}
    np.savez(folder / "calib.npz", allow_pickle=False, **data)
    return build(folder / "step.onnx", BuildOptions(machine, str(folder / "calib.npz"), shapes=form.shapes(1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hw", default="transformer64")
    parser.add_argument("--form", default="standard", choices=FORMS)
    parser.add_argument("--letters", type=int, default=40)
    parser.add_argument("--backend", default="simulator")
    given = parser.parse_args()
    if not 1 <= given.letters <= make_decoder.PLACES:
        parser.error(f"--letters {given.letters}: must be 1 to {make_decoder.PLACES}, the steps that the caches hold")
    with tempfile.TemporaryDirectory() as folder:
        built = built_for(given.hw, Path(folder), FORMS[given.form])
    kept = [state.port.size_bytes for _, state in built.container.states]
    print(f"{given.hw}: {built.figures['cycles']:,} cycles a letter, {len(kept)} caches of {sum(kept):,} bytes together")
    session, model, rng, token = (
        Session(built.data, backend=given.backend),
        Float(FORMS[given.form].bits),
        np.random.default_rng(1),
        0,
    )
    signal, noise, text = 0.0, 0.0, ""
    for step in range(given.letters):
        (logits,) = session.run(None, FORMS[given.form].feeds([token], step))
        real = model.run(token, step)
        signal, noise = signal + float((real**2).sum()), noise + float(((real - logits[0, 0]) ** 2).sum())
        token = drawn(logits[0, 0], rng)
        text += make_decoder.WORDS[token]
    print(repr(text))
    print(f"logits against float's from the same letters: {10 * np.log10(signal / noise):.1f} dB over {given.letters} steps")


if __name__ == "__main__":
    try:
        main()
    except (CompileError, ConfigError) as fault:
        print(f"ERROR: {fault}", file=sys.stderr)
        sys.exit(2)
