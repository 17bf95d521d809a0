#!/usr/bin/env python3
"""Compare a machine's results for a model in every form of bench/make_quantized.py with onnxruntime and the float model.

    `python bench/compare_exporters.py MODEL.onnx --data DATA [--form FORM ...] [--hw NAME ...]`.

There is one line for each form, with the number of products that stay on the host.
It tells whether a copy of edge16 with float32 scales, rounded to nearest even, gives onnxruntime's bits.
If not, it tells how many dB the copy is from them.
Below 50 dB, it also tells how far the file is from onnxruntime when it is computed exactly (bench/exact_reference.py).
Exact means in float64, with weights of 8 bits where it has floats, and static ranges for dynamic ones.
No machine of such weights can be nearer.
It tells how far the copy is from exact, and how far onnxruntime is from itself without its optimizations, too.
Two of these answers to the file may differ so much that no numbers could be 40 dB from both.
The line then tells how near to both they could be.
Where weights have to be rounded, it tells the bits that 40 dB need.
For each machine of --hw, it gives the dB by which the file stands above (below) this toolchain's model.
That is the float model quantized with the file's scales; both are against float, where the file's weights have 8 bits.
In brackets is the difference to that model with the file's weights; each has its standard error over the samples.
The copy has codes of the file's 8 bits, of 16 too, and of 32 for tensors that the file leaves in float.
Options: --int8: neither; --on NAME: that machine in its place.
Option --type: codes of single tensors and weights, as npu-build has it. Only the integer reference runs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
from exact_reference import exact, has_unrounded_weights, ranges_of_runs, with_rounded_weights
from make_quantized import FORMS, STATIC, bound, quantize_form, to_scores, with_weights_of
from numpy.typing import NDArray
from onnx import numpy_helper
from ort_machines import float32_machine, with_uint8, with_wide
from sqnr_difference import SqnrDifference, above

from quant.calibration_data import Samples, open_data
from quant.exact_weights import saturates, with_exact_weights
from quant.fidelity import sqnr_db
from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.weight_scaling import WeightScaling
from quant.float_session import open_session
from quant.observe import Range
from quant.repair.choices import LayerParameters, Quantization
from toolchain.cli.application import report_errors
from toolchain.cli.option_values import input_shapes
from toolchain.compiler import select_model
from toolchain.errors import CompileError
from toolchain.foundation.inference import open_model, session_options
from toolchain.frontend import NormalModel, load_model
from toolchain.ir.graph import OnnxGraph, OnnxOp, Quant
from toolchain.isa import Machine, load_machine
from toolchain.passes.decompose import decompose_model
from toolchain.repair.calibrate_network import calibrate_network, effort_of
from toolchain.repair.network import Network
from toolchain.report import check_frontend

Array = NDArray[np.float32]
EXACT_DB = 200.0
NEAR_DB = 50.0  # below it the file is computed exactly as well
ASKED_DB = 40.0
HALVED_DB = float(20 * np.log10(2))
MOST_BITS = 16
CODES = ("_QuantizeLinear_Output", "_quantized")  # of a tensor's name
PRODUCTS = ("Conv", "ConvTranspose", "ConvInteger", "Gemm", "MatMul", "MatMulInteger")


def on_kernels(model: onnx.ModelProto, feeds: Mapping[str, Array], *, fused: bool = True) -> Sequence[Array]:
    """Return the model's outputs by onnxruntime's QLinear kernels.

    `fused`: pairs of QuantizeLinear and DequantizeLinear are fused to these kernels, int8 as it is; False: node by node.
    """
    options = session_options(optimized=fused)
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    exact = with_exact_weights(model) if saturates() else model
    session = open_model(exact.SerializeToString(), options)
    return [np.asarray(v) for v in session.run(None, dict(feeds))]


@dataclass(frozen=True)
class ExactFidelity:
    """A fidelity of a file computed exactly, in dB.

    `onnxruntime_db`, `chip_db`: onnxruntime and the chip against the file as a machine holds it.
    `unfused_db`: onnxruntime against itself, unoptimized.
    `file_db`: onnxruntime against the file as it is, where no weights have to be rounded.
    `bits`: of weights with which the exact file is ASKED_DB from onnxruntime, where they have.
    """

    onnxruntime_db: float
    chip_db: float
    unfused_db: float
    file_db: float
    bits: int | None

    @property
    def both_db(self) -> float:
        """Return the dB that no numbers can exceed from two of the file's answers.

        The reason is |a - b| <= |a - z| + |z - b|.
        One of both is therefore at least half as far from z as they are from each other.
        """
        return min(self.unfused_db, self.file_db) + HALVED_DB


@dataclass(frozen=True)
class Row:
    """A row of the table.

    `hosted`: products that stay on the host.
    `chip_db`: the machine's outputs against onnxruntime's, 200 where equal.
    `exactly`: figures of the exact file, where `chip_db` is below 50; else None.
    `above_db`: by machine, how far its outputs stand above the float model, and above it with the file's weights.
    """

    form: str
    hosted: int
    chip_db: float
    exactly: ExactFidelity | None
    above_db: Mapping[str, tuple[SqnrDifference, SqnrDifference]]


@dataclass(frozen=True)
class FileRanges:
    """A file's ranges or scales for a float model, by tensor.

    `per_channel`: whether each channel of its weights has a scale.
    """

    ranges: Mapping[str, Range | Quant]
    per_channel: bool

    def within(self, quantization: Quantization, network: Network) -> Quantization:
        """Return the quantization with the file's ranges in place of its own, and with its sharing of weights' scales."""
        file_ranges = {n: self.ranges[n] for n in quantization.ranges if n in self.ranges}
        one = LayerParameters(scaling=WeightScaling(None, 0))
        uses_machine_scales = (
            self.per_channel or network.chip.numerics.weight.bits != 8
        )  # of other types the machine makes its own
        layers = {} if uses_machine_scales else {n.name: one for n in network.weighted}
        return replace(quantization, ranges={**quantization.ranges, **file_ranges}, layers=layers)


class Judge:
    """A judge of files in the forms of a float model.

    `path`: the float model.
    `calibrated`: samples to calibrate on.
    `judged`: other samples.
    `repaired`: files as npu-build repairs them by default.
    `types`: NAME=TYPE of a file's tensors and weights.
    """

    def __init__(
        self,
        path: Path,
        calibrated: Sequence[Sample],
        judged: Sequence[Sample],
        *,
        repaired: bool = False,
        types: Sequence[str] = (),
    ) -> None:
        self.calibrated, self.judged, self.repaired, self.types = calibrated, judged, repaired, types
        self._path = path
        session = open_session(path)
        self._names = [o.name for o in session.get_outputs()]
        self._real = [session.run(None, dict(s)) for s in judged]

    def integer(
        self, model: NormalModel, machine: Machine, file_ranges: FileRanges | None = None
    ) -> tuple[Network, list[list[Array]]]:
        """Return the network on a machine, and its outputs for each judged sample.

        `file_ranges`: in place of what calibration finds; None: calibrate.
        """
        model = decompose_model(model, machine.chip)
        network = Network(model, select_model(model, machine), machine)
        if file_ranges is None:
            check_frontend(model, self.calibrated[:1])
            network = network.override_types(self.types)
            if CodeType.INT32 in machine.chip.code_types:
                network = replace(
                    network, types={**dict.fromkeys(network.selection.float_tensors, CodeType.INT32), **network.types}
                )
        samples = Samples("", len(self.calibrated), lambda: iter(self.calibrated))
        effort = effort_of(None, network, samples, real=True) if self.repaired and file_ranges is None else "none"
        result = calibrate_network(network, samples, None, effort, lambda *_: None)
        quantization = result.quantization if file_ranges is None else file_ranges.within(result.quantization, network)
        session = network.session(quantization)
        return network, [session.run(self._names, s) for s in self.judged]

    def above(self, file: Path, form: str, machine: Machine) -> tuple[SqnrDifference, SqnrDifference]:
        """Return by how many dB the file's outputs stand above those of the float model with its scales.

        The second result is the same above the float model with the file's weights too.
        """
        network, ours = self.integer(load_model(file), machine)
        rounding = _roundings(onnx.load(file), self._names)
        reweighted_model = with_weights_of(onnx.load(self._path), self.calibrated, form)
        weights_file = file.with_name("weights.onnx")
        onnx.save(reweighted_model, weights_file)

        def over(path: Path) -> SqnrDifference:
            model = load_model(path)
            file_ranges = FileRanges(
                _rename_to_float(network.selection.file_ranges, network.model.graph, model.graph), STATIC[form].per_channel
            )
            _, runs = self.integer(model, machine, file_ranges)
            return above(self._real, ours, [[r(v) for r, v in zip(rounding, values, strict=True)] for values in runs])

        return over(self._path), over(weights_file)


def _rename_to_float(value_by_name: Mapping[str, Range | Quant], file: OnnxGraph, graph: OnnxGraph) -> dict[str, Range | Quant]:
    """Return the ranges or scales by the float model's names.

    Names of codes are those of their tensors, with an ending.
    A tensor is the same after a clamp that a quantizer removed, where codes end.
    `value_by_name`: by the file's names.
    """
    pairs = [n for n in file.nodes if n.op.op_type in ("QuantizeLinear", "DequantizeLinear")]
    codes = {(n.outputs if n.op.op_type == "QuantizeLinear" else n.inputs)[0]: "" for n in pairs}
    real = {t: c for n in pairs for t, c in ((n.inputs[0], n.outputs[0]), (n.outputs[0], n.inputs[0])) if c in codes}
    consumers, value_by_tensor = graph.consumers(), dict[str, Range | Quant]()
    for name, quant in value_by_name.items():
        float_name = real.get(name, name)
        for ending in CODES:
            float_name = float_name.removesuffix(ending)
        value_by_tensor[float_name] = quant
        readers = consumers.get(float_name, [])
        if len(readers) == 1 and readers[0].op.op_type in ("Relu", "Clip"):
            value_by_tensor[readers[0].outputs[0]] = quant
    return value_by_tensor


def _roundings(model: onnx.ModelProto, names: Sequence[str]) -> list[Callable[[Array], Array]]:
    """Return the rounding that the file applies to each output, on the host too, where it does."""
    values = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    makers = {n.output[0]: n for n in model.graph.node if n.op_type == "DequantizeLinear"}

    def rounding(name: str) -> Callable[[Array], Array]:
        maker = makers.get(name)
        if maker is None or maker.input[1] not in values:
            return lambda x: x
        scale, zero = values[maker.input[1]].reshape(()), values[maker.input[2]].reshape(())
        limits, point = np.iinfo(zero.dtype), int(zero)
        return lambda x: (np.clip(np.rint(x / scale) + point, limits.min, limits.max) - point) * scale

    return [rounding(name) for name in names]


def _db(real: Sequence[Sequence[Array]], got: Sequence[Sequence[Array]]) -> float:
    """Return the SQNR of all outputs of all runs together in dB, at most 200."""
    real_values, got_values = (np.concatenate([np.ravel(v) for run in runs for v in run]) for runs in (real, got))
    return min(sqnr_db(real_values, got_values), EXACT_DB)


def compare_form(
    judge: Judge, model: onnx.ModelProto, form: str, machine: Machine, others: Mapping[str, Machine], *, run_ranges: bool = False
) -> Row:
    """Return the row of one form.

    `run_ranges`: dynamic files have the ranges that each run finds.
    """
    model_copy = onnx.ModelProto()
    model_copy.CopyFrom(model)  # onnxruntime's quantizer takes the weights out of what it is given
    quantized_model, static = quantize_form(model_copy, judge.calibrated, form), STATIC.get(form)
    unsigned = static is not None and static.activation == "QUInt8" and machine.chip.numerics.scale.kind == "float32"
    form_machine = with_uint8(machine) if unsigned else machine
    plain = static is not None and static.weight == "QInt8" and "16" not in static.activation
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{form}.onnx"
        onnx.save(quantized_model, file)
        network, ours = judge.integer(load_model(file, static_ranges=form == "dynamic" and not run_ranges), form_machine)
        ort_outputs = [on_kernels(quantized_model, s) for s in judge.judged]
        above = {name: judge.above(file, form, other) for name, other in others.items() if plain}
    hosted = sum(isinstance(n.op, OnnxOp) and n.op.op_type in PRODUCTS for n in network.selection.graph.nodes)
    chip_db = _db(ort_outputs, ours)
    return Row(form, hosted, chip_db, exactly(judge, quantized_model, ort_outputs, ours) if chip_db < NEAR_DB else None, above)


def exactly(
    judge: Judge, quantized_model: onnx.ModelProto, ort_outputs: Sequence[Sequence[Array]], ours: Sequence[Sequence[Array]]
) -> ExactFidelity:
    """Return the figures of the file computed exactly, against onnxruntime's outputs and ours."""
    rounded = with_rounded_weights(quantized_model)
    ranges = ranges_of_runs(rounded, judge.calibrated)
    exact_outputs = exact(rounded, judge.judged, ranges)
    near_db, unrounded = _db(exact_outputs, ort_outputs), has_unrounded_weights(quantized_model)
    file_db = EXACT_DB if unrounded else _db(ort_outputs, exact(quantized_model, judge.judged) if ranges else exact_outputs)
    unfused = [on_kernels(quantized_model, s, fused=False) for s in judge.judged]
    bits = _bits(quantized_model, judge.judged, ort_outputs) if unrounded and near_db < ASKED_DB else None
    return ExactFidelity(near_db, _db(exact_outputs, ours), _db(ort_outputs, unfused), file_db, bits)


