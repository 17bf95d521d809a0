"""An array that fills its folds evenly takes no more for an operation than the machine's own for its parts, however it is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.hw.engines import EvenArray, MacArray
from toolchain.isa import load_machine
from toolchain.machine.units.array import Operands, depthwise_cycles, product_cycles

SIZES = st.integers(1, 40)
ARRAYS = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 8),
        "columns": st.integers(1, 16),
        "depth": st.sampled_from([1, 4]),
        "dataflow": st.sampled_from(["os", "ws", "is"]),
        "folds_overlap": st.booleans(),
        "timing": st.fixed_dictionaries(
            {
                "input_edge_bytes": st.sampled_from([1, 2, 5, 64]),
                "weight_edge_bytes": st.sampled_from([1, 2, 5, 64]),
                "fold_cycles": st.sampled_from([0, 2]),
                "reduction": st.sampled_from(["dense", "per_tap"]),
            }
        ),
    }
)
OPERANDS = st.builds(Operands, st.sampled_from([1.0, 0.5]), st.sampled_from([8, 16]), st.sampled_from([4, 8]))


def arrays(keys: dict[str, Any]) -> tuple[MacArray, MacArray]:
    """The machine's own, and one that fills its folds evenly."""
    base = load_machine("edge16").chip.engines["mac"].model_dump(mode="json")
    text = json.dumps(base | keys)
    return MacArray.model_validate_json(text), EvenArray.model_validate_json(text)


def parts(size: int, at: list[int]) -> list[int]:
    """Return the sizes of the parts of an axis that is cut at these places."""
    ends = sorted({min(a, size) for a in at} | {0, size})
    return [high - low for low, high in pairwise(ends)]


@settings(derandomize=True, deadline=None, max_examples=400)
@given(ARRAYS, OPERANDS, SIZES, SIZES, SIZES, st.lists(SIZES, max_size=3), st.sampled_from(["pixels", "inner", "outputs"]))
def test_parts_of_a_product_take_no_less(
    keys: dict[str, Any], operands: Operands, pixels: int, inner: int, outputs: int, at: list[int], axis: str
) -> None:
    array, even = arrays(keys)
    sizes = {"pixels": pixels, "inner": inner, "outputs": outputs}
    cut = [product_cycles(array, **sizes | {axis: size}, operands=operands).cycles for size in parts(sizes[axis], at)]
    uncut_cycles = product_cycles(even, **sizes, operands=operands).cycles
    assert uncut_cycles <= sum(cut) + 1e-6
    assert uncut_cycles <= product_cycles(array, **sizes, operands=operands).cycles + 1e-6


@settings(derandomize=True, deadline=None, max_examples=200)
@given(ARRAYS, OPERANDS, SIZES, st.integers(1, 9), SIZES, st.lists(SIZES, max_size=3), st.booleans())
def test_parts_of_a_depthwise_convolution_take_no_less(
    keys: dict[str, Any], operands: Operands, pixels: int, taps: int, channels: int, at: list[int], by_pixels: bool
) -> None:
    array, even = arrays(keys | {"depthwise": "diagonal"})
    sizes = {"pixels": pixels, "channels": channels}
    axis = "pixels" if by_pixels else "channels"
    cut = [depthwise_cycles(array, **sizes | {axis: n}, taps=taps, operands=operands).cycles for n in parts(sizes[axis], at)]
    assert depthwise_cycles(even, **sizes, taps=taps, operands=operands).cycles <= sum(cut) + 1e-6


def test_columns_that_few_channels_leave_empty_take_nothing_of_a_narrow_edge() -> None:
    array, even = arrays({"rows": 1, "columns": 16, "dataflow": "os", "folds_overlap": False, "timing": {"weight_edge_bytes": 1}})
    uncut, first, last = (product_cycles(array, 1, 32, n, Operands()).cycles for n in (18, 16, 2))
    assert first + last < uncut
    assert product_cycles(even, 1, 32, 18, Operands()).cycles == first + last
