"""Areas of DRAM on machines whose host sets base registers: one program, wherever weights, scratch and ports lie."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from tests.support.control_flow_machines import CONTROL, with_control
from toolchain.api import Build, BuildOptions, build
from toolchain.cli.application import application
from toolchain.cli.dis import listing
from toolchain.cli.sim import sim_command
from toolchain.codegen import AreaContent, Region, container_from_bytes, container_to_bytes, image_files, relocate_container
from toolchain.codegen.dram_areas import DramPiece, make_dram_areas
from toolchain.codegen.lower import PlacedOp, Row
from toolchain.errors import CompileError, ProgramError
from toolchain.hw.chip import Chip
from toolchain.isa import Machine, decode, encode, load_machine
from toolchain.machine import Copy, Fill, Repeat, SetBase, Space
from toolchain.runtime import Session, random_feeds, verify

ADDED = """s = Constant<value_ints=[1,8,24,24]>()
    a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, k)
    b = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(a, k)
    c = Add(b, z)
    d = Add(c, a)
    y = Sigmoid(d)
    u = Relu(c)"""
TWO_PROGRAMS = """a = Conv<kernel_shape=[1,1]>(x, v)
    t = MeanVarianceNormalization<axes=[-1]>(a)
    b = Add(t, z)
    y = Sigmoid(b)
    u = Relu(b)"""


@cache
def machine(host_bases: int, kind: str = "descriptors", sram_bytes: int = 1 << 13) -> Machine:
    """Return a machine with little SRAM, so that tensors are spilled and come back."""
    base_machine = load_machine("edge16")
    data = json.loads(base_machine.chip.model_dump_json())
    data["memories"]["sram"]["size"] = sram_bytes
    chip = Chip.model_validate_json(json.dumps(data))
    bits = 32 if kind == "registers" else None
    return with_control(Machine(chip, base_machine.isa), kind, bits, {**CONTROL, "bases": 8, "host_bases": host_bases})


def network(folder: Path, body: str = ADDED, batch: int = 1) -> Path:
    shape = f"float[{batch},8,24,24]"
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({shape} x, {shape} z) => ({shape} y, {shape} u) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(1)
    for name, size in (("k", (8, 8, 3, 3)), ("v", (8, 8, 1, 1))):
        if f", {name})" in body:
            model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name))
    path = folder / "network.onnx"
    onnx.save(model, path)
    return path


def region_of(built: Build) -> Region:
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    return region


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build the network without calls, whose moves name their own registers."""
    return build(network(tmp_path_factory.mktemp("areas")), BuildOptions(machine(6), level=0))


