"""Name functions of one number as machine files do: ONNX's operator in snake case, for which a vector engine may have a rate."""

from __future__ import annotations

import re

from toolchain.hw.chip import Chip
from toolchain.machine import TABLE_FUNCTIONS
from toolchain.ops.scalar_functions import ONNX_UNARY, Function, X, clip_bounds

FUNCTION_NAMES = {op: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op).lower() for op in ONNX_UNARY}
_COMMUTE = ("add", "mul", "min", "max")


def _sort_operands(function: Function) -> Function:
    """Return the same function with the operands of sums and products in one order."""
    if isinstance(function, float | int):
        return float(function)
    arguments = [_sort_operands(argument) for argument in function[1:]]
    return (function[0], *(sorted(arguments, key=repr) if function[0] in _COMMUTE else arguments))


# Clip without bounds is no function.
_NAME_BY_FUNCTION = {_sort_operands(make(X, {})): FUNCTION_NAMES[op] for op, make in ONNX_UNARY.items() if make(X, {}) != X}


def find_name_fault(name: str | None) -> str | None:
    """Return why no machine can have a rate for a function of this name, as a phrase; None: one can, or `name` is None."""
    names = {*FUNCTION_NAMES.values(), *TABLE_FUNCTIONS}
    return None if name is None or name in names else f"{name}: must be None or one of {', '.join(sorted(names))}"


def get_onnx_name(function: Function) -> str | None:
    """Return the name of the ONNX operator, with default attributes, that a function computes; x * sigmoid(x) is `swish`.

    None: there is none.
    """
    return _NAME_BY_FUNCTION.get(_sort_operands(function))


def prefers_one_function(function: Function, name: str | None, chip: Chip) -> bool:
    """Return whether a chain of functions should become this one function on the machine.

    A machine that has rates for single functions and no `table` runs them separately, unless it has this one or it is a
    clamp.
    """
    functions = chip.functions
    general = "table" in functions or functions.isdisjoint(TABLE_FUNCTIONS)
    return general or name in functions or clip_bounds(function) is not None
