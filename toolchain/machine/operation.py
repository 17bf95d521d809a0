"""Define the interface of a machine operation: its parameters, the bytes it touches, its time, its limits, its meaning.

Compiler, encodings, timeline, checks and manual know an operation through this class alone. An operation that lacks a
member fails with TypeError when its file is imported. Most members work both for one operation, whose parameters are
integers, and for columns of n operations (`columns_of`), whose parameters are int64[n]. `broken`, `queue` and `meaning`
are for one operation only.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine.access import Access, AccumulatorUse
from toolchain.machine.bank_conflicts import add_bank_conflicts
from toolchain.machine.columns import Column, IntOrColumn
from toolchain.machine.parameters.description import Limit, Need, Parameter, TypeList
from toolchain.machine.traffic import NO_DEMAND, Demand

MEMBERS = ("NAME", "ENGINE", "find_required_key", "ranges", "demand", "broken", "meaning")
Operation = TypeVar("Operation", bound="MachineOp")


@dataclass(frozen=True, slots=True)
class MachineOp:
    """The base of all machine operations. Each is a frozen dataclass with slots, whose fields are its parameters.

    `NAME`: its key in instruction tables and in `limits`. `ENGINE`: the kind of unit that runs it; None: the unit that
    a parameter names, or none. `FUNCTIONS`: the vector engine's functions that it does. `ABSTRACT`: set on bases, which
    are no operations and need not have all MEMBERS. `JUMPS`: operations next to it in the program need not run one
    after the other. `STALLS`: the front end dispatches nothing after it before it has ended.

    Abstract here, and given by each operation or a base of it, are `find_required_key`, `meaning`, `ranges`, `demand`
    and `broken`.
    """

    NAME: ClassVar[str]  # the key in instruction tables, and of the section of `limits`
    ENGINE: ClassVar[str | None]  # the kind of unit that runs it; None: the unit that its parameter names, or none
    FUNCTIONS: ClassVar[tuple[str, ...]] = ()  # what it does of a vector engine's `functions`
    ABSTRACT: ClassVar[bool] = True
    JUMPS: ClassVar[bool] = False  # operations beside it in the program need not run one behind the other
    STALLS: ClassVar[bool] = False  # the front end dispatches nothing behind it before it is over

    def __init_subclass__(cls) -> None:
        if "__slots__" in cls.__dict__ or cls.__dict__.get("ABSTRACT", False):
            return  # made again with slots, after it was looked at; a base of others
        cls.ABSTRACT = False
        where = f"{cls.__module__}.{cls.__qualname__}"
        bases = [c for c in cls.__mro__ if c not in (MachineOp, object)]
        missing = [m for m in MEMBERS if not any(m in c.__dict__ for c in bases)]
        missing += [] if cls.__doc__ else ["a docstring"]
        missing += ["FUNCTIONS"] if cls.__dict__.get("ENGINE") == "vector" and not cls.FUNCTIONS else []
        for name, kind in inspect.get_annotations(cls).items():
            value = cls.__dict__.get(name)
            if not str(kind).startswith("ClassVar") and not (isinstance(value, Field) and "parameter" in value.metadata):
                missing.append(f"the unit and values of parameter {name}")
        if missing:
            raise TypeError(f"{where}: a machine operation needs {', '.join(missing)}")

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        """Return the names of the parameters, in the order of the constructor."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    @cache
    def get_descriptions(cls) -> Mapping[str, Parameter]:
        """Return each parameter's unit and values, by its name."""
        return {f.name: f.metadata["parameter"] for f in fields(cls)}

    @classmethod
    @cache
    def sizes(cls) -> tuple[tuple[str, int], ...]:
        """Return the parameters that have a least value, each with that value."""
        return tuple((name, p.least) for name, p in cls.get_descriptions().items() if p.least is not None)

    @classmethod
    @cache
    def group_by_limit(cls) -> Mapping[str, tuple[tuple[str, Limit], ...]]:
        """Return the keys of the operation's section of `limits`, each with the parameters that it limits."""
        parameters_by_key: dict[str, tuple[tuple[str, Limit], ...]] = {}
        for name, description in cls.get_descriptions().items():
            if description.limit is not None:
                parameters_by_key[description.limit.key] = (
                    *parameters_by_key.get(description.limit.key, ()),
                    (name, description.limit),
                )
        return parameters_by_key

    @classmethod
    @cache
    def pair_codes_with_types(cls) -> tuple[tuple[str, str], ...]:
        """Return the parameters that are codes, each with the parameter that names its type: (name, name) pairs."""
        return tuple((name, p.typed_by) for name, p in cls.get_descriptions().items() if p.typed_by is not None)

    @classmethod
    @cache
    def type_numbers(cls) -> tuple[tuple[str, TypeList], ...]:
        """Return the parameters that name types, each with the list of types that it indexes."""
        return tuple((name, p.names_type) for name, p in cls.get_descriptions().items() if p.names_type is not None)

    @classmethod
    @cache
    def pair_bases_with_addresses(cls) -> tuple[tuple[str, str], ...]:
        """Return the parameters that name a base register, each with the address parameter that the register is added to."""
        return tuple((name, p.adds_to) for name, p in cls.get_descriptions().items() if p.adds_to is not None)

    @classmethod
    def need(cls, parameter: str, chip: Chip) -> Need:
        """Return the values that programs for `chip` may give the parameter of this name."""
        return cls.get_descriptions()[parameter].values(cls, chip)

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        """Return a text with the machine file's key because of which programs use this operation; None where they do
        not.
        """
        raise NotImplementedError

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        """Yield what the operation does on this machine, for its manual: paragraphs and blocks of Markdown, by names of
        parameters.
        """
        raise NotImplementedError

    def number(self) -> IntOrColumn:
        """Return the number of its unit, among those of its kind."""
        return getattr(self, "unit", 0)

    def unit_in(self, chip: Chip) -> Unit:
        """Return the unit that runs it. Raise IndexError where the machine has no such unit.

        Parameters that are columns are those of operations on one unit.
        """
        number = self.number()
        return chip.of_kind(self.ENGINE or "")[number if isinstance(number, int) else int(number.flat[0])]

    def queue(self, chip: Chip) -> int | None:
        """Return the index in `chip.units` of the in-order queue that runs it; None where no queue does.

        That is so where the machine has no such unit, and for operations that need none.
        """
        units, number = chip.of_kind(self.ENGINE or ""), self.number()
        return units[int(number)].queue if 0 <= number < len(units) else None

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        """Return every byte range that it touches, reads first; ranges of no bytes may be among them."""
        raise NotImplementedError

    def demand(self, chip: Chip) -> Demand:
        """Return the unit's cycles and the traffic at each memory, for an idle machine, without conflicts at memory
        banks.
        """
        raise NotImplementedError

    def list_moved_operands(self, chip: Chip) -> Iterator[tuple[Access, IntOrColumn]]:
        """Yield its operands in memory, each with the bytes that are moved for it; bytes that are read twice count
        twice.
        """
        return ((access, access.bytes) for access in self.ranges(chip))

    def broken(self, chip: Chip) -> Iterator[str]:
        """Yield a sentence for each reason why this machine cannot run it, beyond sizes and limits of its parameters."""
        raise NotImplementedError

    def sums(self) -> AccumulatorUse | None:
        """Return its use of the accumulators; None where it does not use them."""
        return None


