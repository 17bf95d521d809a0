"""Names that a package exports and imports only where they are used, so that importing the package costs little."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def export_lazily(package: str, names_by_module: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports the module of a name when the name is first read.

    `names_by_module`: exported names by the module inside the package that has them. None is the name of a module.
    """
    module_by_name = {name: module for module, names in names_by_module.items() for name in names}

    def get_export(name: str) -> Any:
        if name not in module_by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_by_name[name]}"), name)

    return get_export
