"""Layers that are equal but for addresses are one block, called: shorter, the same in what runs, in figures and in messages."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.control_flow_machines import with_control
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region, container_to_bytes
from toolchain.codegen.outline import find_repeats, outline_program
from toolchain.codegen.synchronise import SynchronisedProgram
from toolchain.isa import Machine, decode, encode, load_machine
from toolchain.machine import (
    BlockBegin,
    Call,
    Convolution,
    Copy,
    End,
    Fill,
    MachineOp,
    Repeat,
    SetBase,
    Signal,
    Space,
    Wait,
    dispatch_program,
)
from toolchain.runtime import Session, random_feeds, verify

BASES = 8


def machine(kind: str = "descriptors", **control: Any) -> Machine:
    return _machine(kind, json.dumps({"bases": BASES, "call": {"blocks": 4}, **control}))


def flat(kind: str = "descriptors") -> Machine:
    return _machine(kind, json.dumps({"bases": BASES}))


@cache
def _machine(kind: str, control: str) -> Machine:
    return with_control(load_machine("edge16"), kind, 32 if kind == "registers" else None, json.loads(control))


def stack(folder: Path, blocks: int = 5, channels: int = 64, size: int = 24, batch: int = 1) -> Path:
    """Residual blocks, each like the other."""
    rng, body, last = np.random.default_rng(0), list[str](), "x"
    initializers = []
    for i in range(blocks):
        for name in (f"v{i}", f"w{i}"):
            value = rng.normal(size=(channels, channels, 3, 3)).astype(np.float32) * 0.05
            initializers.append(onnx.numpy_helper.from_array(value, name))
        body.append(f"""a{i} = Conv<pads=[1,1,1,1]>({last}, v{i})
            b{i} = Relu(a{i})
            c{i} = Conv<pads=[1,1,1,1]>(b{i}, w{i})
            s{i} = Add(c{i}, {last})
            r{i} = Relu(s{i})""")
        last = f"r{i}"
    shape = f"float[{batch},{channels},{size},{size}]"
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({shape} x) => ({shape} {last}) {{ {" ".join(body)} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(initializers)
    path = folder / "stack.onnx"
    onnx.save(model, path)
    return path


def region_of(built: Build) -> Region:
    (region,) = built.container.segments
    assert isinstance(region, Region)
    return region


def operations(built: Build) -> list[MachineOp]:
    return [*decode(region_of(built).program, built.container.machine.isa).ops]


def count(built: Build, kind: type[MachineOp]) -> int:
    return sum(isinstance(op, kind) for op in operations(built))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stack(tmp_path_factory.mktemp("calls"))


@pytest.fixture(scope="module")
def built(path: Path) -> Build:
    return build(path, BuildOptions(machine(), level=0))


@pytest.mark.parametrize(("kind", "most"), [("descriptors", 0.7), ("registers", 0.99)])
def test_a_stack_of_equal_layers_is_shorter_and_as_fast(kind: str, most: float, path: Path):
    called, written_out = (build(path, BuildOptions(m, level=0)) for m in (machine(kind), flat(kind)))
    assert count(called, Call) > count(called, BlockBegin) > 0 == count(written_out, Call)
    assert len(region_of(called).program) < most * len(region_of(written_out).program)
    assert called.figures["cycles"] <= 1.01 * written_out.figures["cycles"]
    session = Session(called.data)
    feeds = random_feeds(session.get_inputs(), seed=3)
    assert verify(session, Session(called.data, backend="reference"), feeds)[1] is None
    assert called.figures["warnings"] == written_out.figures["warnings"]
    layers, others = called.figures["layers"], written_out.figures["layers"]
    assert [(a["name"], a["macs"], a["engine"]) for a in layers] == [(b["name"], b["macs"], b["engine"]) for b in others]
    assert sum(a["cycles"] for a in layers) == called.figures["cycles"]
    assert all(abs(a["cycles"] - b["cycles"]) <= 0.02 * b["cycles"] + 64 for a, b in zip(layers, others))


def test_operands_that_lie_elsewhere_are_moved_where_they_have_bases(path: Path):
    """Check operands from level 2 on, where tensors stay in SRAM, each layer's elsewhere; only operand bases make the blocks
    equal.
    """
    moves, operands = (build(path, BuildOptions(machine(bases=15, operand_bases=on), level=2)) for on in (False, True))
    words = [len(region_of(b).program) // b.container.machine.isa.word_bytes for b in (moves, operands)]
    assert words[1] < 0.95 * words[0]
    assert operands.figures["cycles"] <= 1.01 * moves.figures["cycles"]
    assert any(isinstance(op, Convolution) and op.input_base for op in operations(operands))
    session = Session(operands.data)
    feeds = random_feeds(session.get_inputs(), seed=3)
    assert verify(session, Session(operands.data, backend="reference"), feeds)[1] is None


def test_a_slow_front_end_takes_no_calls_that_cost_cycles(path: Path):
    """Check that calls cost at most 1 % of the cycles at levels above 0, whatever bytes they save."""
    slow = {"isa": machine().chip.isa.model_copy(update={"word_cycles": 4000.0})}
    called, written_out = (
        build(path, BuildOptions(Machine(m.chip.model_copy(update=slow), m.isa), level=1)) for m in (machine(), flat())
    )
    assert called.figures["cycles"] <= 1.01 * written_out.figures["cycles"]


def test_a_wrong_operation_of_a_block_is_named_with_its_call_and_layer(built: Build):
    """Check a wrong address in an operation that runs for several layers: one of the last has a wrong register."""
    ops, region, flow = operations(built), region_of(built), Session(built.data).program(0).flow
    runs: dict[int, list[int]] = {}
    for i, source in enumerate(flow.sources):
        runs.setdefault(source, []).append(i)
    layers = {source: [region.layer_of(flow, i) for i in at] for source, at in runs.items()}
    index = max(layers, key=lambda s: (isinstance(flow[runs[s][0]], Convolution), len({*layers[s]})))
    assert len({*layers[index]}) > 1 and layers[index] == sorted(layers[index])
    called = [flow.name(i) for i in runs[index][1:]]
    assert called == [f"op {index}, called by op {flow.calls[i][0][0]}" for i in runs[index][1:]]
    # The call for the last layer reads its inputs elsewhere.
    call = flow.calls[runs[index][-1]][0][0]
    moved, base = next((i, op) for i in range(call - 1, 0, -1) if isinstance(op := ops[i], SetBase))
    ops[moved] = replace(base, offset=base.offset + 64)
    changed = replace(region, program=encode(ops, built.container.machine.isa))
    session = Session(container_to_bytes(replace(built.container, segments=(changed,))), check=False)
    feeds = random_feeds(session.get_inputs(), seed=3)
    difference = verify(session, Session(built.data, backend="reference"), feeds)[1]
    assert difference is not None and f", called by op {call} " in difference, difference
    assert f"of layer {region.layers[layers[index][-1]].name} " in difference, difference


def test_calls_with_areas_and_repeats(tmp_path: Path):
    """Bases of the host, steps of a batch and those of blocks are different registers."""
    target = machine(bases=15, host_bases=3, repeat={"max_count": 4})
    built = build(stack(tmp_path, blocks=4, size=16, batch=2), BuildOptions(target, level=0))
    assert count(built, Call) and count(built, Repeat) == 1
    sources = {op.source for op in operations(built) if isinstance(op, SetBase)}
    assert {1, 2, 3} & sources
    session = Session(built.data, bases={"constants": 0x400000})
    feeds = random_feeds(session.get_inputs(), seed=3)
    assert verify(session, Session(built.data, backend="reference"), feeds)[1] is None


def fill(address: int, size: int = 8) -> Fill:
    return Fill(0, Space.SRAM, address, size, 1, 1, 1, 0, 0, 0, 5)


def copy(source: int, target: int, size: int = 8) -> Copy:
    return Copy(0, Space.DRAM, source, Space.SRAM, target, size, 1, 1, 1, 0, 0, 0, 0, 0, 0)


def outline_ops(ops: Sequence[MachineOp], layers: Sequence[int] | None = None, **control: Any) -> SynchronisedProgram:
    target = machine(**control)
    program = SynchronisedProgram((*ops, End()), (*(layers or [0] * len(ops)), -1))
    return outline_program(program, decode(encode(program.ops, target.isa), target.isa).words, target)


def plain(ops: Sequence[MachineOp], **control: Any) -> list[MachineOp]:
    """Return the operations that are dispatched."""
    return [
        replace(op, **{base: 0 for base, _ in op.pair_bases_with_addresses()}) if op.pair_bases_with_addresses() else op
        for op in dispatch_program(machine(**control).chip, ops)
    ]


def test_what_comes_again_is_called():
    body = [copy(0, 0), fill(64), copy(512, 128), fill(192), fill(256, 16), fill(512, 32)]
    moved = [copy(4096, 0), fill(64), copy(4608, 128), fill(192), fill(256, 16), fill(512, 32)]
    program = outline_ops([fill(2, 1), *body, fill(1, 1), *moved])
    # One register: both sources move alike.
    assert program.ops[1:3] == (SetBase(1, 0, 0), BlockBegin(0)) and program.ops[-3:] == (SetBase(1, 0, 4096), Call(0), End())
    assert program.ops[3] == replace(body[0], source_base=1) and program.ops[4] == body[1]
    assert plain(program.ops) == [fill(2, 1), *body, fill(1, 1), *moved, End()]


def test_blocks_one_behind_the_other_are_one_that_is_called():
    """Runs of two and three blocks come again too, and lie over one another; of each block there are many shifts."""
    bodies = [[copy(4096 * i + 16 * k, 64 * k, size=k + 8) for k in range(100)] for i in range(6)]
    program = outline_ops([fill(2, 1), *(op for body in bodies for op in body), fill(1, 1)])
    assert [type(op) for op in program.ops if isinstance(op, BlockBegin | Call)] == [BlockBegin, *[Call] * 5]
    assert len(program.ops) == 2 + 100 + 6 * 2 + 1 + 1  # fills; the body; a register and its block or call each; return; end
    assert plain(program.ops) == [fill(2, 1), *(op for body in bodies for op in body), fill(1, 1), End()]


def test_a_block_keeps_to_the_registers_and_to_the_blocks_that_there_are():
    rng = random.Random(1)
    bodies = [[copy(rng.randrange(1 << 16), 64 * i, size=i + 8) for i in range(40)] for _ in range(3)]
    ops = [op for body in bodies for op in body]
    for bases in (0, 1, 3):
        program = outline_ops(ops, bases=bases) if bases else outline_ops(ops, bases=1, call={"blocks": 1})
        named = {op.base for op in program.ops if isinstance(op, SetBase)}
        assert named <= set(range(1, max(1, bases) + 1))
        assert plain(program.ops) == [*ops, End()]
    assert sum(isinstance(op, BlockBegin) for op in outline_ops(ops * 4, call={"blocks": 1}).ops) == 1


def test_layers_that_lie_differently_are_no_block():
    body = [fill(64 * i, size=i + 8) for i in range(12)]
    same = outline_ops([*body, fill(1, 1), *body], [*[0] * 6, *[1] * 6, 2, *[3] * 6, *[4] * 6])
    other = outline_ops([*body, fill(1, 1), *body], [*[0] * 6, *[1] * 6, 2, *[3] * 4, *[4] * 8])
    sizes = [len([*s.ops]) for s in (same, other)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_stay_what_they_are(seed: int):
    """Runs of some kinds again and again, at other addresses, with waits and signals."""
    rng = random.Random(seed)

    def one(address: int) -> list[MachineOp]:
        kind = rng.randrange(4)
        op = copy(address, 64 * kind, 8 + kind) if kind % 2 else fill(address % 4096, 8 + kind)
        return [*([Wait(2, kind)] if rng.random() < 0.3 else []), op, *([Signal(2, kind)] if rng.random() < 0.3 else [])]

    runs = [[op for _ in range(rng.randrange(2, 12)) for op in one(64 * rng.randrange(64))] for _ in range(3)]
    ops: list[MachineOp] = []
    layers: list[int] = []
    for layer in range(rng.randrange(2, 14)):
        step = 64 * rng.randrange(32)
        for op in rng.choice(runs):
            moved = {a: getattr(op, a) + step for _, a in op.pair_bases_with_addresses() if rng.random() < 0.9}
            ops.append(replace(op, **moved) if moved else op)
            layers.append(layer)
    bases = rng.choice([1, 3, 12])
    program = outline_ops(ops, layers, bases=bases)
    assert plain(program.ops, bases=bases) == [*ops, End()]
    region = Region(b"", (), (), (), 0, (), (), program.layers, 0, 0)
    region = replace(region, layers=(None,) * 99)  # type: ignore[arg-type]
    flow = dispatch_program(machine(bases=bases).chip, program.ops)
    assert [region.layer_of(flow, i) for i in range(len(flow))] == [*layers, -1]


@pytest.mark.parametrize("seed", range(100))
def test_runs_that_come_several_times(seed: int):
    """Against all runs, one by one: those that cannot be longer and come as often."""
    rng = random.Random(seed)
    ids = [rng.randrange(rng.choice([1, 2, 4])) for _ in range(rng.randrange(1, 14))]
    places: dict[tuple[int, ...], list[int]] = {}
    for first in range(len(ids)):
        for last in range(first + 2, len(ids) + 1):
            places.setdefault(tuple(ids[first:last]), []).append(first)
    several = {run: at for run, at in places.items() if len(at) > 1}
    longest = {
        (tuple(sorted(at)), len(run))
        for run, at in several.items()
        if not any(len(o) > len(run) and o[: len(run)] == run and len(positions) == len(at) for o, positions in several.items())
    }
    assert {(tuple(sorted(at)), length) for at, length in find_repeats(ids, 2)} == longest
