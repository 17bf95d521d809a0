"""Define the SQNR that an output of a random network must reach."""

from __future__ import annotations

from collections.abc import Sequence

from tests.semantics.judge import EXACT_DB, Judged

LEAST_DB = 40.0  # on int16
BELOW_DB = 3.0  # on int8, below the file rounded where the chip rounds
# What may cost more, by what is drawn. Steps (Round, Floor, Ceil, Sign) are not: a code beside a step is a whole step away.
QUOTIENT = "rounding errors of a dividend and its divisor may cancel in the file's order of rounding, not in the chip's"
TWICE = "a Gemm whose third operand is a matrix is a product and a sum: two roundings where the file has one"
FEW = "of fewer than 64 numbers that are not zero the error is luck"
FEW_NUMBERS = 64
# Such numbers may be a few codes large. An int16 table is interpolated over 128 codes: beside the kink of an Abs or a LeakyRelu
# it is up to a quarter of that off, in steps that may be finer behind the table.
FEW_CODES = 128.0
LOOSE_DB = {QUOTIENT: 9.0, TWICE: 6.0, FEW: 9.0}


def beyond_16(output: Judged) -> bool:
    """Return whether the file itself, rounded to 16 bits, cannot have LEAST_DB, as where large terms cancel."""
    return output.rounded_db - BELOW_DB < LEAST_DB


def right_on_16(output: Judged) -> bool:
    few = output.numbers < FEW_NUMBERS and output.error_codes <= FEW_CODES
    return few or output.within_float or output.sqnr_db >= min(LEAST_DB, output.rounded_db - BELOW_DB)


def right_on_8(output: Judged, loose: Sequence[str]) -> bool:
    """Return whether an output is right on 8 bits.

    `loose`: causes of LOOSE_DB that the network brings with it.
    """
    why = [*loose, *([FEW] if output.numbers < FEW_NUMBERS else [])]
    below = max((LOOSE_DB[cause] for cause in why), default=BELOW_DB)
    # Of few numbers one code of one of them is heard; where the rounded file hits them all, that is luck.
    most = min(EXACT_DB, output.codes_db) if output.numbers < FEW_NUMBERS else EXACT_DB
    return output.within_float or output.sqnr_db >= min(most, output.rounded_db - below)
