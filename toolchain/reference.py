"""python -m toolchain.reference MODEL-or-OUT.npu --input IN.npz --output OUT.npz: the integer reference executor."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.cli.application import Paths, as_options, report_errors, require_host, require_writable, warn
from toolchain.cli.input_files import data_inputs, machine_inputs, model_inputs
from toolchain.cli.npz_files import npz_bytes, read_feeds
from toolchain.errors import CompileError, format_count

if TYPE_CHECKING:
    from toolchain.codegen import Container


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m toolchain.reference", description=__doc__)
    parser.add_argument("model", type=Path, help="a compiled .npu, or an ONNX model (then --hw says what its integers are)")
    parser.add_argument("--input", type=Path, help=".npz with an array for each input; without it one random sample")
    parser.add_argument("--output", type=Path, required=True, help=".npz for the outputs")
    parser.add_argument("--host", default="cpu", help="where islands run: cpu or cuda")
    parser.add_argument("--entry", help="which of the sets of input shapes that a compiled .npu was built for")
    parser.add_argument("--hw", help="machine, for an ONNX model")
    parser.add_argument("--calib", help="calibration data, for an ONNX model")
    parser.add_argument("--quant", help="parameters file, for an ONNX model")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,640,640", help="for an ONNX model")
    given = parser.parse_args(arguments)
    with report_errors():
        _run(given)


def _run(given: argparse.Namespace) -> None:
    from toolchain.atomic_files import write_atomically
    from toolchain.runtime import Session

    require_host(given.host)
    require_writable({"--output": given.output}, {**_sources(given), "--input": given.input})
    with as_options():
        session = Session(_container(given), backend="reference", host=given.host, entry=given.entry)
    run = session.run_detailed(
        read_feeds(
            given.input, session.get_inputs(), session.get_states(), session.container.bound, session.container.host_inputs
        )
    )
    outputs = {**run.outputs, **{t.name: session.state(t.name) for t in session.get_states()}}
    write_atomically(given.output, npz_bytes(outputs))
    random = "" if given.input else " of random inputs; give --input IN.npz"
    print(f"wrote {given.output}: {format_count(len(outputs), 'output')}{random}")


def _sources(given: argparse.Namespace) -> dict[str, Paths]:
    """What `_container` reads. Raises CompileError: options that do not go with this kind of model."""
    options = {"--hw": given.hw, "--calib": given.calib, "--quant": given.quant, "--shape": given.shape}
    if given.model.suffix != ".onnx":
        unused = next((name for name, value in options.items() if value), None)
        if unused is not None:
            raise CompileError(f"{unused}: goes with an ONNX model; {given.model} is compiled already")
        return {"the model": given.model}
    if given.entry is not None:
        raise CompileError(f"--entry {given.entry}: goes with a compiled .npu; --shape binds dimensions of an ONNX model")
    if given.hw is None:
        raise CompileError(f"{given.model}: an ONNX model needs --hw NAME: the machine says what its integers are")
    return {
        **model_inputs(given.model),
        **machine_inputs(given.hw),
        **data_inputs("--calib", given.calib),
        "--quant": given.quant,
    }


def _container(given: argparse.Namespace) -> Path | Container:
    if given.model.suffix != ".onnx":
        return given.model
    from toolchain.api import BuildOptions, build
    from toolchain.cli.option_values import input_shapes

    built = build(given.model, BuildOptions(given.hw, given.calib, given.quant, input_shapes(given.shape)))
    warn(built.warnings)
    return built.container


if __name__ == "__main__":
    main()