class ZeroTimeOp(MachineOp):
    """The base of operations that touch no byte and take no time of a unit."""

    __slots__ = ()
    ABSTRACT: ClassVar[bool] = True
    ENGINE = None

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        return ()

    def demand(self, chip: Chip) -> Demand:
        return NO_DEMAND

    def broken(self, chip: Chip) -> Iterator[str]:
        return iter(())


def accesses(op: MachineOp, chip: Chip) -> tuple[Access, ...]:
    """Return every byte range of at least one byte that `op` touches, reads first. Padding of windows is not touched."""
    return tuple([a for a in op.ranges(chip) if a.bytes])  # faster than of a generator


def demand(op: MachineOp, chip: Chip) -> Demand:
    """Return the demand of any machine operation, with cycles of memory banks where the machine has banks.

    Signals, waits and ends demand nothing.
    """
    op_demand = op.demand(chip)
    return (
        op_demand._replace(traffic=add_bank_conflicts(op_demand.traffic, op.list_moved_operands(chip), chip))
        if chip.banked
        else op_demand
    )


def columns_of(ops: Sequence[Operation]) -> Operation:
    """Return one operation whose parameters are columns, int64[n], of n >= 1 operations of one class, in their order."""
    return columns_of_table(ops[0], parameter_table(ops))


def columns_of_table(op: Operation, table: Column) -> Operation:
    """Return an operation of the class of `op` whose parameters are the columns of a table: int64[n, parameters].

    It is `op` itself where the class has no parameters.
    """
    return type(op)(*np.ascontiguousarray(table.T)) if table.shape[1] else op


def parameter_table(ops: Sequence[Operation]) -> Column:
    """Return the parameters of n >= 1 operations of one class, in the order of its constructor: int64[n, parameters]."""
    names = type(ops[0]).parameters()
    if not names:
        return np.zeros((len(ops), 0), np.int64)
    rows = map(attrgetter(*names), ops)
    numbers = chain.from_iterable(rows) if len(names) > 1 else rows
    return np.fromiter(numbers, np.int64, len(ops) * len(names)).reshape(len(ops), len(names))


class OperationTable(NamedTuple):
    """Operations of one class on one unit: their indexes, and their parameters as int64[n, parameters]."""

    indexes: list[int]
    parameters: Column


def tables_by_unit(ops: Sequence[MachineOp]) -> list[OperationTable]:
    """Return the operations of a program as tables, one for each class and unit."""
    return [OperationTable(indexes, parameter_table([ops[i] for i in indexes])) for indexes in group_by_unit(ops).values()]


def group_by_unit(ops: Sequence[MachineOp]) -> dict[tuple[type[MachineOp], int], list[int]]:
    """Return the indexes of the operations of each (class, number of the unit), in the order of the program."""
    indexes_by_unit: dict[tuple[type[MachineOp], int], list[int]] = {}
    for index, op in enumerate(ops):
        indexes_by_unit.setdefault((type(op), op.number()), []).append(index)
    return indexes_by_unit
