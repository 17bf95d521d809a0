#!/usr/bin/env python3
r"""Measure the accuracy of a classifier in float (onnxruntime) and in a machine's integers.

    `python scripts/evaluate.py examples/classifier/classifier.onnx --hw edge16 ws8_pow2 --shape x=1,1,28,28 \
        --calib examples/classifier/calib.npz --npz examples/classifier/test.npz --std 255`.
    `python scripts/evaluate.py zoo/models/efficientnet_lite0.onnx --hw edge16 --stamps zoo/data/stamps`.

The integers are those of the reference that the simulator equals.
Data is an .npz with `x` [n, ...] and `y` [n] (the input is (x - mean) / std), or the stamps of scripts/stamp_dataset.py.
Stamps calibrate on variants of another seed unless --calib names other data.
There is one line for each machine: top-1 and top-5 of both, and the difference in points.
It has the standard error of a paired comparison, how often both name the same class, and SQNR of the logits.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import stamp_dataset
from numpy.typing import NDArray

from quant.calibrate import OBSERVERS
from quant.fidelity import sqnr_db
from quant.float_session import open_session
from toolchain.api import Build, BuildOptions, build
from toolchain.cli.application import report_errors, require_writable
from toolchain.cli.files import data_inputs, machine_inputs, model_inputs, npz_arrays
from toolchain.cli.option_values import add_types, input_shapes
from toolchain.errors import CompileError
from toolchain.foundation.atomic_files import write_atomically
from toolchain.hw import list_shipped_names
from toolchain.repair.repair_pipeline import EFFORTS
from toolchain.runtime import Session
from toolchain.schedule.options import LEVELS

Array = NDArray[Any]
CALIBRATION_SEED = 1  # the stamps are judged on seed 0


@dataclass(frozen=True)
class Labelled:
    """A labelled sample.

    `x`: float32, the network's input with batch 1.
    `accepted`: classes of which any is right.
    """

    x: Array
    accepted: tuple[int, ...]


@dataclass(frozen=True)
class Scores:
    """Accuracy of a classifier in float and in a machine's integers over the same images.

    `top1_*`, `top5_*`, `agreement`: shares of `images` from 0 to 1; agreement: both name the same class.
    `error_points`: standard error of top1_int - top1_float in percentage points, from the images where only one is right.
    `sqnr_db`: of the integer logits against the float ones.
    """

    machine: str
    images: int
    top1_float: float
    top1_int: float
    top5_float: float
    top5_int: float
    error_points: float
    agreement: float
    sqnr_db: float

    @property
    def points(self) -> float:
        """The difference top1_int - top1_float in percentage points; negative: accuracy lost."""
        return 100 * (self.top1_int - self.top1_float)


def scores(machine: str, real: Array, got: Array, accepted: Sequence[tuple[int, ...]]) -> Scores:
    """Return the scores of a machine.

    `real`, `got`: float[n, classes], logits of float and of the integers.
    `accepted`: of each image, the classes that are right.
    """
    n = len(real)
    right_float, right_int = _right(real, accepted, 1), _right(got, accepted, 1)
    error = compute_paired_error(right_float, right_int)
    return Scores(
        machine,
        n,
        float(right_float.mean()),
        float(right_int.mean()),
        float(_right(real, accepted, 5).mean()),
        float(_right(got, accepted, 5).mean()),
        error,
        float((real.argmax(1) == got.argmax(1)).mean()),
        sqnr_db(real, got),
    )


def compute_paired_error(a: Array, b: Array) -> float:
    """Return the standard error of the difference of two networks' shares, in percentage points.

    Samples that both are right on, or both wrong on, do not count.
    `a`, `b`: bool[n], which samples the networks are right on.
    """
    return 100 * float(np.sqrt(np.count_nonzero(a != b))) / len(a)


def _right(logits: Array, accepted: Sequence[tuple[int, ...]], k: int) -> NDArray[np.bool_]:
    """Return bool[n]: whether one of the k largest logits is an accepted class. Of equal logits the lower class goes first."""
    best = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    return np.array([bool(set(row.tolist()) & set(right)) for row, right in zip(best, accepted)])


def read_labelled(path: Path) -> tuple[Array, Array]:
    """Return x [n, ...] and y [n] of an .npz. Raise CompileError where one is missing, or they are not of one length above 0."""
    arrays = npz_arrays(path, "--npz takes an .npz with arrays x [n, ...] and y [n]")
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        array_names = ", ".join(arrays) or "none"
        raise CompileError(
            f"{path}: no array {missing[0]} (arrays: {array_names}); --npz takes samples x [n, ...] and labels y [n]"
        )
    x, y = arrays["x"].read(), arrays["y"].read()
    if y.ndim != 1 or x.ndim < 1 or len(x) != len(y) or not len(x):
        raise CompileError(f"{path}: x has shape {list(x.shape)}, y {list(y.shape)}; give one label a sample, and at least one")
    return x, y


def from_arrays(labelled: tuple[Array, Array], shape: tuple[int, ...], mean: float, std: float) -> Iterator[Labelled]:
    """Yield the labelled samples as the network takes them.

    `labelled`: (x [n, ...], y [n]) of `read_labelled`; each x becomes float32 (x - mean) / std of the network's `shape`.

    Raise CompileError where a sample has another number of elements than the shape.
    """
    x, y = labelled
    if x[0].size != int(np.prod(shape)):
        raise CompileError(f"--npz: a sample of x is {list(x[0].shape)}, the network takes {list(shape)}")
    for image, label in zip(x, y):
        yield Labelled(((image.astype(np.float32) - np.float32(mean)) / np.float32(std)).reshape(shape), (int(label),))


def from_stamps(folder: Path, size: int, per_stamp: int, seed: int = 0) -> Iterator[Labelled]:
    """Yield the variants of each stamp (scripts/stamp_dataset.py), scaled as EfficientNet-Lite was trained.

    `size`: side in pixels.
    """
    for labelled in stamp_dataset.variants(folder, per_stamp, size, seed):
        yield Labelled(stamp_dataset.network_input(labelled.image), labelled.accepted)


def stamp_files(folder: Path | None) -> list[Path]:
    """Return the files of the stamps' folder; none where it is None."""
    return [] if folder is None else sorted(folder.glob("*"))


