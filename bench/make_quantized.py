#!/usr/bin/env python3
"""Write a float model as other tools' quantized files have it, by onnxruntime's quantizer and small rewritings of its output.

    `python bench/make_quantized.py MODEL.onnx --data DATA --form FORM -o OUT.onnx`.

`--form list` prints the forms. The model is float32 with constant weights; DATA is as in `npu-build --calib`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from exporter_styles import (
    PRODUCTS,
    Editor,
    as_blocked,
    as_integer_chain,
    as_matmul_nbits,
    as_pytorch,
    as_tensorflow,
    as_tensorrt,
)
from onnx import numpy_helper

from quant.calibration_data import open_data
from toolchain.cli.application import report_errors, require_writable
from toolchain.cli.files import data_inputs, model_inputs
from toolchain.cli.option_values import input_shapes
from toolchain.errors import CompileError
from toolchain.foundation.atomic_files import write_atomically

Sample = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Static:
    """Options of onnxruntime's quantize_static for one form, and what is changed in its result.

    `operators`: QOperator, else QDQ.
    `activation`, `weight`: names of types.
    `per_channel`: a scale for each channel of weights.
    `contrib`: Q and DQ of com.microsoft.
    `symmetric`: zero points are 0.
    `clamps`: Relu and Clip stay, else the codes' ends stand for them.
    `change`: a rewriting of the result.
    """

    operators: bool = False  # QOperator, else QDQ
    activation: str = "QInt8"
    weight: str = "QInt8"
    per_channel: bool = True
    contrib: bool = False  # com.microsoft's Q and DQ
    symmetric: bool = False
    clamps: bool = False  # Relu and Clip stay, else the codes' ends stand for them
    change: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None


def _static_forms() -> dict[str, Static]:
    """Return the forms that quantize_static makes, by name."""
    forms: dict[str, Static] = {}
    for kind, operators in (("qdq", False), ("qop", True)):
        for sign, name in (("s8", "QInt8"), ("u8", "QUInt8")):
            for scales, per_channel in (("channel", True), ("tensor", False)):
                forms[f"{kind}_{sign}_{scales}"] = Static(operators, name, "QInt8", per_channel)
    return forms | {
        "qdq_u8_u8": Static(weight="QUInt8", activation="QUInt8", per_channel=False),
        "qop_u8_u8": Static(operators=True, weight="QUInt8", activation="QUInt8", per_channel=False),
        "ms_qdq_s8": Static(contrib=True),
        "ms_qdq_s16": Static(contrib=True, activation="QInt16"),
        "ms_qdq_u16": Static(contrib=True, activation="QUInt16"),
        "ms_qdq_w4": Static(contrib=True, weight="QInt4"),
        "qdq_s16": Static(activation="QInt16"),
        "qdq_s16_w4": Static(activation="QInt16", weight="QInt4"),
        "pytorch": Static(clamps=True, change=as_pytorch),
        "tensorrt": Static(symmetric=True, clamps=True, change=as_tensorrt),
        "tensorflow": Static(activation="QInt8", change=as_tensorflow),
        "integer": Static(activation="QUInt8", change=as_integer_chain),
    }


STATIC = _static_forms()
WEIGHT_ONLY: Mapping[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "matmul_nbits": as_matmul_nbits,
    "blocked": as_blocked,
}
FORMS = (*STATIC, "dynamic", *WEIGHT_ONLY)


class Reader:
    """A CalibrationDataReader of onnxruntime over samples."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples, self._remaining = samples, iter(samples)

    def get_next(self) -> Sample | None:
        """Return the next sample; None at the end."""
        return next(self._remaining, None)

    def rewind(self) -> None:
        """Begin anew with the first sample."""
        self._remaining = iter(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)


def quantize_form(model: onnx.ModelProto, samples: Iterable[Sample], form: str) -> onnx.ModelProto:
    """Return the model in a quantized form. Raise CompileError where there is no such form.

    `model`: float32, opset 13 or newer.
    """
    if form in WEIGHT_ONLY:
        return WEIGHT_ONLY[form](_at_opset(model, 21) if form == "blocked" else model)
    if form == "dynamic":
        return _dynamic(model)
    if form not in STATIC:
        raise CompileError(f"--form {form}: must be one of {', '.join(FORMS)}")
    static = STATIC[form]
    quantized_model = _quantize_static(model, samples, static)
    return static.change(quantized_model) if static.change else quantized_model


