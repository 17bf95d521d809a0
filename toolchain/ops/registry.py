"""Every operator's file in this folder, by what it holds: adding the file is enough.

RULES: ONNX operator -> rule, from the files' own RULES. INTEGER_OPERATORS: the dataclasses with a `reference`, by name.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from types import ModuleType

import toolchain.ops
from toolchain.errors import InternalError
from toolchain.ops.rule import Rule


def _modules() -> list[ModuleType]:
    names = sorted(m.name for m in pkgutil.iter_modules(toolchain.ops.__path__))
    return [importlib.import_module(f"toolchain.ops.{name}") for name in names if name != "registry"]


def _rules(modules: list[ModuleType]) -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for module in modules:
        for name, rule in getattr(module, "RULES", {}).items():
            if name in found:
                raise InternalError(f"{module.__name__}: another file has a rule for {name}")
            found[name] = rule
    return found


def _integer_operators(modules: list[ModuleType]) -> dict[str, type]:
    own = [c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__]
    return {c.__name__: c for c in own if dataclasses.is_dataclass(c) and hasattr(c, "reference")}


_MODULES = _modules()
RULES = _rules(_MODULES)
INTEGER_OPERATORS = _integer_operators(_MODULES)
