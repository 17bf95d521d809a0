"""Serve packages whose modules each hold a part of a table, and packages that import their exported names lazily.

So adding a file is enough for its entries, and importing a package costs little.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from toolchain.errors import InternalError


def files_of(package: ModuleType) -> list[ModuleType]:
    """Import and return the modules of a package, ordered by name; packages inside it are entered once, as one module."""
    return [import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]


def merge_tables(files: Iterable[ModuleType], table: str, does: str) -> dict[Any, Any]:
    """Return the entries of all modules' dictionaries named `table`; modules without one are skipped.

    Raise InternalError where two modules have one key. `does`: what the other one does with it, in words, for that message.
    """
    table_by_key: dict[Any, Any] = {}
    for file in files:
        for key, value in getattr(file, table, {}).items():
            if key in table_by_key:
                raise InternalError(f"{file.__name__}: another file {does} {getattr(key, 'NAME', key)}")
            table_by_key[key] = value
    return table_by_key


def export_lazily(package: str, names_by_module: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports the module of a name when the name is first read.

    `names_by_module`: by module inside the package, its exported names. The `__getattr__` raises AttributeError for other
    names.
    """
    module_by_name = {name: module for module, names in names_by_module.items() for name in names}

    def get_export(name: str) -> Any:
        if name not in module_by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_by_name[name]}"), name)

    return get_export
