"""Scores plus a mask: however minus infinity is spelled, the answer is that of a mask that just masks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import model, node
from onnx import numpy_helper

from quant.calibrate import calibrate, observe_all
from quant.fidelity import sqnr_db
from quant.float_session import open_session
from quant.masks import LOWEST, MASK_MARGIN, find_masked_tensors
from quant.observe import Masking, Range
from quant.structural_ranges import adjust_ranges
from scripts.onnx_builder import build_model
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.ir.range_constraints import ClippedRange
from toolchain.isa import load_machine
from toolchain.runtime import Session

SIZE = 16
LOWS = (-30.0, -100.0, -999.0, -1e4, -65504.0, -1e9, -1e30, LOWEST, -np.inf)
UPPER = np.triu(np.ones((SIZE, SIZE), bool), 1)
SCORES = [node("MatMul", "x w", "s")]
FORMS = {
    "add": [*SCORES, node("Add", "s m", "a")],
    "mul_add": [*SCORES, node("Mul", "s half", "t"), node("Add", "m t", "a")],
    "sub": [*SCORES, node("Sub", "s minus_m", "a")],
    "where": [*SCORES, node("Where", "upper low zero", "n"), node("Add", "s n", "a")],
    "where_scores": [*SCORES, node("Where", "upper low s", "a")],
    "expand_slice": [
        *SCORES,
        node("Slice", "larger starts ends axes", "n"),
        node("Expand", "n shape", "e"),
        node("Add", "s e", "a"),
    ],
    "padded": [
        *SCORES,
        node("Relu", "x", "t"),
        node("Slice", "t starts half_ends axes", "n"),
        node("Pad", "n pads low", "e"),
        node("Add", "s e", "a"),
    ],
    "gemm_bias": [*SCORES, node("Add", "s row", "a")],
    "bias_then_mask": [
        *SCORES,
        node("Add", "s x", "t"),
        node("Reshape", "t deep", "r"),
        node("Add", "r m", "q"),
        node("Reshape", "q shape", "a"),
    ],
    "mask_then_bias": [*SCORES, node("Add", "s m", "t"), node("Add", "t x", "a")],
    "scaled": [*SCORES, node("Add", "s m", "t"), node("Mul", "t half", "a")],
    "codes": [*SCORES, node("DequantizeLinear", "codes step most", "n"), node("Add", "s n", "a")],
    "computed": [*SCORES, node("Sub", "one k", "n"), node("Mul", "n low", "p"), node("Add", "s p", "a")],
    "computed_choice": [*SCORES, node("Cast", "k", "c", to=onnx.TensorProto.BOOL), node("Where", "c s low", "a")],
    "bias_of_mask": [*SCORES, node("Relu", "x", "t"), node("Add", "t m", "n"), node("Add", "s n", "a")],
    "transposed": [*SCORES, node("Add", "s m", "t"), node("Transpose", "t", "a", perm=[0, 1, 3, 2])],
    "joined": [*SCORES, node("Add", "s m", "t"), node("Concat", "t x", "a", axis=-1)],
    "clipped": [*SCORES, node("Add", "s m", "t"), node("Clip", "t most_masked", "a")],
    "scaled_by_head": [*SCORES, node("Add", "s m", "t"), node("Mul", "t by_head", "a")],
    "larger_of_two": [*SCORES, node("Add", "s m", "t"), node("Max", "t x", "a")],
}
# What reads masked values without a Softmax; "upper" masks no row and no column wholly.
READERS = {
    "relu": [node("Relu", "a", "y")],
    "clip": [node("Clip", "a zero one", "y")],
    "sigmoid": [node("Sigmoid", "a", "y")],
    "elu": [node("Elu", "a", "y")],
    "larger of two": [node("Max", "a x", "y")],
    "largest of a column": [node("ReduceMax", "a", "r", axes=[2]), node("Add", "r x", "y")],
    "least of a column": [node("Neg", "a", "n"), node("ReduceMin", "n", "r", axes=[2]), node("Add", "r x", "y")],
}


MASKED = {
    "add": "a s", "mul_add": "a s t", "sub": "a s", "where": "a n s", "where_scores": "a s", "expand_slice": "a e larger n s",
    "padded": "a e n s t", "gemm_bias": "a s", "bias_then_mask": "a q r s t x", "mask_then_bias": "a s t x", "scaled": "a s t",
    "codes": "a n s", "computed": "a p s", "computed_choice": "a s", "bias_of_mask": "a n s t",
    "transposed": "a s t", "joined": "a s t x", "clipped": "a s t", "scaled_by_head": "a s t", "larger_of_two": "a s t x",
}  # fmt: skip


def make_masked_model(form: str, low: float) -> onnx.ModelProto:
    """Return a model with a Softmax behind one of FORMS, or with one of READERS behind a choice on the host."""
    mask = np.where(UPPER, np.float32(low), np.float32(0))
    larger = np.where(np.triu(np.ones((40, 40), bool), 1), np.float32(low), np.float32(0))
    constants = {
        "w": np.random.default_rng(1).normal(0, 0.3, (SIZE, SIZE)).astype(np.float32),
        "m": mask[None, None],
        "minus_m": -mask[None, None],
        "row": np.where(np.arange(SIZE) % 3 == 0, np.float32(low), np.float32(0.3)),
        "half": np.float32(0.5),
        "upper": UPPER[None, None],
        "low": np.float32(low),
        "zero": np.float32(0),
        "one": np.float32(1),
        "codes": np.where(UPPER, np.int8(-128), np.int8(127)),
        "step": np.float32(-low / 255),
        "most": np.int8(127),
        "larger": larger[None, None],
        "starts": np.array([0, 0]),
        "ends": np.array([SIZE, SIZE]),
        "axes": np.array([2, 3]),
        "half_ends": np.array([SIZE, SIZE // 2]),
        "pads": np.array([0, 0, 0, 0, 0, 0, 0, SIZE // 2]),
        "shape": np.array([1, 2, SIZE, SIZE]),
        "deep": np.array([1, 1, 2, SIZE, SIZE]),
        "most_masked": np.float32(-1e4),
        "by_head": np.array([0.5, 1.0], np.float32).reshape(1, 2, 1, 1),
    }
    nodes = [*FORMS[form], node("Softmax", "a", "y", axis=-1)] if form in FORMS else [*FORMS["where_scores"], *READERS[form]]
    used = {name for n in nodes for name in n.input}
    shape = [1, 2, SIZE, SIZE]
    constants = {n: v for n, v in constants.items() if n in used}
    result_shape = [*shape[:3], 2 * SIZE] if form == "joined" else shape
    return build_model(nodes, {n: shape for n in "xk" if n in used}, {"y": result_shape}, constants)


def quality(form: str, low: float, hw: str, folder: Path) -> float:
    """dB of the chip's integers against onnxruntime on the file."""
    path, data = folder / "m.onnx", folder / "c.npz"
    onnx.save(make_masked_model(form, low), path)
    values = {"x": np.random.default_rng(5).normal(0, 1.5, (6, 1, 2, SIZE, SIZE)).astype(np.float32)}
    exact = open_session(str(path))
    if len(exact.get_inputs()) > 1:
        values["k"] = (np.random.default_rng(6).random((6, 1, 2, SIZE, SIZE)) < 0.6).astype(np.float32)
        values["k"][..., 0] = 1
    np.savez(data, allow_pickle=False, **values)
    session = Session(build(path, BuildOptions(hw, calibration=str(data))).data, backend="reference")
    samples = [{name: value[i] for name, value in values.items()} for i in range(6)]
    pairs = [(exact.run(None, one)[0], session.run(None, one)[0]) for one in samples]
    return sqnr_db(np.stack([a for a, _ in pairs]), np.stack([b for _, b in pairs]))