def _bits(quantized_model: onnx.ModelProto, judged: Sequence[Sample], ort_outputs: Sequence[Sequence[Array]]) -> int | None:
    """Return the fewest bits, 9 to 16, with which weights, rounded to nearest, leave 40 dB; None where none does."""
    rounded = ((bits, exact(with_rounded_weights(quantized_model, bits), judged)) for bits in range(9, MOST_BITS + 1))
    return next((bits for bits, outputs in rounded if _db(ort_outputs, outputs) >= ASKED_DB), None)


def text(row: Row) -> str:
    """Return one line of the printed table."""

    def level(db: float) -> str:
        return "equal" if db >= EXACT_DB else f"{db:.1f} dB"

    line = f"{row.form:16s} products on the host {row.hosted}  onnxruntime {level(row.chip_db):8s}"
    if row.exactly is not None:
        e = row.exactly
        line += f"  exact: onnxruntime {level(e.onnxruntime_db)}, chip {level(e.chip_db)}; unoptimized {level(e.unfused_db)}"
        line += f"; from both at most {e.both_db:.1f} dB" if e.both_db < ASKED_DB else ""
        line += f"; {ASKED_DB:g} dB with weights of {e.bits} bits" if e.bits else ""
    return "  ".join((line, *(f"{name} {db} ({weights_db}) dB" for name, (db, weights_db) in row.above_db.items())))


