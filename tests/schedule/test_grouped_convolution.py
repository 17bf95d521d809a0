"""Groups on an array without a mode for them: neighbouring groups share a tile, and the bits are the reference's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.requant import Requant
from toolchain.api import BuildOptions, build
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Node, TensorType
from toolchain.isa import Machine, load_machine
from toolchain.machine import Convolution
from toolchain.machine.tensors import dense
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import BoxLocation, Tiling
from toolchain.runtime import Session, random_feeds

REQUANT = Requant(np.array([1 << 30]), np.array([38]), "single_half_up", 0, -128, 127)  # type: ignore[arg-type]


def _machine(sram_bytes: int = 64 << 10, dataflow: str = "os", **limits: Any) -> Machine:
    base = load_machine("edge16")
    data = json.loads(base.chip.model_dump_json())
    data["engines"]["mac"] |= {"depthwise": "none", "dataflow": dataflow}
    data["memories"]["sram"]["size"] = sram_bytes
    data["limits"]["convolution"] |= limits
    return replace(base, chip=Chip.model_validate_json(json.dumps(data)))


def _layer(groups: int, outputs: int, inputs: int, chip: Chip, height: int = 12, kernel: int = 3) -> Layer:
    pad = kernel // 2
    op = IntegerConvolution((1, 1), (pad, pad, pad, pad), (1, 1), groups, 0, 32, CodeType.INT8, REQUANT, None, None)
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (groups * outputs, kernel, kernel, inputs)).astype(np.int8)
    constants = {"w": weights, "b": np.zeros(groups * outputs, np.int64)}
    shapes = {"x": (1, height, height, groups * inputs), "w": weights.shape, "b": (groups * outputs,)}
    types = {name: TensorType(shape, "int8") for name, shape in {**shapes, "y": (1, height, height, groups * outputs)}.items()}
    return Layer(Node("layer", op, ("x", "w", "b"), ("y",)), types, constants, chip)


def _instructions(layer: Layer, tiling: Tiling) -> list[Convolution]:
    """Of the first work, its operands at addresses of their own."""
    task = next(layer.tiled.nest(layer, tiling).iterate_tasks())
    assert task.write is not None
    sites = [BoxLocation(1000, dense(task.reads[0].size, 1))]
    ops = task.emit(sites, [5000], BoxLocation(9000, dense(task.write.size, 1)))
    return [op for op in ops if isinstance(op, Convolution)]


def test_a_tile_holds_neighbouring_groups_as_one_box() -> None:
    layer = _layer(groups=64, outputs=1, inputs=1, chip=_machine().chip)
    tasks = list(layer.tiled.nest(layer, Tiling(12, 12, 32, 16, False)).iterate_tasks())
    assert [w.reads[0].start + w.reads[0].size for w in tasks] == [(0, 0, 0, 0, 1, 12, 12, 32), (0, 0, 0, 32, 1, 12, 12, 32)]
    assert [w.write and w.write.start[3:] + w.write.size[3:] for w in tasks] == [(0, 32), (32, 32)]


def test_instructions_stride_over_the_box() -> None:
    """32 channels a tile, 16 an instruction: the second one begins 16 bytes later, its weights 16 * 9 * 16 later."""
    layer = _layer(groups=64, outputs=1, inputs=1, chip=_machine().chip)
    first, second = _instructions(layer, Tiling(12, 12, 32, 16, False))
    assert (first.input_address, second.input_address) == (1000, 1016)
    assert (first.output_address, second.output_address) == (9000, 9016)
    assert (first.input_column_stride, first.output_column_stride) == (32, 32)
    assert (first.weight_address, second.weight_address) == (5000, 5000 + 16 * 9 * 16)
    assert second.parameter_address - first.parameter_address == 16 * 16
    assert (first.input_channels, first.output_channels) == (16, 16)


def test_parts_of_a_kernel_stay_with_their_groups() -> None:
    """Partial sums are in the accumulators: all parts of one instruction's groups run before those of the next."""
    layer = _layer(groups=8, outputs=2, inputs=2, chip=_machine(max_kernel=[3, 1]).chip)
    ops = _instructions(layer, Tiling(12, 12, 16, 8, False))
    assert [(op.input_channels, op.accumulate, op.emit) for op in ops] == [(8, 0, 0), (8, 1, 0), (8, 1, 1)] * 2