@pytest.mark.parametrize("form", FORMS)
def test_every_number_that_masks_masks_alike(form: str, tmp_path: Path) -> None:
    lows = LOWS if form == "add" else (-40.0, -999.0, -1e4, LOWEST, -np.inf)
    if form in ("codes", "computed"):
        lows = lows[:-1]  # 0 times infinity is no number
    if form == "padded":
        lows = lows[2:]  # a Pad's value is kept as any number down to -1000
    levels_db = [quality(form, low, "edge16", tmp_path) for low in lows]
    assert min(levels_db) >= max(levels_db[lows.index(-1e4)] - 0.5, 28.0), levels_db


@pytest.mark.parametrize("reader", READERS)
def test_masked_values_of_which_no_reader_makes_anything_leave_the_others_their_codes(reader: str, tmp_path: Path) -> None:
    levels_db = [quality(reader, low, "edge16", tmp_path) for low in (-40.0, -1e4, -1e9, LOWEST)]
    assert min(levels_db) >= max(levels_db[1] - 1, 28.0), levels_db


def test_largest_values_of_a_reduction_on_the_host_are_not_masked(tmp_path: Path) -> None:
    levels_db = [quality("largest of a column", low, "ws8_pow2", tmp_path) for low in (-40.0, -1e4, LOWEST)]
    assert min(levels_db) >= max(levels_db[1] - 1, 24.0), levels_db


