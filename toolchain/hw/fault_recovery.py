"""Sound readings of a description that has faults, so that what else is wrong with it shows at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from toolchain.hw.type_rules import Broken
from toolchain.hw.yaml_source import KeyPath

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
    """A fault of the file. words: that may stand there; grave: what else is wrong does not show beside it; around: what is beside
    it in its section hangs on it."""

    path: KeyPath
    reason: str
    words: tuple[str, ...] = ()
    grave: bool = False
    around: bool = False


Judge = Callable[[Any], Model | list[RecoveredFault]]


@dataclass(frozen=True)
class RecoveredModels(Generic[Model]):
    """faults: of the file. models: two that it is with sound values in their places, none where such were not found."""

    faults: tuple[RecoveredFault, ...] = ()
    models: tuple[Model, ...] = ()

    def certain(self, broken: Callable[[Model], Iterable[Broken]]) -> list[Broken]:
        """Of what is broken of each reading, that which does not hang on the values put in: it is so in both."""
        each = [list(broken(model)) for model in self.models]
        return [fault for fault in (each[0] if each else ()) if all(fault in one for one in each)]


def readings(judge: Judge[Model], data: Any) -> RecoveredModels[Model]:
    """judge: the model that data are, or their faults, which they have: all of them where more are met than are mended."""
    first = judge(data)
    if len(_listed(first)) > _MOST:
        return RecoveredModels(_listed(first))
    models, met = list[Model](), list[dict[Broken, RecoveredFault]]()
    for last in (False, True):
        tried, said, places = copy.deepcopy(data), dict[Broken, RecoveredFault](), list[KeyPath]()
        for _ in range(_MOST):
            found = judge(tried) if places else first
            if not isinstance(found, list):
                models.append(found)
                break
            faults = _listed(found)
            said |= {(fault.path, fault.reason): fault for fault in faults if not _touches(fault.path, places)}
            place = _mend(judge, tried, faults, last)
            if place is None:
                break
            places.append(place[:-1] if faults[0].around else place)
        met.append(said)
    certain = tuple(fault for key, fault in met[0].items() if key in met[1])
    return RecoveredModels(certain, tuple(models) if len(models) == len(met) else ())


def _listed(found: Any) -> tuple[RecoveredFault, ...]:
    return tuple(found) if isinstance(found, list) else ()


def _touches(path: KeyPath, places: Iterable[KeyPath]) -> bool:
    return any(path[: len(place)] == place or place[: len(path)] == path for place in places)


def _mend(judge: Judge[Any], data: Any, faults: Sequence[RecoveredFault], last: bool) -> KeyPath | None:
    """Puts a value that takes the first of the faults away where it is, or around it; where that is, None where there is no such
    value. last: the last of those that are as good, which is another than the first."""
    fault, path = faults[0], faults[0].path
    while path:
        best, good = _weight(faults), list[Any]()
        for value in (_LEFT_OUT, *fault.words, *_VALUES):
            tried = copy.deepcopy(data)
            if not _put(tried, path, value):
                continue
            left = _listed(judge(tried))
            weight = _weight(left)
            if weight > best or any(f.path == fault.path for f in left):
                continue
            good, best = [*(good if weight == best else ()), value], weight
        if good and best < _weight(faults):
            _put(data, path, good[-1 if last else 0])
            return path
        path = path[:-1]
    return None


def _weight(faults: Sequence[RecoveredFault]) -> tuple[int, int]:
    return sum(fault.grave for fault in faults), len(faults)


def _put(data: Any, path: KeyPath, value: Any) -> bool:
    """Whether it could be put there."""
    *before, key = path
    for part in before:
        data = _inside(data, part)
    if isinstance(data, dict) and isinstance(key, str):
        if value is _LEFT_OUT:
            return data.pop(key, _LEFT_OUT) is not _LEFT_OUT
        data[key] = copy.deepcopy(value)
        return True
    if isinstance(data, list) and isinstance(key, int) and key < len(data) and value is not _LEFT_OUT:
        data[key] = copy.deepcopy(value)
        return True
    return False


def _inside(data: Any, part: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(part)
    return data[part] if isinstance(data, list) and isinstance(part, int) and part < len(data) else None
