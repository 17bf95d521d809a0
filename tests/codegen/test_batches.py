"""A batch is a repeat where the machine has one: small, right bit for bit, nearly as fast, and flat where samples mix."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.control_flow_machines import CONTROL, with_control
from toolchain.api import Build, BuildOptions, build
from toolchain.cli.dis import listing
from toolchain.cli.dis import replace_programs as assembled
from toolchain.codegen import Region, container_to_bytes
from toolchain.errors import ProgramError
from toolchain.hw.chip_sections import Control
from toolchain.isa import Machine, decode, encode, load_machine
from toolchain.machine import Convolution, MachineOp, Repeat, Signal, Wait
from toolchain.report.trace import trace_json
from toolchain.runtime import Session, random_feeds, verify

CLASSIFIER = Path(__file__).parents[2] / "examples" / "classifier" / "classifier.onnx"
EDGE16 = load_machine("edge16")
KINDS = {"descriptors": with_control(EDGE16), "registers": with_control(EDGE16, "registers", 32)}
SMALL = {"bases": 2, "repeat": {"max_count": 8}}  # what a batch of 8 takes


def flat(machine: Machine) -> Machine:
    """The same machine without control, and its instruction table as it is."""
    return Machine(machine.chip.model_copy(update={"control": Control()}), machine.isa)


def of_batch(folder: Path, count: int) -> Path:
    model = onnx.load(CLASSIFIER)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = count
    del model.graph.value_info[:]
    path = folder / f"classifier{count}.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


def region_of(built: Build) -> Region:
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    return region


def operations(built: Build) -> list[MachineOp]:
    return [*decode(region_of(built).program, built.container.machine.isa).ops]


def with_program(built: Build, ops: list[MachineOp], sources: list[int] | None = None) -> bytes:
    """Return the build with another program.

    `sources`: former place of each operation (None: where it stands).
    """
    region = region_of(built)
    layers = tuple(region.op_layers[i] for i in sources or range(len(ops)))
    changed = replace(region, program=encode(ops, built.container.machine.isa), op_layers=layers)
    return container_to_bytes(replace(built.container, segments=(changed,)))


def encode_edited(built: Build, text: str) -> bytes:
    return container_to_bytes(assembled(built.container, text))


@pytest.fixture(scope="module")
def classified(folder: Path) -> Build:
    return build(of_batch(folder, 8), BuildOptions(KINDS["descriptors"]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["descriptors", pytest.param("registers", marks=pytest.mark.exhaustive)])
def test_a_batch_of_8_takes_little_more_program_and_time(kind: str, classified: Build, folder: Path):
    machine = KINDS[kind]
    one = build(of_batch(folder, 1), BuildOptions(machine))
    eight = classified if kind == "descriptors" else build(of_batch(folder, 8), BuildOptions(machine))
    layers = build(of_batch(folder, 8), BuildOptions(flat(machine)))
    assert sum(isinstance(op, Repeat) for op in operations(eight)) == 1
    assert not any(isinstance(op, Repeat) for op in (*operations(one), *operations(layers)))
    assert len(region_of(eight).program) <= 1.06 * len(region_of(one).program) < 0.5 * len(region_of(layers).program)
    assert eight.figures["cycles"] <= 1.03 * layers.figures["cycles"]
    assert all(b.figures["expected_cycles"] == pytest.approx(b.figures["cycles"], rel=0.03) for b in (one, eight, layers))
    assert sum(layer["cycles"] for layer in eight.figures["layers"]) == eight.figures["cycles"]
    assert sum(layer["macs"] for layer in eight.figures["layers"]) == 8 * sum(layer["macs"] for layer in one.figures["layers"])


def test_its_bits_are_the_reference_s(classified: Build):
    session = Session(classified.data)
    feeds = random_feeds(session.get_inputs(), seed=5)
    run, difference = verify(session, Session(classified.data, backend="reference"), feeds)
    assert difference is None and not classified.figures["warnings"]
    (logits,) = run.outputs.values()
    assert len({row.tobytes() for row in logits}) == 8


def test_trace_and_listing_name_iterations(classified: Build):
    session = Session(classified.data, timing=True)
    run = session.run_detailed(random_feeds(session.get_inputs(), seed=5))
    trace = trace_json(classified.container, [s.simulation for s in run.segments]).decode()
    assert '"iterations": [8]' in trace and '"iterations": [9]' not in trace
    text = listing(classified.container)
    assert text.count("repeat  ;") == text.count("again  ;") == 1 and "count=8" in text
    assert encode_edited(classified, text) == classified.data


def test_a_wrong_operation_is_named_with_its_iteration(classified: Build):
    index = next(i for i, op in enumerate(operations(classified)) if isinstance(op, Convolution) and op.emit)
    ops = operations(classified)
    ops[index] = replace(ops[index], clamp_low=17, clamp_high=18)
    session = Session(with_program(classified, ops))
    feeds = random_feeds(session.get_inputs(), seed=3)
    difference = verify(session, Session(classified.data, backend="reference"), feeds)[1]
    assert difference is not None and difference.startswith(f"op {index}, iteration 1 of 8 convolution (mac) of layer "), (
        difference
    )
    assert "element [0, " in difference, difference


def test_without_its_barrier_two_iterations_race(folder: Path):
    """The waits behind the last working operation of the body, each with the signal that it takes. Two channels: the loads of
    one do not follow the stores of the other."""
    machine = with_control(load_machine("wide32_w4a16"))
    built = build(of_batch(folder, 8), BuildOptions(machine, level=0))
    remaining_ops = list(enumerate(operations(built)))
    last = max(i for i, op in remaining_ops if op.ENGINE is not None)
    for wait in [op for i, op in remaining_ops if i > last and isinstance(op, Wait)]:
        semaphore_ops = [
            k for k, (_, op) in enumerate(remaining_ops) if isinstance(op, Signal | Wait) and op.semaphore == wait.semaphore
        ]
        signal = max(k for k in semaphore_ops if isinstance(remaining_ops[k][1], Signal))
        del remaining_ops[max(semaphore_ops)], remaining_ops[signal]
    assert len(remaining_ops) < len(operations(built))
    program = with_program(built, [op for _, op in remaining_ops], [i for i, _ in remaining_ops])
    with pytest.raises(ProgramError, match=r"iteration 2 of 8 .* iteration 1 of 8 .*: nothing orders the two"):
        Session(program).run(None, random_feeds(built.container.inputs))


def text_model(folder: Path, inputs: str, outputs: str, body: str) -> Path:
    rng = np.random.default_rng(4)
    constants = {"w": (5, 3, 3, 3), "v": (4, 3, 1, 1), "g": (3, 5), "k": (1, 1, 3, 3)}
    declared = ", ".join(f"float{list(shape)} {n}" for n, shape in constants.items() if f"{n})" in body or f"{n}," in body)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => ({outputs}) <{declared}> {{ {body} }}'
    )
    for name, shape in constants.items():
        if name in {n for node in model.graph.node for n in node.input}:
            model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    del model.graph.value_info[:]
    path = folder / "network.onnx"
    onnx.save(model, path)
    return path


@cache
def small_machine() -> Machine:
    return with_control(EDGE16, control={**CONTROL, **SMALL, "repeat": {"max_count": 8}})


CASES = {
    "a convolution": ("float[4,3,8,8] x", "float[4,5,8,8] y", "y = Conv<kernel_shape=[3,3],pads=[1,1,1,1]>(x, w)", True),
    "rows of a product": ("float[4,3] x", "float[4,5] y", "y = Gemm(x, g)", True),
    "products of computed operands": ("float[4,2,6,6] x, float[4,2,6,6] z", "float[4,2,6,6] y", "y = MatMul(x, z)", True),
    "a left stack for all samples, which their number does not divide": (
        "float[1,6,5,7] x, float[4,6,7,3] z",
        "float[4,6,5,3] y",
        "y = MatMul(x, z)",
        True,
    ),
    "a left stack for all samples, which their number divides": (
        "float[1,8,5,7] x, float[4,8,7,6] z",
        "float[4,8,5,6] y",
        "y = MatMul(x, z)",
        True,
    ),
    "a right stack for all samples": ("float[4,8,5,7] x, float[1,8,7,6] z", "float[4,8,5,6] y", "y = MatMul(x, z)", True),
    "an operand for all samples": ("float[4,3,8,8] x, float[1,3,8,8] z", "float[4,3,8,8] y", "y = Mul(x, z)", True),
    "an operand without the dimension": ("float[4,3,8,8] x, float[3,8,8] z", "float[4,3,8,8] y", "y = Add(x, z)", True),
    "movers inside a sample": (
        "float[4,6,8,8] x",
        "float[4,12,16,4] y",
        """a, b = Split<axis=1>(x)
        c = Transpose<perm=[0,1,3,2]>(a)
        d = Relu(b)
        e = Concat<axis=1>(c, d)
        f = DepthToSpace<blocksize=1>(e)
        p = MaxPool<kernel_shape=[2,1], strides=[1,2], pads=[0,0,1,0]>(f)
        r = Concat<axis=1>(p, p)
        y = Concat<axis=2>(r, r)""",
        True,
    ),
    "flattened": (
        "float[4,3,4,4] x",
        "float[4,8] y",
        """a = Flatten(x)
        shape = Constant<value_ints=[4,8,6]>()
        b = Reshape(a, shape)
        y = ReduceMean<axes=[2],keepdims=0>(b)""",
        True,
    ),
    "two outputs": ("float[4,3,8,8] x", "float[4,3,8,8] y, float[4,3,1,1] z", "y = Sigmoid(x)\n z = GlobalAveragePool(x)", True),
    "outputs of two batches": (
        "float[4,3,8,8] x, float[2,3,8,8] z",
        "float[4,3,8,8] y, float[2,3,8,8] u",
        "y = Relu(x)\n u = Relu(z)",
        False,
    ),
    "samples that mix": (
        "float[4,3,8,8] x",
        "float[4,3,8,8] y",
        "m = Transpose<perm=[1,0,2,3]>(x)\n r = Sigmoid(m)\n s = Constant<value_ints=[4,3,8,8]>()\n y = Reshape(r, s)",
        False,
    ),
    "a constant for each sample": ("float[4,3,8,8] x", "float[4,3,8,8] y", "y = Mul(x, v)", False),
    "an operand that is counted and shared": ("float[4,4] x", "float[4,4] y", "y = MatMul(x, x)", False),
    "a result that is counted and shared": ("float[4,4] x", "float[4,4] y", "r = Sigmoid(x)\n y = MatMul(x, r)", False),
    "samples that become neighbouring rows": (
        "float[4,6] x",
        "float[4,6] y",
        """s = Constant<value_ints=[1,1,4,6]>()
        a = Reshape(x, s)
        b = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(a, k)
        z = Constant<value_ints=[4,6]>()
        y = Reshape(b, z)""",
        False,
    ),
    "joined samples": ("float[2,3,8,8] x, float[2,3,8,8] z", "float[4,3,8,8] y", "y = Concat<axis=0>(x, z)", False),
    "a batch that the count does not hold": ("float[9,3] x", "float[9,5] y", "y = Gemm(x, g)", False),
    "more steps than bases": (
        "float[4,3,8,8] x, float[4,3,1,8] z",
        "float[4,3,8,8] y, float[4,3,1,1] u",
        "y = Add(x, z)\n u = GlobalAveragePool(y)",
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_repeats_and_what_does_not(case: str, tmp_path: Path):
    """Check at level 0, where cycles do not count; the build itself compares bits and looks for hazards."""
    inputs, outputs, body, repeats = CASES[case]
    built = build(text_model(tmp_path, inputs, outputs, body), BuildOptions(small_machine(), level=0))
    ops = [op for s in built.container.segments if isinstance(s, Region) for op in decode(s.program, small_machine().isa).ops]
    assert any(isinstance(op, Repeat) for op in ops) == repeats
    assert not built.figures["warnings"]
    session = Session(built.data)
    feeds = random_feeds(session.get_inputs(), seed=3)
    assert verify(session, Session(built.data, backend="reference"), feeds)[1] is None
