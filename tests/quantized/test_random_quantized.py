"""Check random networks that onnxruntime's quantize_static has quantized.

On a machine of its arithmetic they are within one step of its kernels, all products on the chip. On two of the shipped machines
they are within what the quantizer left of the float network.

    `QUANT_CASES=500 QUANT_SEED=7 pytest tests/quantized/test_random_quantized.py -rP`

The variables set how many networks are drawn, and by which seed.
"""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, seed, settings
from hypothesis import strategies as st

from tests.operators.test_dimensions_of_one import MACHINES
from tests.quantized.forms import float32_machine, on_kernels, script
from tests.random_networks.test_random_shipped import DRAWS, behind_steps
from tests.semantics.judge import in_float, judge_build, save, sqnr_db
from tests.semantics.rounding_oracle import Rounded
from tests.support.random_cases import DrawnModel, networks
from tests.support.unsigned_machines import make_unsigned
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.isa import load_machine
from toolchain.runtime import Session

CASES, SEED = int(os.environ.get("QUANT_CASES", "30")), int(os.environ.get("QUANT_SEED", "0"))
SAMPLES = 4
LEAST_DB = 15.0  # of networks that onnxruntime leaves in float in part; the chip rounds those parts as well
# Of a Softmax that is written out: its exponentials have codes of their own, a 255th of the largest, and so has what they are
# divided by. Of 7,700 numbers in rows of 3 to 64 seven are two steps off, where a machine truncates one is three.
SOFTMAX_STEPS = 3
# These are a step or more off what onnxruntime makes of the same codes; the mean of an even number is a half at times, which
# float32 rounds either way. What is computed of such a tensor is off by as much as its weights make of a step.
INEXACT = {**dict.fromkeys(("Softmax", "LogSoftmax", "QLinearSoftmax"), SOFTMAX_STEPS)}
INEXACT |= dict.fromkeys(("AveragePool", "GlobalAveragePool", "QLinearAveragePool", "QLinearGlobalAveragePool"), 1)
BELOW_DB = 12.0  # of an output on a shipped machine, below what quantization left, by the file and by the machine's own codes
REFUSED = ("counts padding in windows that ceil_mode cuts",)  # an average that onnxruntime computes otherwise
FORMS = ("qdq_s8_channel", "qdq_u8_tensor", "qop_u8_channel", "qop_s8_tensor", "qdq_s8_tensor")
MOVES = ("Flatten", "MaxPool", "Reshape", "Slice", "Split", "Transpose")  # of codes, in QOperator files
FLOAT_OPERANDS = ("Add", "Div", "Mul", "PRelu", "Sub")  # quantize_static leaves constants of some of these as they are
DECIDING = ("ArgMax", "ArgMin", "Hardmax")  # of numbers that are nearly equal, rounding decides which is largest
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")


@pytest.mark.slow
def test_within_one_step_of_onnxruntime(tmp_path: Path) -> None:
    """The same cases each time; with QUANT_SEED others."""
    counts: Counter[str] = Counter()
    logging.disable(logging.WARNING)  # the quantizer advises
    try:
        seed(SEED)(right_everywhere)(tmp_path, counts)
    finally:
        logging.disable(logging.NOTSET)
        print("\n".join(f"{times:7}  {what}" for what, times in sorted(counts.items())))
    assert counts["files"] >= 0.5 * CASES


@settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(
    model=networks(),
    form=st.sampled_from(FORMS),
    codes=st.sampled_from(["int8", "uint8"]),
)
def right_everywhere(folder: Path, counts: Counter[str], model: DrawnModel, form: str, codes: str) -> None:
    rng = np.random.default_rng(5)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.proto.graph.input}
    samples = [{n: np.asarray(rng.normal(size=s), np.float32) for n, s in shapes.items()} for _ in range(SAMPLES)]
    try:
        quantized = script().quantize_form(model.proto, samples, form)
        # The kernel to which a Softmax is fused is a step off what the file says, which later layers make more of.
        expected = on_kernels(quantized, samples[0], fused=not any(n.op_type == "Softmax" for n in quantized.graph.node))
    except Exception as fault:  # of the quantizer or of onnxruntime, whose errors share no base class
        event(f"onnxruntime: {type(fault).__name__}")
        assume(False)
        raise AssertionError from fault
    if any(n.op_type == "AveragePool" and is_averaged_differently(n) for n in quantized.graph.node):
        event("onnxruntime's fused kernel and its AveragePool do not agree")
        return
    counts["files"] += 1
    within_one_step(quantized, samples, expected, form, codes, folder)
    for name in random.Random(f"{SEED} {counts['files']}").sample(MACHINES, 2):
        try:
            counts.update(["builds", on_shipped(model.proto, quantized, samples, name, folder)])
        except CompileError as fault:
            why = [text for text in REFUSED if text in str(fault)]
            assert why, fault
            counts[f"refused: {why[0]}"] += 1


def within_one_step(
    quantized: onnx.ModelProto,
    samples: Sequence[dict[str, np.ndarray]],
    expected: Sequence[Any],
    form: str,
    codes: str,
    folder: Path,
) -> None:
    path, calibration = save(quantized, samples, folder)  # for what the file leaves in float
    machine = float32_machine() if codes == "int8" else make_unsigned(float32_machine())
    try:
        built = build(path, BuildOptions(machine, calibration=str(calibration)))
    except CompileError as fault:
        assert any(text in str(fault) for text in REFUSED), fault
        event("refused: an average that onnxruntime computes otherwise")
        return
    assert built.figures["host"]["macs"] == 0
    names = [o.name for o in quantized.graph.output]
    got = Session(built.data, backend="reference").run(names, samples[0])
    steps, (most, computed) = output_steps(quantized), inexact(quantized)
    for name, wanted_output, actual in zip(names, expected, got, strict=True):
        error = np.abs(np.asarray(wanted_output, np.float64) - actual)
        if name in steps and is_rounded_throughout(quantized) and name not in computed:
            event("rounded throughout")
            off = error.max(initial=0) / steps[name]
            assert off <= 1.01 * most.get(name, 1), f"{form} {name}: {off:.2f} steps"
        elif any(n.op_type in DECIDING for n in quantized.graph.node):
            event("decided by numbers that are in float in part")
        else:
            event("in float in part")
            noise, signal = float(np.square(error).sum()), float(np.square(wanted_output, dtype=np.float64).sum())
            if noise > 10 ** (-LEAST_DB / 10) * signal and read_beyond_its_codes(quantized, samples[0]):
                event("in float beyond the codes that others read")
                assert any("left in float for others" in w for w in built.warnings), f"{form} {name}: {built.warnings}"
                continue
            assert noise <= 10 ** (-LEAST_DB / 10) * signal, f"{form} {name}: {signal:.3g} with {noise:.3g} of noise"


def on_shipped(
    proto: onnx.ModelProto, quantized: onnx.ModelProto, samples: Sequence[dict[str, np.ndarray]], name: str, folder: Path
) -> str:
    """Check the network on a shipped machine and return what was judged.

    `proto`: the network before it was quantized.
    """
    verdict = judge_build(quantized, load_machine(name), samples, folder, draws=DRAWS)
    names, bits = [o.name for o in proto.graph.output], load_machine(name).chip.numerics.weight
    real, rounded = in_float(proto, samples), in_float(quantized, samples)
    narrow = Rounded(proto, {}, 16, weight_bits=4 if bits == "int4" else None)
    fewer = [narrow.run(s) for s in samples]
    decided = behind_steps(quantized)
    low = []
    for output in verdict.outputs:
        of_file, of_weights = (
            sqnr_db(*(np.stack([np.asarray(run[names.index(output.output)]) for run in runs]) for runs in (real, other)))
            for other in (rounded, fewer)
        )
        floor = min(output.rounded_db, output.codes_db, of_file, of_weights)
        if output.output not in decided and not output.within_float and output.sqnr_db < floor - BELOW_DB:
            low.append((floor, output))
    if low and read_beyond_its_codes(quantized, samples[0]):
        return "in float beyond the codes that others read"
    assert not low, (name, low)
    return "float"


