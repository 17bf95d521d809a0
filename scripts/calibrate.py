#!/usr/bin/env python3
"""Find a model's quantization parameters and write them to a file for `npu-build --quant`.

    `python scripts/calibrate.py MODEL.onnx --data DATA [--hw NAME|FILE] [--observer minmax|percentile|mse|auto]
        [--repair none|fast|full] [--type NAME=int16] [--state PAST=PRESENT]
        [--plugin FILE.py] [--custom-ops LIBRARY] -o params.yaml`.

DATA is an .npz (arrays under the input names), or a directory of .npy or of images.
Images come with a preprocess.yaml (mean, std, fit, layout).
DATA may also be FILE.py:FUNCTION, a generator of samples or a CalibrationDataReader of onnxruntime.
The file may be edited before the build: each tensor has low and high, or scale and zero_point.
With --repair the file is for one machine.
It also lists the changes that repair made, and the gain of each on held-out samples.
Option --type is npu-build's: the file holds these types, so that the build needs the file alone.
Option --state is npu-build's too: an input and its next value have one range, and data need not hold it.
Ports stay on the chip in a build with this file (docs/accuracy.md, Ports): nodes beside them move by --host-node alone.
A file that ends in .encodings or .json is written in AIMET's form (0.6.1), with the scales of --hw.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quant.calibrate import OBSERVERS, calibrate, default_observer, list_calibrated_tensors, tensor_sources
from quant.calibration_data import Samples
from quant.encodings import SUFFIXES, render_encodings
from quant.file import Parameters, write_parameters
from quant.observe import Range
from quant.parameters import with_room
from quant.structural_ranges import SharedScalePart, adjust_ranges, find_shared_scale_parts, format_poor_parts
from toolchain.cli.application import (
    load_plugin_option,
    report_errors,
    require_host,
    require_writable,
    use_custom_ops_option,
)
from toolchain.cli.files import data_inputs, machine_inputs, model_inputs
from toolchain.cli.memory_limit import work_in_child
from toolchain.cli.option_values import TYPE, add_plugins, add_states, add_types, add_values, input_shapes, input_values
from toolchain.compiler import make_cycle_counter, select_model
from toolchain.errors import CompileError
from toolchain.foundation.atomic_files import write_atomically
from toolchain.foundation.inference import run_float_models_on
from toolchain.frontend import NormalModel, load_model, pair_states
from toolchain.hw import load_chip
from toolchain.ir.graph import Quant
from toolchain.isa import Machine, load_machine
from toolchain.judging.stateful_samples import model_data, open_samples
from toolchain.options import BuildOptions
from toolchain.passes.decompose import decompose_all, decompose_model
from toolchain.passes.type_overrides import decompose_for_types
from toolchain.repair.calibrate_network import AUTO, calibrate_network, effort_of
from toolchain.repair.network import Network
from toolchain.repair.repair_pipeline import EFFORTS

FoundParameters = tuple[Parameters, Sequence[str], Sequence[SharedScalePart]]  # with notes, and operands of Concats


def arguments() -> argparse.Namespace:
    """Return the options of the command line. argparse ends the program with exit code 2 for bad ones."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", required=True, help=".npz, directory of .npy or images, or file.py:function")
    parser.add_argument("--hw", help="machine: name or YAML file; needed by observer mse, and to judge concatenations")
    parser.add_argument("--observer", choices=(*OBSERVERS, AUTO), help="default: mse where scales are powers of two, else minmax")
    parser.add_argument("--repair", choices=EFFORTS, default="none", help="what is done for the answer (default none)")
    parser.add_argument("--percent", type=float, default=99.99, help="of observer percentile (default 99.99)")
    add_types(parser)
    parser.add_argument("--samples", type=int, help="use the first so many samples")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,640,640", help="binds dynamic dimensions")
    add_values(parser)
    add_states(parser)
    parser.add_argument("--host", default="cpu", help="where the float model runs: cpu or cuda")
    add_plugins(parser)
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args()


