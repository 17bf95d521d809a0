"""Make lookup tables of functions, and choose at which scale an interpolated one reads its input.

Tables of 8-bit codes have an entry for each. Tables of 16-bit codes have 513 entries, between which hardware interpolates; a
scale for which the function's input fills more of them makes it finer.

Interpolation is wrong beside an entry that saturates. An entry may lie `BENT_CODES` beyond the codes. Codes that end before the
function does are meant to where they end by more than that and than `BENT` of its value. An output's range is widened for
entries to `FARTHEST` times at most, where codes cut the function to `FARTHEST_OF_CUT` times. An error of `COARSE` of the output's
codes is what a table of 8 bits has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.pointwise.tables import (
    TABLE16_STEP_BITS,
    TableForm,
    build_table8,
    build_table16,
    entries16,
    neighbour_entries16,
)
from quant.observe import Range
from quant.parameters import activation_quant, quant_range
from toolchain.ir.graph import Quant
from toolchain.ops.kit.operator import Array
from toolchain.ops.kit.requants import LookupTable

# A line to an entry that saturates by so many codes is off by a rounding at most.
BENT_CODES, BENT = 2.0, 2.0**-7
FARTHEST = 16.0  # times an output's range: what a wider one would cost is more than an end that is bent
FARTHEST_OF_CUT = 1 + 2.0**-3  # where measured codes end before the input does: a decibel at most for what is clipped anyway
COARSE = 2.0**-8  # of the output's codes: an interpolated table that is off by more is no better than one of 8 bits
_FINER = 2.0  # by so much at least is a table better for which its input is rescaled, and so much finer is that
_EQUAL = 1e-6  # of two scales, relative
_HALVINGS = 60  # of what lies between two entries
# By the key `numerics.table.interpolation`. A TOSA machine has plain samples alone, which are exact at zero and at truths.
_FORMS: Mapping[str, tuple[TableForm, ...]] = {"tosa": ("tosa",), "tflite": ("tosa", "midpoint", "tflite")}
_LOOKED_AT = 1 << 11  # numbers over the range of what a function reads


def make_table(f: Callable[[Array], Array], x: Quant, y: Quant, numerics: Numerics) -> LookupTable:
    """Return the table of f from codes of scale x to codes of scale y, both of the type of `numerics`.

    `f`: float64 arrays to float64 arrays; where it is not defined, a table of 16 bits continues its nearest value.
    """
    if not numerics.activation.interpolates:
        signed = numerics.activation.low < 0
        half = Rounding.HALF_EVEN if numerics.rounding is Rounding.FP32_RNE else Rounding.HALF_AWAY
        table = build_table8(f, x.scale, x.zero_point, y.scale, y.zero_point, signed=signed, rounding=half)
        return LookupTable(table, "none")
    return _build_interpolated_table(_extend_to_undefined(f), x, y, numerics, _choose_form(f, x, y, numerics))


def _build_interpolated_table(
    f: Callable[[Array], Array], x: Quant, y: Quant, numerics: Numerics, form: TableForm
) -> LookupTable:
    """Return the table of 513 entries of f, which is defined at every code of x."""
    entries = build_table16(f, x.scale, y.scale, form=form, input_zero_point=x.zero_point, output_zero_point=y.zero_point)
    return LookupTable(entries, numerics.interpolation)


def _choose_form(f: Callable[[Array], Array], x: Quant, y: Quant, numerics: Numerics) -> TableForm:
    """Return the form of a table of f that has the least squared error over the codes of x.

    Hardware interpolates between the entries of all forms alike.
    """
    forms: list[TableForm] = [form for form in _FORMS[numerics.interpolation] if form != "tflite" or y.zero_point == 0]
    if len(forms) == 1:
        return forms[0]
    f, codes = _extend_to_undefined(f), np.rint(np.linspace(*numerics.activation.limits, _LOOKED_AT))
    output_range = quant_range(y, numerics)
    with np.errstate(all="ignore"):
        exact = np.clip(f(x.scale * (codes - x.zero_point)), output_range.low, output_range.high)

    def sum_squares(form: TableForm) -> float:
        table = _build_interpolated_table(f, x, y, numerics, form)
        table_values = y.scale * (table.apply(codes.astype(numerics.activation.dtype)) - float(y.zero_point))
        return float(np.nansum(np.square(table_values - exact)))

    return min(forms, key=sum_squares)


def _extend_to_undefined(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return f, extended with the nearest defined value to where it has none.

    An entry next to an interval with defined numbers takes the value where these begin.
    """

    def continued(x: Array) -> Array:
        y = np.asarray(f(x), np.float64)
        defined = np.flatnonzero(~np.isnan(y))
        if defined.size in (0, y.size):
            return y
        missing = np.flatnonzero(np.isnan(y))
        nearest = defined[np.argmin(np.abs(defined - missing[:, None]), axis=1)]
        outside, inside = x[missing].astype(np.float64), x[nearest].astype(np.float64)
        for _ in range(_HALVINGS):
            middle = (outside + inside) / 2
            undefined = np.isnan(f(middle))
            outside, inside = np.where(undefined, middle, outside), np.where(undefined, inside, middle)
        y[missing] = f(inside)
        return y

    return continued