@pytest.mark.parametrize("hw, least", [("ws8_pow2", 24.0), ("wide32_w4a16", 22.0)])
def test_masks_on_machines_of_other_kinds(hw: str, least: float, tmp_path: Path) -> None:
    levels = [quality("add", low, hw, tmp_path) for low in (-100.0, -1e4, -np.inf)]
    assert min(levels) > least and max(levels) - min(levels) < 0.5, levels


@pytest.mark.parametrize("observer", ["percentile", "mse"])
def test_ends_of_masks_are_seen_by_every_observer(observer: str) -> None:
    from edge_numerics import EDGE

    nodes = [node("Add", "s m", "a"), node("Softmax", "a", "y")]
    proto = model(nodes, {"s": [1, 64], "m": [1, 64]}, ["y"])
    mask = np.zeros((1, 64), np.float32)
    mask[0, 60:] = -np.inf
    sample = {"s": np.linspace(-2, 3, 64, dtype=np.float32)[None], "m": mask}
    ranges = calibrate(proto, [sample], ["s", "a"], observer=observer, numerics=EDGE)  # type: ignore[arg-type]
    assert ranges["a"].low == LOWEST
    bounded = adjust_ranges(proto, ranges | {"m": Range(LOWEST, 0)}).ranges
    largest = float(sample["s"][0, 59])
    assert bounded["a"].low == pytest.approx(largest - 16) and bounded["m"].low == pytest.approx(largest - 16 - 3)


def test_minus_infinity_elsewhere_is_refused() -> None:
    """A sum that no Softmax reads; NaN in one that a Softmax does."""
    nodes = [node("Add", "s m", "a"), node("Relu", "a", "b"), node("Softmax", "s", "y")]
    proto = model(nodes, {"s": [4], "m": [4]}, ["b", "y"])
    assert not find_masked_tensors(proto)
    sample = {"s": np.zeros(4, np.float32), "m": np.array([0, 0, 0, -np.inf], np.float32)}
    with pytest.raises(CompileError, match=r"tensor 'a', the output of .*, holds infinity; no range covers it"):
        calibrate(proto, [sample], ["a"])
    proto = model([node("Add", "s m", "a"), node("Softmax", "a", "y")], {"s": [4], "m": [4]}, ["y"])
    sample["s"] = np.full(4, np.inf, np.float32)
    with pytest.raises(CompileError, match=r"tensor 'a', the output of .*, holds NaN"):
        calibrate(proto, [sample], ["a"])


@pytest.mark.parametrize(
    ("bias", "masks"),
    [((0, 0, -MASK_MARGIN, 1), True), ((0, 0, 0.5 - MASK_MARGIN, 0), False), ((-1e4, -1e4, -1e4, -1e4), False)],
)
@pytest.mark.parametrize("op_type", ["Gemm", "Conv"])
def test_a_bias_masks_what_it_lowers_below_the_others(op_type: str, bias: tuple[float, ...], masks: bool) -> None:
    shape = (1, 4) if op_type == "Gemm" else (1, 4, 2, 2)
    constants = {"w": np.ones((4, 4, 1, 1)[: len(shape)], np.float32), "b": np.array(bias, np.float32)}
    nodes = [node(op_type, "x w b", "a"), node("Softmax", "a", "y", axis=1)]
    assert find_masked_tensors(model(nodes, {"x": [*shape]}, ["y"], constants)) == ({"a"} if masks else set())
    assert not find_masked_tensors(model([node(op_type, "x w", "a"), nodes[1]], {"x": [*shape]}, ["y"], {"w": constants["w"]}))


