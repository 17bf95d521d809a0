"""Provides labelled data that bench/compare_repair.py judges networks by: photographs, rendered text, letters, sentences.

Each is dealt into two folds that share nothing; a fold is judged by what was calibrated on the other's.
"""

from __future__ import annotations

import json
import math
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))

import numpy as np
import stamp_dataset
from evaluate import CALIBRATION_SEED, compute_paired_error, read_labelled, scores
from numpy.typing import NDArray
from sentence_dataset import Tokens, list_documented
from text_images import letters_on, page, photographs, strings, text_input

from toolchain.cli.files import npz_arrays
from toolchain.errors import CompileError

Array = NDArray[Any]
Feed = Mapping[str, Array]
FOLDS = 2


@dataclass(frozen=True)
class LabelledSample:
    """A labelled sample.

    `feed`: by input.
    `truth`: as the judge's `format_scores` takes it.
    """

    feed: Feed
    truth: Any


class LabelledDataset(ABC):
    """Interface of a kind of labelled data for one model.

    `model`: the ONNX model as a protobuf.
    `data`: the path that --data names; None: not set.
    `name`: of the model's first input.
    `heads`: titles of the scores.
    `shape`: of the first input, where the model leaves it open; else None.
    """

    heads: tuple[str, ...]
    shape: tuple[int, ...] | None = None  # of the first input, where the model leaves it open

    def __init__(self, model: Any, data: Path | None) -> None:
        self.model, self.data = model, data
        self.name = model.graph.input[0].name

    def require_data(self) -> Path:
        """Return the path that --data names. Raise CompileError where it was not set."""
        if self.data is None:
            raise CompileError("--data: this judge needs it (--help says what)")
        return self.data

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes to build the model with, by input; empty where the model has them."""
        return {} if self.shape is None else {self.name: self.shape}

    @abstractmethod
    def iterate_calibration(self, fold: int, count: int) -> Iterator[Feed]:
        """Yield at most `count` samples to calibrate on, which are of the fold that is not `fold`."""

    @abstractmethod
    def iterate_judged(self, fold: int) -> Iterator[LabelledSample]:
        """Yield the fold's samples to judge on; of drawn kinds there is no end."""
        ...

    @abstractmethod
    def get_answer(self, outputs: Sequence[Array]) -> Any:
        """Return the part of the outputs of one run that is kept to be scored."""

    @abstractmethod
    def format_scores(self, truths: Sequence[Any], real: Sequence[Any], got: Sequence[Any]) -> tuple[str, ...]:
        """Return a text for each of `heads`.

        `truths`: of all judged samples.
        `real`, `got`: their answers in float and in integers, over all folds.
        """


class _Classes(LabelledDataset):
    """A data set of a classifier: answers are logits, truths the classes that are right."""

    heads = ("top-1 %", "points", "error", "agreement %", "logits dB")

    def get_answer(self, outputs: Sequence[Array]) -> Array:
        return outputs[0].reshape(-1)

    def format_scores(self, truths: Sequence[Any], real: Sequence[Any], got: Sequence[Any]) -> tuple[str, ...]:
        s = scores("", np.stack(real), np.stack(got), truths)
        level = f"{s.sqnr_db:.1f}"
        return f"{100 * s.top1_int:.2f}", f"{s.points:+.2f}", f"{s.error_points:.2f}", f"{100 * s.agreement:.2f}", level


