"""An interpolated table is read at no finer codes than the machine can make, however little of its input tells something."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quant.fixed_point import ScaleForm
from quant.observe import Range
from toolchain.ir.graph import Quant
from toolchain.isa import load_machine
from toolchain.ops.interpolated_tables import TableReadout


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3000.0])
@pytest.mark.parametrize("told", [(0, 0), (0, 1e-9), (-1e-3, 0), (-0.1, 0.2)])
@pytest.mark.parametrize("form", [ScaleForm("multiplier", 8, 0, 62), ScaleForm("multiplier", 4, 0, 62)])
def test_no_finer_than_a_change_of_scale_reaches(scale: float, told: tuple[float, float], form: ScaleForm) -> None:
    numerics = replace(load_machine("wide32_w4a16").chip.numerics, scale=form)
    x = Quant(scale, 0)
    reading = TableReadout(np.sign, x, Quant(1 / 32767, 0), Range(-3e4 * scale, 3e4 * scale), Range(-1, 1), numerics)
    found = reading.finest(Range(told[0] * scale, told[1] * scale))
    assert 2 <= x.scale / found.scale <= form.extremes[1] * (1 + 1e-6)
