"""Small networks, and their compiled files with other operations in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from toolchain.api import Build
from toolchain.codegen import Region, container_to_bytes
from toolchain.isa import decode, encode
from toolchain.machine import MachineOp


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


def region_of(built: Build) -> Region:
    (region,) = built.container.segments
    assert isinstance(region, Region)
    return region


def operations(built: Build) -> list[MachineOp]:
    return list(decode(region_of(built).program, built.container.machine.isa).ops)


def edit_program(built: Build, ops: Sequence[MachineOp], layers: Sequence[int] | None = None) -> bytes:
    """Return the file with other operations.

    `layers`: layers of the operations, where there are more or fewer than before.
    """
    region = region_of(built)
    changed = replace(
        region, program=encode(ops, built.container.machine.isa), op_layers=tuple(region.op_layers if layers is None else layers)
    )
    return container_to_bytes(replace(built.container, segments=(changed,)))