SHOWN = {
    "an output": ([node("Add", "s m", "a"), node("Softmax", "a", "y")], ["a", "y"]),
    "read by another": ([node("Add", "s m", "a"), node("Softmax", "a", "y"), node("Exp", "a", "e")], ["e", "y"]),
    "a choice": ([node("Where", "c n s", "a"), node("Softmax", "a", "y"), node("Exp", "a", "e")], ["e", "y"]),
    "before a shape": ([node("Add", "s m", "a"), node("Flatten", "a", "b"), node("Softmax", "b", "y")], ["a", "y"]),
}


def _make_tensor(name: str, value: object) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_summed_into_scores_may_be_masked(form: str) -> None:
    assert find_masked_tensors(make_masked_model(form, -1e4)) == set(MASKED[form].split())


@pytest.mark.parametrize("form", SHOWN)
def test_a_masked_sum_that_others_see_keeps_its_range(form: str) -> None:
    nodes, outputs = SHOWN[form]
    proto = model(nodes, {"s": [1, 4], "m": [1, 4]}, outputs)
    proto.graph.initializer.extend([_make_tensor("c", np.array([[0, 0, 0, 1]], bool)), _make_tensor("n", np.float32(-np.inf))])
    ranges = {"s": Range(-2, 3), "m": Range(-1e4, 0), "a": Range(-10002, 3)}
    assert adjust_ranges(proto, ranges).ranges["a"] == ranges["a"]
    sample = {"s": np.zeros((1, 4), np.float32), "m": np.array([[0, 0, 0, -np.inf]], np.float32)}
    cause = "for a constant operand is not finite" if form == "a choice" else "no range covers it"
    with pytest.raises(CompileError, match=rf"tensor 'a', the output of .*, holds infinity[,;] {cause}"):
        calibrate(proto, [sample], ["a"])


@pytest.mark.parametrize("swapped", [False, True])
def test_a_choice_masks_scores_and_keeps_them(swapped: bool) -> None:
    """Check a choice from a masked sum, and a choice that passes through a shape operator."""
    nodes = [node("Add", "s m", "b"), node("Where", "c b n" if swapped else "c n b", "a"), node("Flatten", "a", "f")]
    proto = model([*nodes, node("Softmax", "f", "y")], {"s": [1, 4], "m": [1, 4]}, ["y"])
    proto.graph.initializer.extend(
        [_make_tensor("c", np.array([[0, 0, 0, 1]], bool)), _make_tensor("n", np.full((1, 4), -1e9, np.float32))]
    )
    assert find_masked_tensors(proto) == {"f", "a", "b", "s", "m"}
    ranges = {"s": Range(-2, 3), "m": Range(-1e4, 0), "b": Range(-10002, 3), "a": Range(-1e9, 3)}
    ranges["f"] = Range(-1e9, 3, masking=Masking(Range(-1e9, 3), -18.0))
    adjusted = adjust_ranges(proto, ranges)
    assert [adjusted.ranges[n] for n in "baf"] == [Range(-18, 3)] * 3 and adjusted.ranges["m"] == Range(-21, 0)
    assert "f: a mask down to -1e+09; to y_node -18 masks as well" in adjusted.notes
    ranges["f"] = Range(-1e9, 3, masking=Masking(Range(-1e9, 3), None))
    assert adjust_ranges(proto, ranges).ranges == ranges


def test_a_sum_that_is_masked_throughout_is_refused() -> None:
    proto = model([node("Add", "s m", "a"), node("Softmax", "a", "y")], {"s": [4], "m": [4]}, ["y"])
    ranges = {"s": Range(LOWEST, 0), "m": Range(LOWEST, 0), "a": Range(LOWEST, 0)}
    with pytest.raises(CompileError, match="tensor 'a': goes down to minus infinity, and nothing tells its scores from its mask"):
        adjust_ranges(proto, ranges)


