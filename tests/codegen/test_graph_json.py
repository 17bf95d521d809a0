"""Values of every type that a field may have come back from JSON as they were; values of another kind are refused."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from toolchain.codegen.graph_json import decode_value, encode_value

ARRAY = np.ndarray[Any, Any]


class Kind(enum.Enum):
    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True)
class Pair:
    size: int
    name: str | None


# By type: values that come back, and JSON values of another kind.
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "int": (int, [0, -7], [1.5, "1", None, True, [1]]),
    "float": (float, [0.25, -2.0], ["1", None, [1.0]]),
    "text": (str, ["", "x"], [1, None]),
    "truth": (bool, [True, False], [1, "true", None]),
    "or none": (int | None, [None, 3], ["3", [3]]),
    "enumeration": (Kind, [Kind.SECOND], ["third", 1, None]),
    "pair": (tuple[int, str], [(1, "a")], [[1], [1, "a", 2], ["a", 1], [], 1, {"0": 1}]),
    "many": (tuple[int, ...], [(), (1,), (1, 2, 3)], [1, ["a"], None]),
    "pairs": (tuple[tuple[int, int], ...], [((1, 2), (3, 4))], [[[1, 2], [3]], [[1, 2, 3]]]),
    "object": (
        Pair,
        [Pair(3, None), Pair(0, "n")],
        [{"size": 3}, {"size": 3, "name": None, "more": 1}, {"size": "3", "name": "n"}, []],
    ),
    "objects": (tuple[Pair, ...], [(Pair(1, "a"), Pair(2, None))], [[{"size": 1, "name": "a"}, {"size": 1}]]),
}


@pytest.mark.parametrize("name", CASES)
def test_values_come_back_and_others_are_refused(name: str) -> None:
    hint, values, others = CASES[name]
    arrays: list[np.ndarray] = []
    for value in values:
        text = json.dumps(encode_value(value, lambda array: arrays.append(array)))
        decoded = decode_value(json.loads(text), hint, lambda place: arrays[place])
        assert decoded == value and type(decoded) is type(value)
    for other in others:
        with pytest.raises(ValueError, match=r"^\w"):
            decode_value(other, hint, lambda place: arrays[place])


def test_an_array_is_where_its_object_says() -> None:
    arrays: list[np.ndarray] = []

    def store(array: np.ndarray) -> int:
        arrays.append(array)
        return len(arrays) - 1

    encoded = encode_value((np.arange(3), np.ones(2)), store)
    assert encoded == [{"array": 0}, {"array": 1}]
    first, second = decode_value(encoded, tuple[ARRAY, ARRAY], lambda place: arrays[place])
    assert first is arrays[0] and second is arrays[1]
    for other in (0, {"array": 0, "more": 1}, {"place": 0}, None):
        with pytest.raises(ValueError, match=r"is no array$"):
            decode_value(other, ARRAY, lambda place: arrays[place])
