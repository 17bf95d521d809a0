"""Files of an image say of each region what the region has, field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region, image_files
from toolchain.codegen.model import Port

NETWORK = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,6,5] x, float[1,4,6,5] c)
    => (float[1,4,6,5] y, float[1,4,6,5] d) <float[4,3,3,3] w>
    { a = Conv<pads = [1,1,1,1]>(x, w) d = Add(a, c) y = Sigmoid(d) }"""


@pytest.fixture(scope="module", params=["edge16", "ethos_u55_256"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a network with a state, whose inputs have no range around zero."""
    folder, rng = tmp_path_factory.mktemp("image"), np.random.default_rng(0)
    proto = onnx.parser.parse_model(NETWORK)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=(4, 3, 3, 3)).astype(np.float32), "w"))
    onnx.save(proto, folder / "m.onnx")
    np.savez(folder / "x.npz", x=rng.uniform(-1, 3, (4, 1, 3, 6, 5)).astype(np.float32), c=np.zeros((4, 1, 4, 6, 5), np.float32))
    options = BuildOptions(request.param, calibration=str(folder / "x.npz"), states=("c=d",), repair="none", level=0)
    return build(Path(folder / "m.onnx"), options)


def describe_port(port: Port) -> dict[str, Any]:
    fields = ("address", "layout", "dtype", "scale", "zero_point")
    values = {name: getattr(port, name) for name in fields}
    maps = {} if port.maps is None else {"granule": port.maps.granule, "order": port.maps.order}
    return {"tensor": port.model, "bytes": port.size_bytes, "shape": list(port.shape), **values, **maps}


def test_ports_and_states_are_those_of_the_region(built: Build) -> None:
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    (segment,) = json.loads(image_files(built.container)["ports.json"])["segments"]
    assert segment["inputs"] == [describe_port(p) for p in region.inputs]
    assert segment["outputs"] == [describe_port(p) for p in region.outputs]
    ((state, record),) = zip(region.states, segment["states"], strict=True)
    assert record.items() >= {**describe_port(state.port), "output": state.output}.items()
    assert {p["zero_point"] for p in segment["inputs"]} != {0} and segment["dram_bytes"] == region.dram_bytes


def test_programs_and_constants_are_those_of_the_region(built: Build) -> None:
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    files = image_files(built.container)
    (segment,) = json.loads(files["ports.json"])["segments"]
    assert files[segment["program"]["file"]] == region.program
    assert segment["program"]["words"] * built.container.machine.isa.word_bytes == len(region.program)
    data = files[segment["constants"]["file"]]
    blocks = [(b["address"], data[b["offset"] : b["offset"] + b["bytes"]]) for b in segment["constants"]["blocks"]]
    assert blocks == sorted(region.constants) and len(blocks) > 1