class Stamps(_Classes):
    """Photo stamps (scripts/stamp_dataset.py) in 8 variants; --data is their folder."""

    PER_STAMP = 8

    def __init__(self, model: Any, data: Path | None) -> None:
        super().__init__(model, data)
        dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        if len(dims) != 4 or dims[1] != 3 or dims[2] != dims[3]:
            raise CompileError(f"the model takes {dims}; the stamps are for inputs of [1, 3, size, size]")
        self._size = dims[2]

    def iterate_calibration(self, fold: int, count: int) -> Iterator[Feed]:
        each = -(-count * FOLDS // len(stamp_dataset.ACCEPTED)) + 1  # variant 0 is left out
        candidates = [
            v.image
            for i, v in enumerate(stamp_dataset.variants(self.require_data(), each, self._size, CALIBRATION_SEED))
            if i % each and fold_of(v.stamp) != fold
        ]
        for image in random.Random(CALIBRATION_SEED).sample(candidates, min(count, len(candidates))):
            yield {self.name: stamp_dataset.network_input(image)}

    def iterate_judged(self, fold: int) -> Iterator[LabelledSample]:
        # all photographs in their first variant, then all in the next: whatever --limit leaves is spread over them
        of_fold = [
            (i % self.PER_STAMP, v)
            for i, v in enumerate(stamp_dataset.variants(self.require_data(), self.PER_STAMP, self._size, 0))
            if fold_of(v.stamp) == fold
        ]
        for _, v in sorted(of_fold, key=lambda pair: pair[0]):
            yield LabelledSample({self.name: stamp_dataset.network_input(v.image)}, v.accepted)


def fold_of(stamp: str) -> int:
    """Return the fold of a photograph, 0 or 1: every second one of a kind."""
    return list(stamp_dataset.ACCEPTED).index(stamp) % FOLDS


class Labelled(_Classes):
    """Images of a classifier; --data is a folder with calib.npz (x) and test.npz (x of bytes, y), as examples/classifier."""

    def iterate_calibration(self, fold: int, count: int) -> Iterator[Feed]:
        x = npz_arrays(self.require_data() / "calib.npz", "an .npz with an array x")["x"].read()
        for image in x[1 - fold :: FOLDS][:count]:
            yield {self.name: image[None].astype(np.float32)}

    def iterate_judged(self, fold: int) -> Iterator[LabelledSample]:
        x, y = read_labelled(self.require_data() / "test.npz")
        for image, label in zip(x[fold::FOLDS], y[fold::FOLDS]):
            yield LabelledSample({self.name: (image.astype(np.float32) / 255)[None, None]}, (int(label),))


class Strings(LabelledDataset):
    """Rendered lines of text for a recognizer with CTC's labels, whose file holds its `character`s; --data is not read."""

    heads = ("exact %", "points", "error", "agreement %", "errors a character %")
    shape = (1, 3, 48, 320)

    def __init__(self, model: Any, data: Path | None) -> None:
        super().__init__(model, data)
        characters = next((p.value for p in model.metadata_props if p.key == "character"), None)
        if characters is None:
            raise CompileError("the model's metadata has no `character`: which label stands for which is not known")
        self._characters = ["", *characters.splitlines(), " "]

    def iterate_calibration(self, fold: int, count: int) -> Iterator[Feed]:
        for image, _ in strings(1 - fold, count, CALIBRATION_SEED):
            yield {self.name: text_input(image, 320)}

    def iterate_judged(self, fold: int) -> Iterator[LabelledSample]:
        for image, text in strings(fold, None, 0):
            yield LabelledSample({self.name: text_input(image, 320)}, text)

    def get_answer(self, outputs: Sequence[Array]) -> str:
        labels = outputs[0][0].argmax(1)
        first = np.concatenate([[True], labels[1:] != labels[:-1]])
        return "".join(self._characters[i] for i in labels[first & (labels != 0)]).strip()

    def format_scores(self, truths: Sequence[Any], real: Sequence[Any], got: Sequence[Any]) -> tuple[str, ...]:
        right, float_right = (np.array([a == b for a, b in zip(answers, truths)]) for answers in (got, real))
        points, error = 100 * float(right.mean() - float_right.mean()), compute_paired_error(float_right, right)
        same_percent = 100 * float(np.mean([a == b for a, b in zip(got, real)]))
        wrong = sum(distance(a, b) for a, b in zip(got, truths)) / sum(map(len, truths))
        return f"{100 * right.mean():.1f}", f"{points:+.1f}", f"{error:.1f}", f"{same_percent:.1f}", f"{100 * wrong:.1f}"


def distance(a: str, b: str) -> int:
    """Return the Levenshtein distance: the least number of characters inserted, deleted or changed that turns a into b."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


class Pages(LabelledDataset):
    """Rendered pages for a detector of lines that gives the probability of text in each pixel; --data is not read."""

    heads = ("F1", "precision", "recall", "map dB")
    shape = (1, 3, 640, 640)

    def iterate_calibration(self, fold: int, count: int) -> Iterator[Feed]:
        for index in range(count):
            yield {self.name: _half(page(640, 1 - fold, (CALIBRATION_SEED, index))[0])}

    def iterate_judged(self, fold: int) -> Iterator[LabelledSample]:
        index = 0
        while True:
            image, boxes = page(640, fold, (0, index))
            yield LabelledSample({self.name: _half(image)}, boxes)
            index += 1

    def get_answer(self, outputs: Sequence[Array]) -> Array:
        return outputs[0][0, 0].astype(np.float16)

    def format_scores(self, truths: Sequence[Any], real: Sequence[Any], got: Sequence[Any]) -> tuple[str, ...]:
        counts = np.sum([match_boxes(lines_of(m.astype(np.float32)), boxes) for m, boxes in zip(got, truths)], axis=0)
        right, found_count, true_count = (float(n) for n in counts)
        precision, recall = right / max(found_count, 1), right / max(true_count, 1)
        wide = [np.stack(m).astype(np.float64) for m in (real, got)]
        f1 = 2 * right / max(found_count + true_count, 1)
        return f"{f1:.3f}", f"{precision:.3f}", f"{recall:.3f}", f"{_decibels(*wide):.1f}"


def _half(image: Array) -> Array:
    """Return float32[1, 3, h, w] in -1..1, blue first, from uint8[h, w, 3], red first."""
    return ((image[:, :, ::-1].astype(np.float32) / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None]


_TEXT, _SCORE, _UNCLIP, _LEAST = 0.3, 0.5, 1.6, 3  # as PaddleOCR's DBPostProcess


def lines_of(probability: Array) -> list[tuple[float, float, float, float]]:
    """Return upright boxes (left, top, right, bottom) around the connected parts of float[h, w].

    Boxes are enlarged by their area over their circumference, because the network was trained on shrunken lines.
    """
    boxes = []
    for left, top, right, bottom in find_connected(probability > _TEXT):
        if min(right - left, bottom - top) < _LEAST or probability[top:bottom, left:right].mean() < _SCORE:
            continue
        wide, high = right - left, bottom - top
        more = wide * high * _UNCLIP / (2 * (wide + high))
        boxes.append((left - more, top - more, right + more, bottom + more))
    return boxes


def find_connected(mask: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Return the boxes (left, top, right, bottom; ends excluded) of the parts of a mask that touch by an edge."""
    parent: list[int] = []
    boxes: list[list[int]] = []

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    above: list[tuple[int, int, int]] = []
    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
        here = []
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist()):
            label = len(parent)
            parent.append(label)
            boxes.append([start, y, end, y + 1])
            for other_start, other_end, other in above:
                if other_start < end and start < other_end:
                    parent[root(other)] = root(label)
            here.append((start, end, label))
        above = here
    joined: dict[int, list[int]] = {}
    for label, box in enumerate(boxes):
        merged_box = joined.setdefault(root(label), list(box))
        merged_box[:] = [
            min(merged_box[0], box[0]),
            min(merged_box[1], box[1]),
            max(merged_box[2], box[2]),
            max(merged_box[3], box[3]),
        ]
    return [(b[0], b[1], b[2], b[3]) for b in joined.values()]


