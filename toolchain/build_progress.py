"""Estimate the time that a build still takes, and add it to what the build says of its progress.

It comes from the measured ratio of planning and checking to loading and calibrating, so it is rough.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

from toolchain.compiler import Progress

# Times of stages over that of loading and of calibrating on eight samples. Of MobileNetV2, ResNet-50, YOLOv5n and BERT tiny at
# -O2 on edge16, planning took 4.5, 3.3, 3.1 and 4.1, and all behind it 1.5, 1.2, 1.4 and 1.0.
_SAMPLES, _PLANNED, _CHECKED = 8, 3.8, 1.35
_CHECKED_OVER_PLANNED = _CHECKED / _PLANNED
_SHOWN_FROM = 1 / 3  # of the build: before it the estimate is not good enough to be shown


class TimeLeft:
    """An estimator of the seconds that a build still takes, from the times of its stages so far.

    `clock`: returns seconds, rising.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._stage = clock, ""
        self._began_s = self._loaded_s = self._planned_s = self._checked_s = 0.0  # when each began or ended
        self._sample_s = 0.0

    def update(self, stage: str, done: int) -> float | None:
        """Note the stage of the build, and return the seconds left; None where they are not known well enough.

        They are not in the first third of the estimated time, before planning, without calibration, and behind the estimate.
        `stage`: the build's name for it; `load`, `calibrate`, `compile` and `check` matter here. `done`: how much of the
        stage is done; it is read in `calibrate` alone, where it is the number of samples.
        """
        now_s = self._clock()
        if stage != self._stage:
            self._enter(stage, now_s)
        if stage == "calibrate" and done:
            self._sample_s = (now_s - self._loaded_s) / done
        unit_s = self._loaded_s - self._began_s + _SAMPLES * self._sample_s
        if not self._planned_s or not self._sample_s:
            return None
        if self._checked_s:
            ends_s = self._checked_s + _CHECKED_OVER_PLANNED * (self._checked_s - self._planned_s)
        else:
            planned_s = max(_PLANNED * unit_s, now_s - self._planned_s)
            ends_s = self._planned_s + (1 + _CHECKED_OVER_PLANNED) * planned_s
        left_s = ends_s - now_s
        is_known = now_s - self._began_s >= _SHOWN_FROM * (ends_s - self._began_s)
        return left_s if is_known and left_s > 0 else None

    def _enter(self, stage: str, now_s: float) -> None:
        """Note when loading, planning or checking begins or ends."""
        if not self._stage:
            self._began_s = self._loaded_s = now_s
        if self._stage == "load":
            self._loaded_s = now_s
        if stage == "compile" and not self._planned_s:
            self._planned_s = now_s
        if stage == "check" and not self._checked_s:
            self._checked_s = now_s
        self._stage = stage


def add_time_left(callback: Callable[..., Any], estimate: TimeLeft | None = None) -> Progress:
    """Return a function (stage, done, total) that calls `callback` with the seconds left as a fourth argument.

    A callback without a fourth parameter is returned as it is.

    `estimate`: the estimator; None: a new one.
    """
    if not _takes_time_left(callback):
        return callback
    estimate = estimate or TimeLeft()

    def update(stage: str, done: int, total: int | None) -> None:
        callback(stage, done, total, estimate.update(stage, done))

    return update


def _takes_time_left(callback: Callable[..., Any]) -> bool:
    """Return whether a function takes a fourth argument for the time left.

    A default other than None is there to be kept, as in `bar=bar`, so it does not count.
    """
    try:
        signature = inspect.signature(callback)
        names = list(signature.bind("", 0, None, None).arguments)
    except (TypeError, ValueError):
        return False
    default = signature.parameters[names[3]].default if len(names) > 3 else None
    return default is None or default is inspect.Parameter.empty
