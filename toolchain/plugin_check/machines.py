"""Machines on which a plug-in is checked: shipped ones as they are, and copies that have the plug-in's functions."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from toolchain.hw import load_chip
from toolchain.isa import Machine, load_machine
from toolchain.isa.default_table import make_default_table
from toolchain.plugin import LoadedPlugin

MACHINES = ("edge16", "transformer64", "ws8_pow2")  # tables of 8 bits; interpolated functions and steps; powers of two alone


def machine_with_functions(name: str, loaded: LoadedPlugin, folder: Path) -> Machine:
    """Return a copy of a shipped machine whose vector engine has the plug-in's functions, with an instruction table for them.

    `folder`: where its files are written.
    """
    machine: dict[str, Any] = yaml.safe_load(files("hw_configs").joinpath(f"{name}.yaml").read_text())
    engine = next(e for e in machine["engines"].values() if e["kind"] == "vector")
    engine["functions"] |= {function: dict(rate) for function, rate in loaded.plugin.rates.items()}
    isa = machine.pop("isa")
    file, table = folder / f"{name}.yaml", f"{name}_table.yaml"
    file.write_text(yaml.safe_dump(machine, sort_keys=False))
    (folder / table).write_text(make_default_table(load_chip(str(file), table=table)))
    file.write_text(yaml.safe_dump({**machine, "isa": {**isa, "file": table}}, sort_keys=False))
    return load_machine(str(file))
