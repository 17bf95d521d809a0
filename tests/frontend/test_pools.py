"""Pools of any dilation, padding and rounding, on the chip and held against onnxruntime on the file."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from chip_against_file import against_file
from onnx_text import model, save

from toolchain.hw.chip import Chip
from toolchain.isa import Machine, load_machine


def drawn(seed: int) -> str:
    """A pool over a map of odd and even sizes that onnxruntime takes: window in the input, padding below the kernel."""
    r = random.Random(seed)
    kernel, dilations, strides = ([r.randint(1, 3) for _ in "hw"] for _ in range(3))
    sizes = [(k - 1) * d + r.randint(1, 5) for k, d in zip(kernel, dilations)]
    pads = [r.randint(0, k - 1) for k in (*kernel, *kernel)]
    flags = [f"ceil_mode = {r.randint(0, 1)}"]
    kind = r.choice(["Max", "Average", "Average"])
    if kind == "Average":
        flags.append(f"count_include_pad = {r.randint(0, 1)}")
    window = f"kernel_shape = {kernel}, dilations = {dilations}, strides = {strides}, pads = {pads}, {', '.join(flags)}"
    return f"(float[2,3,{sizes[0]},{sizes[1]}] x) => (float[a,b,c,d] y) {{ y = {kind}Pool<{window}>(x) }}"


@pytest.mark.parametrize("seed", range(40))
def test_drawn_pools(seed: int, tmp_path: Path) -> None:
    against_file(save(model(drawn(seed), opset=19 + seed % 4), tmp_path), least_db=25.0)


@pytest.mark.parametrize("machine", ["edge16", "wide32_w4a16", "ethos_u55_256"])
@pytest.mark.parametrize(
    "window",
    [
        "kernel_shape = [2,2], dilations = [2,2]",
        "kernel_shape = [2,2], dilations = [2,2], pads = [1,1,1,1]",
        "kernel_shape = [2,3], dilations = [3,1], pads = [1,0,0,2], count_include_pad = 1",
        "kernel_shape = [2,2], dilations = [2,1], strides = [2,2], ceil_mode = 1",
    ],
)
def test_dilated_means(window: str, machine: str, tmp_path: Path) -> None:
    graph = f"(float[1,3,4,5] x) => (float[a,b,c,d] y) {{ y = AveragePool<{window}>(x) }}"
    built = against_file(save(model(graph, opset=19), tmp_path), machine)
    assert not built.figures["fallbacks"]


def with_windows(most: tuple[int, int]) -> Machine:
    """edge16 whose pools take no larger windows."""
    machine = load_machine("edge16")
    data = json.loads(machine.chip.model_dump_json())
    data["limits"]["pool"]["max_kernel"] = most
    return replace(machine, chip=Chip.model_validate_json(json.dumps(data)))


@pytest.mark.parametrize("most", [(2, 2), (3, 4), (9, 2)])
@pytest.mark.parametrize(
    "window",
    [
        "kernel_shape = [7,4]",
        "kernel_shape = [5,5], pads = [2,1,0,3]",
        "kernel_shape = [4,6], pads = [0,2,3,1], strides = [2,3]",
        "kernel_shape = [3,7], pads = [1,3,1,3], strides = [1,2], ceil_mode = 1",
    ],
)
def test_large_maxima_are_maxima_of_small_ones(window: str, most: tuple[int, int], tmp_path: Path) -> None:
    graph = f"(float[2,3,9,10] x) => (float[a,b,c,d] y) {{ y = MaxPool<{window}>(x) }}"
    built = against_file(save(model(graph), tmp_path), with_windows(most))
    assert not built.figures["fallbacks"] and len(built.figures["layers"]) > 1


@pytest.mark.parametrize("most", [(1, 9), (9, 1)])
def test_windows_of_one_row_or_column_make_no_larger_ones(most: tuple[int, int], tmp_path: Path) -> None:
    graph = "(float[2,3,9,10] x) => (float[a,b,c,d] y) { y = MaxPool<kernel_shape = [3,3]>(x) }"
    (fallback,) = against_file(save(model(graph), tmp_path), with_windows(most)).figures["fallbacks"]
    assert "limits.pool.max_kernel" in fallback["reason"]
