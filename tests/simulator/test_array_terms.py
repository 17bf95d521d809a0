"""Test the terms of an array's time beside its size: each term of `timing` against its closed form, and against
hardware.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.simulator.machine_programs import make, small_chip
from toolchain.hw.engines import MacArray
from toolchain.hw.timing_terms import idealize_terms
from toolchain.machine import Convolution, Depthwise
from toolchain.machine.traffic import Compute
from toolchain.machine.units.array import Operands, depthwise_cycles, operand_reads, product_cycles, with_output

WIDE = Operands(0.5, 16, 8)


def conv(height: int, width: int, kernel: tuple[int, int], inputs: int, outputs: int) -> Convolution:
    """Make a convolution of outputs of this height and width, without padding."""
    return make(Convolution, **_sizes(height, width, kernel), input_channels=inputs, output_channels=outputs)


def _sizes(height: int, width: int, kernel: tuple[int, int]) -> dict[str, int]:
    windows = {"kernel_height": kernel[0], "kernel_width": kernel[1], "emit": 1}
    windows |= {f"{key}_{axis}": 1 for key in ("stride", "dilation") for axis in ("height", "width")}
    sizes = {"input_height": height + kernel[0] - 1, "input_width": width + kernel[1] - 1}
    return {**windows, **sizes, "output_height": height, "output_width": width}


def array(dataflow: str = "os", rows: int = 16, columns: int = 16, timing: Any = None, **changes: Any) -> MacArray:
    """Return an array.

    `timing`: terms that are not ideal.
    """
    ideal = {"reduction": "dense", "fold_cycles": 0, "input_edge_bytes": "unlimited", "weight_edge_bytes": "unlimited"}
    ideal |= {"window_bytes": "unlimited", "output": {"lanes": "unlimited", "table_lanes": "unlimited", "overlaps": True}}
    mac = {f"engines__mac__{key}": value for key, value in changes.items()}
    mac["engines__mac__timing"] = "ideal" if timing is None else {**ideal, **timing}
    return small_chip(engines__mac__dataflow=dataflow, engines__mac__rows=rows, engines__mac__columns=columns, **mac).array


# Products [pixels, inner] x [inner, outputs] of a compiled ResNet-18 on a 16x16 weight-stationary array in SystemVerilog (a fold
# begins with three cycles of its control, requantization does not overlap): cycles of its simulation in Verilator.
RTL = [
    (784, 576, 32, 61_544),
    (784, 1152, 32, 121_520),
    (784, 64, 32, 8_232),
    (196, 1152, 64, 71_344),
    (196, 2304, 64, 141_904),
    (196, 128, 64, 8_624),
    (49, 2304, 128, 113_288),
    (49, 4608, 128, 226_184),
    (49, 256, 128, 12_936),
]


@pytest.mark.parametrize(("pixels", "inner", "outputs", "cycles"), RTL)
def test_an_array_in_rtl(pixels: int, inner: int, outputs: int, cycles: int) -> None:
    mac = array("ws", timing={"fold_cycles": 3, "output": {"lanes": 16}})
    folds = product_cycles(mac, pixels, inner, outputs, Operands())
    compute = with_output(mac, folds, pixels, outputs, 0, 0, 1)
    assert compute.cycles == cycles
    assert compute.lost.output_cycles == pixels * outputs // 16


@pytest.mark.parametrize(("flow", "dense", "padded"), [("os", 6, 9), ("ws", 2 * 2, 9 * 2), ("is", 2 * 4, 9 * 4)])
def test_channels_of_each_tap_fill_depth_and_rows_for_themselves(flow: str, dense: int, padded: int) -> None:
    """5 channels of 9 taps on 4 rows and a depth of 8: 45 products, or 9 x 8."""

    def steps(**timing: Any) -> int:
        mac = array(flow, 4, 8, timing, depth=8, folds_overlap=True)
        one = product_cycles(mac, 30, 45, 12, Operands(), taps=9)
        edge = 4 + 8 - 2 + (0 if flow == "os" else 4)
        return (one.cycles - edge) // {"os": 8 * 2, "ws": 30, "is": 12}[flow]

    assert (steps(), steps(reduction="per_tap")) == (dense, padded)


@pytest.mark.parametrize(
    ("blocks", "channels", "taps", "products"),
    [
        ([[16, 1]], 3, 9, 144),
        ([[16, 1]], 40, 9, 9 * 48),
        ([[8, 4]], 3, 9, 8 * 12),
        ([[32, 1], [8, 4]], 3, 9, 8 * 12),
        ([[32, 1], [8, 4]], 32, 9, 32 * 9),
        ([[32, 1], [8, 4]], 40, 1, 64),
        ([[1, 1]], 5, 9, 45),
    ],
)
@pytest.mark.parametrize("flow", ["os", "ws", "is"])
def test_products_enter_in_the_blocks_that_pad_them_least(
    blocks: list[list[int]], channels: int, taps: int, products: int, flow: str
) -> None:
    mac, dense = (array(flow, 4, 8, {"reduction": r}, depth=8) for r in (blocks, "dense"))
    compute = product_cycles(mac, 30, channels * taps, 12, Operands(), taps=taps)
    assert compute.cycles == product_cycles(dense, 30, products, 12, Operands()).cycles
    assert sum(compute.lost) >= sum(product_cycles(dense, 30, channels * taps, 12, Operands()).lost)


def test_groups_of_weights_span_the_taps_that_they_reach() -> None:
    """Groups of 32: half of a tap's 64 channels, or all of the four taps of 8 channels."""
    groups = {"sizes": (32,), "fold_cycles": 0}
    ideal, per_tap = (array("ws", timing={"reduction": r}, folds_overlap=True, groups=groups) for r in ("dense", "per_tap"))
    for channels, more in ((64, 1), (8, 2)):
        plain, padded = (
            product_cycles(mac, 100, 9 * channels, 16, Operands(), group=32, taps=9).cycles - (2 * 16 + 16 - 2)
            for mac in (ideal, per_tap)
        )
        assert padded == more * plain