def test_as_many_groups_an_instruction_as_pay() -> None:
    """16 columns: 16 channels of depthwise, 4 groups of 4; a group as wide as the array stays alone."""
    chip = _machine(dataflow="ws").chip
    for groups, width, together in ((64, 1, 16), (32, 4, 4), (4, 16, 1), (4, 32, 1)):
        layer = _layer(groups, width, width, chip, height=64)
        widest = max(layer.tiled.tilings(layer), key=lambda t: t.channels)
        assert (widest.channels, widest.inner) == (groups * width, together * width)


def test_limits_of_channels_hold_fewer_groups() -> None:
    layer = _layer(64, 1, 1, _machine(dataflow="ws", max_input_channels=5).chip)
    assert max(t.inner for t in layer.tiled.tilings(layer)) == 5
    layer = _layer(8, 4, 4, _machine(dataflow="ws", max_output_channels=3).chip)
    assert max(t.channels for t in layer.tiled.tilings(layer)) == 3


BODIES = {
    "depthwise": ((40, 1, 3, 3), "y = Conv<group=40,pads=[1,1,1,1]>(x, w)"),
    "two outputs a channel": ((80, 1, 3, 3), "y = Conv<group=40,strides=[2,1]>(x, w)"),
    "groups of four": ((40, 4, 3, 3), "y = Conv<group=10,dilations=[2,2],pads=[2,2,2,2]>(x, w)"),
    "before a sum": ((40, 4, 1, 1), "c = Conv<group=10>(x, w) y = Add(c, x)"),
    "with a function": ((40, 1, 5, 5), "c = Conv<group=40,pads=[2,2,2,2]>(x, w) y = Sigmoid(c)"),
}
MACHINES = {
    "plain": {},
    "weights stay": {"dataflow": "ws"},
    "small": {"sram_bytes": 6 << 10},
    "limits": {"max_kernel": [2, 2], "max_stride": [1, 1], "max_width": 5, "max_input_channels": 7},
}


def _built(folder: Path, body: str, machine: Machine) -> Any:
    shape, text = BODIES[body]
    w = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    head = (
        f'<ir_version: 8, opset_import: ["": 17]> g (float[1,40,14,14] x) => (float y) <float[{",".join(map(str, shape))}] w = '
    )
    values = "{" + ",".join(f"{v:.6f}" for v in w.ravel()) + "}"
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(f"{head}{values}> {{ {text} }}"))
    onnx.save(model, folder / "m.onnx")
    return build(folder / "m.onnx", BuildOptions(machine))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("body", BODIES)
def test_bits_are_those_of_the_reference(body: str, machine: str, tmp_path: Path) -> None:
    built = _built(tmp_path, body, _machine(**MACHINES[machine]))
    feeds = random_feeds(built.container.inputs, seed=2)
    expected = Session(built.data, backend="reference").run_detailed(feeds)
    got = Session(built.data, timing=True).run_detailed(feeds)
    np.testing.assert_array_equal(got.outputs["y"], expected.outputs["y"])


def test_zeros_between_groups_are_no_products_of_the_report(tmp_path: Path) -> None:
    built = _built(tmp_path, "depthwise", _machine())
    assert built.figures["macs"] == 40 * 14 * 14 * 9


def test_a_map_in_dram_is_not_read_byte_by_byte(tmp_path: Path) -> None:
    """Each channel alone would touch a burst for every byte of input and output: 132,528 cycles."""
    figures = _built(tmp_path, "depthwise", _machine()).figures
    assert figures["dram_read_bytes"] + figures["dram_write_bytes"] < 27_216
    assert figures["cycles"] < 10_000
