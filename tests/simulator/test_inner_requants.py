"""Operands of sums: what the reference scales them by is all that the machine's instruction can say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from quant.fixed_point import CodeType
from simulator.decode_constants import ConstantDecoder
from toolchain.api import BuildOptions, build
from toolchain.codegen import container_from_bytes
from toolchain.hw import list_shipped_names, load_chip
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary

X = "float[1,4,6,6]"
SUMS = f"({X} x, {X} z) => ({X} y) {{ a = Add(x, z) b = Sub(a, z) c = Conv(b, w) y = Add(c, a) }}"
FIELDS = ("rounding", "zero_point", "low", "high", "wrap", "kind")


@pytest.mark.parametrize("machine", list_shipped_names())
def test_operands_are_scaled_as_the_machine_scales_them(machine: str, tmp_path: Path) -> None:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 21]> g {SUMS}')
    weights = np.random.default_rng(0).normal(size=(4, 4, 1, 1)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(proto, tmp_path / "sums.onnx")
    container = container_from_bytes(build(tmp_path / "sums.onnx", BuildOptions(machine)).data, "sums")
    chip = ConstantDecoder(container.machine.chip)
    requant_by_key = []
    for op in (node.op for node in container.graph.nodes):
        if isinstance(op, IntegerBinary):
            requant_by_key += [(op.kind, op.a_requant), (op.kind, op.b_requant)]
        elif (residual := getattr(op, "residual", None)) is not None:
            requant_by_key += [("add", residual.q_requant), ("add", residual.r_requant)]
    for key, requant in requant_by_key:
        machines = chip.inner_requant(key, int(requant.multiplier[0]), int(requant.shift[0]))
        assert [getattr(requant, f) for f in FIELDS] == [getattr(machines, f) for f in FIELDS]
    assert len(requant_by_key) == 6


def test_weights_of_40_blocks_are_decoded_once() -> None:
    decoder = ConstantDecoder(load_chip("edge16"))
    blocks = [bytes([number]) * 4 for number in range(40)]
    first, second = ([decoder.weights(block, CodeType.INT8, 1, 1, 1, 4, 0) for block in blocks] for _ in range(2))
    assert all(a is b for a, b in zip(first, second, strict=True))