def match_boxes(found_boxes: Sequence[Sequence[float]], true_boxes: Sequence[Sequence[float]]) -> tuple[int, int, int]:
    """Return the numbers of matched pairs, of boxes found and of true boxes.

    A pair overlaps by at least half of its union; each box is in one pair at most.
    """
    pairs = sorted(((overlap(a, b), i, j) for i, a in enumerate(found_boxes) for j, b in enumerate(true_boxes)), reverse=True)
    matched_found: set[int] = set()
    owned: set[int] = set()
    for share, i, j in pairs:
        if share >= 0.5 and i not in matched_found and j not in owned:
            matched_found.add(i)
            owned.add(j)
    return len(matched_found), len(found_boxes), len(true_boxes)


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the intersection of two boxes over their union."""
    common = max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    return common / (sum(areas) - common) if common else 0.0


class Letters(LabelledDataset):
    """Letters on photographs for a detector of YOLOX's form, x y w h, object and class; --data: a folder of pictures."""

    heads = ("xy", "wh", "object", "class", "least dB")
    PARTS = (slice(0, 2), slice(2, 4), slice(4, 5), slice(5, None))

    def iterate_calibration(self, fold: int, count: int) -> Iterator[Feed]:
        return (self._feed(1 - fold, CALIBRATION_SEED, index) for index in range(count))

    def iterate_judged(self, fold: int) -> Iterator[LabelledSample]:
        index = 0
        while True:
            yield LabelledSample(self._feed(fold, 0, index), None)
            index += 1

    def _feed(self, fold: int, seed: int, index: int) -> Feed:
        size = self.model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
        files = photographs(self.require_data())[fold::FOLDS]
        image = letters_on(files[index % len(files)], size, (fold, seed, index))
        return {self.name: image[:, :, ::-1].transpose(2, 0, 1)[None].astype(np.float32)}

    def get_answer(self, outputs: Sequence[Array]) -> Array:
        return outputs[0][0].astype(np.float32)

    def format_scores(self, truths: Sequence[Any], real: Sequence[Any], got: Sequence[Any]) -> tuple[str, ...]:
        pairs = [(np.stack(real)[..., p].astype(np.float64), np.stack(got)[..., p].astype(np.float64)) for p in self.PARTS]
        return (*(f"{_cosine(a, b):.4f}" for a, b in pairs), f"{min(_decibels(a, b) for a, b in pairs):.1f}")


