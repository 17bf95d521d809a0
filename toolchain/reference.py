"""python -m toolchain.reference MODEL-or-OUT.npu --input IN.npz --output OUT.npz: the integer reference executor.

It runs one sample and writes the outputs and the next states. An ONNX model is first built for the machine of --hw.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.cli.application import (
    Paths,
    as_options,
    load_plugin_option,
    report_errors,
    require_host,
    require_writable,
    use_custom_ops_option,
    warn,
)
from toolchain.cli.files import data_inputs, machine_inputs, model_inputs, npz_bytes, read_feeds
from toolchain.cli.option_values import add_plugins
from toolchain.errors import CompileError, format_count

if TYPE_CHECKING:
    from toolchain.codegen import Container


def main(arguments: list[str] | None = None) -> None:
    """Run the command on these arguments, None: the process's own, and exit with 2 where something is refused."""
    parser = argparse.ArgumentParser(
        prog="python -m toolchain.reference", usage="%(prog)s MODEL --output FILE [options]", description=__doc__
    )
    parser.add_argument("model", type=Path, help="a compiled .npu, or an ONNX model (then --hw says what its integers are)")
    parser.add_argument("--input", type=Path, help=".npz with an array for each input; without it one random sample")
    parser.add_argument("--output", type=Path, required=True, help=".npz for the outputs")
    parser.add_argument("--host", default="cpu", help="where islands run: cpu or cuda")
    parser.add_argument("--entry", help="which of the sets of input shapes that a compiled .npu was built for")
    add_plugins(parser)
    parser.add_argument("--hw", help="machine, for an ONNX model")
    parser.add_argument("--calib", help="calibration data, for an ONNX model")
    parser.add_argument("--quant", help="parameters file, for an ONNX model")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,640,640", help="for an ONNX model")
    parsed = parser.parse_args(arguments)
    with report_errors():
        _run(parsed)


def _run(parsed: argparse.Namespace) -> None:
    """Run the integer reference on one sample and write the outputs and what is left of states."""
    from toolchain.foundation.atomic_files import write_atomically
    from toolchain.runtime import Session

    require_host(parsed.host)
    load_plugin_option(parsed.plugins)
    use_custom_ops_option(parsed.custom_ops)
    require_writable({"--output": parsed.output}, {**_sources(parsed), "--input": parsed.input})
    with as_options():
        session = Session(_container(parsed), backend="reference", host=parsed.host, entry=parsed.entry)
    run = session.run_detailed(
        read_feeds(
            parsed.input, session.get_inputs(), session.get_states(), session.container.bound, session.container.host_inputs
        )
    )
    outputs = {**run.outputs, **{t.name: session.state(t.name) for t in session.get_states()}}
    write_atomically(parsed.output, npz_bytes(outputs))
    random = "" if parsed.input else " of random inputs; give --input IN.npz"
    print(f"wrote {parsed.output}: {format_count(len(outputs), 'output')}{random}")


def _sources(parsed: argparse.Namespace) -> dict[str, Paths]:
    """Return the files that `_container` reads, by what a message calls them.

    Raise CompileError for options that do not go with this kind of model.
    """
    options = {"--hw": parsed.hw, "--calib": parsed.calib, "--quant": parsed.quant, "--shape": parsed.shape}
    if parsed.model.suffix != ".onnx":
        unused = next((name for name, value in options.items() if value), None)
        if unused is not None:
            raise CompileError(f"{unused}: goes with an ONNX model; {parsed.model} is compiled already")
        return {"the model": parsed.model}
    if parsed.entry is not None:
        raise CompileError(f"--entry {parsed.entry}: goes with a compiled .npu; --shape binds dimensions of an ONNX model")
    if parsed.hw is None:
        raise CompileError(f"{parsed.model}: an ONNX model needs --hw NAME: the machine says what its integers are")
    return {
        **model_inputs(parsed.model),
        **machine_inputs(parsed.hw),
        **data_inputs("--calib", parsed.calib),
        "--quant": parsed.quant,
    }


def _container(parsed: argparse.Namespace) -> Path | Container:
    """Return the compiled file's path, or build the ONNX model and return its container."""
    if parsed.model.suffix != ".onnx":
        return parsed.model
    from toolchain.api import BuildOptions, build
    from toolchain.cli.option_values import input_shapes

    built = build(parsed.model, BuildOptions(parsed.hw, parsed.calib, parameters=parsed.quant, shapes=input_shapes(parsed.shape)))
    warn(built.warnings)
    return built.container


if __name__ == "__main__":
    main()
