"""npu-sim --verify: the operation that is named is the one that was changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from edit_programs import edit_program, model, operations, region_of
from fix_checksum import graph_changed
from typer.testing import CliRunner

from toolchain.api import Build, BuildOptions, build
from toolchain.cli.application import application
from toolchain.cli.dis import listing
from toolchain.cli.dis import replace_programs as assembled
from toolchain.cli.sim import sim_command
from toolchain.codegen import container_from_bytes, container_to_bytes
from toolchain.machine import Copy, MachineOp, Space
from toolchain.report import collect_metrics
from toolchain.runtime import Session, random_feeds, verify

BODY = """h2 = Conv<kernel_shape=[1,1]>(h, v)
        s = Add(h2, h)
        p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(s)
        r = Relu(p)
        y = Concat<axis=1>(r, p)"""


@pytest.fixture(scope="module", params=["edge16", "ws8_pow2", "ethos_u55_256"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    path = model(tmp_path_factory.mktemp("verify"), "float[1,8,8,8]", BODY)
    return build(path, BuildOptions(request.param))


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build at a level that keeps nothing in SRAM: results are stored tile by tile."""
    path = model(tmp_path_factory.mktemp("verify"), "float[1,8,8,8]", BODY)
    return build(path, BuildOptions("edge16", level=0))


def difference(data: bytes) -> str | None:
    session = Session(data)
    feeds = random_feeds(session.get_inputs(), seed=3)
    return verify(session, Session(data, backend="reference"), feeds)[1]


def change_operation(built: Build, index: int, **fields: Any) -> bytes:
    ops = operations(built)
    return edit_program(built, [*ops[:index], replace(ops[index], **fields), *ops[index + 1 :]])


def indexes(built: Build, name: str) -> list[int]:
    return [i for i, op in enumerate(operations(built)) if name == op.NAME]


def test_a_correct_program_differs_nowhere(built, staged):
    assert difference(built.data) is None
    assert difference(staged.data) is None


def test_a_changed_parameter_is_named(built):
    for index in indexes(built, "convolution"):
        message = difference(change_operation(built, index, clamp_low=17, clamp_high=18))
        assert message is not None and message.startswith(f"op {index} convolution (mac) of layer "), message
        assert "the integer reference has" in message


def test_an_edited_listing_keeps_its_layers(built):
    """Operations added at both ends: those between keep the layers that figures and comparison go by."""
    index = indexes(built, "convolution")[0]
    semaphore = built.container.machine.chip.sync.semaphores - 1
    start = "start " if built.container.machine.isa.kind == "registers" else ""
    sync = [f"{start}{name} engine=2 semaphore={semaphore}" for name in ("signal", "wait")]

    def added(data: bytes) -> bytes:
        lines = listing(container_from_bytes(data, "m")).splitlines()
        first, last = (next(i for i, line in enumerate(lines) if line.startswith(what)) for what in ("isa ", "00000"))
        end = max(i for i, line in enumerate(lines) if line[:5].isdigit() and "end" in line)
        text = "\n".join((*lines[: first + 1], *sync, *lines[last:end], *sync, *lines[end:]))
        return container_to_bytes(assembled(container_from_bytes(data, "m"), text))

    def macs(data: bytes) -> list[int]:
        session = Session(data, timing=True)
        run = session.run_detailed(random_feeds(session.get_inputs(), seed=3))
        return [layer["macs"] for layer in collect_metrics(session.container, [s.simulation for s in run.segments])["layers"]]

    assert difference(added(built.data)) is None
    assert macs(added(built.data)) == macs(built.data) and sum(macs(built.data)) > 0
    wrong = change_operation(built, index, clamp_low=17, clamp_high=18)
    message, before = difference(added(wrong)), difference(wrong)
    assert message is not None and before is not None
    assert message == before.replace(f"op {index} ", f"op {index + 2} ")