class Sentences(LabelledDataset):
    """A dataset of docstrings of Python's library, where a first sentence must find its rest among those of the fold.

    `--data`: the tokenizer.json of a BERT.
    """

    heads = ("first %", "points", "error", "cosine")

    def __init__(self, model: Any, data: Path | None) -> None:
        super().__init__(model, data)
        self._mask, length = model.graph.input[1].name, model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
        self._tokens = Tokens(json.loads(self.require_data().read_text()), length)

    def _feed(self, text: str) -> Feed:
        ids, mask = self._tokens(text)
        return {self.name: ids, self._mask: mask}

    def iterate_calibration(self, fold: int, count: int) -> Iterator[Feed]:
        texts = [text for pair in list_documented()[1 - fold :: FOLDS] for text in pair]
        return (self._feed(t) for t in random.Random(CALIBRATION_SEED).sample(texts, min(count, len(texts))))

    def iterate_judged(self, fold: int) -> Iterator[LabelledSample]:
        for index, pair in enumerate(list_documented()[fold::FOLDS]):
            for role, text in enumerate(pair):
                yield LabelledSample(self._feed(text), (fold, index, role))

    def get_answer(self, outputs: Sequence[Array]) -> Array:
        return outputs[0].reshape(-1).astype(np.float64)

    def format_scores(self, truths: Sequence[Any], real: Sequence[Any], got: Sequence[Any]) -> tuple[str, ...]:
        first, float_first = (self._first(truths, answers) for answers in (got, real))
        points, error = 100 * float(first.mean() - float_first.mean()), compute_paired_error(float_first, first)
        mean_cosine = float(np.mean([_cosine(a, b) for a, b in zip(real, got)]))
        return f"{100 * first.mean():.1f}", f"{points:+.1f}", f"{error:.1f}", f"{mean_cosine:.4f}"

    def _first(self, truths: Sequence[Any], answers: Sequence[Array]) -> NDArray[np.bool_]:
        """Return for each first sentence whether its nearest rest is its own."""
        right: list[NDArray[np.bool_]] = []
        for fold in sorted({t[0] for t in truths}):
            queries, rest = ({t[1]: v for t, v in zip(truths, answers) if t[0] == fold and t[2] == role} for role in (0, 1))
            order = sorted(queries.keys() & rest.keys())
            near = np.stack([queries[i] for i in order]) @ np.stack([rest[i] for i in order]).T
            right.append(near.argmax(1) == np.arange(len(order)))
        return np.concatenate(right)


def _cosine(a: Array, b: Array) -> float:
    """Return the cosine of two arrays; 0 where one is zero."""
    return float((a * b).sum() / max(np.sqrt((a * a).sum() * (b * b).sum()), np.finfo(np.float64).tiny))


def _decibels(real: Array, got: Array) -> float:
    """Return the SQNR in dB; inf where both are equal."""
    wrong = float(((real - got) ** 2).sum())
    return float(10 * np.log10(float((real**2).sum()) / wrong)) if wrong else math.inf


JUDGES: Mapping[str, type[LabelledDataset]] = {
    "stamps": Stamps,
    "labelled": Labelled,
    "strings": Strings,
    "pages": Pages,
    "letters": Letters,
    "sentences": Sentences,
}
