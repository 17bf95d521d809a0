"""What a schedule says is what is planned: of all layers exactly, of some of them with the rest searched."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import onnx
import pytest
from hypothesis import given, seed, settings

from tests.support.machine_variants import with_sram
from tests.support.random_cases import DRAWN, DrawnMachine, DrawnModel, machines, networks
from tests.support.schedule_round_trip import compiled
from toolchain.api import BuildOptions, build
from toolchain.compiler import CompiledNetwork
from toolchain.errors import CompileError
from toolchain.isa import Machine
from toolchain.schedule.parser import parse_schedule
from toolchain.schedule.plan import PlannedRegion, TiledLayer
from toolchain.schedule.text import print_schedule

NETWORK, CONV = "resnet8_cifar", "/b.0.1/b.0.1.0/Conv"
TIGHT, ALTERNATING = with_sram("edge16", 32), with_sram("wide32_w4a16", 32)
CASES = int(os.environ.get("RANDOM_CASES", "6"))


def _compile_text(text: str, machine: Machine = TIGHT) -> CompiledNetwork:
    return compiled(NETWORK, machine, 2, parse_schedule("region 0\n" + text, "s"))


def _plan(network: CompiledNetwork) -> PlannedRegion:
    (plan,) = network.plans
    return plan


def test_one_layer_is_as_it_is_said_and_the_rest_is_searched() -> None:
    free, plan = _plan(compiled(NETWORK, TIGHT, 2)), _plan(_compile_text(f'  layer "{CONV}"\n    for rows by 5\n      call\n'))
    (layer,) = (p for p in plan.layers if p.name == CONV)
    assert isinstance(layer, TiledLayer) and layer.tiling.rows == 5
    assert plan.cycles != free.cycles  # which took three
    names = [p.name for p in plan.layers if isinstance(p, TiledLayer) and p.name != CONV]
    assert len(names) > 5 and plan.cycles == pytest.approx(free.cycles, rel=0.05)


def test_slots_and_orders_need_not_be_among_those_that_are_searched() -> None:
    text = f"""  layer "{CONV}"
    ring input 0 in sram slots 5
    ring constant 0 in sram slots all
    for channels by 4
      for rows by 3
        for inner by 8
          call
"""
    plan = _plan(_compile_text(text))
    (layer,) = (p for p in plan.layers if p.name == CONV)
    assert isinstance(layer, TiledLayer)
    assert {r.key: r.copies for r in layer.rings if r.key != "w"} == {"b0": 8, "r0": 5}  # where its output lies is open
    assert not layer.tiling.rows_outer and (layer.tiling.channels, layer.tiling.inner) == (4, 8)


def test_tensors_lie_where_it_is_said() -> None:
    free = _plan(compiled(NETWORK, TIGHT, 2))
    here, in_dram = "/AveragePool_output_0", "/b.1.0/b.1.0.2/Relu_output_0"
    assert here in free.resident and in_dram not in free.resident
    plan = _plan(_compile_text(f'  alloc "{here}" in dram\n  alloc "{in_dram}" in sram\n'))
    assert here not in plan.resident and in_dram in plan.resident


def test_a_layer_with_its_own_loops_is_in_no_cascade() -> None:
    free = _plan(compiled(NETWORK, ALTERNATING, 2))
    (cascade,) = free.cascades
    name = cascade.layers[0].name
    text = f'  layer "{name}"\n    for rows by 4\n      call\n'
    assert all(
        name not in [layer.name for layer in c.layers]
        for plan in [_plan(_compile_text(text, ALTERNATING))]
        for c in plan.cascades
    )


def test_layers_are_a_cascade_where_the_schedule_has_one() -> None:
    """Alone, with the rest layer by layer around them, and in a schedule of all layers."""
    names, buffered = ("/b.1.0/b.1.0.0/Conv", "/b.1.2/Conv", "/b.1.1/b.1.1.0/Conv"), "/b.1.0/b.1.0.2/Relu_output_0"
    layers = "".join(f'    layer "{name}"\n      for rows by 4\n        call\n' for name in names)
    machine = with_sram("edge16", 64)
    network = _compile_text(f'  alloc "{buffered}" in sram rows 8\n  for rows by 4\n{layers}', machine)
    plan = _plan(network)
    (cascade,) = plan.cascades
    assert tuple(layer.name for layer in cascade.layers) == names
    assert cascade.stripes.rows == {buffered: 8} and buffered in plan.resident
    again = compiled(NETWORK, machine, 2, parse_schedule(print_schedule(network.schedule), "s"))
    assert print_schedule(again.schedule) == print_schedule(network.schedule)


def test_branches_run_in_the_order_of_the_file() -> None:
    """The projection beside a block in front of the block's first convolution; a layer in front of what it reads is refused."""
    text = print_schedule(compiled(NETWORK, TIGHT, 1).schedule)
    head, *layers = (line for line in text.split("\n  layer "))
    names = [layer[1 : layer.index('"', 1)] for layer in layers]
    first, second = names.index("/b.1.0/b.1.0.0/Conv"), names.index("/b.1.2/Conv")
    layers[first], layers[second] = layers[second], layers[first]
    changed = compiled(NETWORK, TIGHT, 1, parse_schedule("\n  layer ".join([head, *layers]), "s"))
    assert [p.name for p in _plan(changed).layers][first] == "/b.1.2/Conv"
    layers[0], layers[1] = layers[1], layers[0]
    with pytest.raises(CompileError, match=r"stands behind .* before which it runs"):
        compiled(NETWORK, TIGHT, 1, parse_schedule("\n  layer ".join([head, *layers]), "s"))


