"""Lower functions of one number that step, such as Round or a threshold, where an interpolated table would blur the step.

`ops.unary` calls `find_step_decomposition` while a `Unary` on 16-bit codes is quantized. Round, Floor and Ceil are rounded
once, to codes that count in ones. A Sign, and a choice by the sign of something, compare codes with the last code before the
step.
The rest of the function is a change of scale, a sum, a product, or a table of a part without steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.pointwise.tables import build_table16
from quant.observe import Range
from quant.parameters import activation_quant
from toolchain.ir.graph import Node, Quant
from toolchain.ops.elementwise.integer_elementwise import Kind
from toolchain.ops.exact_integers import FINE, TRUTH, Bounds, CodeOperand, CodeSteps
from toolchain.ops.interpolated_tables import make_table
from toolchain.ops.kit.operator import Array, clamp_codes
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.requants import LookupTable
from toolchain.ops.lookup import Lookup
from toolchain.ops.rescale import Rescale
from toolchain.ops.scalar_functions import Function, X, evaluate

_ROUNDINGS = ("round", "floor", "ceil")
_KINDS = (*_ROUNDINGS, "sign", "where_positive")  # primitives that may step
_TO_EVEN = (Rounding.HALF_EVEN, Rounding.FP32_RNE)  # these round a half as Round does, others in two roundings
_FUNCTIONS = ("add", "sub", "mul", "rescale")  # of the vector engine, which the nodes are made of
# Codes of a part's range that a step has at least, else it is a bend in a table. ThresholdedRelu in 16 bits, 2 to 32 codes:
# 93.4 dB as a step; as a table 91.4 up to 16 codes, 83.7 at 32. A limit of 4 loses 2 dB at 2 codes, one of 64 up to 9.7.
_JUMP = 4.0  # measured above
# Whole numbers from code to code at most. Round, Floor and Ceil in 16 bits, rounded once and by a table: 71.4 and 57.1 dB at 0.01
# numbers a code, 82.2 and 76.0 at 0.12, 85.3 and 83.6 at 0.37, 85.6 and 86.4 at 0.61, 88.8 and 86.8 at 0.92.
_SLOPE = 0.5  # measured above
_ENTRY_BITS = 7  # an entry of an interpolated table is 2**7 codes from the next
# Of a part's values, by which float64 leaves a straight line: 1e-15 to 1e-2 give the same dB for Round, Floor, ThresholdedRelu.
_NEAR = 1e-9
_ONES = Quant(1.0, 0)


class _Unknown(Exception):
    """The exception that a function cannot be lowered by the parts below; `find_step_decomposition` then returns None."""


class _Line(NamedTuple):
    """The line y = slope x + offset, clamped to `ends` where they are not None."""

    slope: float
    offset: float
    ends: tuple[float, float] | None = None


def find_step_decomposition(node: Node, function: Function, scope: QuantContext) -> list[Node] | None:
    """Return the integer nodes of y = function(x), the last of which makes the node's output; None where a table must do.

    None: the function does not step over the codes of x, or is not made of parts that can be lowered. None too where the
    machine lacks an operation, wraps what a comparison clamps, or rounds towards zero.
    `node`: a `Unary` that runs on the chip, with 16-bit codes. New constants and tensors go to `scope`; some that nothing
    reads may be left there where the result is None.
    """
    numerics = scope.chip.numerics
    lacks = not all(name in scope.chip.functions for name in _FUNCTIONS)
    if lacks or numerics.wraps or numerics.rounding is Rounding.TRUNCATE or not _may_step(function):
        return None
    lowering = _StepLowering(CodeSteps(node, scope))
    try:
        if not lowering.parts.has_step(function):
            return None
        lowering.lower(function, lowering.steps.output)
    except _Unknown:
        return None
    return lowering.steps.new_nodes


def _may_step(function: Function) -> bool:
    """Return whether the function has a part that may step."""
    waiting, visited = [function], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, float | int) or id(part) in visited:
            continue
        if part[0] in _KINDS:
            return True
        visited.add(id(part))
        waiting += part[1:]
    return False


@dataclass
class _PartValues:
    """The values of a function's parts at every code of its input, and which of them step between two codes.

    `reals`: float64, the numbers of these codes. `cache`, `stepping`: values and answers by the part's id.
    """

    reals: Array
    cache: dict[int, Array] = field(default_factory=dict[int, Array])
    stepping: dict[int, bool] = field(default_factory=dict[int, bool])

    def of(self, part: Function) -> Array:
        """Return the part's value at every code of x, float64."""
        if id(part) not in self.cache:
            with np.errstate(all="ignore"):
                self.cache[id(part)] = np.asarray(evaluate(part, self.reals), np.float64)
        return self.cache[id(part)]

    def has_step(self, part: Function) -> bool:
        """Return whether the part, or a part of it, steps between two codes of x."""
        if isinstance(part, float | int):
            return False
        if id(part) not in self.stepping:
            self.stepping[id(part)] = self.is_step(part) or any(self.has_step(argument) for argument in part[1:])
        return self.stepping[id(part)]

    def is_step(self, part: Function) -> bool:
        """Return whether the part itself steps, by more than rounding to codes does.

        A sign always steps. A rounding does where its argument moves by at most half a number from code to code.
        A choice does where it jumps by more than four codes of its own range.
        """
        kind, arguments = part[0], part[1:]
        if kind not in _KINDS:
            return False
        values = self.of(part)
        if not np.isfinite(values).all() or np.ptp(values) == 0:
            return False
        if kind != "where_positive":
            return kind == "sign" or bool(np.abs(np.diff(self.of(arguments[0]))).max() <= _SLOPE)
        step_heights = np.abs(self.of(arguments[1]) - self.of(arguments[2]))
        step_places = np.flatnonzero(np.diff(self.of(arguments[0]) > 0))
        return bool(
            (np.minimum(step_heights[step_places], step_heights[step_places + 1]) > _JUMP * np.ptp(values) / values.size).any()
        )

    def inmost(self, part: Function) -> tuple[Function, Callable[[Array], Array]]:
        """Return (the innermost part that steps, the given part as a function of it).

        It is the given part itself where several of its arguments depend on x.
        """
        moving = [a for a in part[1:] if not isinstance(a, float | int)]
        if self.is_step(part) or len(moving) != 1:
            return part, lambda v: v
        inner, before = self.inmost(moving[0])
        outer = (part[0], *(X if a is moving[0] else a for a in part[1:]))
        return inner, lambda v: evaluate(outer, before(v))


