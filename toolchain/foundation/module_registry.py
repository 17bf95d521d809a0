"""Tables that the files of a package each hold a part of: adding a file is enough."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from toolchain.errors import InternalError


def files_of(package: ModuleType) -> list[ModuleType]:
    """The modules of a package, by name."""
    return [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]


def merge_tables(files: Iterable[ModuleType], table: str, does: str) -> dict[Any, Any]:
    """The entries of all tables of this name. Raises InternalError where two files have one key; does: what the other one does
    with it, in words."""
    table_by_key: dict[Any, Any] = {}
    for file in files:
        for key, value in getattr(file, table, {}).items():
            if key in table_by_key:
                raise InternalError(f"{file.__name__}: another file {does} {getattr(key, 'NAME', key)}")
            table_by_key[key] = value
    return table_by_key
