"""A stand-in for CuPy on the CPU: arrays that mix with numpy's no more than CuPy's do, and have no more functions.

Where CuPy would refuse (an operand of numpy's, a conversion by numpy, a function that it does not have), these refuse too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

# What the reference may ask of cupy; tests/runtime/test_cuda_reference.py holds these names against cupy where it is installed.
UFUNCS = frozenset(
    """absolute add bitwise_and bitwise_or equal fmax fmin greater greater_equal isfinite left_shift less less_equal logical_and
    logical_or matmul maximum minimum multiply negative nextafter not_equal right_shift rint subtract""".split()  # noqa: SIM905
)
FUNCTIONS = frozenset(
    "asarray ascontiguousarray broadcast_to clip concatenate empty pad repeat stack take where zeros".split()  # noqa: SIM905
)
METHODS = frozenset("astype copy max min reshape sum transpose view".split())  # noqa: SIM905
ATTRIBUTES = frozenset("T dtype flags itemsize ndim shape size".split())  # noqa: SIM905


class DeviceArray:
    """An array "on the device": a numpy array in a box that numpy cannot open."""

    __array_priority__ = 100

    def __init__(self, boxed: np.ndarray):
        assert isinstance(boxed, np.ndarray), type(boxed)
        self._boxed = boxed

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or ufunc.__name__ not in UFUNCS:
            return NotImplemented
        if "out" in options:
            (out,) = options["out"]
            ufunc(*map(_open, inputs), **{**options, "out": (_open(out),)})
            return out
        return _box(ufunc(*map(_open, inputs), **options))

    def __array_function__(self, function: Callable[..., Any], types: Iterable[type], args: Any, options: Any) -> Any:
        if function.__module__ != "numpy" or function.__name__ not in FUNCTIONS:
            return NotImplemented
        # what comes from the host crosses in asarray alone
        opened = (
            (np.asarray(args[0]), *args[1:]) if function is np.asarray and not isinstance(args[0], DeviceArray) else _open(args)
        )
        return _box(function(*opened, **_open(options)))

    def __getattr__(self, name: str) -> Any:
        if name in ATTRIBUTES:
            value = getattr(self._boxed, name)
            return _box(value) if name == "T" else value
        if name in METHODS:
            return lambda *args, **options: _box(getattr(self._boxed, name)(*_open(args), **_open(options)))
        raise AttributeError(f"cupy.ndarray or its stand-in has no {name}")

    def __getitem__(self, index: Any) -> DeviceArray:
        return _box(self._boxed[_open(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._boxed[_open(index)] = _open(value)

    def __neg__(self) -> DeviceArray:
        return _box(-self._boxed)

    def __len__(self) -> int:
        return len(self._boxed)

    def __int__(self) -> int:
        return int(self._boxed)

    def __bool__(self) -> bool:
        return bool(self._boxed)


def _binary(name: str, reflected: bool) -> Callable[[DeviceArray, Any], Any]:
    function = getattr(operator, name)
    if reflected:
        return lambda self, other: _box(function(_open(other), self._boxed))
    return lambda self, other: _box(function(self._boxed, _open(other)))


def _in_place(name: str) -> Callable[[DeviceArray, Any], Any]:
    function = getattr(operator, name)

    def run(self: DeviceArray, other: Any) -> DeviceArray:
        function(self._boxed, _open(other))
        return self

    return run


for _name in ("add", "sub", "mul", "and_", "or_", "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(DeviceArray, f"__{_name.rstrip('_')}__", _binary(_name, reflected=False))
for _name in ("add", "sub", "mul", "and_", "or_"):
    setattr(DeviceArray, f"__r{_name.rstrip('_')}__", _binary(_name, reflected=True))
for _name in ("iadd", "isub", "imul"):
    setattr(DeviceArray, f"__{_name}__", _in_place(_name))


def _box(value: Any) -> DeviceArray:
    return DeviceArray(np.asarray(value))


def _open(value: Any) -> Any:
    """Return an operand for numpy. Arrays of numpy are refused, as CuPy refuses them."""
    if isinstance(value, DeviceArray):
        return value._boxed
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, tuple | list):
        return type(value)(map(_open, value))
    if isinstance(value, dict):
        return {name: _open(item) for name, item in value.items()}
    return value


class DeviceLibrary:
    """The functions of the module cupy that a backend uses. `uploads`: arrays that were brought to the device."""

    def __init__(self) -> None:
        self.uploads = 0

    def asarray(self, a: Any) -> DeviceArray:
        """Return a copy on the device."""
        self.uploads += 1
        return DeviceArray(np.array(a))

    def asnumpy(self, a: DeviceArray) -> np.ndarray:
        """Return a copy of numpy's."""
        return a._boxed.copy()
