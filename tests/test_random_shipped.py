"""Random networks, each on two of the shipped machines: sizes of 1, mixed types with tensors that the file rounds at any range.

RANDOM_SHIPPED=2000 RANDOM_SHIPPED_SEED=7 pytest tests/test_random_shipped.py     # so many, drawn by another seed
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from onnx import TensorProto

from tests.meaning.judge import judged, save
from tests.random_exports import EXPORTS
from tests.random_layers import LAYERS
from tests.random_network import DrawnModel, Network
from tests.test_dimensions_of_one import MACHINES
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.isa import load_machine

COUNT, SEED = int(os.environ.get("RANDOM_SHIPPED", "8")), int(os.environ.get("RANDOM_SHIPPED_SEED", "0"))
BELOW_DB = 12.0  # of an output, below what its codes and those of the tensors before it leave
STEPS = {"Round", "Floor", "Ceil", "Sign", "ArgMax", "ArgMin", "Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual"}
STEPS |= {"Where", "Hardmax", "TopK", "ThresholdedRelu", "Shrink", "Div", "Reciprocal"}  # a quotient's divisor may be near zero
SAMPLES = 3


def _rounded_function(net: Network) -> None:
    """A function of a tensor that the file rounds to codes over a drawn range; its output is rounded too at times."""
    x = net.pick()
    shape = net.shapes[x]
    read = _rounded(net, x)
    kind = net.choose("Exp", "Tanh", "Erf", "Sigmoid", "Relu", "Abs", "Neg", "Softplus", "HardSigmoid", "LeakyRelu", "Cos")
    y = net.add(kind, [read], shape)
    if net.choose(0, 1):
        _rounded(net, y)


def _rounded(net: Network, x: str) -> str:
    span, dtype = net.choose(0.02, 1.0, 4.0, 16.0), net.choose(np.int8, np.uint8)
    middle = 0 if dtype is np.int8 else 128
    zero = int(net.choose(middle, middle - 100, middle + 100))
    held = [net.floats(np.float32(span / 127)), net.hold(np.array(zero, dtype))]
    return net.add("DequantizeLinear", [net.inner("QuantizeLinear", [x, *held]), *held], net.shapes[x])


def _place(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    if not shape:
        return
    axis = net.number(0, len(shape) - 1)
    place = net.inner(net.choose("ArgMax", "ArgMin"), [x], axis=axis, keepdims=1)
    net.add("Cast", [place], tuple(1 if i == axis else n for i, n in enumerate(shape)), to=TensorProto.FLOAT)


@st.composite
def shipped_networks(draw: Any) -> DrawnModel:
    """2 to 6 layers over one or two inputs of which a third of the sizes are 1."""
    net = Network(draw, draw(st.sampled_from([13, 17, 21])))
    for name in ("x", "y")[: draw(st.sampled_from([1, 1, 2]))]:
        rank = draw(st.sampled_from([4, 4, 3, 2, 1]))
        net.inputs[name] = net.shapes[name] = tuple(net.choose(1, 1, 2, 3, 5, 8) for _ in range(rank))
    for _ in range(net.number(2, 6)):
        draw(st.sampled_from([*LAYERS, *EXPORTS, *[_rounded_function] * 8, *[_place] * 3]))(net)
    used = {n for node in net.nodes for n in node.input}
    for name in sorted(net.inputs.keys() - used):
        net.add("Sigmoid", [name], net.shapes[name])
    return net.model()


pairs = st.lists(st.sampled_from(MACHINES), min_size=2, max_size=2, unique=True)


@settings(
    max_examples=COUNT,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(model=shipped_networks(), machines=pairs, types=st.sampled_from([(), (), ("*[02468]=int16",), ("*=int16",)]))
def right_on_two_machines(
    counts: Counter[str], faults: list[str], model: DrawnModel, machines: list[str], types: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(5)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.proto.graph.input}
    samples = [{n: rng.uniform(-1.5, 2, s).astype(np.float32) for n, s in shapes.items()} for _ in range(SAMPLES)]
    for name in machines:
        with tempfile.TemporaryDirectory() as folder:
            try:
                counts[_verdict(model.proto, name, types, samples, Path(folder))] += 1
            except AssertionError as fault:
                faults.append(f"{name} {types}: {fault}\n{model!r}")
            except Exception as fault:
                faults.append(f"{name} {types}: {type(fault).__name__}: {fault}\n{model!r}")


def _verdict(
    proto: onnx.ModelProto, name: str, types: tuple[str, ...], samples: list[dict[str, np.ndarray]], folder: Path
) -> str:
    """Raises AssertionError; what the build raises but a refusal in one line. A build compares program and reference itself."""
    chip = load_machine(name).chip
    asked = types if len(chip.code_types) > 1 else ()
    exact = not asked and chip.weight_types[0] == "int8"
    steps = [n.op_type for n in proto.graph.node if n.op_type in STEPS]
    try:
        if steps or not exact:
            model, data = save(proto, samples, folder)
            build(model, BuildOptions(name, str(data), types=asked))
            return "bits"
        outputs = judged(proto, load_machine(name), samples, folder).outputs
    except CompileError as fault:
        assert "\n" not in str(fault), fault
        return f"refused: {str(fault)[-50:]}"
    few = [
        o for o in outputs if not o.within_float and o.sqnr_db < min(o.rounded_db, o.codes_db) - BELOW_DB and o.error_codes > 4
    ]
    assert not few, few
    return "bits and float"


@pytest.mark.slow
def test_right_on_two_machines() -> None:
    """The same cases each time; with RANDOM_SHIPPED_SEED others."""
    counts: Counter[str] = Counter()
    faults: list[str] = []
    seed(SEED)(right_on_two_machines)(counts, faults)
    print("\n".join(f"{times:7}  {what}" for what, times in counts.most_common()))
    assert not faults, f"{len(faults)} of {counts.total() + len(faults)}\n" + "\n".join(faults[:20])
    assert counts["bits"] + counts["bits and float"] > counts.total() // 2
