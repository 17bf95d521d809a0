"""Represent functions of one number as data, evaluate them, and recognise clamps and scalings among them.

A function is a nested tuple: ("x",) is the argument, a float is itself, ("sigmoid", f) applies, ("mul", f, g) combines.
`PRIMITIVES` has the names. `ONNX_UNARY` makes the function of an ONNX operator from its argument and attributes.
("where_positive", c, f, g) is f where c is above 0, else g.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from quant.fixed_point.pointwise.real_functions import erf, sigmoid
from toolchain.ops.kit.operator import Array

Function = Any  # ("x",) | float | (name, Function, ...)
Attributes = Mapping[str, Any]


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _where_positive(x: Array, yes: Array, no: Array) -> Array:
    return np.where(x > 0, yes, no)


PRIMITIVES: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "min": np.minimum,
    "max": np.maximum,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "neg": np.negative,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "erf": erf,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "softplus": _softplus,
    "where_positive": _where_positive,
}

_ARGUMENTS = {**dict.fromkeys(("add", "sub", "mul", "div", "pow", "min", "max"), 2), "where_positive": 3, "x": 0}  # others: 1
X: Function = ("x",)
SIGN: Function = ("sign", X)
SQUARE: Function = ("mul", X, X)
Bounds = tuple[float | None, float | None]  # of a clamp
_OTHER_END = {"min": "max", "max": "min"}


def _leaky(x: Function, slope: float) -> Function:
    return ("where_positive", x, x, ("mul", x, slope))


def _clip(x: Function, low: float | None, high: float | None) -> Function:
    y = x if low is None else ("max", x, float(low))
    return y if high is None else ("min", y, float(high))


def _hard_sigmoid(x: Function, alpha: float, beta: float) -> Function:
    return _clip(("add", ("mul", x, alpha), beta), 0.0, 1.0)


def _gelu(x: Function, approximate: str) -> Function:
    if approximate == "tanh":
        inner = ("mul", ("add", x, ("mul", 0.044715, ("mul", x, ("mul", x, x)))), math.sqrt(2 / math.pi))
        return ("mul", ("mul", x, 0.5), ("add", ("tanh", inner), 1.0))
    return ("mul", ("mul", x, 0.5), ("add", ("erf", ("mul", x, math.sqrt(0.5))), 1.0))


def _selu(x: Function, alpha: float, gamma: float) -> Function:
    return ("mul", gamma, _elu(x, alpha))


def _elu(x: Function, alpha: float) -> Function:
    return ("where_positive", x, x, ("mul", alpha, ("sub", ("exp", ("min", x, 0.0)), 1.0)))


# ONNX operators of one tensor, with their attributes' defaults (onnx.ai/onnx/operators).
ONNX_UNARY: dict[str, Callable[[Function, Attributes], Function]] = {
    **{
        name.capitalize(): (lambda x, a, n=name: (n, x))
        for name in [
            "exp",
            "log",
            "sqrt",
            "abs",
            "neg",
            "sigmoid",
            "tanh",
            "erf",
            "sin",
            "cos",
            "tan",
            "atan",
            "asin",
            "acos",
            "sinh",
            "cosh",
            "floor",
            "ceil",
            "round",
            "sign",
        ]
    },
    "Asinh": lambda x, a: ("asinh", x),
    "Acosh": lambda x, a: ("acosh", x),
    "Atanh": lambda x, a: ("atanh", x),
    "Softplus": lambda x, a: ("softplus", x),
    "Softsign": lambda x, a: ("div", x, ("add", 1.0, ("abs", x))),
    "Reciprocal": lambda x, a: ("div", 1.0, x),
    "Relu": lambda x, a: _clip(x, 0.0, None),
    "Clip": lambda x, a: _clip(x, a.get("min"), a.get("max")),
    "LeakyRelu": lambda x, a: _leaky(x, float(a.get("alpha", 0.01))),
    "HardSigmoid": lambda x, a: _hard_sigmoid(x, float(a.get("alpha", 0.2)), float(a.get("beta", 0.5))),
    "HardSwish": lambda x, a: ("mul", x, _hard_sigmoid(x, 1 / 6, 0.5)),
    "Elu": lambda x, a: _elu(x, float(a.get("alpha", 1.0))),
    "Selu": lambda x, a: _selu(x, float(a.get("alpha", 1.67326319)), float(a.get("gamma", 1.05070102))),
    "Celu": lambda x, a: _elu_celu(x, float(a.get("alpha", 1.0))),
    "ThresholdedRelu": lambda x, a: ("where_positive", ("sub", x, float(a.get("alpha", 1.0))), x, 0.0),
    "Mish": lambda x, a: ("mul", x, ("tanh", ("softplus", x))),
    "Gelu": lambda x, a: _gelu(x, str(a.get("approximate", "none"))),
    "Swish": lambda x, a: ("mul", x, ("sigmoid", _times(x, float(a.get("alpha", 1.0))))),
}


def _times(x: Function, factor: float) -> Function:
    return x if factor == 1.0 else ("mul", x, factor)


def _elu_celu(x: Function, alpha: float) -> Function:
    return ("add", ("max", x, 0.0), ("min", 0.0, ("mul", alpha, ("sub", ("exp", ("div", ("min", x, 0.0), alpha)), 1.0))))


def evaluate(function: Function, x: Array) -> Array:
    """Return function(x), float64[...] -> float64[...]; inf and nan pass through, and numpy may warn of them.

    The function may be of any depth. Time does not grow exponentially where parts are shared.
    """
    value_by_id: dict[int, Array] = {}  # by the part's id
    waiting = [function]
    while waiting:
        part = waiting[-1]
        arguments = () if isinstance(part, float | int) or part[0] == "x" else part[1:]
        missing = [argument for argument in arguments if id(argument) not in value_by_id]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if isinstance(part, float | int):
            value_by_id[id(part)] = np.full(np.shape(x), float(part))
        else:
            value_by_id[id(part)] = x if part[0] == "x" else PRIMITIVES[part[0]](*(value_by_id[id(a)] for a in arguments))
    return value_by_id[id(function)]


def find_function_fault(function: Function) -> str | None:
    """Return why a value is not a function of x, as a phrase; None: it is one."""
    if isinstance(function, float | int):
        return f"{function}: is a number, not a function of x"
    met, pending, has_x = set[int](), [function], False
    while pending:
        part = pending.pop()
        if id(part) in met or isinstance(part, float | int):
            continue
        met.add(id(part))
        if not isinstance(part, tuple) or not part or part[0] not in (*PRIMITIVES, X[0]):
            return f"{part[0] if isinstance(part, tuple) and part else part}: must be one of {', '.join((X[0], *PRIMITIVES))}"
        part = cast(tuple[Any, ...], part)
        has_x = has_x or part[0] == X[0]
        arguments = _ARGUMENTS.get(part[0], 1)
        if len(part) != 1 + arguments:
            return f"{part[0]}: must have {arguments} arguments, has {len(part) - 1}"
        pending += part[1:]
    return None if has_x else f"{function[0]}: is a constant, not a function of x"


def substitute(function: Function, inner: Function) -> Function:
    """Return function(inner(x)). `function` is a single operator's, of no great depth; `inner` is taken as it is."""
    if isinstance(function, float | int):
        return function
    if function[0] == "x":
        return inner
    return (function[0], *(substitute(argument, inner) for argument in function[1:]))


