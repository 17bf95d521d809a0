"""Weights in blocks of the model's file stay so on a machine that has groups of their size: its codes, its scales, its minima."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from tests.machine.test_weights_in_groups import Make, make, save_model
from toolchain.api import BuildOptions, build
from toolchain.isa import Machine, load_machine
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.runtime import Session

__all__ = ["make"]  # a fixture
BLOCK, K, N, ROWS = 32, 96, 24, 7
WIDE = "sizes: [32], scale_bits: 16, minimum_bits: 16"
FLAT = "sizes: [32], scale_bits: 16"


class Blocks(NamedTuple):
    """A set of weights in blocks, real = scale (code - point).

    `codes`: uint8[n, k] of 4 bits.
    `scales`: float32[n, g].
    `points`: float32[n, g].
    """

    codes: np.ndarray
    scales: np.ndarray
    points: np.ndarray


def blocks(kind: str, n: int = N, k: int = K) -> Blocks:
    rng, shape = np.random.default_rng(8), (n, -(-k // BLOCK))
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    codes[:, :16] = np.arange(16)  # all of them
    scales = rng.uniform(0.02, 0.2, shape).astype(np.float16).astype(np.float32)
    points = {
        "eight": np.full(shape, 8.0),
        "whole": rng.integers(0, 16, shape).astype(np.float64),
        "fractions": rng.uniform(2, 13, shape),  # Q4_1 has such: its minimum over its scale
        "negative": np.full(shape, 8.0),
    }[kind]
    if kind == "negative":
        scales = scales * rng.choice([-1, 1], shape).astype(np.float32)
        scales[0, 0] = 0
    return Blocks(codes, scales.astype(np.float32), points.astype(np.float32))


def pack_codes(codes: np.ndarray) -> np.ndarray:
    """uint8[n, k] of 4 bits -> two a byte, low bits first."""
    padded = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return (padded[:, 0::2] | (padded[:, 1::2] << 4)).astype(np.uint8)


def n_bits(b: Blocks, path: Path, rows: int = ROWS) -> Path:
    """com.microsoft.MatMulNBits; zero points of 4 bits where they are whole, else float."""
    (n, k), count = b.codes.shape, b.scales.shape[1]
    padded = np.pad(b.codes, ((0, 0), (0, count * BLOCK - k)))
    points = b.points.reshape(-1)
    if (b.points == np.rint(b.points)).all():
        points = pack_codes(b.points.astype(np.uint8)).reshape(-1)
    constants = {"w": pack_codes(padded).reshape(n, count, BLOCK // 2), "s": b.scales.reshape(-1), "z": points}
    attributes: dict[str, Any] = {"K": k, "N": n, "bits": 4, "block_size": BLOCK}
    node = helper.make_node("MatMulNBits", ["x", "w", "s", "z"], ["y"], name="y", domain="com.microsoft", **attributes)
    return save_model([node], constants, [rows, k], path)


def save_dequantized(b: Blocks, path: Path, form: str) -> Path:
    """DequantizeLinear with blocks in front of a product; form: how the weights lie, and what reads them."""
    codes, scales, points = b.codes, b.scales, b.points.astype(np.uint8)
    axis, shape = 1, [ROWS, K]
    if form == "matmul":
        codes, scales, points, axis = codes.T, scales.T, points.T, 0
    if form == "conv":
        codes, scales, points, shape = codes[..., None, None], scales[..., None, None], points[..., None, None], [1, K, 5, 6]
    constants = {"q": np.ascontiguousarray(codes), "s": np.ascontiguousarray(scales), "z": np.ascontiguousarray(points)}
    nodes = [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], name="dq", axis=axis, block_size=BLOCK)]
    if form == "transpose":
        nodes += [helper.make_node("Transpose", ["w"], ["t"], name="t", perm=[1, 0])]
        nodes += [helper.make_node("MatMul", ["x", "t"], ["y"], name="y")]
    else:
        op = {"matmul": "MatMul", "gemm": "Gemm", "conv": "Conv"}[form]
        attributes: dict[str, Any] = {"transB": 1} if form == "gemm" else {}
        nodes += [helper.make_node(op, ["x", "w"], ["y"], name="y", **attributes)]
    return save_model(nodes, constants, shape, path)


def run(path: Path, machine: Machine, *types: str) -> tuple[IntegerConvolution, np.ndarray, float]:
    """The product's operator, its codes, and dB of its output to float."""
    options = onnxruntime.SessionOptions()
    # else it makes a MatMulNBits of a DequantizeLinear, whose activations it rounds to 8 bits
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    x = np.random.default_rng(3).normal(0, 1, session.get_inputs()[0].shape).astype(np.float32)
    np.savez(path.with_name("calib.npz"), x=x[None])
    build_result = build(path, BuildOptions(machine, calibration=str(path.with_name("calib.npz")), types=types))
    expected = np.asarray(session.run(None, {"x": x})[0], np.float64)
    (actual,) = Session(build_result.data).run(None, {"x": x})
    graph = build_result.container.graph
    (node,) = [n for n in graph.nodes if isinstance(n.op, IntegerConvolution)]
    assert isinstance(node.op, IntegerConvolution)
    codes = graph.constants[node.inputs[1]].reshape(-1, graph.constants[node.inputs[1]].shape[-1])
    return node.op, codes, float(10 * np.log10((expected**2).sum() / ((actual - expected) ** 2).sum()))