def show_progress(stage: str, done: int, total: int | None) -> None:
    """Write a line that replaces itself to stderr, where that is a terminal. A `total` of None is not known."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{stage}: {done}{f' of {total}' if total else ''} ", end="", file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> None:
    """Calibrate, and repair where that is asked for; write the parameters or encodings file and print notes and warnings.

    Raise CompileError or ConfigError for bad options, models or data.
    """
    load_plugin_option(options.plugins)
    use_custom_ops_option(options.custom_ops)
    shapes = input_shapes(options.shape)
    inputs = {**model_inputs(options.model), **data_inputs("--data", options.data), **machine_inputs(options.hw)}
    require_writable({"-o": options.output}, inputs)
    _require_machine(options)
    model_arrays = model_data(options.data, options.samples)
    model = load_model(options.model, shapes, values=input_values(options.values), data=model_arrays)
    types = {i.name: model.types[i.name] for i in model.proto.graph.input if i.name in model.types}
    data, stepped = open_samples(options.data, pair_states(model, options.states), types, options.samples)
    started = time.process_time()
    if options.repair != "none" or options.observer == AUTO:
        parameters, notes, parts = _repair(options, model, data)
    else:
        parameters, notes, parts = _calibrate(options, model, data, load_machine(options.hw) if options.hw else None)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if options.output.suffix in SUFFIXES:
        if parameters.weight_types or any(codes.is_wide for codes in parameters.types.values()):
            raise CompileError(f"-o {options.output}: encodings cannot say types of weights, or wide ones; give -o params.yaml")
        text = render_encodings(parameters.tensors, load_chip(options.hw).numerics, parameters.types)
        write_atomically(options.output, text.encode())
    else:
        write_parameters(options.output, parameters)
    for note in (*stepped, *notes):
        print(f"note: {note}")
    for warning in model.warnings:
        print(f"warning: {warning}")
    for line in format_poor_parts(parts):
        print(f"warning: {line}")
    print(
        f"{options.output}: {len(parameters.tensors)} tensors from {parameters.samples} samples, observer {parameters.observer}, "
        f"{time.process_time() - started:.1f} CPU s"
    )


def _require_machine(options: argparse.Namespace) -> None:
    """Raise CompileError where an option needs a machine and --hw names none, or an option cannot be kept in the output's
    form."""
    option = f"--repair {options.repair}" if options.repair != "none" else "--observer auto" if options.observer == AUTO else None
    if option and not options.hw:
        raise CompileError(f"{option}: is judged on a machine's integers, and no machine was named; give --hw")
    if options.types and not options.hw:
        raise CompileError(f"{TYPE} {options.types[0]}: is a type of a machine's, and no machine was named; give --hw")
    if options.output.suffix in SUFFIXES and not options.hw:
        raise CompileError(f"-o {options.output}: encodings hold the scales of a machine; give --hw")
    if options.output.suffix in SUFFIXES and options.repair != "none":
        raise CompileError(f"-o {options.output}: encodings cannot say what was repaired; give -o params.yaml")


def _calibrate(options: argparse.Namespace, model: NormalModel, data: Samples, machine: Machine | None) -> FoundParameters:
    """Calibrate every float tensor, so that the file serves several machines.

    Operators in steps have the steps of this machine; with `machine` None those of any machine.
    """
    chip = machine.chip if machine else None
    numerics = chip.numerics if chip else None
    model = decompose_model(model, chip, finest=None) if chip else decompose_all(model)
    model = pair_states(model, options.states)
    network = Network(model, select_model(model, machine), machine).override_types(options.types) if machine else None
    observer = options.observer or (default_observer(numerics) if numerics else "minmax")
    samples = 0

    def progress(done: int, total: int | None) -> None:
        nonlocal samples
        samples = done
        show_progress("calibrating", done, total)

    ranges = calibrate(
        model.proto,
        data,
        [n for n in list_calibrated_tensors(model.proto, model.types) if n not in model.fixed],
        observer=observer,
        numerics=numerics,
        others={n: numerics.of(codes) for n, codes in network.requested_types.items()} if network and numerics else {},
        percent=options.percent,
        progress=progress,
        computed_by=model,
        decomposition=model.decomposition,
    )
    adjusted = adjust_ranges(model.proto, ranges, model.decomposition, model.name)
    label = f"percentile {options.percent:g}" if observer == "percentile" else observer
    fields, hardware = _of(options, model, network, adjusted.ranges), chip.name if chip else ""
    parameters = Parameters(observer=label, samples=samples, **fields, hardware=hardware)
    parts = find_shared_scale_parts(model.proto, adjusted.ranges, numerics) if numerics else []
    return parameters, adjusted.notes, parts


def _repair(options: argparse.Namespace, model: NormalModel, data: Samples) -> FoundParameters:
    """Calibrate and repair the tensors of one machine."""
    machine = load_machine(options.hw)
    model = pair_states(decompose_for_types(model, machine.chip, (), options.types, {}), options.states)
    network = Network(model, select_model(model, machine), machine).override_types(options.types)
    network = replace(network, count_cycles=make_cycle_counter(BuildOptions.level))
    effort = effort_of(options.repair, network, data, real=True)
    result = calibrate_network(network, data, options.observer, effort, show_progress)
    network = network.with_types(result.quantization.types)
    model, numerics = network.model, machine.chip.numerics
    ranges = {n: r for n, r in result.quantization.ranges.items() if n not in network.selection.fixed}
    fields = _of(options, model, network, ranges)
    samples, hardware = result.samples or 0, machine.chip.name
    parameters = Parameters(observer=result.label, samples=samples, **fields, hardware=hardware, repair=result.repair)
    range_by_tensor = {name: r for name, r in ranges.items() if isinstance(r, Range)}
    step_notes = [f"{t.step}: {'kept' if t.is_kept else 'left out'}, {t.why}" for t in result.tried]
    return (
        parameters,
        (*result.notes, *step_notes),
        find_shared_scale_parts(result.network.model.proto, range_by_tensor, numerics),
    )


def _of(
    options: argparse.Namespace, model: NormalModel, network: Network | None, ranges: Mapping[str, Range | Quant]
) -> dict[str, Any]:
    """Return the keyword arguments of `Parameters` that calibration and repair share: tensors, names, sources and types.

    Encodings are scales of codes, and so of each tensor's own, with the room that the build would leave. A parameters file has
    ranges, and the types that the user or repair set.
    """
    type_keys: dict[str, Any] = {}
    if network is not None and options.output.suffix in SUFFIXES:
        types = network.code_types
        type_by_tensor = {n: types.get(n, network.chip.code_types[0]) for n in ranges}
        of, within = network.chip.numerics.of, model.over_sequences
        ranges = {n: with_room(r, within.get(n), of(type_by_tensor[n])) if isinstance(r, Range) else r for n, r in ranges.items()}
        type_keys = {"types": model.by_name(type_by_tensor), "weight_types": network.weight_types}
    elif network is not None and (network.types or network.weight_types):
        type_keys = {"types": model.by_name(network.types), "weight_types": network.weight_types}
    sources = model.by_name(tensor_sources(model.proto))
    return {
        "tensors": model.by_name(ranges),
        "data": str(options.data),
        "model": options.model.name,
        "sources": sources,
        **type_keys,
    }


def main() -> None:
    options = arguments()
    work_in_child()
    with report_errors():
        require_host(options.host)
        with run_float_models_on(options.host):
            run(options)


if __name__ == "__main__":
    main()
