#!/usr/bin/env python3
"""Build the decoder of make_decoder.py for a machine and let it read a prompt and write, letter by letter.

    `python examples/decoder/generate.py [--hw transformer64] [--form standard] [--prompt TEXT] [--letters 40]`.

Its caches stay on the chip, and programs for a chunk of the prompt and for one letter share them.
`form`: standard ONNX, or as onnxruntime-genai writes it (make_genai.py).
The text that float writes from the same letters is shown beside it, and how near the logits are over all steps.
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

from toolchain.api import Build, BuildOptions, CompileError, ConfigError, EntriesSession, build

CHUNK = 16  # tokens of the prompt that are read at once


@dataclass(frozen=True)
class Form:
    """A form of the decoder's file.

    `feeds`: of these tokens after so many others.
    `shapes`: of inputs, for so many tokens at once.
    `bits`: of weights, None: they are float.
    """

    model: Callable[[], onnx.ModelProto]
    feeds: Callable[[Sequence[int], int], dict[str, np.ndarray]]
    shapes: Callable[[int], dict[str, tuple[int, ...]]]
    bits: int | None = None


def feeds(tokens: Sequence[int], before: int) -> dict[str, np.ndarray]:
    return {"token": np.array([tokens]), "step": np.array([before])}


def genai_feeds(tokens: Sequence[int], before: int) -> dict[str, np.ndarray]:
    mask = np.arange(make_decoder.PLACES) < before + len(tokens)
    return {"input_ids": np.array([tokens]), "attention_mask": mask[None].astype(np.int64)}


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
    """Yield the letters that the model writes in float, beginning with a space."""
    rng, model, token = np.random.default_rng(seed), Float(), 0
    for step in range(count):
        yield token
        token = drawn(model.run(token, step), rng)


def built_for(machine: str, folder: Path, form: Form = FORMS["standard"]) -> Build:
    """Build the model for one token and for a chunk, calibrated on a separate text, which holds no caches."""
    onnx.save(form.model(), folder / "step.onnx")
    steps = [form.feeds([token], step) for step, token in enumerate(letters(make_decoder.SEQUENCE, 2))]
    data: Mapping[str, np.ndarray] = {name: np.stack([feed[name] for feed in steps]) for name in steps[0]}
    np.savez(folder / "calib.npz", allow_pickle=False, **data)
    entries = {"decode": form.shapes(1), "prefill": form.shapes(CHUNK)}
    return build(folder / "step.onnx", BuildOptions(machine, str(folder / "calib.npz"), entries=entries))


def runs_of(count: int) -> Iterator[tuple[int, int]]:
    """The first and the last of the tokens of each run: chunks, then one by one."""
    first = 0
    while first < count:
        last = first + (CHUNK if first + CHUNK <= count else 1)
        yield first, last
        first = last


def written(session: EntriesSession, form: Form, prompt: Sequence[int], letters: int) -> tuple[list[int], np.ndarray]:
    """The prompt and so many letters more, and the logits behind each of them."""
    tokens, rng = list(prompt), np.random.default_rng(1)
    logits = [row for a, b in runs_of(len(tokens)) for row in session.run(None, form.feeds(tokens[a:b], a))[0][0]]
    for _ in range(letters):
        tokens.append(drawn(logits[-1], rng))
        logits.extend(session.run(None, form.feeds(tokens[-1:], len(tokens) - 1))[0][0])
    return tokens, np.stack(logits)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hw", default="transformer64")
    parser.add_argument("--form", default="standard", choices=FORMS)
    parser.add_argument("--prompt", default="the rain in spain stays mainly in the")
    parser.add_argument("--letters", type=int, default=40)
    parser.add_argument("--backend", default="simulator")
    args = parser.parse_args()
    unknown = next((c for c in args.prompt if c not in make_decoder.WORDS), None)
    if unknown is not None or not args.prompt:
        parser.error(f"--prompt {args.prompt!r}: must be one or more of {make_decoder.WORDS!r}")
    most = make_decoder.PLACES - len(args.prompt)
    if not 0 <= args.letters <= most:
        parser.error(f"--letters {args.letters}: must be 0 to {most}, the places of the caches that the prompt leaves")
    return args


def main() -> None:
    args = arguments()
    form = FORMS[args.form]
    with tempfile.TemporaryDirectory() as folder:
        built = built_for(args.hw, Path(folder), form)
    cache_bytes = [state.port.size_bytes for _, state in built.container.states]
    letter, chunk = (built.entries[name].figures["cycles"] for name in ("decode", "prefill"))
    print(f"{args.hw}: {letter:,} cycles a letter, {chunk:,} for {CHUNK} of the prompt")
    print(f"{len(cache_bytes)} caches of {sum(cache_bytes):,} bytes together")
    prompt = [make_decoder.WORDS.index(c) for c in args.prompt]
    tokens, logits = written(EntriesSession(built.data, backend=args.backend), form, prompt, args.letters)
    model = Float(form.bits)
    real = np.stack([model.run(token, step) for step, token in enumerate(tokens)])
    print(repr("".join(make_decoder.WORDS[token] for token in tokens)))
    distance = 10 * np.log10((real**2).sum() / ((real - logits) ** 2).sum())
    print(f"logits against float's from the same letters: {distance:.1f} dB over {len(tokens)} steps")


if __name__ == "__main__":
    try:
        main()
    except (CompileError, ConfigError) as fault:
        print(f"ERROR: {fault}", file=sys.stderr)
        sys.exit(2)
