"""Load plug-ins: run the user's file, check what it declares, and add its operators to the tables of the toolchain.

A plug-in stays loaded for as long as the process runs. Nothing is loaded that a caller has not named.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, cast, get_type_hints

import numpy as np

from quant.suggestion import suggestion
from quant.users_python import call_user, load_module, locate_fault
from simulator.execute import load_semantics
from toolchain.errors import CompileError, InternalError, ToolchainError, system_cause
from toolchain.foundation.atomic_files import read_limited
from toolchain.input_limits import YAML_BYTES
from toolchain.isa import machine_from_json
from toolchain.machine import MachineOp
from toolchain.machine.registry import add_operations, remove_operations
from toolchain.ops.kit.operator import NpuOp
from toolchain.ops.kit.registry import add_integer_operators, remove_integer_operators
from toolchain.plugin import Example, LoadedPlugin, Operator, Plugin, find_operator, get_plugins, operator_name

GROUP = "npu_toolchain.plugins"  # of entry points, each of which names the module of a plug-in
_STANDARD_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_METHODS = ("infer", "compute", "steps")
_FIELD_TYPES = (int, float, str, tuple[int, ...], tuple[float, ...])
_FIELD_TYPE_TEXT = "int, float, str, tuple[int, ...] or tuple[float, ...]"


def load_plugins(names: Iterable[str]) -> tuple[LoadedPlugin, ...]:
    """Load plug-ins in order and return them; names are files, or entry points of installed packages.

    Raise CompileError for one that cannot be used; those before it stay loaded.
    """
    return tuple(load_plugin(_file_of(name)) for name in names)


def load_plugin(file: Path) -> LoadedPlugin:
    """Load the plug-in of one file and return it. A file with the same bytes as a loaded one gives that one.

    Raise CompileError for a file that declares none, or one that cannot be used.
    """
    try:
        data = read_limited(file, YAML_BYTES)
    except OSError as fault:
        raise CompileError(f"plugin {file}: {system_cause(fault)}") from None
    digest = hashlib.sha256(data).hexdigest()
    same = next((p for p in get_plugins().values() if p.digest == digest), None)
    if same is not None:
        return same
    where = f"plugin {file}"
    module = call_user(file, where, "the file must import cleanly", load_module, file, f"npu_plugin_{digest[:16]}")
    plugin = getattr(module, "PLUGIN", None)
    if not isinstance(plugin, Plugin):
        raise CompileError(f"{where}: declares no plug-in; write PLUGIN = Plugin(...) of toolchain.plugin into it")
    fault = _find_fault(plugin)
    if fault is not None:
        raise CompileError(f"{where}: {fault}")
    loaded = LoadedPlugin(plugin, file, digest, partial(_call, file))
    return _register(loaded, module)


def unload_plugin(name: str) -> None:
    """Remove a plug-in and all that it added from the tables. Raise KeyError where none of this name is loaded."""
    loaded = get_plugins().pop(name)
    remove_operations(loaded.owned)
    remove_integer_operators(loaded.owned)
    for operation in loaded.plugin.values:
        load_semantics().pop(operation, None)
    machine_from_json.cache_clear()  # its machines hold the operations of their time


@contextmanager
def blame_plugins() -> Generator[None]:
    """Turn faults of the block that arise in a plug-in's tiles or machine operations, or may come of them, into a CompileError.

    A ToolchainError and a MemoryError pass. So does any fault where no loaded plug-in has tiles or machine operations.
    """
    try:
        yield
    except (ToolchainError, MemoryError):
        raise
    except Exception as fault:
        owners = [loaded for loaded in get_plugins().values() if loaded.owned]
        for loaded in owners:
            cause = locate_fault(fault, loaded.file)
            if cause is not None and not isinstance(fault, InternalError):
                raise CompileError(f"plug-in {loaded.plugin.name}: {cause}; mend {loaded.file}") from fault
        if owners and isinstance(fault, InternalError):
            files = " and ".join(str(loaded.file) for loaded in owners)
            raise CompileError(f"{fault}; npu-build --check-plugin says whether {files} is at fault") from fault
        raise


def _call(file: Path, where: str, function: Any, *arguments: Any) -> Any:
    """Call a function of the user's file. Whatever it raises becomes a CompileError that begins with `where`."""
    return call_user(file, where, f"mend {file}", function, *arguments)


def _file_of(name: str) -> Path:
    """Return the file of a plug-in that is named by its path, or by an entry point of an installed package."""
    if Path(name).suffix == ".py" or Path(name).is_file():
        return Path(name)
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name not in installed:
        hint = f" (installed: {', '.join(sorted(installed))})" if installed else ""
        raise CompileError(
            f"plugin {name}: must be FILE.py, or a plug-in of an installed package{hint}{suggestion(name, installed)}"
        )
    spec = importlib.util.find_spec(installed[name].module)
    if spec is None or not spec.origin:
        raise CompileError(f"plugin {name}: its package has no module {installed[name].module}; install it again")
    return Path(spec.origin)


def _find_fault(plugin: Plugin) -> str | None:
    """Return what a declaration lacks or has twice, None where it can be used."""
    if not (_is_filled_text(plugin.name) and _is_filled_text(plugin.version)):
        return "PLUGIN needs a name and a version, texts that are not empty"
    other = get_plugins().get(plugin.name)
    if other is not None:
        return f"plug-in {plugin.name} is loaded already, from {other.file}, which differs; give one of them"
    fault = _find_form_fault(plugin)
    if fault is not None:
        return f"plug-in {plugin.name}: {fault}"
    operator_faults = (_find_operator_fault(operator) for operator in plugin.operators)
    example_faults = (_find_example_fault(index, example, plugin) for index, example in enumerate(plugin.examples))
    return next(filter(None, chain(operator_faults, example_faults)), None)


