"""Finds the step of input data: the largest number of which all values are integer multiples, such as 1 / 255 of an image.

Calibration records it with an input's range (`quant.observe.Range.step`), so that the scale can hold such values exactly.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_ROUNDING = 2.0**-21  # of the largest magnitude: what arithmetic in float32 leaves of a multiple
_MOST_STEPS = 2.0**16  # from 0 to the largest magnitude: finer steps are finer than any codes, and could be chance
_BETWEEN = 8  # times as far two multiples may be from one: what both leave of a third adds up
_LOOKED_AT = 4096  # values that a step is made of at once
_ROUNDS = 64  # of finding a step and what is none of it; a step can be halved 16 times only


class Sink(Protocol):
    """Interface of objects that receive a tensor's values, one array for each sample."""

    def update(self, x: Array) -> None: ...


ObserverSink = TypeVar("ObserverSink", bound=Sink)


class InputSink(Generic[ObserverSink]):
    """A sink that passes the values of a network's input to `observer` and finds their step."""

    def __init__(self, observer: ObserverSink) -> None:
        self.observer = observer
        self._step = CommonStep()

    def update(self, x: Array) -> None:
        self.observer.update(x)
        self._step.update(x)

    @property
    def step(self) -> float | None:
        """The step of all values so far; None where there is none."""
        return self._step.step


class CommonStep:
    """A search for the largest number of which all values are integer multiples, up to float32 rounding.

    Examples are 1 / 32768 of 16-bit audio and 1 / 255 of an image. `step` is None where there is no step of at least 1 / 65536 of
    the largest magnitude, and for zeros alone. Values come by `update`, finite, in arrays of any shape.
    """

    CHUNK = 1 << 20  # values looked at together, to bound the memory that it takes

    def __init__(self) -> None:
        self._step = self._peak = 0.0
        self._none = False

    @property
    def step(self) -> float | None:
        """The step of all values so far, rounded to float32; None where there is none."""
        return None if self._none or not self._step else float(np.float32(self._step))

    def update(self, x: Array) -> None:
        """Take values into account: finite, any shape."""
        flat = x.ravel()
        for start in range(0, flat.size, self.CHUNK):
            if self._none:
                return
            self._take(np.abs(flat[start : start + self.CHUNK].astype(np.float64)))

    def _take(self, x: Array) -> None:
        """Take values into account.

        `x`: float64[n], none negative.
        """
        self._peak = max(self._peak, float(x.max()))
        others = x[x > self._rounding]
        for _ in range(_ROUNDS):
            if not others.size:
                return
            self._step = _common(self._step, np.sort(others[:_LOOKED_AT]), self._rounding)
            if self._step * _MOST_STEPS < self._peak * (1 - _ROUNDING):
                self._none = True
                return
            counts = np.rint(x / self._step)
            self._step = float(counts @ x / (counts @ counts))
            others = x[np.abs(x - counts * self._step) > self._rounding]
        self._none = bool(others.size)  # too far from multiples for float32, too near for a finer step

    @property
    def _rounding(self) -> float:
        """The distance from a multiple that float32 rounding explains."""
        return self._peak * _ROUNDING


def _common(step: float, values: Array, rounding: float) -> float:
    """Return the largest number of which `step` (0: any) and `values` are multiples, up to `rounding`; 0 where it is below that.

    `values`: positive and ascending, so that each value determines the step more precisely than the previous ones.
    """
    for value in values.tolist():
        rest, step = step or value, value
        while rest > _BETWEEN * rounding:
            step, rest = rest, abs(step - round(step / rest) * rest)
        step = value / max(round(value / step), 1)
        if step < rounding:
            return 0.0
    return step
