"""Machines that take operators apart, and models of one operator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from tests.support.compare_exact import require_exact
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.hw import read_source
from toolchain.hw.chip import Chip
from toolchain.isa import Isa, Machine, load_machine, make_default_table
from toolchain.isa.machine import read_table
from toolchain.ops.kit.registry import DECOMPOSITIONS

SOFTMAX = "g (float[1,4,16,64] x) => (float[1,4,16,64] y) { y = Softmax(x) }"
NORM = "g (float[1,32,64] x) => (float[1,32,64] y) <float[64] w, float[64] b> { y = LayerNormalization(x, w, b) }"
QUOTIENT = "g (float[1,16,24] x, float[1,16,1] z) => (float[1,16,24] y) { d = Sigmoid(z) y = Div(x, d) }"
LOG_SOFTMAX = SOFTMAX.replace("Softmax", "LogSoftmax")
INSTANCE = "g (float[1,6,8,9] x) => (float[1,6,8,9] y) <float[6] w, float[6] b> { y = InstanceNormalization(x, w, b) }"
GROUP = INSTANCE.replace("InstanceNormalization", "GroupNormalization<num_groups = 2>")
GROUP_OF_ROWS = GROUP.replace("[1,6,8,9]", "[1,24]").replace("[6]", "[24]")
ROOT_MEAN_SQUARE = "g (float[1,32,64] x) => (float[1,32,64] y) <float[64] w> { y = RMSNormalization(x, w) }"


def decomposing(machine: Machine, *names: str) -> Machine:
    """The machine with `limits.decompose` of these names, all where none is given."""
    every_name = tuple(sorted(name for name, rule in DECOMPOSITIONS.items() if rule.is_by_request))
    limits = machine.chip.limits.model_copy(update={"decompose": names or every_name})
    return replace(machine, chip=machine.chip.model_copy(update={"limits": limits}))


def remove_decomposition(machine: Machine) -> Machine:
    """The machine without `limits.decompose`: an operator is its own or the host's."""
    limits = machine.chip.limits.model_copy(update={"decompose": ()})
    return replace(machine, chip=machine.chip.model_copy(update={"limits": limits}))


def make_mixed_machine() -> Machine:
    """edge16 whose tensors may have int16 codes too, and no operator in steps."""
    data = json.loads(remove_decomposition(load_machine("edge16")).chip.model_dump_json())
    data["name"] = "edge16_mixed"
    table = {"entries": 256, "interpolation": "tosa"}
    data["numerics"].update({"more_activations": ["int16"], "add_left_shift": 14, "table": table})
    types = [{"activation": kind, "weight": "int8"} for kind in ("int8", "int16")]
    data["engines"]["mac"].update({"types": types, "accumulators": {"bits": 48, "entries": 4096}})
    chip = Chip.model_validate_json(json.dumps(data))
    words, faults = read_table(read_source(make_default_table(chip), "first.yaml"))
    assert words is not None, faults
    return Machine(chip, Isa(words, chip))


def save_model(
    graph: str, folder: Path, samples: int = 12, low: float = -4.0, high: float = 5.0, opset: int = 17
) -> tuple[Path, Path]:
    """The model, its weights drawn, and calibration data of rows that are unlike."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {graph}')
    rng = np.random.default_rng(1)
    typed = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    for name in sorted(typed):
        shape = typed[name]
        drawn = rng.normal(0.7, 0.3, shape) if len(shape) == 1 else rng.normal(0, shape[0] ** -0.5, shape)
        model.graph.initializer.append(numpy_helper.from_array(drawn.astype(np.float32), name))
    onnx.save(model, folder / "model.onnx")
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    data = {n: rng.normal(0, rng.uniform(0.5, 2.5, (samples, *s[1:-1], 1)), (samples, *s[1:])) + 0.5 for n, s in shapes.items()}
    np.savez(folder / "data.npz", allow_pickle=False, **{n: np.clip(x, low, high).astype(np.float32) for n, x in data.items()})
    return folder / "model.onnx", folder / "data.npz"


def require_equal_in_steps(folder: Path, model: onnx.ModelProto, machine: Machine, level: int) -> None:
    """Require that the simulator equals the reference, bytes and outputs, when operators are decomposed.
    Refusals are accepted where the smallest tiles have no room or random inputs have no finite results. A variance of 0 may be
    less in float, and 0 has no logarithm.
    """
    onnx.save(model, folder / "random.onnx")
    try:
        built = build(folder / "random.onnx", BuildOptions(decomposing(machine), level=level))
    except CompileError as fault:
        assert any(reason in str(fault) for reason in ("smallest tile needs", "random inputs need not lie where")), fault
        return
    require_exact(built)