def _is_filled_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _find_form_fault(plugin: Plugin) -> str | None:
    """Return which part of a declaration is no tuple or no mapping, or has an operator twice, None where all are sound."""
    for part in ("operators", "examples"):
        if not isinstance(getattr(plugin, part), tuple | list):
            return f"{part} must be a tuple, as ({part[:-1].capitalize()},) with its comma"
    for part in ("rules", "values", "draws", "rates"):
        if not isinstance(getattr(plugin, part), Mapping):
            return f"{part} must be a dict"
    if not plugin.operators:
        return "has no operators"
    if any(not isinstance(example, Example) for example in cast(Iterable[object], plugin.examples)):
        return "examples must hold nothing but Example(...)"
    names = [(getattr(o, "DOMAIN", ""), getattr(o, "NAME", "") or getattr(o, "__name__", "")) for o in plugin.operators]
    repeated = next((name for name in names if names.count(name) > 1), None)
    return None if repeated is None else f"operator {repeated[1]} of {repeated[0]} is there twice; leave one out"


def _find_operator_fault(operator: Any) -> str | None:
    """Return why a class cannot be used as an operator, None where it can."""
    if not (inspect.isclass(operator) and issubclass(operator, Operator)):
        return f"{operator!r} among the operators is no class derived from Operator"
    name = operator_name(operator)
    if not is_dataclass(operator) or not operator.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return f"operator {name}: must be a dataclass with frozen=True, whose fields are its attributes"
    domain = getattr(operator, "DOMAIN", "")
    if not isinstance(domain, str) or domain in _STANDARD_DOMAINS:
        return f"operator {name}: needs a DOMAIN of its own, not one of ONNX"
    version: object = operator.DOMAIN_VERSION
    if type(version) is not int or version < 1:
        return f"operator {name}: DOMAIN_VERSION is {version!r}, it must be an int from 1 on"
    missing = [method for method in _METHODS if getattr(operator, method) is getattr(Operator, method)]
    if missing:
        return f"operator {name}: has no method {' and no '.join(missing)}"
    fault = _find_field_fault(operator)
    if fault is not None:
        return f"operator {name}: {fault}"
    other = find_operator(domain, name)
    return None if other is None else f"operator {name} of {domain}: plug-in {other[0].plugin.name} has it already"


def _find_field_fault(operator: type[Operator]) -> str | None:
    """Return which field has a type that no attribute of ONNX gives, None where all are sound."""
    try:
        hints = get_type_hints(operator)
    except Exception as fault:  # names in annotations are the user's
        return f"the types of its fields cannot be read: {fault}"
    for field in fields(operator):  # type: ignore[arg-type]
        if hints[field.name] not in _FIELD_TYPES:
            shown = getattr(hints[field.name], "__name__", hints[field.name])
            return f"field {field.name} is {shown}; an attribute is {_FIELD_TYPE_TEXT}"
    return None


def _find_example_fault(index: int, example: Example, plugin: Plugin) -> str | None:
    """Return what is wrong with an example, None where nothing is."""
    if type(example.operator) not in plugin.operators:
        return f"example {index}: its operator {example.operator!r} is no instance of a class among PLUGIN's operators"
    if not isinstance(cast(object, example.inputs), (tuple, list)):
        return f"example {index}: its inputs must be a tuple, one entry an input, they are {example.inputs!r}"
    wrong = next((value for value in example.inputs if not _is_example_input(value)), None)
    if wrong is None:
        return None
    return f"example {index}: {wrong!r} among its inputs is no array, no shape and not None; inputs=((1, 8),) is one input"


def _is_example_input(value: Any) -> bool:
    if value is None or isinstance(value, np.ndarray):
        return True
    if not isinstance(value, (tuple, list)):
        return False
    return all(isinstance(size, int | np.integer) and size > 0 for size in cast(Sequence[object], value))


def _register(loaded: LoadedPlugin, module: ModuleType) -> LoadedPlugin:
    """Add the plug-in's operators to all tables, or to none, and return it with their names.

    Raise CompileError where a name is taken, or a machine operation has no function that computes it.
    """
    classes = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    operations = [c for c in classes if issubclass(c, MachineOp) and not c.ABSTRACT]
    operators = [c for c in classes if issubclass(c, NpuOp) and not inspect.isabstract(c)]
    where = f"plugin {loaded.file}"
    silent = next((c for c in operations if c not in loaded.plugin.values), None)
    if silent is not None:
        raise CompileError(f"{where}: machine operation {silent.NAME} has no function in PLUGIN's values that computes it")
    try:
        add_operations(operations)
    except TypeError as fault:
        raise CompileError(f"{where}: {fault}") from None
    try:
        add_integer_operators(operators)
    except TypeError as fault:
        remove_operations([c.NAME for c in operations])
        raise CompileError(f"{where}: {fault}") from None
    load_semantics().update(loaded.plugin.values)
    owned = (*(c.NAME for c in operations), *(c.NAME for c in operators))
    get_plugins()[loaded.plugin.name] = replace(loaded, owned=owned)
    return get_plugins()[loaded.plugin.name]