def _quantize_static(model: onnx.ModelProto, samples: Iterable[Sample], static: Static) -> onnx.ModelProto:
    """Return the result of quantize_static, without `static.change`."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    types = QuantType.__members__
    extra: dict[str, Any] = {"ActivationSymmetric": static.symmetric, "UseQDQContribOps": static.contrib}
    extra["QDQKeepRemovableActivations"] = static.clamps
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "quantized.onnx"
        quantize_static(
            _at_opset(_own_biases(model), 21 if "4" in static.weight + static.activation or "16" in static.activation else 13),
            target,
            Reader(samples),  # type: ignore[arg-type]  # it asks for get_next alone
            quant_format=QuantFormat.QOperator if static.operators else QuantFormat.QDQ,
            per_channel=static.per_channel,
            activation_type=types[static.activation],
            weight_type=types[static.weight],
            extra_options=extra,
        )
        return onnx.load(target)


def _dynamic(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with dynamically quantized activations and int8 weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "quantized.onnx"
        quantize_dynamic(_at_opset(model, 13), target, weight_type=QuantType.QInt8)
        return onnx.load(target)


def with_weights_of(model: onnx.ModelProto, samples: Iterable[Sample], form: str) -> onnx.ModelProto:
    """Return the float model with the weights, rounded once, of a form that quantize_static makes."""
    done = onnx.ModelProto()
    done.CopyFrom(model)
    plain = replace(STATIC[form], operators=False, contrib=False, change=None)
    edit = Editor(_quantize_static(model, samples, plain))
    weights = {n.name: edit.find_dequantized(n.input[1]) for n in edit.graph.node if n.op_type in PRODUCTS}
    initializer_by_name = {i.name: i for i in done.graph.initializer}
    for node in done.graph.node:
        value = weights.get(node.name)
        if node.op_type in PRODUCTS and node.input[1] in initializer_by_name and value is not None:
            initializer_by_name[node.input[1]].CopyFrom(numpy_helper.from_array(np.asarray(value, np.float32), node.input[1]))
    return done


def _own_biases(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which each layer has a bias of its own: a shared one would be written once, at the first layer's scale."""
    done = onnx.ModelProto()
    done.CopyFrom(model)
    biases, used_names = {i.name: i for i in model.graph.initializer}, set[str]()
    for node in done.graph.node:
        if len(node.input) < 3 or node.op_type not in PRODUCTS or node.input[2] not in biases:
            continue
        name = node.input[2]
        if name in used_names:
            bias_copy = done.graph.initializer.add()
            bias_copy.CopyFrom(biases[name])
            node.input[2] = bias_copy.name = f"{name}/{node.output[0]}"
        used_names.add(name)
    return done


def _at_opset(model: onnx.ModelProto, least: int) -> onnx.ModelProto:
    """Return the model at opset `least` or above. The quantizer needs 13 for scales a channel, and 21 for four-bit types."""
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return model if opset >= least else onnx.version_converter.convert_version(model, least)


def arguments() -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", help="what the ranges are taken from, as npu-build --calib; not for weight-only forms")
    parser.add_argument("--form", required=True, help=f"one of {', '.join(FORMS)}")
    parser.add_argument("--samples", type=int, help="use the first so many samples")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,640,640", help="binds dynamic dimensions")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args()


def run(options: argparse.Namespace) -> None:
    """Write the model in the form of the options. Raise CompileError where the form needs data and there are none."""
    from toolchain.frontend import load_model

    inputs = {**model_inputs(options.model), **(data_inputs("--data", options.data) if options.data else {})}
    require_writable({"-o": options.output}, inputs)
    normal = load_model(options.model, input_shapes(options.shape))
    samples: Iterable[Sample] = ()
    if options.data:
        samples = open_data(options.data, {n: normal.types[n] for n in normal.inputs}, limit=options.samples)
    elif options.form in STATIC:
        raise CompileError(f"--form {options.form}: its ranges come from data; give --data")
    model = bound(onnx.load(options.model), {n: normal.types[n].shape for n in normal.inputs})
    write_atomically(options.output, quantize_form(model, samples, options.form).SerializeToString())
    print(options.output)


def bound(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Return the model, changed in place: these shapes of its inputs, no other types, and initializers for Constant nodes."""
    del model.graph.value_info[:]
    for value in model.graph.input:
        if value.name in shapes:
            for dim, size in zip(value.type.tensor_type.shape.dim, shapes[value.name]):
                dim.Clear()
                dim.dim_value = size
    constant = [n for n in model.graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"]
    for node in constant:  # onnxruntime's quantizer takes initializers for weights, and nothing else
        tensor = model.graph.initializer.add()
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(node.attribute[0].t), node.output[0]))
        model.graph.node.remove(node)
    return model


def to_scores(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without a Softmax at its end, which hides most losses of the scores."""
    makers = {o: n for n in model.graph.node for o in n.output}
    for output in model.graph.output:
        maker = makers.get(output.name)
        if maker is not None and maker.op_type == "Softmax":
            output.name = maker.input[0]
            model.graph.node.remove(maker)
    return model


def main() -> None:
    """Run the command. A model, data or form that is refused ends it with one sentence."""
    with report_errors():
        run(arguments())


if __name__ == "__main__":
    main()
