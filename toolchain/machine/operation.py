"""What a machine operation must say of itself: its parameters, its bytes, its time, its limits, its meaning.

Compiler, encodings, timeline, checks and manual know an operation through this class alone. One that leaves a member out
fails when its file is imported. Members are written so that they hold for one operation, whose parameters are whole
numbers, and for columns of many, whose parameters are int64[n] arrays (`columns_of`); limits name one operation.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from toolchain.hw.chip import Chip
from toolchain.hw.units import Unit
from toolchain.machine.codes import by_type
from toolchain.machine.columns import Whole
from toolchain.machine.parameter import Limit, Need, Parameter, TypeList

Operation = TypeVar("Operation", bound="MachineOp")


class Traffic(NamedTuple):
    """What an operation moves at one memory; burst bytes: the same in whole bursts, which its ports are charged."""

    space: int
    read_bytes: Whole = 0
    write_bytes: Whole = 0
    read_burst_bytes: Whole = 0
    write_burst_bytes: Whole = 0


class Demand(NamedTuple):
    """One operation alone on an idle machine. Bytes are totals, cycles are whole.

    compute_cycles: what its unit needs with memories of no limit (DMA: bytes over the channel's rate).
    latency_cycles: from start to the first byte, read and write latency of the memories touched.
    macs: products, those with padding included.
    traffic: one entry a memory, in order of their codes; memories of no bytes may be among them.
    """

    compute_cycles: Whole = 0
    latency_cycles: Whole = 0
    macs: Whole = 0
    traffic: tuple[Traffic, ...] = ()

    def at(self, space: int) -> Traffic:
        """What it moves at one memory."""
        return next((t for t in self.traffic if t.space == space), Traffic(space))


NOTHING = Demand()
Block = tuple[int, int, tuple[tuple[int, int], ...]]  # first byte, contiguous run, (count, stride) outermost first


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes address + sum(i_k strides[k]) + j for i_k < counts[k], j < inner_bytes; strides are not negative.

    exact: every one of these bytes is touched; else they are a box that holds all that are. in_step: a read that goes
    element by element with the write, so that both may be the same bytes.
    """

    space: int  # a code of `chip.spaces`
    address: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    inner_bytes: int
    write: bool
    in_step: bool = False
    exact: bool = True
    end: int = field(init=False, compare=False)  # one past the last byte touched

    def __post_init__(self) -> None:
        end = self.address + self.inner_bytes
        for n, stride in zip(self.counts, self.strides):
            end = end + (n - 1) * stride
        object.__setattr__(self, "end", end)

    @property
    def block(self) -> Block:
        """The same bytes with dimensions of one element dropped and those that continue the run merged into it."""
        run = self.inner_bytes
        outer: list[tuple[int, int]] = []
        for n, stride in zip(reversed(self.counts), reversed(self.strides)):
            if n == 1:
                continue
            if not outer and stride == run:
                run *= n
            elif outer and stride == outer[-1][0] * outer[-1][1]:
                outer[-1] = (outer[-1][0] * n, outer[-1][1])
            else:
                outer.append((n, stride))
        return self.address, run, tuple(reversed(outer))

    @property
    def bytes(self) -> int:
        total = self.inner_bytes
        for n in self.counts:
            total = total * n  # columns are shared: nothing is changed in place
        return total


class Sums(NamedTuple):
    """shape: of the sums made. accumulate: added to those that lie there. emit: written out, so that none stay. address: where
    they lie, if the accumulators are a memory. dataflow: by which they are made, of the array's."""

    shape: tuple[Whole, ...]
    accumulate: Whole
    emit: Whole
    address: Whole
    dataflow: Whole = 0

    @property
    def total(self) -> Whole:
        found = 1
        for size in self.shape:
            found = found * size
        return found


MEMBERS = ("NAME", "ENGINE", "needed", "ranges", "demand", "broken")


@dataclass(frozen=True, slots=True)
class MachineOp:
    """Base. A class in the folder `operations` with `ABSTRACT` not set is an operation; all MEMBERS are its own or a base's."""

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
        """Names, in the order of the constructor."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    @cache
    def described(cls) -> Mapping[str, Parameter]:
        """Each parameter's unit and values, by its name."""
        return {f.name: f.metadata["parameter"] for f in fields(cls)}

    @classmethod
    @cache
    def sizes(cls) -> tuple[tuple[str, int], ...]:
        """Parameters that have a least value, with it."""
        return tuple((name, p.least) for name, p in cls.described().items() if p.least is not None)

    @classmethod
    @cache
    def limited(cls) -> Mapping[str, tuple[tuple[str, Limit], ...]]:
        """Keys of the operation's section of `limits`, with the parameters that each limits."""
        found: dict[str, tuple[tuple[str, Limit], ...]] = {}
        for name, known in cls.described().items():
            if known.limit is not None:
                found[known.limit.key] = (*found.get(known.limit.key, ()), (name, known.limit))
        return found

    @classmethod
    @cache
    def typed(cls) -> tuple[tuple[str, str], ...]:
        """Parameters that are codes, each with the one that names their type."""
        return tuple((name, p.typed_by) for name, p in cls.described().items() if p.typed_by is not None)

    @classmethod
    @cache
    def type_numbers(cls) -> tuple[tuple[str, TypeList], ...]:
        """Parameters that name types, each with those among which it does."""
        return tuple((name, p.names_type) for name, p in cls.described().items() if p.names_type is not None)

    @classmethod
    @cache
    def based(cls) -> tuple[tuple[str, str], ...]:
        """Parameters that name a base register, each with the address that it is added to."""
        return tuple((name, p.adds_to) for name, p in cls.described().items() if p.adds_to is not None)

    @classmethod
    def need(cls, parameter: str, chip: Chip) -> Need:
        """The values that programs for `chip` may give the parameter."""
        return cls.described()[parameter].values(cls, chip)

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        """The key of the chip for which its programs use this operation; None: they do not."""
        raise NotImplementedError

    def number(self) -> Whole:
        """Of its unit, among those of its kind."""
        return getattr(self, "unit", 0)

    def unit_in(self, chip: Chip) -> Unit:
        """The unit that runs it; columns are of operations on one unit. Raises IndexError where the machine has no such unit."""
        number = self.number()
        return chip.of_kind(self.ENGINE or "")[number if isinstance(number, int) else int(number.flat[0])]

    def queue(self, chip: Chip) -> int | None:
        """Index of the in-order queue that runs it, in `chip.units`; None: the machine has no such queue, or none is needed."""
        units, number = chip.of_kind(self.ENGINE or ""), self.number()
        return units[int(number)].queue if 0 <= number < len(units) else None

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        """Every byte range touched, reads first; ranges of no bytes may be among them."""
        raise NotImplementedError

    def demand(self, chip: Chip) -> Demand:
        """What it asks of the machine."""
        raise NotImplementedError

    def broken(self, chip: Chip) -> Iterator[str]:
        """The reasons why this machine cannot run it, beyond sizes and limits of its parameters."""
        raise NotImplementedError

    def sums(self) -> Sums | None:
        """What it does to the accumulators; None where it does not use them."""
        return None


def accesses(op: MachineOp, chip: Chip) -> tuple[Access, ...]:
    """Every byte range `op` touches, reads first. Windows that see only padding touch none of their input."""
    return tuple(a for a in op.ranges(chip) if a.bytes)


def demand(op: MachineOp, chip: Chip) -> Demand:
    """The demand of any machine operation; signals, waits and ends ask for nothing."""
    return op.demand(chip)


def columns_of(ops: Sequence[Operation]) -> Operation:
    """One operation whose parameters are columns, int64[n], of n operations of one class."""
    cls = type(ops[0])
    names = cls.parameters()
    if not names:
        return ops[0]
    pick = attrgetter(*names)
    table = np.array([pick(op) for op in ops], np.int64).reshape(len(ops), len(names))
    return cls(*np.ascontiguousarray(table.T))


def broken_capability(op: MachineOp, chip: Chip) -> str | None:
    """The reason why this machine cannot run the operation, or None."""
    for name, least in op.sizes():
        if getattr(op, name) < least:
            return f"{name}={getattr(op, name)}, must be at least {least}"
    checks = (_unknown_bases(op, chip), _unknown_types(op, chip), op.broken(chip), _beyond(op, chip))
    return next(chain.from_iterable(checks), None)


def suspects(ops: Sequence[MachineOp], chip: Chip) -> NDArray[np.bool_]:
    """bool[op]: whether sizes, base registers, types or `limits` let `broken_capability` find something. What `broken` finds
    is seen one operation at a time."""
    found = np.zeros(len(ops), bool)
    for members in alike(ops).values():
        found[members] = _outside(columns_of([ops[i] for i in members]), chip)
    return found


def alike(ops: Sequence[MachineOp]) -> dict[tuple[type[MachineOp], int], list[int]]:
    """The indexes of operations of one class on one unit, which columns can hold."""
    found: dict[tuple[type[MachineOp], int], list[int]] = {}
    for index, op in enumerate(ops):
        found.setdefault((type(op), op.number()), []).append(index)
    return found


def _outside(op: MachineOp, chip: Chip) -> Whole:
    """Where a parameter is outside its size, its base registers, its type or its limit."""
    found: Whole = False
    for name, least in op.sizes():
        found = found | (getattr(op, name) < least)
    for name, _ in op.based():
        value = getattr(op, name)
        found = found | (value < 0) | (value > op.need(name, chip).high)
    for name, types in op.type_numbers():
        value = getattr(op, name)
        found = found | (value < 0) | (value >= len(types.of(chip)))
    for name, kind in op.typed():
        value, number = getattr(op, name), getattr(op, kind)
        low, high = (by_type(number, chip.code_types, end) for end in (attrgetter("low"), attrgetter("high")))
        found = found | (value < low) | (value > high)
    for together in op.limited().values():
        for name, limit in together:
            most = limit.of(type(op), chip)
            if most is not None:
                found = found | (getattr(op, name) > most)
    return found


def _unknown_bases(op: MachineOp, chip: Chip) -> Iterator[str]:
    for name, _ in op.based():
        value = getattr(op, name)
        if value and not 0 < value <= op.need(name, chip).high:
            held = f"control.bases={chip.control.bases}"
            known = op.need(name, chip).high or not chip.control.bases
            yield f"{name}={value}, the machine has {held if known else f'{held}, and no control.operand_bases'}"


def _unknown_types(op: MachineOp, chip: Chip) -> Iterator[str]:
    """Numbers of no type, and codes that their type has not."""
    for name, types in op.type_numbers():
        if not 0 <= getattr(op, name) < len(types.of(chip)):
            yield f"{name}={getattr(op, name)}, {types.keys} name {', '.join(types.of(chip))}"
    for name, kind in op.typed():
        value, codes = getattr(op, name), chip.code_types[int(getattr(op, kind))]
        if not codes.low <= value <= codes.high:
            yield f"{name}={value}, must be {codes.low}..{codes.high} ({codes})"


def _beyond(op: MachineOp, chip: Chip) -> Iterator[str]:
    """Parameters beyond the machine's `limits`; a pair [height, width] is one limit."""
    for key, together in op.limited().items():
        values = [getattr(op, name) for name, _ in together]
        mosts = [limit.of(type(op), chip) for _, limit in together]
        if any(most is not None and value > most for value, most in zip(values, mosts)):
            text = together[0][1].text.format("x".join(map(str, values)))
            yield f"{text}, limits.{op.NAME}.{key}={'x'.join(map(str, mosts))}"


def traffic(unit: Unit, *operands: tuple[str, Whole, Whole]) -> tuple[Traffic, ...]:
    """What a unit other than a DMA channel moves. operands: role, bytes read, bytes written."""
    found: dict[int, list[Whole]] = {}
    for role, read, write in operands:
        total = found.setdefault(unit.roles[role], [0, 0])
        total[0], total[1] = total[0] + read, total[1] + write
    return tuple(Traffic(space, read, write, read, write) for space, (read, write) in sorted(found.items()))


def latency_cycles(unit: Unit, chip: Chip, written: Whole = 1, roles: Sequence[str] = ("input",)) -> Whole:
    """Of the slowest memory read, and of the one written where `written` is 1."""
    read = max(chip.spaces[unit.roles[role]].memory.latency_cycles for role in roles)
    return read + written * chip.spaces[unit.roles["output"]].memory.write_latency_cycles
