"""Strides beyond a machine's limit are addresses of inputs a stride apart: the same bits; 1x1 kernels cost nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from toolchain.api import Build, BuildOptions, build
from toolchain.hw.chip_sections import Pair
from toolchain.hw.engines import MacArray
from toolchain.hw.timing import UNLIMITED
from toolchain.isa import Machine, load_machine
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.convolution.parameters import find_element_step
from toolchain.ops.convolution.tiles import get_window_input
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Tiling
from toolchain.ops.kit.window import Window
from toolchain.runtime import Session


def make_convolution(
    folder: Path, conv: str, weights: tuple[int, ...], limit: Pair | None, sram: int = 512 << 10, machine: Machine | None = None
) -> Build:
    """x [1, 8, 21, 19] by a convolution on a copy of edge16 with this limit of strides."""
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,21,19] x) => (float[N,C,H,W] y) {{ y = Conv<{conv}>(x, w) }}'
    )
    values = np.random.default_rng(3).normal(size=weights).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
    onnx.save(proto, folder / "m.onnx")
    machine = load_machine("edge16")
    limits = {
        name: getattr(machine.chip.limits, name).model_copy(update={"max_stride": limit}) for name in ("convolution", "depthwise")
    }
    memory = machine.chip.sram.model_copy(update={"size": sram})
    chip = machine.chip.model_copy(
        update={
            "limits": machine.chip.limits.model_copy(update=limits),
            "memories": {**machine.chip.memories, "sram": memory},
        }
    )
    return build(folder / "m.onnx", BuildOptions(Machine(chip, machine.isa)))


def outputs(built: Build) -> np.ndarray:
    x = np.random.default_rng(4).normal(size=(1, 8, 21, 19)).astype(np.float32)
    return np.asarray(Session(built.data).run(["y"], {"x": x})[0])


CASES = {
    "1x1": ("strides=[2,2]", (24, 8, 1, 1)),
    "1x1 far": ("strides=[5,4]", (24, 8, 1, 1)),
    "padded 1x1": ("strides=[3,2],pads=[2,1,4,3]", (24, 8, 1, 1)),
    "rows alone": ("strides=[3,1],pads=[1,1,1,1]", (24, 8, 3, 3)),
    "3x3": ("strides=[2,2],pads=[1,1,1,1]", (24, 8, 3, 3)),
    "as far as wide": ("strides=[4,4]", (24, 8, 4, 4)),
    "dilated": ("strides=[2,3],dilations=[2,2],pads=[3,2,1,4]", (24, 8, 3, 2)),
    "dilated by the stride": ("strides=[2,3],dilations=[2,3],pads=[3,2,1,4]", (24, 8, 3, 3)),
    "depthwise": ("strides=[2,2],pads=[1,1,1,1],group=8", (8, 1, 3, 3)),
    "groups": ("strides=[2,2],pads=[2,1,0,1],group=4", (24, 2, 3, 3)),
}


@pytest.mark.parametrize("sram", [512 << 10, 3 << 10])
@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_without_a_limit(case: str, sram: int, tmp_path: Path) -> None:
    """A build holds its program against the integer reference besides."""
    conv, weights = CASES[case]
    np.testing.assert_array_equal(
        outputs(make_convolution(tmp_path, conv, weights, (1, 1), sram)),
        outputs(make_convolution(tmp_path, conv, weights, None, sram)),
    )


@pytest.mark.parametrize("case", ["1x1", "1x1 far", "padded 1x1"])
def test_kernels_of_one_element_cost_nothing(case: str, tmp_path: Path) -> None:
    conv, weights = CASES[case]
    limited, free = make_convolution(tmp_path, conv, weights, (1, 1)), make_convolution(tmp_path, conv, weights, None)
    assert limited.figures["cycles"] <= free.figures["cycles"]
    assert not any("max_stride" in w for w in limited.warnings)


def test_whole_rows_take_fewer_cycles_than_outputs_one_by_one(tmp_path: Path) -> None:
    """Of 11 x 10 outputs each of which was an instruction."""
    conv, weights = CASES["3x3"]
    limited, free = make_convolution(tmp_path, conv, weights, (1, 1)), make_convolution(tmp_path, conv, weights, None)
    assert free.figures["cycles"] < limited.figures["cycles"] < 3 * free.figures["cycles"]


def test_a_kernel_is_cut_into_elements_that_lie_a_stride_apart(tmp_path: Path) -> None:
    """Rows or columns of outputs that an instruction makes one by one leave the kernel whole."""
    conv, weights = CASES["3x3"]
    container = make_convolution(tmp_path, conv, weights, (1, 1)).container
    graph = container.graph
    node = next(node for node in graph.nodes if isinstance(node.op, IntegerConvolution))
    layer = Layer(node, graph.types, graph.constants, container.machine.chip)
    tilings = [Tiling(rows, columns, 24, 8) for rows, columns in ((11, 10), (5, 10), (1, 10), (11, 1), (1, 1))]
    assert [*layer.tiled.count_kernel_parts(layer, tilings).values()] == [4, 4, 2, 2, 1]


@pytest.mark.parametrize(("stride", "most", "element_step"), [(2, 1, 2), (4, 2, 2), (6, 2, 3), (5, 2, 5), (3, 3, 1)])
def test_elements_lie_as_near_as_the_limit_lets_them(stride: int, most: int, element_step: int) -> None:
    assert find_element_step(stride, most) == element_step


@pytest.mark.parametrize("stride", [2, 3, 5])
@pytest.mark.parametrize("pad", [-4, 0, 1, 7])
def test_every_output_sees_its_element(stride: int, pad: int) -> None:
    """By the definition: output y sees element y stride - pad of the input, or padding."""
    size, first, width = 13, 2, 9
    window = Window(size, 1, stride, 1, pad)
    for start in range(4):
        for count in range(1, 5):
            at = [y * stride - pad for y in range(start, start + count)]
            expected = [i if first <= i < first + width else None for i in at]
            if any(0 <= i < first for i in at):
                continue  # what is held begins with the first that is needed
            for element_step in (1, stride):
                view = get_window_input(window, (start, count), first, width, element_step)
                places = [i * view.stride - view.pad for i in range(count)]
                got = [first + view.skip + i * view.element_step if 0 <= i < view.size else None for i in places]
                assert got == expected


def test_one_output_an_instruction_keeps_the_kernel_together(tmp_path: Path) -> None:
    """The array sums 576 products of one output in a cycle: all of a 3x3 kernel of 8 channels, or one element of it."""
    limits = {"max_stride": (1, 1)}
    edge16 = load_machine("edge16").chip
    mac = edge16.engines["mac"]
    assert isinstance(mac, MacArray)
    timing = mac.timing.model_copy(
        update={"input_edge_bytes": UNLIMITED, "weight_edge_bytes": UNLIMITED, "fold_cycles": 0, "reduction": ((64, 9),)}
    )
    form = {"rows": 1, "columns": 1, "depth": 576, "folds_overlap": True, "timing": timing}
    array = mac.model_copy(update=form)
    machine = Machine(
        edge16.model_copy(
            update={
                "engines": {**edge16.engines, "mac": array},
                "limits": edge16.limits.model_copy(update={"convolution": edge16.limits.convolution.model_copy(update=limits)}),
            }
        ),
        load_machine("edge16").isa,
    )
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,32,32] x) => (float[N,C,H,W] y)'
        " { y = Conv<strides=[2,2],pads=[1,1,1,1]>(x, w) }"
    )
    weights = np.random.default_rng(3).normal(size=(64, 8, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    built = build(tmp_path / "m.onnx", BuildOptions(machine))
    one_by_one = 16 * 16 * 64  # cycles: one for each output
    assert one_by_one <= built.figures["cycles"] < 3 * one_by_one  # 9 times with one kernel element an instruction
