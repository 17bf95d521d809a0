#!/usr/bin/env python3
"""What repair does to a classifier: float, a machine's integers plain and repaired, and onnxruntime's own quantizer beside them.

    python scripts/compare_repair.py zoo/models/efficientnet_lite0.onnx --stamps zoo/data/stamps --hw edge16 ws8_pow2 \\
        edge16,weights_per_channel=false edge16,rounding=floor [--repair fast] [--images 64] [--per-stamp 8]

The photographs are dealt into two folds; each is judged by builds that were calibrated on variants of the other's, so that no
photograph is ever on both sides. The lines are over both folds. A machine may be followed by keys of its `numerics` to change.
The integers are the reference's, after the simulator has given the same bits on the first --exact images.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import stamps
import yaml
from evaluate import CALIBRATION_SEED, Array, Labelled, Scores, count, float_runner, scores
from make_quantized import quantized

from toolchain.api import Build, BuildOptions, build
from toolchain.cli.application import reported
from toolchain.cli.inputs import model_inputs
from toolchain.errors import CompileError
from toolchain.hw.numerics import NumericsKeys
from toolchain.isa import Machine, load_machine
from toolchain.repair.harness import EFFORTS, Effort
from toolchain.report.text import table
from toolchain.runtime import Session

FOLDS = 2


@dataclass(frozen=True)
class Judged:
    """cpu_s: of the build of both folds."""

    what: str
    logits: list[Array]
    cpu_s: float


def varied_machine(text: str) -> Machine:
    """`edge16,rounding=floor`: a shipped machine or a YAML file, with other values of its numerics. Raises CompileError."""
    name, *changes = text.split(",")
    machine = load_machine(name)
    given: dict[str, Any] = {}
    for change in changes:
        key, separator, value = change.partition("=")
        if not separator or key not in NumericsKeys.model_fields:
            raise CompileError(
                f"--hw {text}: {change} is no KEY=VALUE of numerics; keys are {', '.join(NumericsKeys.model_fields)}"
            )
        given[key] = yaml.safe_load(value)
    try:
        keys = NumericsKeys.model_validate({**machine.chip.numerics_keys.model_dump(), **given})
    except ValueError as fault:
        raise CompileError(f"--hw {text}: {str(fault).splitlines()[-1].strip()}") from None
    chip = machine.chip.model_copy(update={"numerics_keys": keys, "name": text})
    return replace(machine, chip=chip)


def fold_of(stamp: str) -> int:
    """By the photograph, every second one of a kind."""
    return list(stamps.ACCEPTED).index(stamp) % FOLDS


def judged_images(folder: Path, size: int, per_stamp: int, fold: int) -> Iterator[Labelled]:
    for found in stamps.variants(folder, per_stamp, size, 0):
        if fold_of(found.stamp) == fold:
            yield Labelled(stamps.network_input(found.image), found.accepted)


def calibration_images(folder: Path, size: int, images: int, fold: int, target: Path) -> Path:
    """Variants of the other fold's photographs, drawn on any colour: an .npz of `images`, the same for the same fold."""
    each = -(-images * FOLDS // len(stamps.ACCEPTED)) + 1  # variant 0 is left out
    found = [
        stamps.network_input(v.image)
        for i, v in enumerate(stamps.variants(folder, each, size, CALIBRATION_SEED))
        if i % each and fold_of(v.stamp) != fold
    ]
    np.savez(target, x=np.concatenate(random.Random(CALIBRATION_SEED).sample(found, min(images, len(found)))))
    return target


def integers(built: Build, name: str, samples: Sequence[Labelled], exact: int) -> list[Array]:
    """Of the reference. Raises SystemExit where the simulator's bits are others."""
    reference, simulator = Session(built.container, backend="reference"), Session(built.data)
    found = [reference.run(None, {name: s.x})[0].reshape(-1) for s in samples]
    for sample, expected in islice(zip(samples, found), exact):
        if not np.array_equal(simulator.run(None, {name: sample.x})[0].reshape(-1), expected):
            raise SystemExit(f"{built.container.machine.chip.name}: the simulator's bits differ from the reference's")
    return found


def by_onnxruntime(path: Path, data: Path, form: str, name: str, samples: Sequence[Labelled], folder: Path) -> list[Array]:
    """form: of make_quantized.py."""
    with np.load(data) as arrays:
        calibration = [{name: x[None]} for x in arrays["x"]]
    onnx.save(quantized(onnx.load(path), calibration, form), folder / "quantized.onnx")
    _, run = float_runner(folder / "quantized.onnx")
    return [run(s.x) for s in samples]


def compared(given: argparse.Namespace, machines: Sequence[Machine], folder: Path) -> tuple[list[Array], list[Any], list[Judged]]:
    """Float's logits, the accepted classes, and what everything else gives, over all folds."""
    name, in_float = float_runner(given.model)
    size = _size(given.model)
    real: list[Array] = []
    accepted: list[tuple[int, ...]] = []
    found: dict[str, Judged] = {}

    def add(what: str, logits: list[Array], cpu_s: float) -> None:
        before = found.get(what, Judged(what, [], 0.0))
        found[what] = Judged(what, [*before.logits, *logits], before.cpu_s + cpu_s)
        print(f"fold {fold + 1} of {FOLDS}: {what}", file=sys.stderr)

    for fold in range(FOLDS):
        samples = list(islice(judged_images(given.stamps, size, given.per_stamp, fold), given.limit))
        data = calibration_images(given.stamps, size, given.images, fold, folder / f"{fold}.npz")
        real += [in_float(s.x) for s in samples]
        accepted += [s.accepted for s in samples]
        for scales in ("channel", "tensor"):
            started = time.process_time()
            logits = by_onnxruntime(given.model, data, f"qdq_s8_{scales}", name, samples, folder)
            add(f"onnxruntime's int8, a scale a {scales}", logits, time.process_time() - started)
        for machine in machines:
            for effort in ("none", *given.repair):
                started = time.process_time()
                built = build(given.model, BuildOptions(machine, str(data), repair=effort))
                cpu_s = time.process_time() - started
                what = f"{machine.chip.name}{'' if effort == 'none' else f', {effort}'}"
                add(what, integers(built, name, samples, given.exact), cpu_s)
    return real, accepted, list(found.values())


def _size(path: Path) -> int:
    from toolchain.frontend import load_model

    model = load_model(path)
    shape = model.types[model.inputs[0]].shape
    if len(shape) != 4 or shape[1] != 3 or shape[2] != shape[3]:
        raise CompileError(f"{path}: takes {list(shape)}; the stamps are for inputs of [1, 3, size, size]")
    return shape[2]


def text_of(real: Sequence[Array], accepted: Sequence[tuple[int, ...]], found: Sequence[Judged]) -> str:
    logits = np.stack(real)
    rows = []
    for judged in found:
        s: Scores = scores(judged.what, logits, np.stack(judged.logits), accepted)
        rows.append(
            (
                judged.what,
                f"{100 * s.top1_int:.2f}",
                f"{s.points:+.2f}",
                f"{s.error_points:.2f}",
                f"{100 * s.agreement:.2f}",
                f"{s.sqnr_db:.1f}",
                f"{judged.cpu_s:.0f}",
            )
        )
    top1 = 100 * scores("float", logits, logits, accepted).top1_float
    heads = ("integers of", "top-1 %", "points", "error", "agreement %", "logits dB", "CPU s")
    return f"float: top-1 {top1:.2f} %, n {len(real)}\n" + table(heads, rows, range(1, len(heads)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--stamps", type=Path, required=True, help="DEST/data/stamps, as fetch_zoo.py leaves it")
    parser.add_argument("--hw", nargs="+", default=["edge16"], help="machines, each perhaps with ,KEY=VALUE of numerics")
    efforts: tuple[Effort, ...] = EFFORTS[1:]
    parser.add_argument("--repair", nargs="*", choices=efforts, default=["fast"], help="beside none (default fast)")
    parser.add_argument("--images", type=count, default=64, help="to calibrate on (default 64)")
    parser.add_argument("--per-stamp", type=count, default=8, help="variants of each judged photograph (default 8)")
    parser.add_argument("--limit", type=count, help="judge at most so many images of each fold")
    parser.add_argument("--exact", type=count, default=16, help="images of each fold that the simulator runs too (default 16)")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    with reported():
        model_inputs(given.model)
        machines = [varied_machine(text) for text in given.hw]
        with tempfile.TemporaryDirectory() as folder:
            print(text_of(*compared(given, machines, Path(folder))))


if __name__ == "__main__":
    main()