def arguments() -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", required=True, help="as npu-build --calib")
    parser.add_argument("--form", nargs="+", default=list(FORMS), help=f"of {', '.join(FORMS)}; default all")
    parser.add_argument("--int8", action="store_true", help="no codes of 16 and 32 bits")
    parser.add_argument("--run-ranges", action="store_true", help="dynamic files have the ranges that each run finds")
    parser.add_argument("--on", metavar="NAME", help="a machine in place of the copy of edge16")
    parser.add_argument("--repaired", action="store_true", help="files as npu-build repairs them, the float model is not")
    parser.add_argument("--type", nargs="*", default=[], metavar="NAME=TYPE", help="of the file's tensors or weights")
    parser.add_argument("--hw", nargs="*", default=[], help="machines to hold against the float model")
    parser.add_argument("--samples", type=int, default=16, help="to calibrate on (default 16)")
    parser.add_argument("--judged", type=int, default=16, help="samples behind these (default 16)")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,640,640", help="binds dynamic dimensions")
    return parser.parse_args()


def run(args: argparse.Namespace) -> None:
    """Compare the model in each form and print a line for it; a form that is refused gets its sentence."""
    normal = load_model(args.model, input_shapes(args.shape))
    shapes = {n: normal.types[n] for n in normal.inputs}
    samples = list(islice(open_data(args.data, shapes), args.samples + args.judged))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / args.model.name
        model = to_scores(bound(onnx.load(args.model), {n: kind.shape for n, kind in shapes.items()}))
        onnx.save(model, path)
        judge = Judge(path, samples[: args.samples], samples[args.samples :], repaired=args.repaired, types=args.type)
        edge, others = float32_machine(load_machine("edge16")), {name: load_machine(name) for name in args.hw}
        machine = load_machine(args.on) if args.on else edge if args.int8 else with_wide(edge)
        for form in args.form:
            try:
                print(text(compare_form(judge, model, form, machine, others, run_ranges=args.run_ranges)), flush=True)
            except CompileError as fault:
                print(f"{form:16s} {str(fault).splitlines()[0]}", flush=True)


def main() -> None:
    with report_errors():
        run(arguments())


if __name__ == "__main__":
    main()
