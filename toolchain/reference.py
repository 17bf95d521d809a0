"""python -m toolchain.reference MODEL-or-OUT.npu --input IN.npz --output OUT.npz: the integer reference executor."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolchain.cli.arrays import read_feeds, write_arrays
from toolchain.cli.faults import reported


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m toolchain.reference", description=__doc__)
    parser.add_argument(
        "model", help="a compiled .npu, or an ONNX model (then --hw, and --calib or --quant, say how to quantize)"
    )
    parser.add_argument("--input", help=".npz with an array for each input; without it one random sample")
    parser.add_argument("--output", required=True, help=".npz for the outputs")
    parser.add_argument("--hw", help="machine, for an ONNX model")
    parser.add_argument("--calib", help="calibration data, for an ONNX model")
    parser.add_argument("--quant", help="parameters file, for an ONNX model")
    given = parser.parse_args(arguments)
    with reported():
        _run(given)


def _run(given: argparse.Namespace) -> None:
    from toolchain.runtime import Session

    session = Session(_container(given), engine="reference")
    feeds = read_feeds(given.input, session.get_inputs())
    outputs = session.run_detailed(feeds).outputs
    write_arrays(given.output, outputs)


def _container(given: argparse.Namespace):
    from toolchain.api import BuildOptions, build
    from toolchain.codegen import read_container
    from toolchain.errors import CompileError

    if Path(given.model).suffix == ".onnx":
        if given.hw is None:
            raise CompileError(f"{given.model}: an ONNX model needs --hw NAME: the machine says what its integers are")
        return build(given.model, BuildOptions(given.hw, given.calib, given.quant)).container
    return read_container(given.model)


if __name__ == "__main__":
    main()