@dataclass
class _StepLowering:
    """Adds the nodes of a function's parts to `steps`, each a tensor of codes. Its methods raise _Unknown where they cannot.

    `count`: tensors made so far, for their names.
    """

    steps: CodeSteps
    count: int = 0

    def __post_init__(self) -> None:
        self.x = self.steps.read(self.steps.node.inputs[0])
        self.numerics = self.steps.scope.numerics(self.x.name)
        low, high = self.x.codes.limits
        self.reals = self.x.quant.scale * (np.arange(low, high + 1, dtype=np.float64) - self.x.quant.zero_point)
        self.parts = _PartValues(self.reals)
        self.values = self.parts.of

    def lower(self, part: Function, y: CodeOperand | None = None) -> CodeOperand:
        """Return the codes of a part. `y`: the node's output where the part is that; None: codes of the part's own range."""
        if not self.parts.has_step(part):
            return self._apply(partial(evaluate, part), self.x, self.reals, part, y)
        if self.parts.is_step(part):
            lowered = self._round_to_integers if part[0] in _ROUNDINGS else self._sign if part[0] == "sign" else self._choice
            return lowered(part, y)
        inner, outer = self.parts.inmost(part)
        if inner is not part:
            return self._apply(outer, self.lower(inner), self.values(inner), part, y)
        if len(part) != 3 or part[0] not in ("add", "sub", "mul"):
            raise _Unknown
        a, b = (self.lower(argument) for argument in part[1:])
        y = y or self._coded(part)
        return self._product(a, b, y) if part[0] == "mul" else self._sum(part[0], a, b, y)

    def _apply(
        self, f: Callable[[Array], Array], source: CodeOperand, read: Array, part: Function, y: CodeOperand | None
    ) -> CodeOperand:
        """Return part = f(source) as a line or a table.

        `read`: the numbers of the source at every code of x.
        """
        function_values = self.values(part)
        if not np.isfinite(function_values).all():
            raise _Unknown
        line = _line(read, function_values)
        if line is not None:
            return self._line(line, source, part, y)
        y = y or self._coded(part)
        if y.codes != self.x.codes:
            raise _Unknown
        if source.quant == _ONES:
            source, table = self._table_of_whole(f, source, np.unique(read), y)
        else:
            table = make_table(f, source.quant, y.quant, self.numerics)
        return self.steps.add(self._what(y), Lookup(table), (source.name,), y, self.x.shape)

    def _table_of_whole(
        self, f: Callable[[Array], Array], source: CodeOperand, numbers: Array, y: CodeOperand
    ) -> tuple[CodeOperand, LookupTable]:
        """Return the source rescaled so that each whole number up to 255 has an entry of its own, and the table of these.

        TOSA's entries lie at whole steps.
        """
        bits = min(_ENTRY_BITS, int(np.log2(source.codes.high / np.abs(numbers).max())))
        read = self._rescaled(source, replace(source, name="", quant=Quant(2.0**-bits, 0)))
        between = partial(np.interp, xp=numbers, fp=f(numbers))
        zero = y.quant.zero_point
        entries = build_table16(between, read.quant.scale, y.quant.scale, form="tosa", output_zero_point=zero)
        return read, LookupTable(entries, self.numerics.interpolation)

    def _line(self, line: _Line, source: CodeOperand, part: Function, y: CodeOperand | None) -> CodeOperand:
        """Return a line of the source's numbers as a change of scale, or as a sum with a constant; clamped to the line's ends."""
        scaled = _times(source, abs(line.slope))
        if y is None and line.slope > 0 and line.offset == 0 and line.ends is None:
            return scaled
        y = y or self._coded(part)
        bounds = None
        if line.ends is not None:
            low, high = clamp_codes(line.ends, y.quant, y.codes)
            bounds = low - y.quant.zero_point, high - y.quant.zero_point
        if line.slope > 0 and line.offset == 0:
            return self._rescaled(scaled, y, bounds)
        offset = self._constant(line.offset, scaled)
        return self._sum("add", scaled, offset, y, bounds) if line.slope > 0 else self._sum("sub", offset, scaled, y, bounds)

    def _round_to_integers(self, part: Function, y: CodeOperand | None) -> CodeOperand:
        """Return a Round, Floor or Ceil in ones: what the machine's rounding gives of the argument, moved by up to half a
        number.
        """
        kind, inner = part
        read, ones = self.values(inner), self._coded(part, _ONES)
        if np.abs(self.values(part)).max() > ones.codes.high:
            raise _Unknown
        step, rounding = float(np.abs(np.diff(read)).max()), self.numerics.rounding
        half = 0.5 if rounding is Rounding.FLOOR else 0.0  # by which what is cut is nearest
        offset = half + {"round": 0.0, "floor": step / 4 - 0.5, "ceil": 0.5 - step / 4}[kind]
        line = _line(self.reals, read)
        is_half_even = kind == "round" and rounding not in _TO_EVEN and _has_halves(read)
        if is_half_even and line is not None and 1 + abs(line.offset) <= ones.codes.high * step:  # a remainder's codes
            rounded = self._half_even(line, step, half, part)
        elif line is None or line.ends is not None:
            rounded = self._line(_Line(1.0, offset), self.lower(inner), part, ones)
        else:
            rounded = self._line(line._replace(offset=line.offset + offset), self.x, part, ones)
        return rounded if y is None else self._rescaled(rounded, y)

    def _half_even(self, line: _Line, step: float, half: float, part: Function) -> CodeOperand:
        """Return a line of x rounded half to even, in ones; for lines that lie halfway between whole numbers at some codes.

        It is rounded to even numbers first. The remainder, made a little smaller so that halves vanish, is rounded and added.
        `step`: what the line moves by from code to code. `half`: added before each rounding, on a machine that cuts.
        """
        scaled, ones = _times(self.x, abs(line.slope)), self._coded(part, _ONES)
        even = _times(self._line(_Line(line.slope / 2, line.offset / 2 + half), self.x, part, ones), 2.0)
        remainder = self._sum("sub" if line.slope > 0 else "add", scaled, even, replace(scaled, name=""))
        smaller = 1 - step / 2
        odd = self._line(_Line(float(np.copysign(smaller, line.slope)), smaller * line.offset + half), remainder, part, ones)
        bounds = None if line.ends is None else (round(line.ends[0]), round(line.ends[1]))
        return self._sum("add", even, odd, ones, bounds)

    def _sign(self, part: Function, y: CodeOperand | None) -> CodeOperand:
        """Return -1, 0 or 1 as the difference of two comparisons."""
        values = self.values(part[1])
        up, down = self._truth(values > 0), self._truth(values < 0)
        signs = self._sum("sub", up, down, self._coded(part, _ONES), (-1, 1))
        return signs if y is None else self._rescaled(signs, y)

    def _choice(self, part: Function, y: CodeOperand | None) -> CodeOperand:
        """Return `yes` where the argument is positive, else `no`: each times its truth, which is exactly nothing or itself."""
        _, argument, yes, no = part
        y, positive = y or self._coded(part), self.values(argument) > 0
        chosen = [(value, mask) for value, mask in ((yes, positive), (no, ~positive)) if value != 0.0]
        terms = [(value, self._truth(mask)) for value, mask in chosen]
        if len(terms) == 1:
            return self._product(self._operand(terms[0][0], y), terms[0][1], y)
        a, b = (self._product(self._operand(value, y), truth, replace(y, name="")) for value, truth in terms)
        return self._sum("add", a, b, y)

    def _operand(self, value: Function, y: CodeOperand) -> CodeOperand:
        """Return a value of a choice: the codes of a part, or a constant in the codes of y."""
        if not isinstance(value, float | int):
            return self.lower(value)
        code = int(np.clip(np.rint(value / y.quant.scale) + y.quant.zero_point, *y.codes.limits))
        return self.steps.constant(self._next("number"), np.array(code), y.quant, y.codes)

    def _truth(self, mask: Array) -> CodeOperand:
        """Return 1 at the codes of x in `mask` (bool[code]), else 0. Raise _Unknown unless the mask changes exactly once."""
        codes, ends = self.x.codes, np.flatnonzero(np.diff(mask))
        if ends.size != 1:
            raise _Unknown
        last = int(ends[0]) if mask[-1] else int(ends[0]) + 1  # the one that is not in it
        limit = self.steps.constant(self._next("limit"), np.array(last + codes.low), self.x.quant, codes)
        pair = (self.x, limit) if mask[-1] else (limit, self.x)
        truth = CodeOperand("", TRUTH, codes, self.x.shape)
        return self.steps.sum(self._next("beyond"), "sub", *pair, truth, (0, 1), FINE)

    def _coded(self, part: Function, quant: Quant | None = None) -> CodeOperand:
        """Return the form of a tensor for the part: the type of x, and qparams of the part's own range unless given. Nothing
        is added.

        A part whose values are all codes of x, as of a magnitude, keeps the scale of x, and is exact.
        """
        values = self.values(part)
        if not np.isfinite(values).all():
            raise _Unknown
        if quant is None and self._are_codes(values):
            quant = Quant(self.x.quant.scale, 0)
        return CodeOperand("", quant or activation_quant(Range.of(values), self.numerics), self.x.codes, self.x.shape)

    def _are_codes(self, values: Array) -> bool:
        """Return whether values are whole multiples of the scale of x that its codes hold, one beyond at most."""
        codes, (low, high) = values / self.x.quant.scale, self.x.codes.limits
        is_whole = np.abs(codes - np.rint(codes)).max() <= _NEAR * codes.size
        return bool(is_whole and codes.min() >= low - 1 and codes.max() <= high + 1)

    def _constant(self, value: float, like: CodeOperand) -> CodeOperand:
        """Return a number in codes that are finer than those of `like` by a power of two, as far as they hold it."""
        most = like.codes.high * like.quant.scale
        bits = 0 if value == 0 else max(0, min(like.codes.bits - 2, int(np.floor(np.log2(most / abs(value))))))
        quant = Quant(like.quant.scale / 2**bits, 0)
        if abs(value) > most:
            raise _Unknown
        code = np.array(round(value / quant.scale))
        return self.steps.constant(self._next("number"), code, quant, like.codes)

    def _rescaled(self, source: CodeOperand, y: CodeOperand, bounds: Bounds | None = None) -> CodeOperand:
        """Add a Rescale of the source to the codes of y. `bounds`: of its clamp, counted from the zero point; None: all codes."""
        zero, (low, high) = y.quant.zero_point, y.codes.limits
        if bounds is not None:
            low, high = zero + bounds[0], zero + bounds[1]
        scale, where = source.quant.scale / y.quant.scale, self.steps.node.name
        requant = self.steps.scope.requant(scale, "rescale", y.codes, zero, low, high, where=where)
        return self.steps.add(self._what(y), Rescale(source.quant.zero_point, requant), (source.name,), y, self.x.shape)

    def _sum(self, kind: Kind, a: CodeOperand, b: CodeOperand, y: CodeOperand, bounds: Bounds | None = None) -> CodeOperand:
        parts = max(a.quant.scale, b.quant.scale) / y.quant.scale
        return self.steps.sum(self._what(y), kind, a, b, y, bounds, parts)

    def _product(self, a: CodeOperand, b: CodeOperand, y: CodeOperand) -> CodeOperand:
        return self.steps.product(self._what(y), a, b, y)

    def _what(self, y: CodeOperand) -> str:
        """Return the words that name a tensor; "" for the node's output."""
        return "" if y.name else self._next("step")

    def _next(self, kind: str) -> str:
        self.count += 1
        return f"{kind} {self.count}"


def _line(x: Array, y: Array) -> _Line | None:
    """Return y as a line of x, clamped or not; None where it is none. `x`: float64[n], not all equal."""
    low, high = float(y.min()), float(y.max())
    near, inside = _NEAR * max(abs(low), abs(high)), np.flatnonzero((y > low) & (y < high))
    for at, ends in ((np.arange(x.size), None), (inside, (low, high))):
        if at.size < 2:
            continue
        first, last = at[np.argmin(x[at])], at[np.argmax(x[at])]
        if x[first] == x[last] or y[first] == y[last]:
            continue
        slope = float((y[last] - y[first]) / (x[last] - x[first]))
        offset = float(y[first] - slope * x[first])
        offset = 0.0 if abs(offset) <= near else offset
        fit = slope * x + offset
        if np.abs((fit if ends is None else np.clip(fit, *ends)) - y).max() <= near:
            return _Line(slope, offset, ends)
    return None


def _times(source: CodeOperand, factor: float) -> CodeOperand:
    """Return the same codes for numbers that are `factor` times as large."""
    return replace(source, quant=replace(source.quant, scale=factor * source.quant.scale))


def _has_halves(values: Array) -> bool:
    return bool((values - np.floor(values) == 0.5).any())
