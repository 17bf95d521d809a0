"""Bytes that a network itself drops are no fault of its program; what else nothing reads is a warning of a layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region, container_to_bytes
from toolchain.isa import decode, encode
from toolchain.machine import Copy, MachineOp, Space
from toolchain.runtime import Session, random_feeds

DROPPING = {
    "the last row and column of a pool": ("float[1,8,7,7]", "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(h)"),
    "pixels between strides": ("float[1,8,8,8]", "y = Conv<kernel_shape=[1,1], strides=[3,2]>(h, v)"),
    "pixels between dilations": ("float[1,8,5,5]", "y = Conv<kernel_shape=[2,2], dilations=[4,3]>(h, v2)"),
    "what a Slice leaves out": ("float[1,8,6,6]", "y = Slice(h, starts, ends, axes, steps)"),
    "a part of a Split": ("float[1,8,6,6]", "y, z = Split<axis=1>(h, sizes)\n w = Relu(y)"),
}


def model(tmp_path: Path, shape: str, body: str) -> Path:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g ({shape} x) => (float {"w" if "w =" in body else "y"}) {{
        h = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, k)
        {body}
    }}"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    arrays = {"k": rng.normal(size=(8, 8, 3, 3)), "v": rng.normal(size=(8, 8, 1, 1)), "v2": rng.normal(size=(8, 8, 2, 2))}
    integers = {"starts": [1], "ends": [5], "axes": [2], "steps": [2], "sizes": [3, 5]}
    for name, value in arrays.items():
        if name in body or name == "k":
            proto.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    for name, value in integers.items():
        if name in body:
            proto.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    path = tmp_path / "m.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(proto), path)
    return path


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("hardware", ["edge16", "ws8_pow2"])
@pytest.mark.parametrize("case", DROPPING)
def test_what_a_network_drops_is_no_warning(tmp_path, case, hardware, level):
    built = build(model(tmp_path, *DROPPING[case]), BuildOptions(hardware, level=level))
    assert built.figures["warnings"] == []


def warnings_of(built: Build, ops: list[MachineOp]) -> list[str]:
    (region,) = built.container.segments
    assert isinstance(region, Region)
    changed = replace(region, program=encode(ops, built.container.machine.isa))
    session = Session(container_to_bytes(replace(built.container, segments=(changed,))))
    run = session.run_detailed(random_feeds(session.get_inputs()))
    return [w for ran in run.segments for w in ran.warnings]


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Build:
    path = model(tmp_path_factory.mktemp("unread"), *DROPPING["the last row and column of a pool"])
    return build(path, BuildOptions("edge16"))


def operations(built: Build) -> list[MachineOp]:
    (region,) = built.container.segments
    assert isinstance(region, Region)
    return list(decode(region.program, built.container.machine.isa).ops)


def test_a_layer_that_reads_less_than_the_network_is_a_warning(pooled):
    """The pool of a result that the network drops parts of already."""
    ops = operations(pooled)
    at = next(i for i, op in enumerate(ops) if op.NAME == "pool")
    smaller = replace(ops[at], kernel_width=1)
    (warning,) = warnings_of(pooled, [*ops[:at], smaller, *ops[at + 1 :]])
    assert "of layer Conv_0 (Convolution) writes" in warning and "that nothing reads" in warning, warning


def test_a_load_of_more_than_is_read_is_a_warning(pooled):
    ops = operations(pooled)
    at = next(i for i, op in enumerate(ops) if isinstance(op, Copy) and op.destination_space == Space.SRAM)
    twice = [*ops[:at], ops[at], *ops[at:]]
    (region,) = pooled.container.segments
    layers = (*region.op_layers[:at], region.op_layers[at], *region.op_layers[at:])
    changed = replace(pooled.container, segments=(replace(region, op_layers=layers),))
    (warning,) = warnings_of(replace(pooled, container=changed), twice)
    assert warning.startswith(f"op {at} copy of layer Conv_0 (Convolution) writes "), warning


def test_a_constant_that_is_never_read_is_a_warning(pooled):
    (region,) = pooled.container.segments
    end = max(address + len(data) for address, data in region.constants)
    more = replace(region, constants=(*region.constants, (end, bytes(8))), dram_bytes=end + 8)
    changed = replace(pooled, container=replace(pooled.container, segments=(more,)))
    assert warnings_of(changed, operations(pooled)) == [f"constants: 8 bytes of dram[{end:#x}..{end + 8:#x}) are never read"]
