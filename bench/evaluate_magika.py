#!/usr/bin/env python3
"""Measure the agreement of magika's integers with float on files of this machine, and the error report for its norm in int8.

    `pip download magika==1.0.3 --no-deps && unzip magika-*.whl magika/models/standard_v3_3/model.onnx`.
    `python bench/evaluate_magika.py magika/models/standard_v3_3/model.onnx /usr/share /usr/lib [--hw edge16]`.

Up to 9 files of each of the 60 commonest endings below the folders are taken, in an order of one seed.
Of these, 48 are calibrated on, 400 others judged, and the network is built as npu-build does by default.
The second network is a copy of which the norm's least variance is above 0.
The norm is then not found and runs in single steps, as it is calibrated.
Exit code 0: at least 97 % agree, and the report of the copy names the norm in its first line.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from quant.calibrate import OBSERVERS
from quant.float_session import open_session
from toolchain.api import BuildOptions, build
from toolchain.cli.application import report_errors
from toolchain.errors import CompileError
from toolchain.repair.repair_pipeline import EFFORTS
from toolchain.runtime import Session

Array = NDArray[np.int32]
BLOCK, READ_BYTES, PADDING = 4096, 1024, 256  # bytes at each end, those of them that are looked at, and what stands for none
CALIBRATED, JUDGED, LEAST = 48, 400, 0.97
KINDS, OF_EACH = 60, 9
SIZES = range(64, 5_000_000)
NORM, LEAST_VARIANCE = "LayerNorm", 1e-12


def features(content: bytes) -> list[int]:
    """Return the features of magika's own client: the first and the last bytes without the blanks at the file's ends."""
    first, last = content[:BLOCK].lstrip()[:READ_BYTES], content[-BLOCK:].rstrip()[-READ_BYTES:]
    return [*first, *[PADDING] * (2 * READ_BYTES - len(first) - len(last)), *last]


def chosen(folders: Iterable[Path], rng: random.Random) -> list[Path]:
    """Return the files to calibrate and judge on, in random order, at most 9 of each of the 60 commonest endings.

    Raise CompileError where the folders hold too few.
    """
    by_ending: dict[str, list[Path]] = {}
    for folder in folders:
        for file in sorted(f for f in folder.rglob("*") if f.is_file() and not f.is_symlink() and f.stat().st_size in SIZES):
            by_ending.setdefault(file.suffix.lower(), []).append(file)
    commonest = sorted(by_ending, key=lambda ending: (-len(by_ending[ending]), ending))[:KINDS]
    files = [f for ending in commonest for f in rng.sample(by_ending[ending], min(OF_EACH, len(by_ending[ending])))]
    if len(files) < CALIBRATED + JUDGED:
        required = CALIBRATED + JUDGED
        raise CompileError(f"{len(files)} files were found below the folders, {required} are needed: name more")
    rng.shuffle(files)
    return files[: CALIBRATED + JUDGED]


def spoil_norm(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a lower bound on its norm's variance; a matched norm has no such bound."""
    done = onnx.ModelProto()
    done.CopyFrom(model)
    read = {i for n in done.graph.node if n.op_type == "Max" and NORM in n.name for i in n.input}
    bounds = [c for c in done.graph.initializer if c.name in read]
    if not bounds:
        raise CompileError(f"the model has no bound of a {NORM}'s variance; magika's standard_v3_3 has")
    for bound in bounds:
        bound.CopyFrom(numpy_helper.from_array(np.asarray(LEAST_VARIANCE, np.float32), bound.name))
    return done


def agreement(model: Path, name: str, data: bytes, judged: Sequence[Array]) -> float:
    """Return the share of samples for which float and the compiled file name the same class."""
    real, chip = open_session(model), Session(data, backend="reference")
    same = [np.argmax(real.run(None, {name: x})[0]) == np.argmax(chip.run(None, {name: x})[0]) for x in judged]
    return float(np.mean(same))


def run(args: argparse.Namespace) -> int:
    """Build both networks, print the agreement and the first line of the report; return 0 where both are as they should be,
    else 1."""
    model = onnx.load(args.model)
    name = model.graph.input[0].name
    codes = np.array([[features(f.read_bytes())] for f in chosen(args.folders, random.Random(args.seed))], np.int32)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        np.save(here / "calib.npy", codes[:CALIBRATED])
        np.save(here / "judge.npy", codes[CALIBRATED:])
        onnx.save(spoil_norm(model), here / "spoiled.onnx")
        shapes = {name: (1, 2 * READ_BYTES)}
        options = BuildOptions(
            args.hw,
            str(here / "calib.npy"),
            shapes=shapes,
            judge=str(here / "judge.npy"),
            observer=args.observer,
            repair=args.repair,
        )
        share = agreement(args.model, name, build(args.model, options).data, list(codes[CALIBRATED:]))
        print(f"{share:.2%} of {JUDGED} files as float")
        errors = build(here / "spoiled.onnx", replace(options, error_report=True, repair="none")).errors
    assert errors is not None
    first = errors.findings[0]
    named = NORM in first.name or NORM in (first.layer or "")
    cause_text = f"{first.layer}, {first.cause}, {first.effect_db:.1f} dB of the output"
    print(f"{NORM} in int8: the first line {'names it' if named else 'does NOT name it'}: {cause_text}")
    return 0 if share >= LEAST and named else 1


def main() -> None:
    """Run the command and exit with the code of `run`."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--hw", default="edge16")
    parser.add_argument("--observer", choices=OBSERVERS)
    parser.add_argument("--repair", choices=EFFORTS, help="default: npu-build's")
    parser.add_argument("--seed", type=int, default=1)
    with report_errors():
        sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