def test_infinity_among_weights_is_refused(tmp_path: Path) -> None:
    proto = make_masked_model("add", -1.0)
    weights = next(i for i in proto.graph.initializer if i.name == "w")
    broken = numpy_helper.to_array(weights).copy()
    broken[1, 2:4] = -np.inf
    weights.CopyFrom(numpy_helper.from_array(broken, "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(CompileError, match=r"^weight w: holds Inf in 2 of its 256 values\n  help: train or export"):
        build(tmp_path / "m.onnx", BuildOptions("edge16"))


@pytest.mark.parametrize("function", ["Log", "Sqrt", "Acos"])
def test_functions_that_random_inputs_leave_ask_for_data(function: str, tmp_path: Path) -> None:
    onnx.save(model([node(function, "x", "y")], {"x": [64]}, ["y"]), tmp_path / "m.onnx")
    message = (
        f"calibration: sample 0: tensor 'y', the output of y_node ({function}), holds NaN; "
        "random inputs need not lie where the model is defined: give --calib DATA of the kind it was trained on"
    )
    with pytest.raises(CompileError, match="^" + re.escape(message) + "$"):
        build(tmp_path / "m.onnx", BuildOptions("edge16"))
    np.savez(tmp_path / "c.npz", x=np.random.default_rng(0).uniform(0.1, 0.9, (4, 64)).astype(np.float32))
    build(tmp_path / "m.onnx", BuildOptions("edge16", calibration=str(tmp_path / "c.npz")))


def test_masks_are_found_without_values_of_product_weights() -> None:
    size = 40
    w = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    mask = np.triu(np.full((size, size), -np.inf, np.float32), 1)
    nodes = [node("MatMul", "x w", "s"), node("Add", "s m", "a"), node("Softmax", "a", "y")]
    loaded = load_model(build_model(nodes, {"x": [size, size]}, {"y": [size, size]}, {"w": w, "m": mask}), {})
    model_proto, structure = loaded.proto, loaded.structure
    assert find_masked_tensors(structure) == find_masked_tensors(model_proto) != frozenset()
    assert [i.dims[:] for i in structure.graph.initializer if not i.raw_data] == [[size, size]]  # the weight, not the mask


@dataclass(frozen=True)
class _Steps:
    """Steps of a sequence whose scores share one range."""

    original_model: onnx.ModelProto
    within: Mapping[str, ClippedRange]


@pytest.mark.parametrize("all_observers", [False, True], ids=["calibrate", "observe_all"])
def test_masked_steps_of_a_sequence_share_one_range(all_observers: bool) -> None:
    """The first step alone is masked, the second alone has the largest score, and their rows differ."""
    nodes = [node("Add", "s m", "a"), node("Softmax", "a", "y"), node("Add", "t n", "b"), node("Softmax", "b", "z")]
    proto = model(nodes, {name: [1, 4] for name in "smtn"}, ["y", "z"])
    step = ClippedRange(-np.inf, np.inf, "step")
    decomposition = _Steps(proto, {"a": step, "b": step})
    sample = {
        "s": np.array([[1, 2, 3, 4]], np.float32),
        "m": np.array([[0, 0, 0, -1e9]], np.float32),
        "t": np.array([[-5, -6, 9, 0]], np.float32),
        "n": np.zeros((1, 4), np.float32),
    }
    if all_observers:
        observed = observe_all(proto, [sample], ["a", "b"], decomposition=decomposition)
        ranges = observed.ranges("minmax", load_machine("edge16").chip.numerics)
    else:
        ranges = calibrate(proto, [sample], ["a", "b"], decomposition=decomposition)
    assert ranges["a"] == ranges["b"] == Range(-1e9, 9)
    masking = Masking(Range(-1e9, 9), 3.0 - MASK_MARGIN)
    assert ranges["a"].masking == ranges["b"].masking == masking
    adjusted = adjust_ranges(proto, ranges, decomposition).ranges
    assert adjusted["a"] == adjusted["b"] == Range(3.0 - MASK_MARGIN, 9)
