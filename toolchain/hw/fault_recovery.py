"""Find sound values for the faulty keys of a file, so that all of its other faults show at once.

A model can be checked across sections only when each key is sound. Here faulty values are replaced by others, twice and
differently; a rule that both models break is a fault whatever the author meant.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from toolchain.foundation.type_guards import is_list
from toolchain.hw.type_rules import Broken
from toolchain.hw.yaml_source import KeyPath, is_section

Model = TypeVar("Model")


_MOST = 32  # faults of one file that are mended
_LEFT_OUT = object()  # the key is not there
# One of these is sound wherever a machine takes a number, a size, a list or a section.
_VALUES: tuple[Any, ...] = (
    *(1, 31, 2.5, "64 MiB", "1 GHz", True, "own", [3, 3], [3], {}),
    *(16, 64, 0.5, "1 KiB", "1 MHz", False, "other", [1, 1], [1], [], 0),
)


@dataclass(frozen=True)
class RecoveredFault:
    """A fault of the file, at `path`.

    `words`: words that may stand there. `grave`: the fault hides others. `around`: its whole section depends on it.
    """

    path: KeyPath
    reason: str
    words: tuple[str, ...] = ()
    grave: bool = False
    around: bool = False


Judge = Callable[[Any], Model | list[RecoveredFault]]


@dataclass(frozen=True)
class RecoveredModels(Generic[Model]):
    """The faults of a file, and the models that the file gives with sound values in their places.

    `models`: two models, or none where no such values were found.
    """

    faults: tuple[RecoveredFault, ...] = ()
    models: tuple[Model, ...] = ()

    def certain(self, broken: Callable[[Model], Iterable[Broken]]) -> list[Broken]:
        """Return the rules that both models break, so that they do not depend on the values put in; [] without models.

        `broken`: returns a model's broken rules, which are the same where path and reason are equal.
        """
        each = [list(broken(model)) for model in self.models]
        return [fault for fault in (each[0] if each else ()) if all(fault in one for one in each)]


def readings(judge: Judge[Model], data: Any) -> RecoveredModels[Model]:
    """Return the faults of the data, and two models with sound values in their places.

    `data`: has faults, and is not changed. `judge`: returns the model of data, or its faults.
    Faults that show behind others count only where both ways of replacing values show them.
    No models are returned where there are more than 32 faults, or no sound values are found.
    """
    first = judge(data)
    if len(_get_faults(first)) > _MOST:
        return RecoveredModels(_get_faults(first))
    models, met = list[Model](), list[dict[Broken, RecoveredFault]]()
    for last in (False, True):
        tried, fault_by_key, places = copy.deepcopy(data), dict[Broken, RecoveredFault](), list[KeyPath]()
        for _ in range(_MOST + 1):  # after the last value, too, the data are judged
            result = judge(tried) if places else first
            if not isinstance(result, list):
                models.append(result)
                break
            faults = _get_faults(result)
            fault_by_key |= {(fault.path, fault.reason): fault for fault in faults if not _touches(fault.path, places)}
            place = _mend(judge, tried, faults, last)
            if place is None:
                break
            places.append(place[:-1] if faults[0].around else place)
        met.append(fault_by_key)
    certain = tuple(fault for key, fault in met[0].items() if key in met[1])
    return RecoveredModels(certain, tuple(models) if len(models) == len(met) else ())


def _get_faults(result: Any) -> tuple[RecoveredFault, ...]:
    """Return the faults that a judge returned; () for a model."""
    return tuple(result) if is_list(result) else ()


def _touches(path: KeyPath, places: Iterable[KeyPath]) -> bool:
    """Return whether the path lies inside one of these places, or around one."""
    return any(path[: len(place)] == place or place[: len(path)] == path for place in places)


def _mend(judge: Judge[Any], data: Any, faults: Sequence[RecoveredFault], last: bool) -> KeyPath | None:
    """Replace a value of `data` at the first fault, or around it, so that the fault goes, and return its path.

    None: no value takes the fault away. `last`: take the last of equally good values, so that two runs differ.
    """
    fault, path = faults[0], faults[0].path
    while path:
        best, good = _weight(faults), list[Any]()
        for value in (_LEFT_OUT, *fault.words, *_VALUES):
            tried = copy.deepcopy(data)
            if not _put(tried, path, value):
                continue
            remaining_faults = _get_faults(judge(tried))
            weight = _weight(remaining_faults)
            if weight > best or any(f.path == fault.path for f in remaining_faults):
                continue
            good, best = [*(good if weight == best else ()), value], weight
        if good and best < _weight(faults):
            _put(data, path, good[-1 if last else 0])
            return path
        path = path[:-1]
    return None


def _weight(faults: Sequence[RecoveredFault]) -> tuple[int, int]:
    """Return (number of grave faults, number of faults), which is to become smaller."""
    return sum(fault.grave for fault in faults), len(faults)


def _put(data: Any, path: KeyPath, value: Any) -> bool:
    """Put the value at the path; return whether it could be put there."""
    *before, key = path
    for part in before:
        data = _inside(data, part)
    if is_section(data) and isinstance(key, str):
        if value is _LEFT_OUT:
            return data.pop(key, _LEFT_OUT) is not _LEFT_OUT
        data[key] = copy.deepcopy(value)
        return True
    if is_list(data) and isinstance(key, int) and key < len(data) and value is not _LEFT_OUT:
        data[key] = copy.deepcopy(value)
        return True
    return False


def _inside(data: Any, part: str | int) -> Any:
    """Return the entry of a section or list; None where there is none."""
    if is_section(data):
        return data.get(part)
    return data[part] if is_list(data) and isinstance(part, int) and part < len(data) else None