def test_a_changed_tile_is_named_where_it_is_stored(staged):
    index = indexes(staged, "convolution")[-1]
    message = difference(change_operation(staged, index, clamp_low=100, clamp_high=101))
    assert message is not None and f"it copies what op {index} convolution (mac) made" in message, message
    layer = region_of(staged).layers[region_of(staged).op_layers[index]]
    assert f"of layer {layer.name} ({layer.op} of {', '.join(layer.sources)})" in message, message


def test_the_first_of_two_is_named(built):
    first, second = indexes(built, "convolution")[:2]
    ops: list[MachineOp] = operations(built)
    ops[first] = replace(ops[first], clamp_low=0, clamp_high=1)
    ops[second] = replace(ops[second], clamp_low=0, clamp_high=1)
    message = difference(edit_program(built, ops))
    assert message is not None and message.startswith(f"op {first} convolution"), message


def test_a_load_from_elsewhere_shows_in_the_layer_that_computes(built):
    region, ops = region_of(built), operations(built)
    (port,) = region.inputs
    index, load = next((i, op) for i, op in enumerate(ops) if isinstance(op, Copy) and op.source_space == Space.DRAM)
    other = next(a for a, data in region.constants if len(data) >= 64)
    source = other if load.source_address == port.address else port.address
    message = difference(change_operation(built, index, source_address=source))
    first = region.layers[region.op_layers[index]]
    assert message is not None and f"of layer {first.name} " in message, message


def test_tensors_have_the_names_of_the_model(tmp_path):
    """The names survive writing and reading; an older file has the chip's names."""
    built = build(model(tmp_path, "float[1,8,8,8]", "d = Concat<axis=1>(h, x) y = Flatten(d)"), BuildOptions("edge16"))
    convolution, rescale = indexes(built, "convolution")[0], indexes(built, "elementwise")[0]
    wrong = {index: change_operation(built, index, clamp_low=117, clamp_high=118) for index in (convolution, rescale)}
    messages = [difference(data) or "" for data in wrong.values()]
    assert "of layer Conv_0 (Convolution of Conv_0): " in messages[0] and ", element [0, 0, 0, 0] (nhwc) of h; " in messages[0]
    assert "of layer Concat_1 (rescale 1) (Rescale for Concat_1): " in messages[1]
    assert ", element [0, 0, 0, 0] of d, inside Concat_1; " in messages[1]
    older = graph_changed(wrong[rescale], lambda graph: graph.pop("origins"))
    assert ", element [0, 0, 0, 0] of x@nhwc@Concat_1.1; " in (difference(older) or "")


def run_sim(path: Path, *options: str) -> Any:
    return CliRunner().invoke(application(sim_command), [str(path), *options])


def test_exit_codes(staged, tmp_path):
    good, bad, report = tmp_path / "good.npu", tmp_path / "bad.npu", tmp_path / "report.json"
    good.write_bytes(staged.data)
    bad.write_bytes(change_operation(staged, indexes(staged, "convolution")[0], clamp_low=5, clamp_high=6))
    result = run_sim(good, "--verify", "--json", str(report))
    assert result.exit_code == 0 and "verified: every byte" in result.stdout
    assert json.loads(report.read_text())["difference"] is None
    assert run_sim(bad).exit_code == 0
    result = run_sim(bad, "--verify", "--json", str(report))
    assert result.exit_code == 1 and "verified" not in result.stdout
    assert result.stderr.splitlines()[-1].startswith("DIFFERS: op ")
    assert json.loads(report.read_text())["difference"].startswith("op ")
    bad.write_bytes(edit_program(staged, operations(staged)[-1:], [-1]))
    result = run_sim(bad, "--verify")
    assert result.exit_code == 2 and "are never written" in result.stderr


def test_a_file_that_does_not_say_where_tensors_lie_is_compared_at_its_outputs(staged):
    region = region_of(staged)
    layers = tuple(replace(info, result=None) for info in region.layers)
    older = replace(staged, container=replace(staged.container, segments=(replace(region, layers=layers),)))
    assert difference(edit_program(older, operations(older))) is None
    index = indexes(staged, "convolution")[0]
    message = difference(change_operation(older, index, clamp_low=5, clamp_high=6))
    assert message is not None and message.startswith("output 'y' differs from the integer reference in "), message
