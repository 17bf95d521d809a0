"""Makes small faults of programs: each takes one thing of a correct program and makes it wrong, for bench/mutate_programs.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from toolchain.machine import Copy, Elementwise, End, Fill, MachineOp, Signal, Wait

Edit = tuple[str, "Program"]


@dataclass(frozen=True)
class Program:
    """Operations, and the layer of each."""

    ops: tuple[MachineOp, ...]
    layers: tuple[int, ...]

    def without(self, *indexes: int) -> Program:
        keep = [i for i in range(len(self.ops)) if i not in indexes]
        return Program(tuple(self.ops[i] for i in keep), tuple(self.layers[i] for i in keep))

    def duplicate(self, index: int, at: int) -> Program:
        """Return the program with a copy of operation `index` before the one at `at`."""
        ops, layers = list(self.ops), list(self.layers)
        ops.insert(at, self.ops[index])
        layers.insert(at, self.layers[index])
        return Program(tuple(ops), tuple(layers))

    def replace_op(self, index: int, op: MachineOp) -> Program:
        """Return the program with another operation at `index`."""
        return Program((*self.ops[:index], op, *self.ops[index + 1 :]), self.layers)

    def swap(self, a: int, b: int) -> Program:
        """Return the program with two operations exchanged."""
        ops, layers = list(self.ops), list(self.layers)
        ops[a], ops[b], layers[a], layers[b] = ops[b], ops[a], layers[b], layers[a]
        return Program(tuple(ops), tuple(layers))


def mutate(kind: str, program: Program, rng: np.random.Generator) -> Edit | None:
    """Return what was done and the mutant, or None where the program has nothing that this kind changes.

    `kind`: one of KINDS.
    """
    return _MUTATIONS[kind](program, rng)


def _pick(rng: np.random.Generator, indexes: list[int]) -> int | None:
    """Return one of the indexes at random; None where there is none."""
    return indexes[int(rng.integers(len(indexes)))] if indexes else None


def _of(program: Program, *kinds: type[MachineOp]) -> list[int]:
    """Return the indexes of operations of these kinds."""
    return [i for i, op in enumerate(program.ops) if isinstance(op, kinds)]


def _list_busy_ops(program: Program) -> list[int]:
    """Return the indexes of operations that do not only order others."""
    return [i for i, op in enumerate(program.ops) if not isinstance(op, Signal | Wait | End)]


# Order


def _drop(*kinds: type[MachineOp]) -> Callable[[Program, np.random.Generator], Edit | None]:
    """Return a mutation that drops an operation of these kinds."""

    def edit(program: Program, rng: np.random.Generator) -> Edit | None:
        at = _pick(rng, _of(program, *kinds))
        return None if at is None else (f"op {at} {program.ops[at].NAME} dropped", program.without(at))

    return edit


def _drop_pair(program: Program, rng: np.random.Generator) -> Edit | None:
    """Drop a Wait and the Signal that it takes, so that counts still match."""
    at = _pick(rng, _of(program, Wait))
    if at is None:
        return None
    semaphore = program.ops[at].semaphore  # type: ignore[attr-defined]
    rank = sum(op.semaphore == semaphore for op in program.ops[:at] if isinstance(op, Wait))
    signals = [i for i, op in enumerate(program.ops) if isinstance(op, Signal) and op.semaphore == semaphore]
    return f"op {signals[rank]} signal and op {at} wait dropped", program.without(signals[rank], at)


def _retarget(program: Program, rng: np.random.Generator) -> Edit | None:
    """Change the semaphore or the engine of a Signal or Wait to another one of the program."""
    at = _pick(rng, _of(program, Signal, Wait))
    if at is None:
        return None
    op = program.ops[at]
    assert isinstance(op, Signal | Wait)
    name = "semaphore" if rng.integers(2) else "engine"
    used = sorted({getattr(o, name) for o in program.ops if isinstance(o, Signal | Wait)} - {getattr(op, name)})
    value = _pick(rng, used)
    if value is None:
        return None
    return f"op {at} {op.NAME}: {name} {getattr(op, name)} to {value}", program.replace_op(at, replace(op, **{name: value}))


def _swap(program: Program, rng: np.random.Generator) -> Edit | None:
    """Exchange two neighbours, one of which signals or waits."""
    pairs = [i for i in range(len(program.ops) - 2) if any(isinstance(o, Signal | Wait) for o in program.ops[i : i + 2])]
    at = _pick(rng, [i for i in pairs if program.ops[i] != program.ops[i + 1]])
    return None if at is None else (f"ops {at} and {at + 1} swapped", program.swap(at, at + 1))


def _later(program: Program, rng: np.random.Generator) -> Edit | None:
    """Move a Wait up to eight operations further back."""
    at = _pick(rng, _of(program, Wait))
    if at is None:
        return None
    to = min(len(program.ops) - 2, at + int(rng.integers(1, 9)))
    moved = program.duplicate(at, to + 1).without(at)
    return f"op {at} wait moved to {to}", moved


def _twice(program: Program, rng: np.random.Generator) -> Edit | None:
    """Double a Signal or Wait."""
    at = _pick(rng, _of(program, Signal, Wait))
    return None if at is None else (f"op {at} {program.ops[at].NAME} doubled", program.duplicate(at, at))


# Bytes


def _other_work(program: Program, rng: np.random.Generator) -> Edit | None:
    """Drop an operation that does not only order others."""
    at = _pick(rng, _list_busy_ops(program))
    return None if at is None else (f"op {at} {program.ops[at].NAME} dropped", program.without(at))


def _double_work(program: Program, rng: np.random.Generator) -> Edit | None:
    """Run an operation again in place of another one of its kind."""
    at = _pick(rng, _list_busy_ops(program))
    if at is None:
        return None
    other = _pick(rng, [i for i in _list_busy_ops(program) if type(program.ops[i]) is type(program.ops[at]) and i != at])
    if other is None or program.ops[other] == program.ops[at]:
        return None
    return f"op {at} {program.ops[at].NAME} in place of op {other}", program.replace_op(other, program.ops[at])


def _fields(*endings: str, steps: tuple[int, ...]) -> Callable[[Program, np.random.Generator], Edit | None]:
    """Return a mutation that moves a field, whose name ends with one of `endings`, by one of `steps`."""

    def edit(program: Program, rng: np.random.Generator) -> Edit | None:
        fields_by_op = {
            i: [n for n in op.parameters() if n.endswith(endings) and _uses_field(op, n)] for i, op in enumerate(program.ops)
        }
        at = _pick(rng, [i for i in _list_busy_ops(program) if fields_by_op[i]])
        if at is None:
            return None
        op, names = program.ops[at], fields_by_op[at]
        name = names[int(rng.integers(len(names)))]
        old = getattr(op, name)
        new = old + int(steps[int(rng.integers(len(steps)))])
        return f"op {at} {op.NAME}: {name} {old} to {new}", program.replace_op(at, replace(op, **{name: new}))

    return edit


def _uses_field(op: MachineOp, name: str) -> bool:
    """Return whether the operation uses the field at all: an unused field cannot be wrong."""
    if name.startswith("add") and not getattr(op, "use_add", 0):
        return name == "address"
    if name == "table_address":
        return bool(getattr(op, "use_table", 1))
    unread = name.startswith(("output_", "parameter", "clamp", "multiplier", "shift")) and not getattr(op, "emit", 1)
    if unread and not name.startswith(("output_height", "output_width", "output_channels")):
        return False
    if isinstance(op, Elementwise) and name.startswith("b_") and op.kind == 3:
        return False
    if name.endswith(("stride0", "stride1", "stride2", "stride_outer")) and isinstance(op, Copy | Fill):
        return getattr(op, f"count{name.rpartition('stride')[2]}") > 1
    if name.endswith("batch_stride"):
        return getattr(op, "batches", 1) > 1
    return _moves(op, name)


def _moves(op: MachineOp, name: str) -> bool:
    """Return whether a stride is used: one over a single element is not."""
    counts = {"row_stride": ("output_height", "height", "rows"), "column_stride": ("output_width", "width")}
    for ending, sizes in counts.items():
        if name.endswith(ending) and not name.startswith(("input", "b_")):
            return any(getattr(op, size, 0) > 1 for size in sizes)
    return True


_NEAR = (-16, -8, -4, -2, -1, 1, 2, 4, 8, 16)
_COUNTS = ("count0", "count1", "count2", "count_outer", "inner_bytes", "inner_elements")
_SIZES = (*_COUNTS, "_height", "_width", "channels", "rows", "inner", "columns", "pad_top", "pad_left")
_FAR = (-4096, -1024, -256, -64, 64, 256, 1024, 4096)
_MUTATIONS: dict[str, Callable[[Program, np.random.Generator], Edit | None]] = {
    "order: wait dropped": _drop(Wait),
    "order: signal dropped": _drop(Signal),
    "order: pair dropped": _drop_pair,
    "order: retargeted": _retarget,
    "order: neighbours swapped": _swap,
    "order: wait moved back": _later,
    "order: doubled": _twice,
    "bytes: operation dropped": _other_work,
    "bytes: operation doubled": _double_work,
    "bytes: address near": _fields("_address", steps=_NEAR),
    "bytes: address far": _fields("_address", steps=_FAR),
    "bytes: stride": _fields("_stride", "stride0", "stride1", "stride2", "stride_outer", steps=_NEAR),
    "bytes: size": _fields(*_SIZES, steps=(-1, 1)),
    "values: multiplier or shift": _fields("multiplier", "shift", steps=(-1, 1)),
    "values: zero point": _fields("zero_point", steps=(-3, -1, 1, 3)),
    "values: clamp": _fields("clamp_low", "clamp_high", steps=(-16, -1, 1, 16)),
}
KINDS = tuple(_MUTATIONS)
ORDER_KINDS = tuple(kind for kind in KINDS if kind.startswith("order"))
