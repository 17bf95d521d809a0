"""Tables, traces and listings name layers as the model does; what the compiler makes beside them by whom it serves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from toolchain.api import Build, BuildOptions, build
from toolchain.cli.dis import listing
from toolchain.codegen import Region
from toolchain.isa import Machine, load_machine
from toolchain.report import collect_metrics, report_text
from toolchain.report.trace import trace_json
from toolchain.runtime import Session, random_feeds

# the input's shape, the graph with weights [4, 3, 3, 3] and a matrix [6, 5], and its layers in order
CASES = {
    "softmax of many rows": ("[2, 3, 6]", "y = Softmax(x)", ["Softmax_0"]),
    "mean of rows": ("[2, 3, 6]", "y = ReduceMean<axes=[2], keepdims=1>(x)", ["ReduceMean_0"]),
    "mean in the middle": ("[2, 3, 6]", "y = ReduceMean<axes=[1], keepdims=1>(x)", ["ReduceMean_0"]),
    "maximum": ("[2, 3, 6]", "y = ReduceMax<axes=[1], keepdims=1>(x)", ["ReduceMax_0"]),
    "Gemm": ("[2, 6]", "y = Gemm(x, m)", ["Gemm_0"]),
    "layout on the way in": (
        "[1, 3, 6, 6]", "s = Softmax<axis=3>(x) y = Conv(s, w)", ["Softmax_0", "s (to channels last)", "Conv_1"]
    ),
    "shuffled channels": (
        "[1, 3, 6, 6]",
        "c = Conv(x, w) v = Reshape(c, apart) t = Transpose<perm=[0,2,1,3,4]>(v) y = Reshape(t, back)",
        ["Conv_0", "Reshape_3"],
    ),
    "means taken apart": (
        "[2, 6]", "y = LayerNormalization(x, g)",
        [f"LayerNormalization_0{s}" for s in (": mean", ": x - mean", ": (x - mean)^2", ": variance", ": normal", "")],
    ),
    "parts of unequal scale": (
        "[1, 3, 6, 6]", "a = Conv<pads=[1,1,1,1]>(x, w) y = Concat<axis=1>(x, a)", ["Conv_0", "Concat_1 (rescale 0)", "Concat_1"]
    ),
    "a large window": (
        "[1, 3, 6, 6]", "y = MaxPool<kernel_shape=[6,6]>(x)", ["MaxPool_0 (stage0)", "MaxPool_0 (stage1)", "MaxPool_0"]
    ),
}  # fmt: skip


def built(folder: Path, shape: str, body: str) -> Build:
    """Build a model on transformer64 with pools of 3x3.
    The nodes have no names of their own, so messages name them by operator and place.
    """
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float{shape} x) => (float y) <int64[5] apart = {{1, 2, 2, 4, 4}}, '
        f"int64[4] back = {{1, 4, 4, 4}}> {{ {body} }}"
    )
    rng = np.random.default_rng(0)
    arrays = {"w": (4, 3, 3, 3), "m": (6, 5), "g": (6,)}
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.normal(0, 1, s).astype(np.float32), name)
        for name, s in arrays.items()
        if re.search(rf"\b{name}\b", body)
    )
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "m.onnx")
    machine = load_machine("transformer64")
    limits = machine.chip.limits.model_copy(update={"pool": machine.chip.limits.pool.model_copy(update={"max_kernel": (3, 3)})})
    chip = machine.chip.model_copy(update={"limits": limits})
    return build(folder / "m.onnx", BuildOptions(Machine(chip, machine.isa)))


@pytest.mark.parametrize("case", CASES)
def test_names_are_the_model_s(case: str, tmp_path: Path) -> None:
    shape, body, names = CASES[case]
    build_result = built(tmp_path, shape, body)
    container, run = (
        build_result.container,
        Session(build_result.data, timing=True).run_detailed(random_feeds(build_result.container.inputs)),
    )
    simulations = [s.simulation for s in run.segments]
    figures = collect_metrics(container, simulations)
    assert [layer["name"] for layer in figures["layers"]] == names
    working = {layer["name"] for layer in figures["layers"] if layer["operations"]}  # of a Concat its parts may be all
    table = [line for line in report_text.layers_text(figures).splitlines()[2:] if line != report_text.OVERLAP_NOTE]
    assert [re.split("  +", line)[0] for line in table] == names
    events = json.loads(trace_json(container, simulations))["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "X" and e["cat"] not in ("signal", "wait", "idle")} == working
    noted = {m[1] for m in re.finditer(r"; op [\d-]+ (.*)", listing(container))}
    assert noted == working and len(working) >= len(names) - 1
    nodes = [n.name for n in container.graph.nodes]
    assert len({*nodes}) == len(nodes) and all(isinstance(s, Region) for s in container.segments)