@pytest.mark.parametrize(
    ("taps", "together", "steps", "entering"), [(9, None, 2, 16), (9, 4, 2, 12), (25, 4, 4, 28), (3, 1, 1, 3)]
)
def test_taps_of_a_diagonal_come_together(taps: int, together: int | None, steps: int, entering: int) -> None:
    """4 pixels of 8 channels on a depth of 8: an edge of 32 bytes takes a tap of them a cycle."""
    for edge, cycles in (("unlimited", steps), (32, entering)):
        mac = array("os", 4, 8, {"depthwise_taps": together, "input_edge_bytes": edge}, depth=8, folds_overlap=True)
        assert depthwise_cycles(mac, 4, taps, 8, Operands()).cycles == cycles + 4 + 8 - 2


def test_taps_of_a_diagonal_cost_nothing_where_reductions_are_ideal() -> None:
    """An edge that is slower than the array still takes no more than the taps."""
    chip = small_chip(engines__mac__depth=8, engines__mac__timing={"depthwise_taps": 4, "input_edge_bytes": 8})
    op = make(Depthwise, **_sizes(5, 6, (3, 3)), channels=8)
    assert op.demand(idealize_terms(chip, ["reduction"])).compute_cycles < op.demand(chip).compute_cycles


def test_a_fold_begins_after_cycles_of_its_own() -> None:
    for overlap in (False, True):
        plain, later = (array(timing={"fold_cycles": n}, folds_overlap=overlap) for n in (0, 5))
        costs = [product_cycles(mac, 40, 64, 40, Operands()) for mac in (plain, later)]
        assert costs[1].cycles - costs[0].cycles == 3 * 3 * 5 == costs[1].lost.fill_cycles - costs[0].lost.fill_cycles