def places(region: Region, start: int, gap: int) -> dict[str, int]:
    """The areas in the opposite order, with a gap before each."""
    bases, at = {}, start
    for area in reversed(region.areas):
        bases[area.holds[0].label] = at
        at += -(-(area.size_bytes + gap) // 64) * 64
    return bases


def same_elsewhere(built: Build, bases: dict[str, int]) -> Any:
    """The run with areas at `bases`, after a comparison with one at the places of the build, byte for byte."""
    feeds = random_feeds(built.container.inputs, seed=5)
    moved_session = Session(built.data, timing=True, bases=bases)
    run, difference = verify(moved_session, Session(built.data, backend="reference"), feeds)
    assert difference is None
    here = Session(built.data, timing=True).run_detailed(feeds)
    assert all(np.array_equal(here.outputs[n], run.outputs[n]) for n in here.outputs)
    assert [s.simulation.cycles for s in here.segments if s.simulation] == [
        s.simulation.cycles for s in run.segments if s.simulation
    ]
    return moved_session


def test_every_area_has_a_register_of_its_own(built: Build):
    region = region_of(built)
    assert [a.label for a in region.areas] == ["input:x", "input:z", "output:y", "output:u", "activations", "constants"]
    assert [a.base_register for a in region.areas] == [1, 2, 3, 4, 5, 6]
    assert region.areas[-1].end == region.dram_bytes
    moves = [op for op in decode(region.program, machine(6).isa).ops if isinstance(op, Copy | Fill)]
    named = {op.destination_base for op in moves} | {op.source_base for op in moves if isinstance(op, Copy)}
    assert named == {0, 1, 2, 3, 4, 5, 6}
    assert all(0 in (op.source_base, op.destination_base) for op in moves if isinstance(op, Copy))


@pytest.mark.parametrize("kind", ["descriptors", "registers"])
@pytest.mark.parametrize(
    ("host_bases", "groups"),
    [
        (1, ["input:x, input:z, output:y, output:u, activations, constants"]),
        (2, ["input:x, input:z, output:y, output:u, activations", "constants"]),
        (5, ["input:x, input:z, output:y, output:u", "activations", "constants"]),
        (6, ["input:x", "input:z", "output:y", "output:u", "activations", "constants"]),
    ],
)
def test_one_program_wherever_its_areas_lie(host_bases: int, groups: list[str], kind: str, tmp_path: Path):
    built = build(network(tmp_path), BuildOptions(machine(host_bases, kind)))
    region = region_of(built)
    assert [a.label for a in region.areas] == groups
    moved_session = same_elsewhere(built, places(region, 0x10000, 192))
    (moved,) = (s for s in moved_session.container.segments if isinstance(s, Region))
    assert moved.program == region.program and moved.dram_bytes > 0x10000
    assert {p.address for p in moved.inputs}.isdisjoint(p.address for p in region.inputs)


def test_absolute_and_relative_programs_take_the_same_cycles(built: Build, tmp_path: Path):
    flat = build(network(tmp_path), BuildOptions(machine(0), level=0))
    assert flat.figures["cycles"] == built.figures["cycles"]
    areas = [(a.label, a.base, a.size_bytes) for a in region_of(built).areas]
    assert [(a.label, a.base, a.size_bytes) for a in region_of(flat).areas] == areas
    assert not region_of(flat).bases


@pytest.mark.parametrize("host_bases", [1, 4, 6])
def test_a_batch_that_is_repeated(host_bases: int, tmp_path: Path):
    """Check steps with further registers, which begin where the ports' areas do."""
    built = build(network(tmp_path, batch=3), BuildOptions(machine(host_bases), level=0))
    ops = decode(region_of(built).program, machine(host_bases).isa).ops
    assert any(isinstance(op, Repeat) for op in ops)
    first_bases = [op for op in ops[:8] if isinstance(op, SetBase)]
    assert first_bases and all(0 < op.source <= len(region_of(built).areas) < op.base and not op.offset for op in first_bases)
    same_elsewhere(built, places(region_of(built), 0x20000, 64))


def test_several_programs(tmp_path: Path):
    built = build(network(tmp_path, TWO_PROGRAMS), BuildOptions(machine(6)))
    assert sum(isinstance(s, Region) for s in built.container.segments) == 2
    same_elsewhere(built, {"0:constants": 0x40000, "input:x": 0x80000, "2:constants": 0x40000, "input:z": 0x200000})
    with pytest.raises(CompileError) as caught:
        relocate_container(built.container, {"constants": 0x40000})
    assert str(caught.value) == "base constants=0x40000: several programs have one; say of which: 0:constants, 2:constants"


@pytest.mark.parametrize(
    ("bases", "fault"),
    [
        (
            {"constants": 0x21},
            "base constants=0x21: must be a multiple of 64 from 0 on (memories.dram.alignment_bytes)\n"
            "base input:z=0x1200: lies over input:x",
        ),
        ({"constants": -64}, "base constants=-0x40: must be a multiple of 64 from 0 on (memories.dram.alignment_bytes)"),
        (
            {"input:x": 0x1240},
            "base input:x=0x1240: lies over input:z, which is at 0x1200 to 0x2400; give one of them another place",
        ),
        (
            {"constants": 0x3FFFFFC0},
            "base constants=0x3fffffc0: ends at {end:#x}, outside of the 0x40000000 bytes of dram (memories.dram.size)",
        ),
        (
            {"weights": 0},
            "base weights=0x0: no program has such an area; there are activations, constants, input:x, input:z, output:u, "
            "output:y",
        ),
        ({"1:constants": 0}, "base 1:constants=0x0: no program has such an area; there are"),
    ],
)
def test_where_an_area_cannot_lie(bases: dict[str, int], fault: str, built: Build):
    with pytest.raises(CompileError) as caught:
        Session(built.data, bases=bases)
    size = region_of(built).areas[-1].size_bytes
    assert str(caught.value).startswith(fault.format(end=0x3FFFFFC0 + size)) or bases == {"constants": 0x21}
    assert bases != {"constants": 0x21} or str(caught.value).startswith(fault.splitlines()[0])


def test_what_lies_in_one_area_cannot_part(tmp_path: Path):
    built = build(network(tmp_path), BuildOptions(machine(2)))
    with pytest.raises(CompileError) as caught:
        relocate_container(built.container, {"input:x": 0x40000, "input:z": 0x80000})
    labels = "input:x, input:z, output:y, output:u, activations"
    assert str(caught.value) == f"base input:z=0x80000: {labels} lie in one area, which is to be at 0x40000"


def test_absolute_addresses_cannot_be_moved(tmp_path: Path):
    built = build(network(tmp_path), BuildOptions("edge16"))
    with pytest.raises(CompileError) as caught:
        relocate_container(built.container, {"constants": 0x40000})
    assert str(caught.value) == (
        "base constants=0x40000: programs of edge16 hold absolute addresses; build for a machine with control.host_bases, "
        "base registers that the host sets"
    )
    assert relocate_container(built.container, {}) is built.container


def test_a_write_that_lacks_its_base_is_found(built: Build):
    """Check a write without its base: at the build's places it would only be in the wrong area, elsewhere it meets foreign
    memory.
    """
    region, isa = region_of(built), machine(6).isa
    ops = list(decode(region.program, isa).ops)
    at = next(i for i, op in enumerate(ops) if isinstance(op, Copy) and op.destination_base == 3)
    ops[at] = replace(ops[at], destination_base=0)
    changed = replace(region, program=encode(ops, isa))
    data = container_to_bytes(replace(built.container, segments=(changed,)))
    session = Session(data, bases=places(region, 0x10000, 192))
    with pytest.raises(
        ProgramError, match=rf"^op {at} copy .* over memory that is none of the program's, dram\[0x0\.\.0x10000\)"
    ):
        session.run(None, random_feeds(built.container.inputs))


@pytest.mark.parametrize(("bases", "labels"), [(3, ["input:x", "constants"]), (2, ["input:x, constants"]), (1, None)])
def test_areas_leave_registers_for_rows_at_computed_places(bases: int, labels: list[str] | None):
    chip = with_control(load_machine("edge16"), control={**CONTROL, "bases": bases, "host_bases": min(bases, 2)}).chip
    pieces = [DramPiece((AreaContent(*what),), at, at + 64) for at, what in ((0, ("input", "x")), (64, ("constants",)))]
    fields: dict[str, Any] = {**dict.fromkeys(Copy.parameters(), 0), "destination_address": 8, "destination_base": 1}
    copy = Copy(**fields)
    placed = [PlacedOp(copy, 0, (), Row(Space.SRAM, 0, 4, 8, 7))]
    if labels is None:
        message = "^edge16: rows at computed places take 2 base registers; control.bases is 1$"
        with pytest.raises(CompileError, match=message):
            make_dram_areas(pieces, chip, placed=placed)
    else:
        areas, loop = make_dram_areas(pieces, chip, placed=placed)
        assert [area.label for area in areas] == labels and loop is None


def test_the_command(built: Build, tmp_path: Path):
    path = tmp_path / "m.npu"
    path.write_bytes(built.data)
    line = [str(path), "--verify", "--base", "constants=0x100000", "--base", "input:x=131072"]
    ran = CliRunner().invoke(application(sim_command), line)
    assert ran.exit_code == 0 and "verified: every byte" in ran.output, ran.output


def test_the_file_and_the_listing_say_the_areas(built: Build):
    assert container_from_bytes(built.data, "m").segments == built.container.segments
    text = listing(built.container)
    assert "; base 1: input:x at DRAM 0x0\n" in text and "; base 6: constants at DRAM 0x" in text


@pytest.mark.parametrize(
    ("area", "changes", "fault"),
    [
        (
            0,
            {"size_bytes": 64},
            "m: is not sound: header: segment 0: port 'x' at 0x0 lies in none of its areas; build it again",
        ),
        (1, {"base_register": 1}, "m: is not sound: header: segment 0: two areas have one base register; build it again"),
        (1, {"base_register": 7}, "m: is not sound: header: an area with base register 7, edge16 has 6 of them; build it again"),
        (
            4,
            {"holds": (AreaContent("state"),)},
            "m: is not sound: header: segment 0: an area holds state '', of which there is no port; build it again",
        ),
    ],
)
def test_areas_that_cannot_be(area: int, changes: dict[str, Any], fault: str, built: Build):
    region = region_of(built)
    areas = tuple(replace(a, **changes) if i == area else a for i, a in enumerate(region.areas))
    with pytest.raises(ProgramError) as caught:
        container_from_bytes(container_to_bytes(replace(built.container, segments=(replace(region, areas=areas),))), "m")
    assert str(caught.value) == fault


def test_a_driver_moves_areas_by_the_image_alone(built: Build):
    """Addresses in an area go with its base; the rest stays. As docs/image.md says."""
    (segment,) = json.loads(image_files(built.container)["ports.json"])["segments"]
    areas = segment["areas"]
    assert [a["base_register"] for a in areas] == [1, 2, 3, 4, 5, 6]
    assert areas[0]["holds"] == [{"kind": "input", "tensor": "x"}] and areas[-1]["holds"] == [{"kind": "constants"}]
    moved = places(region_of(built), 0x10000, 192)
    new = {a["base"]: moved[":".join(a["holds"][0].values())] for a in areas}

    def place(address: int) -> int:
        area = next(a for a in areas if a["base"] <= address < a["base"] + a["bytes"])
        return address - area["base"] + new[area["base"]]

    (region,) = relocate_container(built.container, moved).segments
    assert isinstance(region, Region)
    assert [place(p["address"]) for p in segment["inputs"]] == [p.address for p in region.inputs]
    assert sorted(place(b["address"]) for b in segment["constants"]["blocks"]) == [address for address, _ in region.constants]
    assert region.bases == {a["base_register"]: new[a["base"]] for a in areas}
