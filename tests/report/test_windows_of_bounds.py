"""Check the windows of bounds over one axis: by plain loops, and for axes as long as a minute of sound."""

from __future__ import annotations

import random
import tracemalloc

from toolchain.ops.kit.window import Window, output_size
from toolchain.report.bounds.required_reads import WindowAxis, axis_of


def _by_loops(window: Window, outputs: int) -> WindowAxis:
    met: list[set[int]] = []
    taps = set[int]()
    for output in range(outputs):
        read = {tap: output * window.stride - window.pad + tap * window.dilation for tap in range(window.kernel)}
        inside = {tap for tap, element in read.items() if 0 <= element < window.size}
        met.append({read[tap] for tap in inside})
        taps |= inside
    even = all(
        i in met[o]
        for o in range(outputs)
        for i in range(window.size)
        if i * outputs < (o + 1) * window.size and o * window.size < (i + 1) * outputs
    )
    return WindowAxis(len(set[int]().union(*met)), len(taps), min(map(len, met)), even)


def test_is_what_plain_loops_find() -> None:
    draw, even = random.Random(0), 0
    for _ in range(2000):
        size, kernel, stride, dilation = draw.randint(1, 20), draw.randint(1, 5), draw.randint(1, 4), draw.randint(1, 3)
        pads = draw.randint(0, 5), draw.randint(0, 5)
        outputs = output_size(size, kernel, stride, dilation, pads)
        if outputs > 0:
            window = Window(size, kernel, stride, dilation, pads[0])
            assert axis_of(window, outputs) == _by_loops(window, outputs), (window, outputs)
            even += axis_of(window, outputs).even
    assert even > 50


def test_memory_grows_with_the_axis_and_not_with_its_square() -> None:
    length = 960_000
    tracemalloc.start()
    window_axis = axis_of(Window(length, 3, 1, 1, 1), length)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert window_axis == WindowAxis(length, 3, 2, True)
    assert peak < 500 * length
