"""Every machine operation of the folder `operations`, by its name: adding a file is enough."""

from __future__ import annotations

from toolchain.machine import operations
from toolchain.machine.operation import MachineOp
from toolchain.module_registry import files_of

_ENGINES = ("dma", "mac_array", "vector", None)


def _operations() -> dict[str, type[MachineOp]]:
    """Return the operations in the order of manuals and first tables: moves, the array, the vector engine,
    synchronisation.
    """
    module_classes = [
        c for m in files_of(operations) for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__
    ]
    operation_classes = [c for c in module_classes if issubclass(c, MachineOp) and not c.ABSTRACT]
    names: dict[str, type[MachineOp]] = {}
    for operation in sorted(operation_classes, key=lambda c: (_ENGINES.index(c.ENGINE), c.NAME)):
        if operation.NAME in names:
            raise TypeError(f"{operation.__module__}: another file has the operation {operation.NAME}")
        if "__slots__" not in operation.__dict__:
            raise TypeError(f"{operation.__module__}.{operation.__qualname__}: must be a frozen dataclass with slots")
        names[operation.NAME] = operation
    return names


def _functions() -> dict[str, type[MachineOp]]:
    """The functions of vector engines, in the order of their operations."""
    operation_by_function: dict[str, type[MachineOp]] = {}
    for operation in OPERATIONS.values():
        for name in operation.FUNCTIONS:
            if name in operation_by_function:
                raise TypeError(f"{operation.NAME}: {operation_by_function[name].NAME} has the function {name} already")
            operation_by_function[name] = operation
    return operation_by_function


OPERATIONS = _operations()
FUNCTIONS = _functions()