def is_averaged_differently(node: onnx.NodeProto) -> bool:
    """Return whether QLinearAveragePool, into which this node is fused, computes something else than AveragePool."""
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return bool(values.get("ceil_mode") and values.get("count_include_pad"))


def values_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}


def inexact(proto: onnx.ModelProto) -> tuple[dict[str, int], set[str]]:
    """The tensors that hold what an operator of INEXACT makes, moved and rounded, with its steps; and those computed of such."""
    most: dict[str, int] = {}
    computed: set[str] = set()
    for node in proto.graph.node:
        held = [most[n] for n in node.input if n in most]
        moves = node.op_type in (*MOVES, *CONVERSIONS, "Concat")
        if computed & set(node.input) or (held and not moves):
            computed.update(node.output)
        elif held or node.op_type in INEXACT:
            most |= dict.fromkeys(node.output, max(held, default=INEXACT.get(node.op_type, 1)))
    return most, computed


def output_steps(proto: onnx.ModelProto) -> dict[str, float]:
    """The scale of each tensor that a DequantizeLinear makes."""
    values = values_of(proto)
    dequantizers = [n for n in proto.graph.node if n.op_type == "DequantizeLinear" and n.input[1] in values]
    return {n.output[0]: float(values[n.input[1]].reshape(-1)[0]) for n in dequantizers}


def read_beyond_its_codes(proto: onnx.ModelProto, sample: dict[str, np.ndarray]) -> bool:
    """Return whether a tensor that is rounded for some consumers is read unrounded by others and exceeds its codes.
    The function quantize_static removes a Clip whose input has other consumers.
    """
    values, shown = values_of(proto), onnx.ModelProto()
    shown.CopyFrom(proto)
    rounded = [n for n in proto.graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in sample]
    output_names = {o.name for o in proto.graph.output}
    names = sorted({n.input[0] for n in rounded} - output_names)
    shown.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    value_by_name = dict(zip([o.name for o in shown.graph.output], on_kernels(shown, sample, fused=False), strict=True))
    for node in rounded:
        scale, zero = (values[n] for n in node.input[1:])
        low, high = ((end - float(zero)) * float(scale) for end in (np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max))
        readers = [n for n in proto.graph.node if node.input[0] in n.input]
        x = value_by_name[node.input[0]]
        if (len(readers) > 1 or node.input[0] in output_names) and (x.min() < low - scale or x.max() > high + scale):
            return True
    return False


def is_rounded_throughout(proto: onnx.ModelProto) -> bool:
    """Return whether every float tensor but the model's inputs and outputs is read rounded.
    A slope that the file leaves in float is not: the chip rounds it.
    """
    rounded_names = {n.output[0] for n in proto.graph.node if n.op_type == "DequantizeLinear"} | {
        i.name for i in proto.graph.initializer
    }
    rounded_names -= {n.input[1] for n in proto.graph.node if n.op_type in FLOAT_OPERANDS and n.input[1] in values_of(proto)}
    for node in proto.graph.node:
        if node.op_type.startswith("Q") or (node.input and node.input[0] in rounded_names and node.op_type in MOVES):
            rounded_names.update(node.output)
    computing = [n for n in proto.graph.node if n.op_type not in CONVERSIONS]
    return all(name in rounded_names or not name for n in computing for name in n.input)


def test_what_is_drawn_is_rounded_throughout_at_times(tmp_path: Path) -> None:
    """quantize_static leaves Relu, Clip and Softmax in codes where it can; a plain chain is codes all through."""
    from tests.quantized.test_forms import small_network

    model, samples = small_network()
    assert is_rounded_throughout(script().quantize_form(model, samples, "qop_u8_channel"))


if __name__ == "__main__":
    pytest.main([__file__])
