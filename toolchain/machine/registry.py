"""Find every machine operation in the folder `operations`, by name: adding a file there is enough.

`OPERATIONS` and `FUNCTIONS` (operation by function of a vector engine) are filled at import. Plug-ins add to them. _ENGINES
are the kinds of engine in the order of manuals; None is the front end, which runs synchronisation and control.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from toolchain.foundation.module_registry import files_of
from toolchain.machine import operations
from toolchain.machine.operation import MachineOp

_ENGINES = ("dma", "mac_array", "vector", None)


def _operations() -> dict[str, type[MachineOp]]:
    """Return the operations of all files, by name. Raise TypeError for a name that occurs twice."""
    module_classes = [
        c for m in files_of(operations) for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__
    ]
    return _by_name(c for c in module_classes if issubclass(c, MachineOp) and not c.ABSTRACT)


def _by_name(operation_classes: Iterable[type[MachineOp]]) -> dict[str, type[MachineOp]]:
    """Return operations in the order of manuals and first tables: moves, the array, the vector engine, synchronisation.

    Raise TypeError where two have one name, one has no slots, or its engine is of no known kind.
    """
    names: dict[str, type[MachineOp]] = {}
    operation_classes = tuple(operation_classes)
    for operation in operation_classes:
        if operation.ENGINE not in _ENGINES:
            where, kinds = f"{operation.__module__}.{operation.__qualname__}", ", ".join(map(repr, _ENGINES))
            raise TypeError(f"{where}: ENGINE is {operation.ENGINE!r}; known: {kinds}")
    for operation in sorted(operation_classes, key=lambda c: (_ENGINES.index(c.ENGINE), c.NAME)):
        if operation.NAME in names:
            raise TypeError(f"{operation.__module__}: another file has the operation {operation.NAME}")
        if "__slots__" not in operation.__dict__:
            raise TypeError(f"{operation.__module__}.{operation.__qualname__}: must be a frozen dataclass with slots")
        names[operation.NAME] = operation
    return names


def _functions(operations: Mapping[str, type[MachineOp]]) -> dict[str, type[MachineOp]]:
    """Return the operation of each function of vector engines. Raise TypeError where two operations have one function."""
    operation_by_function: dict[str, type[MachineOp]] = {}
    for operation in operations.values():
        for name in operation.FUNCTIONS:
            if name in operation_by_function:
                raise TypeError(f"{operation.NAME}: {operation_by_function[name].NAME} has the function {name} already")
            operation_by_function[name] = operation
    return operation_by_function


OPERATIONS = _operations()
FUNCTIONS = _functions(OPERATIONS)


def add_operations(operation_classes: Iterable[type[MachineOp]]) -> None:
    """Add operations of a plug-in to OPERATIONS and FUNCTIONS.

    Raise TypeError where a name or a function is taken, slots are missing or the engine is unknown. Both are then as before.
    """
    _replace_operations(_by_name((*OPERATIONS.values(), *operation_classes)))


def remove_operations(names: Iterable[str]) -> None:
    """Remove operations from OPERATIONS and FUNCTIONS by name. Names that are not there are ignored."""
    removed_names = frozenset(names)
    _replace_operations({name: c for name, c in OPERATIONS.items() if name not in removed_names})


def _replace_operations(operations: Mapping[str, type[MachineOp]]) -> None:
    """Replace the contents of OPERATIONS and FUNCTIONS, in place, since other modules hold these tables."""
    functions = _functions(operations)
    for table, entries in ((OPERATIONS, dict(operations)), (FUNCTIONS, functions)):
        table.clear()
        table.update(entries)