def clip_bounds(function: Function) -> Bounds | None:
    """Return (low, high) when the function is only a clamp of x (Relu, Clip), else None; low is never above high.

    An open end is None: x itself gives (None, None). A bound must be the second argument of its min or max.
    Of two that contradict each other the outer one decides, as when a Clip's min is above its max.
    """
    factor_and_bounds = find_scaled_bounds(function)
    return factor_and_bounds[1] if factor_and_bounds is not None and factor_and_bounds[0] == 1.0 else None


def find_scaled_bounds(function: Function) -> tuple[float, Bounds] | None:
    """Return (k, (low, high)) when the function is k x, clamped to low..high, else None. k is finite and not zero."""
    inner = affine_bounds(function)
    return (inner[0], inner[2]) if inner is not None and inner[1] == 0 else None


def affine_bounds(function: Function) -> tuple[float, float, Bounds] | None:
    """Return (k, b, (low, high)) when the function is k x + b, clamped to low..high, else None.

    Both k and b are finite, and k is not 0.
    """
    steps: list[tuple[str, float]] = []  # from the outermost on, as clamps of the result
    factor, offset = 1.0, 0.0
    while not isinstance(function, float | int) and function != X:
        if function[0] in ("min", "max") and isinstance(function[2], float | int):
            if math.isnan(function[2]):
                return None
            kind = function[0] if factor > 0 else _OTHER_END[function[0]]
            steps.append((kind, function[2] * factor + offset))
            function = function[1]
            continue
        affine_form = _affine(function)
        if affine_form is None:
            return None
        offset += factor * affine_form[1]
        factor, function = factor * affine_form[0], affine_form[2]
        if not math.isfinite(factor) or factor == 0 or not math.isfinite(offset):
            return None
    if isinstance(function, float | int):
        return None
    low, high = None, None
    for kind, value in reversed(steps):
        if kind == "max":
            low, high = value if low is None else max(low, value), None if high is None else max(high, value)
        else:
            low, high = None if low is None else min(low, value), value if high is None else min(high, value)
    return factor, offset, (low, high)


def multiple(function: Function) -> float | None:
    """Return k where the function is k x without a clamp and k is positive, else None. The codes are then those of x at k
    times the scale.
    """
    factor_and_bounds = find_scaled_bounds(function)
    return (
        factor_and_bounds[0]
        if factor_and_bounds is not None and factor_and_bounds[0] > 0 and factor_and_bounds[1] == (None, None)
        else None
    )


def _affine(function: Function) -> tuple[float, float, Function] | None:
    """Return (k, b, f) where the function is k f + b, else None."""
    kind, *arguments = function
    if kind == "neg":
        return -1.0, 0.0, arguments[0]
    if kind in ("mul", "add"):
        pair = next(((a, b) for a, b in (arguments, arguments[::-1]) if isinstance(a, float | int)), None)
        return None if pair is None else (pair[0], 0.0, pair[1]) if kind == "mul" else (1.0, pair[0], pair[1])
    if kind == "sub":
        first, second = arguments
        if isinstance(second, float | int):
            return 1.0, -second, first
        return (-1.0, first, second) if isinstance(first, float | int) else None
    if kind == "div" and isinstance(arguments[1], float | int) and arguments[1]:
        return 1 / arguments[1], 0.0, arguments[0]
    return None