@pytest.mark.parametrize(
    ("flow", "timing", "stream", "load"),
    [
        ("os", {"input_edge_bytes": 4}, 64 * 4, 0),
        ("os", {"input_edge_bytes": 16, "weight_edge_bytes": 5}, -(-64 * 16 // 5), 0),
        ("os", {"weight_edge_bytes": 64}, 64, 0),
        ("ws", {"input_edge_bytes": 8}, 48 * 2, 16),
        ("ws", {"weight_edge_bytes": 4}, 48, 16 * 16 // 4),
        ("is", {"weight_edge_bytes": 8}, 32 * 2, 16),
        ("is", {"input_edge_bytes": 2}, 32, 16 * 16 // 2),
    ],
)
def test_steps_last_as_long_as_the_edges_need(flow: str, timing: dict[str, int], stream: int, load: int) -> None:
    """One fold a pass: 64 products of 48 pixels and 32 outputs."""
    compute = product_cycles(array(flow, timing=timing), 48, 64, 32, Operands())
    folds = {"os": 3 * 2, "ws": 4 * 2, "is": 4 * 3}[flow]
    assert compute.cycles == folds * (stream + 16 + 16 - 2 + load)
    assert compute.lost.edge_cycles == folds * (stream - {"os": 64, "ws": 48, "is": 32}[flow])


def test_edges_take_codes_of_more_bits_more_slowly() -> None:
    mac = array(timing={"input_edge_bytes": 16})
    narrow, wide = (product_cycles(mac, 16, 64, 16, o).cycles - 30 for o in (Operands(), WIDE))
    assert (narrow, wide) == (64, 128)  # at half the rate two bytes enter in two cycles
    assert product_cycles(mac, 16, 64, 16, WIDE._replace(rate=1.0)).cycles - 30 == 128


def test_a_narrow_product_needs_less_of_an_edge() -> None:
    mac = array(timing={"input_edge_bytes": 4})
    assert product_cycles(mac, 4, 64, 16, Operands()).cycles == 64 + 30


def test_where_nothing_is_said_an_edge_takes_what_dense_products_need() -> None:
    for flow in ("os", "ws", "is"):
        plain, edged = array(flow), array(flow, timing={"input_edge_bytes": None, "weight_edge_bytes": None})
        for operands in (Operands(), WIDE, Operands(1.0, 8, 4)):
            assert product_cycles(edged, 48, 64, 32, operands) == product_cycles(plain, 48, 64, 32, operands)


def test_each_row_and_column_of_a_diagonal_takes_an_input_of_its_own() -> None:
    mac = array(timing={"input_edge_bytes": 16})
    assert depthwise_cycles(mac, 16, 9, 16, Operands()).cycles == 9 * 16 + 30
    assert depthwise_cycles(mac, 16, 9, 1, Operands()).cycles == 9 + 30
    assert depthwise_cycles(mac, 4, 9, 16, Operands()).cycles == 9 * 4 + 30
    streamed = array("ws", timing={"input_edge_bytes": 8})
    assert depthwise_cycles(streamed, 100, 9, 16, Operands()).cycles == 9 * (200 + 30 + 16)


def test_outputs_leave_some_channels_a_cycle() -> None:
    def leaving(outputs: int, *, tabled: int = 0, added: int = 0, emitted: int = 1, **path: Any) -> int:
        terms = {"lanes": 8, "table_lanes": "unlimited", **path}
        return with_output(array(timing={"output": terms}), Compute(100), 10, outputs, tabled, added, emitted).cycles - 100

    assert leaving(16) == 10 * 2
    assert leaving(17) == 10 * 3
    assert leaving(17, emitted=0) == 0
    assert leaving(16, table_lanes=2) == 10 * 2
    assert leaving(16, tabled=1, table_lanes=2) == 10 * 8
    assert leaving(16, added=1, addend_lanes=4) == 10 * 4
    assert leaving(16, tabled=1, added=1, addend_lanes=4, table_lanes=2) == 10 * 8
    assert leaving(16, overlaps=True) == 0
    assert leaving(16, tabled=1, table_lanes=1, overlaps=True) == 10 * 16 - 100
    assert leaving(20, lanes=None) == 10 * 2  # 16 columns


def test_operations_in_columns_pay_as_each_alone() -> None:
    mac = array(timing={"output": {"lanes": 4}, "fold_cycles": 2, "input_edge_bytes": 3, "reduction": "per_tap"}, depth=4)
    sizes = np.array([[1, 18, 3], [40, 90, 17], [200, 9 * 33, 64]])
    pixels, inner, outputs = sizes.T
    taps, emits = np.array([9, 1, 9]), np.array([1, 0, 1])
    together = product_cycles(mac, pixels, inner, outputs, Operands(), taps=taps)
    together = with_output(mac, together, pixels, outputs, emits * 0, emits, emits)
    for i, (p, k, m) in enumerate(sizes.tolist()):
        alone = product_cycles(mac, p, k, m, Operands(), taps=int(taps[i]))
        alone = with_output(mac, alone, p, m, 0, int(emits[i]), int(emits[i]))
        assert together.cycles[i] == alone.cycles
        assert [np.broadcast_to(part, 3)[i] for part in together.lost] == list(alone.lost)


@pytest.mark.parametrize(
    ("size", "bytes_read"), [(0, 30 * 9 * 4), (11, 30 * 9 * 4), (12, 5 * 3 * 8 * 4), (95, 480), (96, 7 * 8 * 4)]
)
def test_taps_read_anew_what_the_window_buffer_does_not_hold(size: int, bytes_read: int) -> None:
    """A kernel of 3x3 over 7x8 pixels of 4 channels: a row of it is 12 bytes, its rows are 96."""
    chip = small_chip(engines__mac__timing={"window_bytes": size})
    op = conv(5, 6, (3, 3), 4, 8)
    weights = 9 * 4 * 8
    assert op.demand(chip).traffic[-1].read_bytes - weights - 16 * 8 == bytes_read


def test_an_input_is_read_once_for_the_channels_that_share_it() -> None:
    reads = [operand_reads(array(timing={"shared_outputs": n}), 100, 100)[0] for n in (None, 16, 50, 128, "unlimited")]
    assert reads == [7, 7, 2, 1, 1]


MORE = {
    "input_edge_bytes": [1, 2, 8, 64, "unlimited"],
    "weight_edge_bytes": [1, 3, 9, 63, "unlimited"],
    "window_bytes": [0, 8, 64, 512, "unlimited"],
    "shared_outputs": [1, 4, 16, "unlimited"],
    "fold_cycles": [9, 3, 1, 0],
    "reduction": [[[64, 1]], [[64, 1], [16, 4]], [[4, 1]], "dense"],
    "output": [{"lanes": n, "table_lanes": 1 if n == "unlimited" else n} for n in (1, 2, 8, "unlimited")],
}


@pytest.mark.parametrize("term", MORE)
@pytest.mark.parametrize("flow", ["os", "ws", "is"])
def test_more_of_a_term_is_never_slower(term: str, flow: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        height, width, inputs, outputs = (int(n) for n in rng.integers(1, 24, 4))
        op = conv(height, width, (int(rng.integers(1, 4)), int(rng.integers(1, 4))), inputs, outputs)
        before: tuple[int, int] | None = None
        for value in MORE[term]:
            chip = small_chip(engines__mac__timing={term: value}, engines__mac__dataflow=flow)
            op_demand = op.demand(chip)
            now = int(op_demand.compute_cycles), sum(int(t.read_bytes) for t in op_demand.traffic)
            assert before is None or (now[0] <= before[0] and now[1] <= before[1]), (term, value, op)
            before = now
