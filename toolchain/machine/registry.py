"""Every machine operation of the folder `operations`, by its name: adding a file is enough."""

from __future__ import annotations

from toolchain.machine import operations
from toolchain.machine.operation import MachineOp
from toolchain.module_registry import files_of

_ENGINES = ("dma", "mac_array", "vector", None)


def _operations() -> dict[str, type[MachineOp]]:
    """In the order that manuals and first tables have: moves, the array, the vector engine, synchronisation."""
    own = [c for m in files_of(operations) for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__]
    found = [c for c in own if issubclass(c, MachineOp) and not c.ABSTRACT]
    names: dict[str, type[MachineOp]] = {}
    for operation in sorted(found, key=lambda c: (_ENGINES.index(c.ENGINE), c.NAME)):
        if operation.NAME in names:
            raise TypeError(f"{operation.__module__}: another file has the operation {operation.NAME}")
        if "__slots__" not in operation.__dict__:
            raise TypeError(f"{operation.__module__}.{operation.__qualname__}: must be a frozen dataclass with slots")
        names[operation.NAME] = operation
    return names


def _functions() -> dict[str, type[MachineOp]]:
    """The functions of vector engines, in the order of their operations."""
    found: dict[str, type[MachineOp]] = {}
    for operation in OPERATIONS.values():
        for name in operation.FUNCTIONS:
            if name in found:
                raise TypeError(f"{operation.NAME}: {found[name].NAME} has the function {name} already")
            found[name] = operation
    return found


OPERATIONS = _operations()
FUNCTIONS = _functions()
