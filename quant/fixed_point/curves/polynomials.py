"""Computes GELU and exp by second-order polynomials in integers. Source: I-BERT (Kim et al. 2021).

They are for chips without tables. The quantizer and the programs do not use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError

Array = NDArray[Any]


@dataclass(frozen=True)
class Polynomial:
    """A polynomial (x + b)**2 + c or (x + b) x + c in integers.

    `scale`: real value of one step of the result.
    """

    b: int
    c: int
    scale: float


_ERF_A, _ERF_B, _ERF_C = -0.2888, -1.769, 1.0
_EXP_A, _EXP_B, _EXP_C = 0.35815147, 0.96963238, 1.0


def gelu_polynomial(x: Array, input_scale: float, input_zero_point: int) -> tuple[Array, float]:
    """Return (int64[...], scale) of x (1 + erf(x / sqrt 2)) / 2 for x: int8 or int16[...], erf by a second-order polynomial.

    The result is to be requantized by scale / S_o. The largest error is 0.02 in real units, the mean in docs/nonlinear.md.
    That is beyond half a step of most int8 scales, so prefer a table where the chip has one. Source: I-BERT (Kim et al. 2021),
    I-GELU.
    """
    erf_scale = input_scale / np.sqrt(2.0)
    square_scale = float(_ERF_A * erf_scale**2)
    p = Polynomial(int(np.floor(_ERF_B / erf_scale)), int(np.floor(_ERF_C / square_scale)), square_scale)
    one = int(np.floor(1.0 / square_scale))
    value = x.astype(np.int64) - input_zero_point
    distance = np.minimum(np.abs(value), -p.b)
    erf = np.sign(value) * ((distance + p.b) ** 2 + p.c)
    # square_scale is negative: both signs are turned.
    return -value * (erf + one), -input_scale * square_scale / 2


def exp_polynomial(x: Array, input_scale: float, fraction_bits: int = 30) -> tuple[Array, float]:
    """Return (int64[...], scale) of exp(x input_scale) for x: int64[...] <= 0, by a second-order polynomial of x modulo log 2.

    The result is to be requantized by scale / S_o. Largest error in docs/nonlinear.md. Source: I-BERT (Kim et al. 2021), I-EXP.
    Raise FixedPointError: input_scale above log 2, or more than 62 bits needed.
    """
    ln2 = int(np.floor(np.log(2.0) / input_scale))
    if ln2 < 1:
        raise FixedPointError(f"exp_polynomial: input_scale={input_scale}; must be at most log 2 = 0.6931")
    p = Polynomial(
        int(np.floor(_EXP_B / _EXP_A / input_scale)),
        int(np.floor(_EXP_C / _EXP_A / input_scale**2)),
        _EXP_A * input_scale**2,
    )
    if p.c << fraction_bits >= 1 << 62:
        raise FixedPointError(
            f"exp_polynomial: input_scale={input_scale} and fraction_bits={fraction_bits} need more than 62 bits; "
            "use fewer fraction_bits"
        )
    x = np.asarray(x, np.int64)
    halvings = np.minimum(-x // ln2, fraction_bits)
    rest = np.maximum(x + halvings * ln2, -ln2)
    return ((rest + p.b) * rest + p.c) << (fraction_bits - halvings), p.scale / (1 << fraction_bits)
