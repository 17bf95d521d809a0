"""Changes of a schedule: what they make of the tree, what is planned of that, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.machine_variants import with_sram
from tests.support.schedule_round_trip import compiled
from toolchain.errors import CompileError
from toolchain.schedule import transform
from toolchain.schedule.nodes import ALL, OperandBuffer, RegionTree
from toolchain.schedule.parser import parse_schedule
from toolchain.schedule.text import print_schedule

A = """  layer "a"
    ring input 0 in sram slots 2
    for rows by 4
      for channels by 16
        call on mac
"""
CASCADE = """  for rows by 2
    layer "c"
      for rows by 2
        call
    layer "d"
      call
"""
TEXT = f"""region 0
  alloc "t" in sram
  alloc "u" in sram rows 6
{A}  layer "b"
    call on mac
{CASCADE}"""
Change = Callable[[RegionTree], RegionTree]


def _tree() -> RegionTree:
    (tree,) = parse_schedule(TEXT, "s")
    return tree


CHANGES: dict[str, tuple[Change, str, str]] = {
    "split": (lambda t: transform.split(t, "a", "rows", 2), "for rows by 4", "for rows by 2"),
    "split anew": (
        lambda t: transform.split(t, "b", "rows", 3),
        '"b"\n    call on mac',
        '"b"\n    for rows by 3\n      call on mac',
    ),
    "split in turns": (
        lambda t: transform.split(t, "c", "rows", 1),
        '"c"\n      for rows by 2',
        '"c"\n      for rows by 1',
    ),
    "join": (lambda t: transform.join(t, "c", "rows"), '"c"\n      for rows by 2\n        call', '"c"\n      call'),
    "reorder": (
        lambda t: transform.reorder(t, "a", ["channels", "rows"]),
        "for rows by 4\n      for channels by 16",
        "for channels by 16\n      for rows by 4",
    ),
    "slots": (lambda t: transform.slots(t, "a", OperandBuffer("input"), 3), "slots 2", "slots 3"),
    "slots anew": (
        lambda t: transform.slots(t, "b", OperandBuffer("constant"), ALL, "wbuf"),
        '"b"\n',
        '"b"\n    ring constant 0 in wbuf slots all\n',
    ),
    "parallel": (lambda t: transform.parallel(t, "b", ["mac0", "mac1"]), '"b"\n    call on mac', '"b"\n    call on mac0, mac1'),
    "store": (lambda t: transform.store(t, "t", "dram"), '"t" in sram', '"t" in dram'),
    "store rows": (lambda t: transform.store(t, "t", "sram", 4), '"t" in sram', '"t" in sram rows 4'),
    "store anew": (lambda t: transform.store(t, "v", "sram"), "rows 6\n", 'rows 6\n  alloc "v" in sram\n'),
    "unfuse": (
        lambda t: transform.unfuse(t, "d"),
        '  for rows by 2\n    layer "c"\n      for rows by 2\n        call\n    layer "d"\n      call\n',
        '  layer "c"\n    for rows by 2\n      call\n  layer "d"\n    call\n',
    ),
    "fuse": (
        lambda t: transform.fuse(transform.unfuse(t, "d"), "b", "d", 3),
        '  layer "b"\n    call on mac\n  for rows by 2\n',
        '  for rows by 3\n    layer "b"\n      call on mac\n',
    ),
    "fetch": (
        lambda t: transform.fetch(t, "b", (2, "a"), (1, "b")),
        '"b"\n',
        '"b"\n    fetch 2 behind "a"\n    fetch 1 behind "b"\n',
    ),
    "fetch later": (
        lambda t: transform.fetch(transform.fetch(t, "b", (2, "a")), "b", (2, "b")),
        '"b"\n',
        '"b"\n    fetch 2 behind "b"\n',
    ),
    "fetch none": (lambda t: transform.fetch(transform.fetch(t, "b", (2, "a")), "b"), TEXT, TEXT),
    "fetch behind a layer that is fused": (
        lambda t: transform.unfuse(transform.fuse(transform.fetch(t, "b", (2, "a")), "a", "b", 1), "a"),
        TEXT,
        TEXT,
    ),
    "only": (lambda t: transform.only(t, ["a"]), TEXT, "region 0\n" + A),
    "only of what is fetched behind others": (
        lambda t: transform.only(transform.fetch(t, "b", (1, "a"), (1, "b")), ["b"]),
        TEXT,
        'region 0\n  layer "b"\n    fetch 1 behind "b"\n    call on mac\n',
    ),
    "only in turns": (lambda t: transform.only(t, ["c"]), TEXT, 'region 0\n  alloc "u" in sram rows 6\n' + CASCADE),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(name: str) -> None:
    change, before, after = CHANGES[name]
    tree = _tree()
    assert print_schedule([tree]) == TEXT and before in TEXT
    assert print_schedule([change(tree)]) == TEXT.replace(before, after, 1)


REFUSED: dict[str, Change] = {
    'split: the schedule has no layer "e"': lambda t: transform.split(t, "e", "rows", 2),
    "split: step 0: must be 1 or more": lambda t: transform.split(t, "a", "rows", 0),
    'join: layer "b" has no loop over rows; it has none': lambda t: transform.join(t, "b", "rows"),
    'reorder: rows are not the loops of layer "a"; it has rows, channels': lambda t: transform.reorder(t, "a", ["rows"]),
    "fetch: constants 0: must be 1 or more": lambda t: transform.fetch(t, "b", (0, "a")),
    'fetch: layer "c" takes turns, in which it brings its constants itself; unfuse it first': lambda t: transform.fetch(
        t, "c", (1, "a")
    ),
    "slots: count 0: must be 1 or more": lambda t: transform.slots(t, "a", OperandBuffer("input"), 0),
    "parallel: mac, mac: a unit is named twice": lambda t: transform.parallel(t, "a", ["mac", "mac"]),
    'fuse: layer "a" does not stand behind "b"': lambda t: transform.fuse(t, "b", "a", 2),
    'fuse: layer "c" takes turns already; unfuse it first': lambda t: transform.fuse(t, "b", "c", 2),
    'unfuse: layer "a" takes no turns with others': lambda t: transform.unfuse(t, "a"),
    'store: srm: tensors lie in sram or dram; did you mean "sram"?': lambda t: transform.store(t, "t", "srm"),
    "store: rows -2: must be 1 or more": lambda t: transform.store(t, "t", "sram", -2),
    'store: rows 2 of "t": latest rows are kept in sram': lambda t: transform.store(t, "t", "dram", 2),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text: str) -> None:
    with pytest.raises(CompileError) as fault:
        REFUSED[text](_tree())
    assert str(fault.value) == text


def test_what_was_planned_is_changed_step_by_step() -> None:
    """Two convolutions take turns, with the rows between them kept, and the rings of one have another slot."""
    network, machine = "resnet8_cifar", with_sram("edge16", 64)
    (tree,) = compiled(network, machine, 2).schedule
    first, last, between = "/b.1.2/Conv", "/b.1.1/b.1.1.0/Conv", "/b.1.2/Conv_output_0"
    changed = transform.store(transform.fuse(tree, first, last, 4), between, "sram", 4)
    changed = transform.store(changed, "/Relu_1_output_0", "dram")  # room for what they bring themselves
    changed = transform.slots(changed, first, OperandBuffer("constant"), ALL)
    changed = transform.split(changed, last, "rows", 2)
    (plan,) = compiled(network, machine, 2, [changed]).plans
    (cascade,) = plan.cascades
    assert [layer.name for layer in cascade.layers] == [first, last]
    assert cascade.stripes.rows == {between: 4}
    assert cascade.layers[-1].tiling.rows == 2


def test_constants_come_earlier_or_later() -> None:
    """Of one layer behind the loads of the one before it, or through its ring: what is planned has it so."""
    network, machine = "resnet8_cifar", "edge16"
    free = compiled(network, machine, 2)
    (tree,), (plan,) = free.schedule, free.plans
    names = [p.name for p in plan.layers]
    late = next(i for i, p in enumerate(plan.layers) if p.fetches and p.fetches[0].since < i - 1)
    count = sum(len(part.blocks) for part in plan.layers[late].fetches)
    for changed, expected in (
        (transform.fetch(tree, names[late], (count, names[late - 1])), [late - 1]),
        (transform.fetch(tree, names[late]), []),
    ):
        (replanned,) = compiled(network, machine, 2, [changed]).plans
        assert [part.since for part in replanned.layers[late].fetches] == expected
