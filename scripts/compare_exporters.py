#!/usr/bin/env python3
"""What a machine makes of a model in every form of scripts/make_quantized.py, against onnxruntime and against the float model.

    python scripts/compare_exporters.py MODEL.onnx --data DATA [--form FORM ...] [--hw NAME ...]

A line a form: how many products stay on the host; whether a copy of edge16 with float32 scales, rounded to nearest even, gives
onnxruntime's bits, else how many dB it is from them. Where that is below 50, how far the file is from onnxruntime when it is
computed exactly (scripts/exact_reference.py: in float64, with weights of 8 bits where it has floats, and static ranges for
dynamic ones), which no machine of such weights can better; how far the copy is from that; and how far onnxruntime is from itself
without its optimizations. Where no numbers at all could be 40 dB from two of these answers to the file, how near to both they
could be; and where weights have to be rounded, the bits that 40 dB ask of them. Of each machine of --hw, by how many dB the
file stands above (below) the float model that this toolchain quantizes with the file's scales, both against float, where its
weights have 8 bits; in brackets, above that model with the file's weights, each with its standard error over the samples. The
copy has codes of the file's 8 bits, of 16 too, and of 32 for what the file leaves in float (--int8: neither; --on NAME: that
machine in its place; --type: codes of single tensors and weights, as npu-build has it). Only the integer reference runs.
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
from make_quantized import FORMS, STATIC, bound, quantized, to_scores, with_weights_of
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
from toolchain.frontend import NormalModel, load_model
from toolchain.inference import open_model, session_options
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
    """The outputs by QLinear kernels: pairs of QuantizeLinear and DequantizeLinear are fused to them, int8 as it is. fused: else
    node by node."""
    options = session_options(optimized=fused)
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    exact = with_exact_weights(model) if saturates() else model
    session = open_model(exact.SerializeToString(), options)
    return [np.asarray(v) for v in session.run(None, dict(feeds))]


@dataclass(frozen=True)
class ExactFidelity:
    """Of a file computed exactly, in dB: onnxruntime and the chip against it, as a machine holds it; onnxruntime against itself,
    unoptimized, and against the file as it is, where no weights have to be rounded; bits: of weights with which exactly is
    ASKED_DB from onnxruntime, where they have."""

    onnxruntime_db: float
    chip_db: float
    unfused_db: float
    file_db: float
    bits: int | None

    @property
    def both_db(self) -> float:
        """What no numbers at all can be better than from two of the answers that the file has: |a - b| <= |a - z| + |z - b|, so
        one of both is at least half as far from z as they are from each other."""
        return min(self.unfused_db, self.file_db) + HALVED_DB


@dataclass(frozen=True)
class Row:
    """above_db: by machine, over the float model, and over it with the file's weights."""

    form: str
    hosted: int
    chip_db: float
    exactly: ExactFidelity | None
    above_db: Mapping[str, tuple[SqnrDifference, SqnrDifference]]


@dataclass(frozen=True)
class FileRanges:
    """What a file says of a float model: ranges or scales, by tensor, and whether each channel of its weights has a scale."""

    ranges: Mapping[str, Range | Quant]
    per_channel: bool

    def within(self, found: Quantization, network: Network) -> Quantization:
        known = {n: self.ranges[n] for n in found.ranges if n in self.ranges}
        one = LayerParameters(scaling=WeightScaling(None, 0))
        own = self.per_channel or network.chip.numerics.weight.bits != 8  # of other types the machine makes its own
        layers = {} if own else {n.name: one for n in network.weighted}
        return replace(found, ranges={**found.ranges, **known}, layers=layers)


class Judge:
    """calibrated: samples to calibrate on; judged: others; repaired: files as npu-build repairs them by default; types: NAME=TYPE
    of a file's tensors and weights."""

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

    def integer(self, model: NormalModel, machine: Machine, given: FileRanges | None = None) -> tuple[Network, list[list[Array]]]:
        """The network and its outputs. given: in place of what calibration finds."""
        model = decompose_model(model, machine.chip)
        network = Network(model, select_model(model, machine), machine)
        if given is None:
            check_frontend(model, self.calibrated[:1])
            network = network.typed(self.types)
            if CodeType.INT32 in machine.chip.code_types:
                network = replace(network, types={**dict.fromkeys(network.selection.left, CodeType.INT32), **network.types})
        samples = Samples("", len(self.calibrated), lambda: iter(self.calibrated))
        effort = effort_of(None, network, samples, real=True) if self.repaired and given is None else "none"
        found = calibrate_network(network, samples, None, effort, lambda *_: None)
        quantization = found.quantization if given is None else given.within(found.quantization, network)
        session = network.session(quantization)
        return network, [session.run(self._names, s) for s in self.judged]

    def above(self, file: Path, form: str, machine: Machine) -> tuple[SqnrDifference, SqnrDifference]:
        """dB of the file's outputs over those of the float model with its scales, and of that with its weights too."""
        network, ours = self.integer(load_model(file), machine)
        rounding = _roundings(onnx.load(file), self._names)
        taken = with_weights_of(onnx.load(self._path), self.calibrated, form)
        own = file.with_name("weights.onnx")
        onnx.save(taken, own)

        def over(path: Path) -> SqnrDifference:
            model = load_model(path)
            given = FileRanges(_named(network.selection.given, network.model.graph, model.graph), STATIC[form].per_channel)
            _, found = self.integer(model, machine, given)
            return above(self._real, ours, [[r(v) for r, v in zip(rounding, values, strict=True)] for values in found])

        return over(self._path), over(own)


