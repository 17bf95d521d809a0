"""Tables of a function, and which numbers an interpolated one is read at: its 512 steps are for those that occur."""

from __future__ import annotations

from collections.abc import Callable
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

# What an entry may saturate by, in codes, and of the output at the end of the range in use. Less than this is left: tensors
# that share a scale would part, and be rescaled, for the last few numbers of one.
BENT_CODES, BENT = 2.0, 2.0**-7
FARTHEST = 16.0  # times an output's range: what a wider one would cost is more than an end that is bent
COARSE = 2.0**-8  # of the output's codes: an interpolated table that is off by more is no better than one of 8 bits
_FINER = 2.0  # by so much at least is a table better for which its input is rescaled, and so much finer is that
_EQUAL = 1e-6  # of two scales, relative
_HALVINGS = 60  # of what lies between two entries
_LOOKED_AT = 1 << 11  # numbers over the range of what a function reads


def make_table(f: Callable[[Array], Array], x: Quant, y: Quant, numerics: Numerics) -> LookupTable:
    """The table of f from codes of scale x to codes of scale y, both of the type of `numerics`."""
    if not numerics.activation.interpolates:
        signed = numerics.activation.low < 0
        half = Rounding.HALF_EVEN if numerics.rounding is Rounding.FP32_RNE else Rounding.HALF_AWAY
        table = build_table8(f, x.scale, x.zero_point, y.scale, y.zero_point, signed=signed, rounding=half)
        return LookupTable(table, "none")
    entries = build_table16(
        _extend_to_undefined(f),
        x.scale,
        y.scale,
        form=_form(y, numerics),
        input_zero_point=x.zero_point,
        output_zero_point=y.zero_point,
    )
    return LookupTable(entries, numerics.interpolation)


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


def _form(y: Quant, numerics: Numerics) -> TableForm:
    """TFLite's table knows no output zero point; its samples differ from TOSA's, its interpolation does not."""
    return "tflite" if numerics.interpolation == "tflite" and y.zero_point == 0 else "tosa"


@dataclass(frozen=True)
class TableReadout:
    """An interpolated table of f, from codes of x to those of y.

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
        """Return the scale to which its input is rescaled, or its own where that would do or nothing is gained.

        A part of a tensor has the scale of the complete tensor, of which it may fill less than a step.
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
        """Find the scale for the part alone: no finer than a step of the table a code, or than the machine can make codes."""
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
        """What the output's codes should hold where its input is rescaled to `read`; None: nothing more. The first and the last
        code in use lie between entries of which one is beyond the range in use: an entry that saturates there bends what is
        interpolated. So the output's codes hold it, where it is a number and not far off, but where they end before what is made
        at the end of the range in use: a file clips there."""
        if self.input_range is None or self.output_range is None:
            return None
        y, (least, most), form = self.y, self.numerics.activation.limits, _form(self.y, self.numerics)
        entries = entries16(
            self.f, read.scale, y.scale, form=form, input_zero_point=read.zero_point, output_zero_point=y.zero_point
        )
        output_range = self.output_range.with_zero()
        best_range = output_range
        for end in (self.input_range.low, self.input_range.high):
            code = int(np.clip(np.rint(end / read.scale) + read.zero_point, least, most))
            with np.errstate(all="ignore"):
                made = float(self.f(np.array(end))) / y.scale
            bent = max(BENT_CODES, BENT * abs(made))
            if np.isfinite(made) and not least - bent <= made + y.zero_point <= most + bent:
                continue  # the output's codes are meant to end before
            neighbours = [
                float(t) for t in entries[neighbour_entries16(code)] if np.isfinite(t) and not least - bent <= t <= most + bent
            ]
            for value in (y.scale * (t - y.zero_point) for t in neighbours):
                wider = best_range.union(Range(value, value))
                best_range = wider if wider.span <= FARTHEST * output_range.span else best_range
        return None if best_range == output_range else best_range
