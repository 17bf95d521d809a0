"""Errors of the fixed-point core. Each names the thing, its value, the limit and the way out."""


class FixedPointError(ValueError):
    """Arguments that describe no arithmetic a machine can do: shapes that disagree, a parameter out of its range."""


class ScaleRangeError(FixedPointError):
    """A real scale that the machine's scale form (multiplier width, shift range) cannot express."""