def _named(given: Mapping[str, Range | Quant], file: OnnxGraph, graph: OnnxGraph) -> dict[str, Range | Quant]:
    """By the float model's names; given: by the file's. Codes are called after what they are of, with an ending. A tensor is the
    same behind a clamp that a quantizer removed, where codes end."""
    pairs = [n for n in file.nodes if n.op.op_type in ("QuantizeLinear", "DequantizeLinear")]
    codes = {(n.outputs if n.op.op_type == "QuantizeLinear" else n.inputs)[0]: "" for n in pairs}
    real = {t: c for n in pairs for t, c in ((n.inputs[0], n.outputs[0]), (n.outputs[0], n.inputs[0])) if c in codes}
    consumers, found = graph.consumers(), dict[str, Range | Quant]()
    for name, quant in given.items():
        own = real.get(name, name)
        for ending in CODES:
            own = own.removesuffix(ending)
        found[own] = quant
        readers = consumers.get(own, [])
        if len(readers) == 1 and readers[0].op.op_type in ("Relu", "Clip"):
            found[readers[0].outputs[0]] = quant
    return found


def _roundings(model: onnx.ModelProto, names: Sequence[str]) -> list[Callable[[Array], Array]]:
    """What the file rounds its outputs to, on the host too, where it does."""
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
    wanted, found = (np.concatenate([np.ravel(v) for run in runs for v in run]) for runs in (real, got))
    return min(sqnr_db(wanted, found), EXACT_DB)


def compared(
    judge: Judge, model: onnx.ModelProto, form: str, machine: Machine, others: Mapping[str, Machine], *, run_ranges: bool = False
) -> Row:
    """run_ranges: dynamic files have those that each run finds."""
    given = onnx.ModelProto()
    given.CopyFrom(model)  # onnxruntime's quantizer takes the weights out of what it is given
    made, static = quantized(given, judge.calibrated, form), STATIC.get(form)
    unsigned = static is not None and static.activation == "QUInt8" and machine.chip.numerics.scale.kind == "float32"
    own = with_uint8(machine) if unsigned else machine
    plain = static is not None and static.weight == "QInt8" and "16" not in static.activation
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{form}.onnx"
        onnx.save(made, file)
        network, ours = judge.integer(load_model(file, static_ranges=form == "dynamic" and not run_ranges), own)
        wanted = [on_kernels(made, s) for s in judge.judged]
        above = {name: judge.above(file, form, other) for name, other in others.items() if plain}
    hosted = sum(isinstance(n.op, OnnxOp) and n.op.op_type in PRODUCTS for n in network.selection.graph.nodes)
    chip_db = _db(wanted, ours)
    return Row(form, hosted, chip_db, exactly(judge, made, wanted, ours) if chip_db < NEAR_DB else None, above)


def exactly(
    judge: Judge, made: onnx.ModelProto, wanted: Sequence[Sequence[Array]], ours: Sequence[Sequence[Array]]
) -> ExactFidelity:
    rounded = with_rounded_weights(made)
    ranges = ranges_of_runs(rounded, judge.calibrated)
    found = exact(rounded, judge.judged, ranges)
    near_db, unrounded = _db(found, wanted), has_unrounded_weights(made)
    file_db = EXACT_DB if unrounded else _db(wanted, exact(made, judge.judged) if ranges else found)
    unfused = [on_kernels(made, s, fused=False) for s in judge.judged]
    bits = _bits(made, judge.judged, wanted) if unrounded and near_db < ASKED_DB else None
    return ExactFidelity(near_db, _db(found, ours), _db(wanted, unfused), file_db, bits)


def _bits(made: onnx.ModelProto, judged: Sequence[Sample], wanted: Sequence[Sequence[Array]]) -> int | None:
    """The fewest with which weights, rounded to nearest, leave ASKED_DB."""
    rounded = ((bits, exact(with_rounded_weights(made, bits), judged)) for bits in range(9, MOST_BITS + 1))
    return next((bits for bits, found in rounded if _db(wanted, found) >= ASKED_DB), None)


def text(row: Row) -> str:
    def level(db: float) -> str:
        return "equal" if db >= EXACT_DB else f"{db:.1f} dB"

    line = f"{row.form:16s} products on the host {row.hosted}  onnxruntime {level(row.chip_db):8s}"
    if row.exactly is not None:
        e = row.exactly
        line += f"  exact: onnxruntime {level(e.onnxruntime_db)}, chip {level(e.chip_db)}; unoptimized {level(e.unfused_db)}"
        line += f"; from both at most {e.both_db:.1f} dB" if e.both_db < ASKED_DB else ""
        line += f"; {ASKED_DB:g} dB with weights of {e.bits} bits" if e.bits else ""
    return "  ".join((line, *(f"{name} {db} ({own}) dB" for name, (db, own) in row.above_db.items())))


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


def run(given: argparse.Namespace) -> None:
    normal = load_model(given.model, input_shapes(given.shape))
    shapes = {n: normal.types[n] for n in normal.inputs}
    samples = list(islice(open_data(given.data, shapes), given.samples + given.judged))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / given.model.name
        model = to_scores(bound(onnx.load(given.model), {n: kind.shape for n, kind in shapes.items()}))
        onnx.save(model, path)
        judge = Judge(path, samples[: given.samples], samples[given.samples :], repaired=given.repaired, types=given.type)
        edge, others = float32_machine(load_machine("edge16")), {name: load_machine(name) for name in given.hw}
        machine = load_machine(given.on) if given.on else edge if given.int8 else with_wide(edge)
        for form in given.form:
            try:
                print(text(compared(judge, model, form, machine, others, run_ranges=given.run_ranges)), flush=True)
            except CompileError as fault:
                print(f"{form:16s} {str(fault).splitlines()[0]}", flush=True)


def main() -> None:
    with report_errors():
        run(arguments())


if __name__ == "__main__":
    main()
