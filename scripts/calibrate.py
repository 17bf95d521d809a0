#!/usr/bin/env python3
"""Finds a model's quantization parameters and writes them to a file that `npu-build --quant` takes back.

    python scripts/calibrate.py MODEL.onnx --data DATA [--hw NAME|FILE] [--observer minmax|percentile|mse] -o params.yaml

DATA is an .npz (arrays under the input names), a directory of .npy or of images (with a preprocess.yaml: mean, std, fit,
layout), or FILE.py:FUNCTION, a generator of samples. Edit the file before giving it back: each tensor has low and high,
or scale and zero_point.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from quant.calibrate import OBSERVERS, calibrate, calibrated_tensors, default_observer, tensor_sources
from quant.data import open_data
from quant.file import Parameters, write_parameters
from quant.structure import adjust_ranges, joined_parts
from toolchain.cli.application import reported, require_writable
from toolchain.cli.build import input_shapes
from toolchain.cli.inputs import data_inputs, machine_inputs, model_inputs


def arguments() -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", required=True, help=".npz, directory of .npy or images, or file.py:function")
    parser.add_argument("--hw", help="machine: name or YAML file; needed by observer mse, and to judge concatenations")
    parser.add_argument("--observer", choices=OBSERVERS, help="default: mse where scales are powers of two, else minmax")
    parser.add_argument("--percent", type=float, default=99.99, help="of observer percentile (default 99.99)")
    parser.add_argument("--samples", type=int, help="use the first so many samples")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,640,640", help="binds dynamic dimensions")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args()


def show_progress(done: int, total: int | None) -> None:
    if sys.stderr.isatty():
        print(f"\rcalibrating: {done}{f' of {total}' if total else ''} samples ", end="", file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> None:
    from toolchain.frontend import load_model
    from toolchain.hw import load_chip

    shapes = input_shapes(options.shape)
    inputs = {**model_inputs(options.model), **data_inputs("--data", options.data), **machine_inputs(options.hw)}
    require_writable({"-o": options.output}, inputs)
    chip = load_chip(options.hw) if options.hw else None
    numerics = chip.numerics if chip else None
    observer = options.observer or (default_observer(numerics) if numerics else "minmax")
    model = load_model(options.model, shapes)
    types = {i.name: model.types[i.name] for i in model.proto.graph.input if i.name in model.types}
    data = open_data(options.data, types, limit=options.samples)
    samples = 0

    def progress(done: int, total: int | None) -> None:
        nonlocal samples
        samples = done
        show_progress(done, total)

    started = time.process_time()
    found = calibrate(
        model.proto,
        data,
        calibrated_tensors(model.proto, model.types),
        observer=observer,
        numerics=numerics,
        percent=options.percent,
        progress=progress,
        computed_by=model,
    )
    if sys.stderr.isatty():
        print(file=sys.stderr)
    adjusted = adjust_ranges(model.proto, found)
    label = f"percentile {options.percent:g}" if observer == "percentile" else observer
    parameters = Parameters(
        adjusted.ranges,
        label,
        samples,
        str(options.data),
        options.model.name,
        chip.name if chip else "",
        tensor_sources(model.proto),
    )
    write_parameters(options.output, parameters)
    for note in adjusted.notes:
        print(f"note: {note}")
    poor = [p for p in joined_parts(model.proto, adjusted.ranges, numerics) if p.poor] if numerics else []
    for part in poor:
        print(f"warning: {part}")
    print(
        f"{options.output}: {len(found)} tensors from {samples} samples, observer {label}, "
        f"{time.process_time() - started:.1f} CPU s"
    )


def main() -> None:
    options = arguments()
    with reported():
        run(options)


if __name__ == "__main__":
    main()