def test_constants_that_are_brought_again_fit_their_slots() -> None:
    """The last piece of a reduction brings parameters too, so blocks differ in size."""
    first, last = "/b.1.2/Conv", "/b.1.1/b.1.1.0/Conv"
    text = f"""  for rows by 4
    layer "{first}"
      call
    layer "{last}"
      ring constant 0 in sram slots ALL
      for channels by 16
        for inner by 16
          call
"""
    planned = [_plan(_compile_text(text.replace("ALL", count), with_sram("edge16", 64))) for count in ("all", "2")]
    plans = [p for plan in planned for p in plan.layers if p.name == last]
    each, two = (next(ring.sizes for ring in plan.rings if ring.key == "b0") for plan in plans)
    assert len(set(each)) > 1 and len(each) == 4
    assert two == (max(each),) * 2


def test_an_edited_schedule_of_all_layers_changes_what_was_edited_alone() -> None:
    planned = compiled(NETWORK, TIGHT, 1)
    text = print_schedule(planned.schedule)
    head, _, rest = text.partition(f'layer "{CONV}"')
    edited = f'{head}layer "{CONV}"' + rest.replace("for rows by 3", "for rows by 1", 1)
    network = compiled(NETWORK, TIGHT, 1, parse_schedule(edited, "s"))
    tilings = [[p.tiling for p in _plan(c).layers if isinstance(p, TiledLayer)] for c in (planned, network)]
    assert [i for i, (a, b) in enumerate(zip(*tilings)) if (a.rows, a.channels, a.inner) != (b.rows, b.channels, b.inner)] == [2]
    assert _plan(network).cycles > _plan(planned).cycles


@pytest.mark.slow
def test_random_schedules_given_back_make_the_same_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    """On random machines, of which many have several units; the build compares each program with the reference."""
    counts: Counter[str] = Counter()
    check = _same if "RANDOM_CASES" in os.environ else seed(0)(_same)
    check(tmp_path_factory.mktemp("given"), counts)
    print(dict(counts))
    assert counts["regions"] > 0.5 * CASES


@settings(DRAWN, max_examples=CASES)
@given(model=networks(), machine=machines())
def _same(folder: Path, counts: Counter[str], model: DrawnModel, machine: DrawnMachine) -> None:
    path, schedule = folder / "random.onnx", folder / "random.sched"
    onnx.save(model.proto, path)
    try:
        built = build(path, BuildOptions(machine.machine))
    except CompileError as fault:
        assert "smallest tile needs" in str(fault), fault
        return
    if not built.schedule:
        return
    schedule.write_text(print_schedule(built.schedule))
    again = build(path, BuildOptions(machine.machine, schedule=str(schedule)))
    counts["regions"] += len(built.schedule)
    counts["several units"] += len(machine.machine.chip.workers("mac_array")) > 1
    assert print_schedule(again.schedule) == schedule.read_text()
    assert again.data == built.data
