"""Check that a machine's numerics are described once: every key reaches the description, and nothing else
describes it again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from quant.fixed_point import CodeType, Numerics
from tests.support.numerics_variants import with_numerics
from toolchain.hw.engines import WeightGroups
from toolchain.hw.numerics import NumericsKeys, ScaleKeys
from toolchain.isa import Machine, load_machine

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("quant", "simulator", "toolchain")
# Of edge16, each to another value. `table.entries` follows from the type of the activations.
CHANGES: dict[str, Any] = {
    "activation": "int16",
    "more_activations": ("int16",),
    "weight": "int4",
    "more_weights": ("int4",),
    "symmetric_activations": True,
    "weights_per_channel": False,
    "scale.kind": "float32",
    "scale.multiplier_bits": 7,
    "scale.shift_min": 3,
    "scale.shift_max": 40,
    "rounding": "floor",
    "per_op": {"add": "floor"},
    "overflow": "wrap",
    "add_left_shift": 3,
    "table": {"entries": 513, "interpolation": "tflite"},
    "weight_group": 32,
}
STATED = {f.name for f in fields(Numerics)}


def test_every_key_is_changed() -> None:
    keys = set(NumericsKeys.model_fields) - {"scale"} | {f"scale.{key}" for key in ScaleKeys.model_fields}
    assert set(CHANGES) == keys


@pytest.mark.parametrize("key", sorted(CHANGES))
def test_every_key_reaches_the_description(key: str) -> None:
    machine, (section, _, inner) = add_groups(load_machine("edge16")), key.partition(".")
    changed = with_numerics(machine, **{section: {inner: CHANGES[key]} if inner else CHANGES[key]})
    assert changed.chip.numerics != machine.chip.numerics


def add_groups(machine: Machine) -> Machine:
    """Return the machine with groups of 32 weights."""
    engines = dict(machine.chip.engines)
    engines["mac"] = engines["mac"].model_copy(update={"groups": WeightGroups(sizes=(32,))})
    return replace(machine, chip=machine.chip.model_copy(update={"engines": engines}))


def test_it_is_made_once_and_anew_for_a_copy() -> None:
    machine = load_machine("edge16")
    assert machine.chip.numerics is machine.chip.numerics
    assert with_numerics(machine).chip.numerics == machine.chip.numerics
    assert (machine.chip.numerics.accumulator_bits, load_machine("wide32_w4a16").chip.numerics.accumulator_bits) == (32, 48)


@pytest.mark.parametrize(
    ("code", "bits", "limits", "size_bytes", "entries"),
    [
        (CodeType.INT4, 4, (-8, 7), 1, 256),
        (CodeType.INT8, 8, (-128, 127), 1, 256),
        (CodeType.UINT8, 8, (0, 255), 1, 256),
        (CodeType.INT16, 16, (-32768, 32767), 2, 513),
        (CodeType.INT32, 32, (-(2**31), 2**31 - 1), 4, 0),
    ],
)
def test_types_of_codes(code: CodeType, bits: int, limits: tuple[int, int], size_bytes: int, entries: int) -> None:
    assert (code.bits, code.limits, code.size_bytes, code.table_entries) == (bits, limits, size_bytes, entries)
    assert code.interpolates == (entries == 513)
    assert (code.is_wide, code.spare_bits) == ((True, 4) if entries == 0 else (False, 0))


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def find_descriptions(tree: ast.Module) -> dict[str, set[str]]:
    """Classes that have three or more of the description's members, as fields or set on self."""
    members_by_class: dict[str, set[str]] = {}
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        has = {n.target.id for n in kind.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
        stored = (n for n in ast.walk(kind) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
        has |= {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"}
        if len(has & STATED) >= 3:
            members_by_class[kind.name] = has & STATED
    return members_by_class


def test_no_other_class_describes_it() -> None:
    classes = {f"{name}: {kind}" for name, tree in modules() for kind in find_descriptions(tree)}
    assert classes == {"quant/fixed_point/core/numerics.py: Numerics", "toolchain/hw/numerics.py: NumericsKeys"}


def test_a_second_description_would_be_seen() -> None:
    fixed = "class A:\n    rounding: str\n    accumulator_bits: int\n    interpolation: str\n"
    assignment = "class B:\n    def __init__(self, chip):\n        self.rounding, self.accumulator_bits, self.scale = chip\n"
    assert set(find_descriptions(ast.parse(fixed + assignment))) == {"A", "B"}


def test_keys_as_written_are_read_where_the_description_is_made() -> None:
    """The readers are limited, so that nobody derives the consequences of the keys again."""
    readers = {
        name
        for name, tree in modules()
        if any(isinstance(n, ast.Attribute) and n.attr == "numerics_keys" for n in ast.walk(tree))
    }
    assert readers == {
        "toolchain/hw/chip.py",
        "toolchain/hw/cross_section_rules.py",
        "toolchain/hw/type_rules.py",
    }
