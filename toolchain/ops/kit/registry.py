"""Collect the operators of every file in `toolchain/ops` at import: adding a file there, or in a family's folder, is enough.

`RULES`: ONNX operator -> the rule that selects it.
`DECOMPOSITIONS`: ONNX operator -> how it becomes steps, and on which machines.
`HOSTED`: ONNX operator without a rule -> why the host runs it.
`INTEGER_OPERATORS`: the classes of integer operators, by the NAME under which compiled files hold them.
A key that two files have is an InternalError.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from types import ModuleType

import toolchain.ops
from toolchain.errors import InternalError
from toolchain.foundation.module_registry import merge_tables
from toolchain.ops.kit.decomposition import Decomposition
from toolchain.ops.kit.operator import NpuOp
from toolchain.ops.kit.rule import Rule

KIT = "toolchain.ops.kit"  # what operators are made of


def _modules() -> list[ModuleType]:
    module_infos = pkgutil.walk_packages(toolchain.ops.__path__, "toolchain.ops.")
    return [importlib.import_module(name) for name in sorted(m.name for m in module_infos) if not name.startswith(KIT)]


def _integer_operators(modules: list[ModuleType]) -> dict[str, type[NpuOp]]:
    classes = [c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__]
    return _by_name(c for c in classes if issubclass(c, NpuOp) and not inspect.isabstract(c))


def _by_name(operators: Iterable[type[NpuOp]]) -> dict[str, type[NpuOp]]:
    """Return the classes by their NAME. Raise InternalError where one lacks a NAME or VERSION of its own, or two share a NAME."""
    operator_by_name: dict[str, type[NpuOp]] = {}
    for operator in operators:
        place = f"{operator.__module__}.{operator.__name__}"
        name, version = vars(operator).get("NAME"), vars(operator).get("VERSION")  # an heir has its own
        if not isinstance(name, str) or type(version) is not int or not name or version < 1:
            raise InternalError(f"{place}: needs a NAME and a VERSION (1, 2, ...) of its own, by which compiled files hold it")
        other = operator_by_name.setdefault(name, operator)
        if other is not operator:
            raise InternalError(f"{place}: {other.__module__}.{other.__name__} is named {name} in compiled files already")
    return operator_by_name


_MODULES = _modules()
_HAS = "has a rule for"
RULES: dict[str, Rule] = merge_tables(_MODULES, "RULES", _HAS)
DECOMPOSITIONS: dict[str, Decomposition] = merge_tables(_MODULES, "DECOMPOSITIONS", _HAS)
HOSTED: dict[str, str] = merge_tables(_MODULES, "HOSTED", _HAS)
INTEGER_OPERATORS = _integer_operators(_MODULES)


def add_integer_operators(operators: Iterable[type[NpuOp]]) -> None:
    """Add integer operators of a plug-in to `INTEGER_OPERATORS`.

    Raise TypeError, with the table unchanged, where a class lacks a NAME or VERSION of its own or its NAME is taken.
    """
    try:
        INTEGER_OPERATORS.update(_by_name((*INTEGER_OPERATORS.values(), *operators)))
    except InternalError as fault:
        raise TypeError(str(fault)) from None


def remove_integer_operators(names: Iterable[str]) -> None:
    """Remove a plug-in's integer operators, by NAME; unknown names are ignored. Shipped ones are not protected."""
    for name in names:
        INTEGER_OPERATORS.pop(name, None)
