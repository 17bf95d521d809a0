"""Check the arrays of a binding apart from a compiled model: a session of two constant outputs stands in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from toolchain.errors import CompileError
from toolchain.runtime.binding import IoBinding


class TwoOutputs:
    def run(self, output_names: Any, feeds: Mapping[str, np.ndarray], run_options: Any = None) -> list[np.ndarray]:
        return [np.ones(2, np.float32) for _ in output_names]


def test_a_result_is_forgotten_where_its_output_is_bound_again() -> None:
    bound = IoBinding(TwoOutputs())
    bound.bind_output("y", array=np.zeros(2, np.float32))
    bound.run(None)
    bound.bind_output("y", array=np.zeros(2, np.float32))
    with pytest.raises(CompileError, match=r"^output 'y' is bound, and nothing has run since"):
        bound.copy_outputs_to_cpu()


def test_nothing_is_written_where_one_array_is_read_only() -> None:
    bound, first, last = IoBinding(TwoOutputs()), np.zeros(2, np.float32), np.zeros(2, np.float32)
    last.flags.writeable = False
    bound.bind_output("y", array=first)
    bound.bind_output("z", array=last)
    with pytest.raises(CompileError, match=r"^output 'z': the array bound to it is read-only$"):
        bound.run(None)
    assert not first.any()