def stamp_calibration(folder: Path, size: int, images: int, name: str, target: Path) -> Path:
    """Write an .npz of at most `images` stamps in variants that the judged ones do not hold, to `target`, and return that.

    `name`: of the network's input.
    """
    every = [labelled.x for labelled in from_stamps(folder, size, 2, CALIBRATION_SEED)][1::2]
    chosen = random.Random(CALIBRATION_SEED).sample(every, min(images, len(every)))
    np.savez(target, allow_pickle=False, **{name: np.concatenate(chosen)})
    return target


def float_runner(path: Path) -> tuple[str, Callable[[Array], Array]]:
    """Return the name of the only input, and a function from a sample to the first output as a flat array.

    Raise CompileError where the model has several inputs.
    """
    session = open_session(path)
    names = [port.name for port in session.get_inputs()]
    if len(names) != 1:
        raise CompileError(f"{path}: has inputs {', '.join(names)}; a classifier of images has one")
    return names[0], lambda x: np.asarray(session.run(None, {names[0]: x})[0]).reshape(-1)


def evaluate(
    path: Path, builds: Mapping[str, Build], samples: Iterator[Labelled], progress: Callable[[int], None]
) -> list[Scores]:
    """Return the scores of each machine of `builds`, in their order. The samples are read once.

    `progress`: called with the number of samples done.
    """
    name, in_float = float_runner(path)
    sessions = {machine: Session(built.container, backend="reference") for machine, built in builds.items()}
    real: list[Array] = []
    got: dict[str, list[Array]] = {machine: [] for machine in sessions}
    accepted: list[tuple[int, ...]] = []
    for done, sample in enumerate(samples, 1):
        accepted.append(sample.accepted)
        real.append(in_float(sample.x))
        for machine, session in sessions.items():
            got[machine].append(session.run(None, {name: sample.x})[0].reshape(-1))
        progress(done)
    return [scores(machine, np.stack(real), np.stack(logits), accepted) for machine, logits in got.items()]


