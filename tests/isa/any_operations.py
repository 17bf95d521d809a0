"""Strategies: any operation a machine can be asked for, with every value its chip may use."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import yaml
from hypothesis import strategies as st

from toolchain.hw import list_shipped_names, read_source
from toolchain.isa import Isa, Machine, load_machine, make_default_table
from toolchain.isa.machine import read_table
from toolchain.machine import MachineOp
from toolchain.machine.registry import OPERATIONS

# Shipped machines, and others with a first table of words that are no multiple of 64 bits, or of several 64 bits, or with
# registers of as many words as there may be.
OTHER_WORDS = ("ws8_pow2 registers 24", "edge16 registers 136", "wide32_w4a16 descriptors 744", "edge16 registers 64 together")
MACHINES = (*list_shipped_names(), *OTHER_WORDS)


@cache
def machine_of(name: str) -> Machine:
    base, *form = name.split()
    machine = load_machine(base)
    if not form:
        return machine
    text = make_default_table(machine.chip, form[0], int(form[1]))
    table, faults = read_table(read_source(together(text) if "together" in form else text, name))
    assert table is not None and table.word_bits == int(form[1]), faults
    return replace(machine, isa=Isa(table))


def together(text: str) -> str:
    """The table with four registers of one word each as one of four."""
    table = yaml.safe_load(text)
    high, low = table["write"]["value"]
    merged: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    for i, (name, register) in enumerate(table["registers"].items()):
        assert "words" not in register
        place, first_bit = f"REGISTER{i // 4}", (i % 4) * (high - low + 1)
        one = merged.setdefault(place, {"address": i - i % 4, "words": 0, "fields": {}, "reserved": []})
        one["words"] += 1
        one["reserved"] += [[bit + first_bit for bit in bits] for bits in register.get("reserved", ())]
        for field, at in register["fields"].items():
            field_name = f"{name}_{field}".lower()
            one["fields"][field_name] = {**at, "bits": [bit + first_bit for bit in at["bits"]]}
            renamed[f"{name}.{field}"] = f"{place}.{field_name}"
    table["registers"] = merged
    for row in table["operations"].values():
        row["bind"] = {parameter: renamed[at] for parameter, at in row.get("bind", {}).items()}
        used = {at.partition(".")[0] for at in row["bind"].values()}
        every = {f"{name}.{field}": at.get("bias", 0) for name in used for field, at in merged[name]["fields"].items()}
        row["constants"] = {at: value for at, value in every.items() if at not in row["bind"].values()}
    return yaml.safe_dump(table)


def _value(operation: str, parameter: str, machine: Machine) -> st.SearchStrategy[int]:
    fixed = dict(machine.isa.plans[operation].fixed)
    if parameter in fixed:
        return st.just(fixed[parameter])
    need = OPERATIONS[operation].need(parameter, machine.chip)
    low, high = -(-need.low // need.step), need.high // need.step
    return (st.sampled_from([low, high]) | st.integers(low, high)).map(lambda v: v * need.step)


@cache
def operations(name: str, operation: str) -> st.SearchStrategy[MachineOp]:
    machine = machine_of(name)
    cls = OPERATIONS[operation]
    return st.builds(cls, **{p: _value(operation, p, machine) for p in cls.parameters()})


@cache
def programs(name: str) -> st.SearchStrategy[list[MachineOp]]:
    """Up to 8 operations; signals and waits of few engines and semaphores, so that descriptors get to carry them."""
    kinds = [operations(name, operation) for operation in machine_of(name).isa.plans]
    few = st.integers(0, 2)
    sync = [st.builds(OPERATIONS[n], engine=few, semaphore=few) for n in ("signal", "wait")]
    return st.lists(st.one_of(*kinds, *sync, *sync), max_size=8)
