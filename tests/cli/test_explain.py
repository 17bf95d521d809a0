"""--explain says which key of the machine's YAML cut a layer, slowed it or kept it apart, and what the compiler added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from quant.fixed_point import Rounding
from toolchain.api import Build, BuildOptions, build
from toolchain.errors import CompileError
from toolchain.hw.engines import FunctionRate
from toolchain.isa import Machine, load_machine
from toolchain.schedule import capacity_errors

FUNCTIONS = {name: FunctionRate(lanes=16) for name in ("add", "rescale", "table")}
# the change of edge16, the weight's shape, the graph, the node, what is said of it
CASES = {
    "kernel": (
        {"limits.convolution": {"max_kernel": (3, 3)}}, (4, 3, 7, 7), "y = Conv<pads=[3,3,3,3]>(x, w)",
        "limits.convolution.max_kernel=[3, 3]: kernel 7x7 in 9 parts",
    ),
    "kernel of a depthwise layer": (
        {"limits.depthwise": {"max_kernel": (3, 3)}}, (3, 1, 5, 5), "y = Conv<group=3>(x, w)",
        "limits.depthwise.max_kernel=[3, 3]: kernel 5x5 in 4 parts",
    ),
    "stride": (
        {"limits.convolution": {"max_stride": (1, 1)}}, (4, 3, 3, 3), "y = Conv<strides=[2,1]>(x, w)",
        "limits.convolution.max_stride=[1, 1]: stride 2x1, so an instruction takes part of the kernel's rows, or "
        "one row of outputs",
    ),
    "dilation": (
        {"limits.convolution": {"max_dilation": (1, 1)}}, (4, 3, 3, 3), "y = Conv<dilations=[2,2]>(x, w)",
        "limits.convolution.max_dilation=[1, 1]: dilation 2x2, so one row or column of the kernel an instruction",
    ),
    "input channels": (
        {"limits.convolution": {"max_input_channels": 2}}, (4, 3, 3, 3), "y = Conv(x, w)",
        "limits.convolution.max_input_channels=2: 3 channels of a sum in parts",
    ),
    "output channels": (
        {"limits.convolution": {"max_output_channels": 2}}, (4, 3, 3, 3), "y = Conv(x, w)",
        "limits.convolution.max_output_channels=2: 4 output channels in parts",
    ),
    "width": (
        {"limits.convolution": {"max_width": 8}}, (4, 3, 1, 1), "y = Conv(x, w)",
        "limits.convolution.max_width=8: 16 output columns in parts",
    ),
    "accumulators": (
        {"engines.mac.accumulators": {"entries": 256}}, (4, 3, 1, 1), "y = Conv(x, w)",
        "engines.mac.accumulators.entries=256: 256 pixels x 4 channels in 4 tiles",
    ),
    "SRAM": (
        {"memories.sram": {"size": 1024}}, (4, 3, 1, 1), "y = Conv(x, w)",
        "memories.sram.size=1024: operands and result have ",
    ),
    "depthwise mode": (
        {"engines.mac": {"depthwise": "column"}}, (3, 1, 3, 3), "y = Conv<group=3>(x, w)",
        "engines.mac.depthwise=column: the array works on one channel at a time",
    ),
    "no depthwise mode": (
        {"engines.mac": {"depthwise": "none"}}, (3, 1, 3, 3), "y = Conv<group=3>(x, w)",
        "engines.mac.depthwise=none: 3 channels, 3 at a time with weights of 0 between them",
    ),
    "max pool": (
        {"limits.pool": {"max_kernel": (2, 2)}}, (3, 1, 3, 3), "y = MaxPool<kernel_shape=[3,3]>(x)",
        "limits.pool.max_kernel=[2, 2]: a chain of smaller windows",
    ),
    "average pool": (
        {"engines.vector": {"functions": FUNCTIONS}}, (3, 1, 3, 3), "y = AveragePool<kernel_shape=[3,3]>(x)",
        "engines.vector.functions has no average_pool: a depthwise convolution with ones",
    ),
    "kernel rows for want of memory": (
        {"memories.sram": {"size": 1024}}, (3, 1, 16, 16), "y = Conv<group=3>(x, w)",
        "memories.sram.size=1024: 16 rows of the kernel, 6 at a time",
    ),
    "kernel rows beyond what the limit asks for": (
        {"limits.depthwise": {"max_kernel": (7, 7)}, "memories.sram": {"size": 512}}, (3, 1, 16, 16), "y = Conv<group=3>(x, w)",
        "limits.depthwise.max_kernel=[7, 7]: kernel 16x16 in 9 parts; memories.sram.size=512: 16 rows of the kernel, 4 at a time",
    ),
    "terms of a product": (
        {"limits.matrix_product": {"max_k": 8}}, (4, 3, 1, 1), "y = MatMul(x, x)",
        "limits.matrix_product.max_k=8: 16 terms of a sum in parts",
    ),
    "columns of a product": (
        {"limits.matrix_product": {"max_n": 8}}, (4, 3, 1, 1), "y = MatMul(x, x)",
        "limits.matrix_product.max_n=8: 16 columns in parts",
    ),
}  # fmt: skip


def change_section(section: Any, path: list[str], values: dict[str, Any]) -> Any:
    if not path:
        return section.model_copy(update=values)
    if isinstance(section, dict):
        return {**section, path[0]: change_section(section[path[0]], path[1:], values)}
    return section.model_copy(update={path[0]: change_section(getattr(section, path[0]), path[1:], values)})


def rows(folder: Path, changes: dict[str, dict[str, Any]], shape: tuple[int, ...], body: str) -> list[dict[str, Any]]:
    """The nodes of --explain; x is [1, 3, 16, 16], w random weights, the last tensor is y."""
    return build_case(folder, changes, shape, body).figures["nodes"]


def build_case(folder: Path, changes: dict[str, dict[str, Any]], shape: tuple[int, ...], body: str, level: int = 2) -> Build:
    graph = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,16,16] x) => (float[N,C,H,W] y) {{ {body} }}'
    proto = parser.parse_model(graph)
    proto.graph.initializer.append(numpy_helper.from_array(np.random.default_rng(3).normal(size=shape).astype(np.float32), "w"))
    onnx.save(proto, folder / "m.onnx")
    machine = load_machine("edge16")
    chip = change_section(machine.chip, ["engines", "dma"], {"outstanding": 1})  # with more, cuts in parts are faster
    for path, values in changes.items():
        chip = change_section(chip, path.split("."), values)
    return build(folder / "m.onnx", BuildOptions(Machine(chip, machine.isa), level=level))


@pytest.mark.parametrize("case", CASES)
def test_the_key_that_made_a_layer_so_is_named(case: str, tmp_path: Path) -> None:
    changes, shape, body, reason = CASES[case]
    assert reason in rows(tmp_path, changes, shape, body)[-1]["reason"]
    assert rows(tmp_path, {}, shape, body)[-1]["reason"] == ""


def test_kernel_rows_cut_for_speed(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, {}, (32, 3, 16, 16), "y = Conv(x, w)")
    assert row["reason"] == "chosen for speed: 16 rows of the kernel, 6 at a time"


def test_a_function_and_a_sum_without_room_behind_the_array(tmp_path: Path) -> None:
    body = "a = Conv(x, w) b = Sigmoid(a) c = Conv(b, w) y = Add(c, x)"
    reasons = [row["reason"] for row in rows(tmp_path, {"engines.mac": {"post": ()}}, (3, 3, 1, 1), body)]
    assert reasons[1] == "engines.mac.post has no table: the function is a pass of its own over the convolution's output"
    assert reasons[3] == "engines.mac.post has no add: the sum is a pass of its own over the convolution's output"
    assert "engines.mac.post" not in str([r["reason"] for r in rows(tmp_path, {}, (3, 3, 1, 1), body)])


def test_a_sum_in_float32_behind_its_second_operand(tmp_path: Path) -> None:
    changes = {"numerics_keys.scale": {"kind": "float32"}, "numerics_keys": {"rounding": Rounding.FP32_RNE}}
    reason = "numerics.rounding is fp32_rne: an array adds to its own result, and of this sum the other operand is added last"
    for order, is_reported in (("c, x", False), ("x, c", True)):
        case_rows = rows(tmp_path, changes, (3, 3, 1, 1), f"c = Conv(x, w) y = Add({order})")
        assert (reason in [row["reason"] for row in case_rows]) == is_reported


def test_what_has_no_room_in_sram(tmp_path: Path) -> None:
    body = "a = Conv<pads=[1,1,1,1]>(x, w) b = Conv<pads=[1,1,1,1]>(a, w) y = Add(a, b)"
    case_rows = rows(tmp_path, {"memories.sram": {"size": 1024}, "engines.mac": {"post": ()}}, (3, 3, 3, 3), body)
    assert "memories.sram.size=1024: its output goes to DRAM, no room to keep it" in case_rows[0]["reason"]
    assert "memories.sram.size=1024: an input waits in DRAM, no room to keep it" in case_rows[2]["reason"]


def test_a_level_that_keeps_nothing_blames_no_memory(tmp_path: Path) -> None:
    node_rows = build_case(tmp_path, {}, (3, 3, 1, 1), "a = Conv(x, w) y = Conv(a, w)", level=0).figures["nodes"]
    assert node_rows[0]["reason"] == "below -O1: its output goes to DRAM, for nothing stays in SRAM between layers"
    assert node_rows[1]["reason"] == "below -O1: an input waits in DRAM, for nothing stays in SRAM between layers"


def test_layers_of_the_compiler_stand_before_what_they_serve(tmp_path: Path) -> None:
    changes = {"limits.convolution": {"max_pad": (0, 0)}, "limits.depthwise": {"max_pad": (1, 1)}}
    body = "a = Conv<pads=[1,1,1,1]>(x, w) b = Sigmoid(a) c = Concat<axis=1>(a, x) y = Conv<group=7,pads=[2,2,2,2]>(c, v)"
    body += " z = Relu(x)"
    graph_rows = rows(tmp_path, changes, (4, 3, 3, 3), body.replace("Conv<group=7,pads=[2,2,2,2]>(c, v)", "Add(c, c)"))
    compiler_rows = [row for row in graph_rows if row["made_by"] == "compiler"]
    assert compiler_rows[0]["op"] == "Pad"
    assert compiler_rows[0]["reason"] == "made by the compiler: padding written out, beyond limits.convolution.max_pad=[0, 0]"
    assert graph_rows[graph_rows.index(compiler_rows[0]) + 1]["op"] == "Conv"
    assert [row["reason"] for row in compiler_rows if row["op"] == "Rescale"] == [
        "made by the compiler: brings tensor x to the scale of what it is joined with"
    ]
    assert sum(row["made_by"] == "model" for row in graph_rows) == 5


STRIDED = (
    "limits.convolution.max_stride=[1, 1]: stride 2x2, so an instruction takes part of the kernel's rows and columns, "
    "or one row and column of outputs"
)


def test_strides_output_by_output_are_a_warning(tmp_path: Path) -> None:
    changes = {"limits.convolution": {"max_stride": (1, 1)}}
    body = "a = Conv<strides=[2,2]>(x, w) y = Relu(a)"
    built = build_case(tmp_path, changes, (4, 3, 3, 3), body)
    cycles = built.figures["layers"][0]["cycles"]
    assert built.warnings[-1] == f"{STRIDED}: 1 layer, Conv_0, {cycles:,} of {cycles:,} cycles"
    for without in (build_case(tmp_path, {}, (4, 3, 3, 3), body), build_case(tmp_path, changes, (4, 3, 3, 3), "y = Conv(x, w)")):
        assert not any("max_stride" in warning for warning in without.warnings)


def test_strides_of_too_many_tiles_are_refused_by_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_errors, "MOST_TILES", 3)
    with pytest.raises(CompileError) as fault:
        build_case(tmp_path, {"limits.convolution": {"max_stride": (1, 1)}}, (4, 3, 3, 3), "y = Conv<strides=[2,2]>(x, w)")
    assert str(fault.value) == (
        "edge16: the network falls into 4 tiles, most of them (4) of Conv_0 (Convolution); a program has at most 3\n"
        "  help: limits.convolution.max_stride=[1, 1]: stride 2x2, so an instruction takes part of the kernel's rows and "
        "columns, or one row and column of outputs; raise it, or let strides be 1 and drop outputs by a Slice"
    )