@pytest.mark.parametrize("form", ["matmul", "gemm", "conv", "transpose"])
@pytest.mark.parametrize("kind", ["eight", "whole", "negative"])
def test_blocks_of_dequantize_linear_stay(make: Make, tmp_path: Path, kind: str, form: str) -> None:
    """Negative scales as onnxruntime's quantizer of four bits writes them."""
    b = blocks(kind)
    op, codes, db = run(save_dequantized(b, tmp_path / "net.onnx", form), make("wide32_w4a16", WIDE, default=0))
    assert op.weight_groups is not None and op.weight_groups.size == BLOCK
    positive = np.sign(b.scales).repeat(BLOCK, 1) > 0
    assert np.array_equal(codes[positive], (b.codes.astype(np.int64) - 8)[positive])
    assert (op.weight_groups.minima is None) == (kind == "eight")
    assert db > 75


@pytest.mark.parametrize("kind", ["eight", "whole", "fractions", "negative"])
def test_blocks_of_mat_mul_n_bits_stay(make: Make, tmp_path: Path, kind: str) -> None:
    b = blocks(kind)
    op, codes, db = run(n_bits(b, tmp_path / "net.onnx"), make("wide32_w4a16", WIDE, default=0))
    assert op.weight_groups is not None
    sign = np.sign(b.scales).repeat(BLOCK, 1)
    assert np.array_equal(codes[sign > 0], (b.codes.astype(np.int64) - 8)[sign > 0])
    of_channel = [s / np.abs(s).max(1, keepdims=True) for s in (op.weight_groups.scales, np.abs(b.scales))]
    np.testing.assert_allclose(*(s[b.scales != 0] for s in of_channel), atol=1e-3)
    assert db > 75


def test_blocks_that_end_within_the_last_group(make: Make, tmp_path: Path) -> None:
    b = blocks("fractions", k=K - 8)
    op, codes, db = run(n_bits(b, tmp_path / "net.onnx"), make("wide32_w4a16", WIDE, default=0))
    assert op.weight_groups is not None and op.weight_groups.scales.shape == (N, 3)
    assert np.array_equal(codes, b.codes.astype(np.int64) - 8)
    assert db > 75


def test_q4_1_of_a_language_models_size(make: Make, tmp_path: Path) -> None:
    """576 x 1,536: within int16's rounding of the file's own real numbers, by the program's bytes."""
    op, _, db = run(n_bits(blocks("fractions", 1536, 576), tmp_path / "net.onnx", 3), make("wide32_w4a16", WIDE, default=0))
    assert op.weight_groups is not None and op.weight_groups.minima is not None
    assert db >= 70


def test_q4_1_on_a_machine_of_several_types(tmp_path: Path) -> None:
    """The shipped one for transformers: the blocks take int4 beside its int8, the activations are asked for."""
    path = n_bits(blocks("fractions", 1536, 576), tmp_path / "net.onnx", 3)
    op, _, db = run(path, load_machine("transformer64"), "*=int16")
    assert op.weight_groups is not None and op.weight_groups.minima is not None
    assert op.weight_type == "int4"
    assert db >= 70


def test_eight_bit_weights_hold_whole_zero_points_without_minima(make: Make, tmp_path: Path) -> None:
    """Check that on int8 a code less its zero point is a code."""
    b = blocks("whole")
    op, codes, _ = run(n_bits(b, tmp_path / "net.onnx"), make("edge16", FLAT, default=0))
    assert op.weight_groups is not None and op.weight_groups.minima is None
    assert np.array_equal(codes, b.codes.astype(np.int64) - b.points.repeat(BLOCK, 1).astype(np.int64))


@pytest.mark.parametrize(("groups", "kind"), [("", "eight"), ("sizes: [64]", "eight"), (FLAT, "whole")])
def test_other_machines_round_anew(make: Make, tmp_path: Path, groups: str, kind: str) -> None:
    op, _, db = run(n_bits(blocks(kind), tmp_path / "net.onnx"), make("wide32_w4a16", groups, default=0))
    assert op.weight_groups is None
    assert 10 < db < 40


@pytest.mark.parametrize(("group", "kernel"), [(2, 1), (1, 3)])
def test_other_convolutions_round_anew(make: Make, tmp_path: Path, group: int, kernel: int) -> None:
    """Groups of channels, and kernels of several elements: their products are cut otherwise."""
    rng, inputs = np.random.default_rng(1), 64
    each = (N, inputs // group, kernel, kernel)
    blocked = (N, inputs // group // BLOCK, kernel, kernel)
    constants = {"q": rng.integers(0, 16, each).astype(np.uint8), "s": rng.uniform(0.02, 0.2, blocked).astype(np.float32)}
    constants["z"] = np.full(blocked, 8, np.uint8)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], name="dq", axis=1, block_size=BLOCK),
        helper.make_node("Conv", ["x", "w"], ["y"], name="y", group=group),
    ]
    path = save_model(nodes, constants, [1, inputs, 5, 6], tmp_path / "net.onnx")
    op, _, db = run(path, make("wide32_w4a16", WIDE))
    assert op.weight_groups is None
    assert db > 10