@dataclass(frozen=True)
class TableReadout:
    """A choice of the scale at which an interpolated table of f reads its input.

    `f`: float64[n] -> float64[n], NaN where it is not defined. `x`, `y`: qparams of input and output.
    `input_range`, `output_range`: calibrated ranges of its input and output, None where calibration has none.
    `numerics`: of both.
    """

    f: Callable[[Array], Array]
    x: Quant
    y: Quant
    input_range: Range | None
    output_range: Range | None
    numerics: Numerics

    def finest(self, effective_range: Range) -> Quant:
        """Return the qparams to which the input is rescaled; `x` where that is accurate enough or no other is twice as
        accurate.

        `effective_range`: the part of x beyond which f does not change.
        """
        y = quant_range(self.y, self.numerics)
        enough = COARSE * y.span
        best, error = self.x, self._error(self.x)
        for part in (effective_range, self.input_range):
            read = None if part is None else self._find_part_scale(part)
            if error <= enough or read is None:
                continue
            part_error = self._error(read)
            if part_error <= error / _FINER:
                best, error = read, part_error
        return best

    def _find_part_scale(self, part: Range) -> Quant | None:
        """Return qparams for this part of the input alone; None where they are not twice as fine.

        They are no finer than the table's step or the machine's scales allow.
        """
        most = min(float(1 << TABLE16_STEP_BITS), float(self.numerics.scale.extremes[1]))
        part_quant = activation_quant(part, self.numerics)
        if part_quant.scale < self.x.scale / most:
            wider = self.x.scale / most / part_quant.scale
            part_quant = activation_quant(Range(part.low * wider, part.high * wider), self.numerics)
        if part_quant.scale * (1 + _EQUAL) < self.x.scale / most:  # of 0 alone, or of less than codes can have
            full_range = quant_range(self.x, self.numerics)
            part_quant = activation_quant(Range(full_range.low / most, full_range.high / most), self.numerics)
        return part_quant if part_quant.scale * _FINER <= self.x.scale else None

    def _error(self, read: Quant) -> float:
        """Return the largest distance of the table from f over the calibrated input, where its input is rescaled to `read`."""
        limits, x, y = self.numerics.activation.limits, self.x, self.y
        ends = self.input_range or quant_range(x, self.numerics)
        codes = np.clip(np.rint(np.linspace(ends.low, ends.high, _LOOKED_AT) / x.scale) + x.zero_point, *limits)
        real = x.scale * (codes - x.zero_point)
        with np.errstate(all="ignore"):
            exact_values = np.asarray(self.f(real), np.float64)
        inner = np.clip(np.rint(real / read.scale) + read.zero_point, *limits).astype(self.numerics.activation.dtype)
        table_values = y.scale * (make_table(self.f, read, y, self.numerics).apply(inner) - float(y.zero_point))
        code_range = quant_range(y, self.numerics)
        off = np.abs(table_values - np.clip(exact_values, code_range.low, code_range.high))
        return float(np.max(off, initial=0.0, where=~np.isnan(exact_values)))

    def ends(self, read: Quant) -> Range | None:
        """Return the range that the output's codes should hold where the input is rescaled to `read`; None: no more than they
        do.

        The first and the last code in use lie between two entries, of which one is beyond the range in use.
        If that entry saturates, interpolation is wrong there. So the output's codes hold it, where it is finite and not far
        off.
        Where the codes end before the function does at the end of the range in use, a file or a user clips there.
        A range that was measured is not meant so: the last code that it holds counts.
        """
        if self.input_range is None or self.output_range is None:
            return None
        y, form = self.y, _choose_form(self.f, read, self.y, self.numerics)
        entries = entries16(
            self.f, read.scale, y.scale, form=form, input_zero_point=read.zero_point, output_zero_point=y.zero_point
        )
        output_range = self.output_range.with_zero()
        best_range = output_range
        for end in (self.input_range.low, self.input_range.high):
            code, farthest = self._find_end_code(end, read) or (None, 0.0)
            neighbours = [] if code is None else [float(t) for t in entries[neighbour_entries16(code)]]
            for entry in (t for t in neighbours if np.isfinite(t) and not self._is_held(t, BENT_CODES)):
                value = y.scale * (entry - y.zero_point)
                wider = best_range.union(Range(value, value))
                best_range = wider if wider.span <= farthest * output_range.span else best_range
        return None if best_range == output_range else best_range

    def _find_end_code(self, end: float, read: Quant) -> tuple[int, float] | None:
        """Return the last code in use towards an end of the input's range, and how many times wider the output may get for it.

        None where the output's codes are meant to end before.
        """
        assert self.input_range is not None and self.output_range is not None
        with np.errstate(all="ignore"):
            result = float(self.f(np.array([end]))[0]) / self.y.scale
        allowed = max(BENT_CODES, BENT * abs(result))
        if not np.isfinite(result) or self._is_held(result + self.y.zero_point, allowed):
            return self._get_code(end, read), FARTHEST
        if self.output_range.tails is None:
            return None
        codes = np.arange(self._get_code(self.input_range.low, read), self._get_code(self.input_range.high, read) + 1)
        with np.errstate(all="ignore"):
            results = self.f(read.scale * (codes - read.zero_point))
        measured = codes[(self.output_range.low <= results) & (results <= self.output_range.high)]
        if not measured.size:
            return None
        return int(measured[np.argmin(np.abs(measured - self._get_code(end, read)))]), FARTHEST_OF_CUT

    def _get_code(self, real: float, read: Quant) -> int:
        return int(np.clip(np.rint(real / read.scale) + read.zero_point, *self.numerics.activation.limits))

    def _is_held(self, code: float, allowed: float) -> bool:
        """Return whether the output's codes hold a number in codes, or miss it by no more than `allowed` codes."""
        least, most = self.numerics.activation.limits
        return least - allowed <= code <= most + allowed
