"""Layers share constants where operator and constants are equal, and where nothing but a split of their bytes differs they do
not."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from toolchain.schedule.layer_constants import find_shared_constants


@dataclass(frozen=True)
class _Op:
    value: Any


def _layer(op: object, *constants: np.ndarray) -> Any:
    names = [f"c{i}" for i in range(len(constants))]
    return SimpleNamespace(node=SimpleNamespace(op=op, inputs=("x", *names)), constants=dict(zip(names, constants)))


ARRAY = np.arange(4, dtype=np.int8)
ROW = np.ones(2, np.int8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_layer(_Op(((1,), (2,)))), _layer(_Op(((1, 2),)))),
        (_layer(_Op(("a;'b'", "c"))), _layer(_Op(("a", "b';'c")))),
        (_layer(_Op(1), ARRAY, ROW), _layer(_Op((1, ARRAY)), ROW)),
        (_layer(_Op(1), ARRAY), _layer(_Op(1), ARRAY.reshape(2, 2))),
    ],
)
def test_layers_share_only_equal_operators_with_equal_constants(one: Any, other: Any) -> None:
    assert find_shared_constants(enumerate([one, other])) == frozenset()
    assert find_shared_constants(enumerate([one, other, one])) == {0, 2}