def scores_text(result: Scores) -> str:
    """Return one line with the scores of a machine."""
    return (
        f"{result.machine:14s} n {result.images}  top-1 float {100 * result.top1_float:.2f} % int {100 * result.top1_int:.2f} % "
        f"({result.points:+.2f} points, standard error {result.error_points:.2f})  "
        f"top-5 float {100 * result.top5_float:.2f} % int {100 * result.top5_int:.2f} %  "
        f"same class {100 * result.agreement:.2f} %  logits {result.sqnr_db:.1f} dB"
    )


def show_progress(done: int) -> None:
    """Write the number of images done to stderr, where that is a terminal."""
    if sys.stderr.isatty():
        print(f"\r{done} images ", end="", file=sys.stderr, flush=True)


def count(text: str) -> int:
    """Parse an option for a number of items. Raise ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, 1 or more")
    return int(text)


def divisor(text: str) -> float:
    """Parse an option for a finite number other than 0. Raise ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value or not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text}: must be a number other than 0, x is divided by it")
    return value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--hw", nargs="+", default=None, help="machines; default all shipped")
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--npz", type=Path, help="labelled samples: x [n, ...], y [n]")
    data.add_argument("--stamps", type=Path, help="DEST/data/stamps, as fetch_zoo.py leaves it")
    parser.add_argument("--calib", help="calibration data, as npu-build takes it")
    parser.add_argument("--calib-images", type=count, default=64, help="stamps to calibrate on without --calib (default 64)")
    parser.add_argument("--observer", choices=OBSERVERS, help="default by the machine")
    parser.add_argument("--repair", choices=EFFORTS, help="default as npu-build's")
    add_types(parser)
    parser.add_argument("--shape", help="NAME=1,3,224,224 binds a dynamic input; the batch must be 1")
    parser.add_argument("--mean", type=float, default=0.0, help="of --npz: subtracted from x (default 0)")
    parser.add_argument("--std", type=divisor, default=1.0, help="of --npz: then divides x (default 1)")
    parser.add_argument("--per-stamp", type=count, default=8, help="variants of each stamp (default 8)")
    parser.add_argument("--images", type=count, help="at most so many images")
    parser.add_argument(
        "-O", dest="level", type=int, choices=range(len(LEVELS)), default=2, help="optimization level (default %(default)s)"
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def run(args: Any) -> list[Scores]:
    """Build the model for each machine, score it on the samples, and return one entry for each machine."""
    shapes = input_shapes([] if args.shape is None else [args.shape])
    machines = args.hw or list_shipped_names()
    inputs = {**model_inputs(args.model), **machine_inputs(*machines), **data_inputs("--calib", args.calib)}
    require_writable({"--json": args.json}, {**inputs, "--npz": args.npz, "a file of --stamps": stamp_files(args.stamps)})
    if args.calib is None and args.stamps is None:
        raise CompileError("--npz needs --calib DATA: random inputs say nothing about accuracy")
    labelled = None if args.npz is None else read_labelled(args.npz)
    with tempfile.TemporaryDirectory() as scratch:
        calibration = args.calib
        if calibration is None:
            name, _ = float_runner(args.model)
            calibration = str(stamp_calibration(args.stamps, 224, args.calib_images, name, Path(scratch) / "stamps.npz"))
        builds = {
            machine: build(
                args.model,
                BuildOptions(
                    machine,
                    calibration,
                    shapes=shapes,
                    level=args.level,
                    observer=args.observer,
                    types=tuple(args.types),
                    repair=args.repair,
                ),
            )
            for machine in machines
        }
    shape = next(iter(builds.values())).container.inputs[0].shape
    if labelled is None:
        samples = from_stamps(args.stamps, shape[2], args.per_stamp)
    else:
        samples = from_arrays(labelled, shape, args.mean, args.std)
    return evaluate(args.model, builds, islice(samples, args.images), show_progress)


def main() -> None:
    args = arguments()
    start_s = time.process_time()
    with report_errors():
        results = run(args)
        for line in results:
            print(scores_text(line))
        print(f"{time.process_time() - start_s:.0f} CPU s")
        if args.json is not None:
            text = json.dumps([{**asdict(s), "points": s.points} for s in results], indent=1) + "\n"
            write_atomically(args.json, text.encode())


if __name__ == "__main__":
    main()
