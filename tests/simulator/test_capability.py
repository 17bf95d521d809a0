"""Every limit of a machine is held: its last value may be asked for, the next may not, in each direction."""

from __future__ import annotations

import pytest
from machine_programs import make, small_chip

from toolchain.hw.chip import Chip
from toolchain.machine import (
    Convolution,
    Copy,
    Depthwise,
    Elementwise,
    ElementwiseKind,
    Fill,
    MachineOp,
    MatrixProduct,
    Pool,
    PoolKind,
    Softmax,
    Space,
    Table,
    find_unsupported,
    may_be_unsupported,
)

WINDOW = {
    "kernel_height": 3, "kernel_width": 5, "stride_height": 2, "stride_width": 4, "dilation_height": 2, "dilation_width": 3,
    "pad_top": 1, "pad_left": 2, "output_height": 2, "output_width": 6, "input_height": 9, "input_width": 40, "emit": 1,
}  # fmt: skip
CONVOLUTION = {**WINDOW, "input_channels": 7, "output_channels": 9}
DEPTHWISE = {**WINDOW, "channels": 9}
PRODUCT = {"rows": 4, "inner": 6, "columns": 5, "emit": 1}
POOL = {**{k: v for k, v in WINDOW.items() if k != "emit"}, "channels": 4, "kind": PoolKind.MAX}
WINDOW_LIMITS = {"max_kernel": (3, 5), "max_stride": (2, 4), "max_dilation": (2, 3), "max_pad": (1, 2), "max_width": 6}
CHIP = small_chip(
    limits={
        "convolution": {**WINDOW_LIMITS, "max_input_channels": 7, "max_output_channels": 9},
        "depthwise": {**WINDOW_LIMITS, "max_output_channels": 9},
        "matrix_product": {"max_k": 6, "max_n": 5},
        "pool": {"max_kernel": (3, 5), "max_stride": (2, 4)},
    },
)
FIELDS = {  # by key of `limits`: the field that it bounds
    "max_kernel": ("kernel_height", "kernel_width"),
    "max_stride": ("stride_height", "stride_width"),
    "max_dilation": ("dilation_height", "dilation_width"),
    "max_pad": ("pad_top", "pad_left"),
    "max_width": ("output_width",),
}
BEYOND = [
    *((Convolution, CONVOLUTION, f, f"limits.convolution.{key}=") for key, fields in FIELDS.items() for f in fields),
    (Convolution, CONVOLUTION, "input_channels", "limits.convolution.max_input_channels=7"),
    (Convolution, CONVOLUTION, "output_channels", "limits.convolution.max_output_channels=9"),
    *((Depthwise, DEPTHWISE, f, f"limits.depthwise.{key}=") for key, fields in FIELDS.items() for f in fields),
    (Depthwise, DEPTHWISE, "channels", "limits.depthwise.max_output_channels=9"),
    (MatrixProduct, PRODUCT, "inner", "limits.matrix_product.max_k=6"),
    (MatrixProduct, PRODUCT, "columns", "limits.matrix_product.max_n=5"),
    *((Pool, POOL, f, f"limits.pool.{key}=") for key in ("max_kernel", "max_stride") for f in FIELDS[key]),
]
SIZED = {
    Copy: {"inner_bytes": 4, "count0": 1, "count1": 1, "count2": 1},
    Fill: {"inner_elements": 4, "count0": 1, "count1": 1, "count2": 1},
    Elementwise: {"height": 2, "width": 2, "channels": 1, "kind": ElementwiseKind.MUL},
    Table: {"height": 2, "width": 2, "channels": 2},
    Convolution: CONVOLUTION,
    Depthwise: DEPTHWISE,
    MatrixProduct: PRODUCT,
    Pool: POOL,
}
NO_SIZES = {"pad_top", "pad_left", "input_height", "input_width", "emit", "kind"}


@pytest.mark.parametrize(
    ("kind", "fields", "name", "message"),
    [
        (Convolution, CONVOLUTION, "input_type", "engines.mac.types has no int32 by int8"),
        (Convolution, {**CONVOLUTION, "use_table": 1}, "output_type", "output_type=1, codes of int32 have no table"),
        (Depthwise, DEPTHWISE, "input_type", "engines.mac.types has no int32 by int8"),
        (MatrixProduct, PRODUCT, "a_type", "a_type=1, engines.mac.types has no int32 activations"),
        (MatrixProduct, PRODUCT, "b_type", "b_type=1, engines.mac.types has no int32 activations"),
        (Table, SIZED[Table], "element_type", "element_type=1, codes of int32 have no table"),
        (Softmax, {"rows": 1, "columns": 4}, "element_type", "element_type=1, a softmax has codes of 8 or 16 bits, not int32"),
        (Pool, POOL, "input_type", None),
        (Convolution, CONVOLUTION, "output_type", None),
    ],
)
def test_wide_codes_are_no_operands_of_arrays_and_have_no_table(
    kind: type[MachineOp], fields: dict[str, int], name: str, message: str | None
) -> None:
    functions = {**CHIP.engines["vector"].model_dump()["functions"], "softmax": {"lanes": 4, "startup": 0}}
    chip = small_chip(numerics__more_activations=("int32",), engines__vector__functions=functions)
    assert find_unsupported(make(kind, **fields), chip) is None
    assert find_unsupported(make(kind, **fields, **{name: 1}), chip) == message


@pytest.mark.parametrize(("kind", "fields", "name", "key"), BEYOND, ids=[f"{k.NAME}-{n}" for k, _, n, _ in BEYOND])
def test_a_limit_is_the_last_value_that_is_allowed(kind: type[MachineOp], fields: dict[str, int], name: str, key: str) -> None:
    assert find_unsupported(make(kind, **fields), CHIP) is None
    beyond = make(kind, **{**fields, name: fields[name] + 1})
    reason = find_unsupported(beyond, CHIP)
    assert reason is not None and key in reason
    assert may_be_unsupported([make(kind, **fields), beyond, make(kind, **fields)], CHIP).tolist() == [False, True, False]


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, fields in SIZED.items() for n in fields if n not in NO_SIZES], ids=str)
def test_a_size_is_one_at_least(kind: type[MachineOp], name: str) -> None:
    assert find_unsupported(make(kind, **SIZED[kind]), CHIP) is None
    empty = make(kind, **{**SIZED[kind], name: 0})
    assert find_unsupported(empty, CHIP) == f"{name}=0, must be at least 1"
    assert may_be_unsupported([empty, make(kind, **SIZED[kind])], CHIP).tolist() == [True, False]


@pytest.mark.parametrize("name", ["input_height", "input_width", "pad_top", "pad_left"])
def test_windows_may_have_no_input_and_no_padding_but_not_less(name: str) -> None:
    assert find_unsupported(make(Convolution, **{**CONVOLUTION, name: 0}), CHIP) is None
    reason = find_unsupported(make(Convolution, **{**CONVOLUTION, name: -1}), CHIP)
    assert reason == "input_height, input_width, pad_top and pad_left must not be negative"


@pytest.mark.parametrize(
    ("kind", "fields", "entries"), [(Convolution, CONVOLUTION, 108), (Depthwise, DEPTHWISE, 108), (MatrixProduct, PRODUCT, 20)]
)
def test_accumulators_hold_as_many_sums_as_there_are(kind: type[MachineOp], fields: dict[str, int], entries: int) -> None:
    assert find_unsupported(make(kind, **fields), small_chip(engines__mac__accumulators={"entries": entries})) is None
    reason = find_unsupported(make(kind, **fields), small_chip(engines__mac__accumulators={"entries": entries - 1}))
    assert reason == f"needs {entries} accumulators, the machine has engines.mac.accumulators.entries={entries - 1}"


def wide_chip() -> Chip:
    return small_chip(numerics__activation="int16", numerics__table={"entries": 513})


@pytest.mark.parametrize(("chip", "first", "last"), [(CHIP, -128, 127), (wide_chip(), -32768, 32767)], ids=["int8", "int16"])
def test_codes_are_those_of_the_activations(chip: Chip, first: int, last: int) -> None:
    for kind, name in ((Fill, "value"), (Pool, "input_zero_point"), (Convolution, "input_zero_point")):
        for code in (first, last):
            assert find_unsupported(make(kind, **{**SIZED[kind], name: code}), chip) is None
        for code in (first - 1, last + 1):
            assert f"{name}={code}, must be {first}..{last}" in str(
                find_unsupported(make(kind, **{**SIZED[kind], name: code}), chip)
            )


def test_zero_points_are_0_where_a_machine_has_none() -> None:
    chip = small_chip(numerics__symmetric_activations=True)
    for kind in (Pool, Convolution, MatrixProduct):
        for name in (name for name, _ in kind.pair_codes_with_types() if name.endswith("zero_point")):
            plain, displaced = make(kind, **SIZED[kind]), make(kind, **{**SIZED[kind], name: 1})
            assert find_unsupported(plain, chip) is None
            assert find_unsupported(displaced, chip) == f"{name}=1, must be 0..0 (numerics.symmetric_activations)"
            assert may_be_unsupported([plain, displaced], chip).tolist() == [False, True]


@pytest.mark.parametrize(("dimensions", "fits"), [(1, (1, 1, 4)), (2, (1, 4, 4)), (3, (4, 4, 4)), (4, (4, 4, 4))])
def test_copies_have_the_dimensions_of_the_dma(dimensions: int, fits: tuple[int, int, int]) -> None:
    chip = small_chip(engines__dma__dimensions=dimensions)
    for counts_needed in ((1, 1, 4), (1, 4, 4), (4, 4, 4)):
        counts = dict(zip(("count0", "count1", "count2"), counts_needed))
        for kind in (Copy, Fill):
            refused = find_unsupported(make(kind, **{**SIZED[kind], **counts}), chip)
            assert (refused is None) == (sum(n > 1 for n in counts_needed) <= sum(n > 1 for n in fits)), (kind, counts_needed)


def test_a_fourth_dimension_and_transposing_are_the_machines() -> None:
    fields = {"count_outer": 3, "count0": 2}
    assert find_unsupported(make(Copy, **{**SIZED[Copy], **fields}), small_chip()) is None
    three = small_chip(engines__dma__dimensions=3, engines__dma__transpose_block=0)
    for kind in (Copy, Fill):
        message = find_unsupported(make(kind, **{**SIZED[kind], **fields}), three)
        assert message == "counts 3x2x1x1, the machine has engines.dma.dimensions=3"
    transposing = make(Copy, **SIZED[Copy], transpose=1)
    assert find_unsupported(transposing, small_chip()) is None
    assert find_unsupported(transposing, three) == "transpose=1, the machine has engines.dma.transpose_block=0"
    halves = small_chip(numerics__activation="int16", numerics__table={"entries": 513})
    odd = make(Copy, **{**SIZED[Copy], "inner_bytes": 3}, transpose=1)
    assert find_unsupported(odd, halves) == "transpose=1 of 3 bytes, no whole elements of 2"


def test_several_products_are_whole_sums() -> None:
    chip = small_chip(limits={"matrix_product": {"max_batches": 3}})
    assert find_unsupported(make(MatrixProduct, **PRODUCT, batches=3), chip) is None
    assert find_unsupported(make(MatrixProduct, **PRODUCT, batches=4), chip) == "4 products, limits.matrix_product.max_batches=3"
    assert find_unsupported(make(MatrixProduct, **PRODUCT, batches=0), chip) == "batches=0, must be at least 1"
    single = small_chip(limits={})
    assert (
        find_unsupported(make(MatrixProduct, **PRODUCT, batches=2), single) == "2 products, limits.matrix_product.max_batches=1"
    )
    for sums in ({"accumulate": 1}, {"emit": 0}):
        message = find_unsupported(make(MatrixProduct, **{**PRODUCT, **sums}, batches=2), chip)
        assert message == "batches=2, must be 1 where accumulate is 1 or emit 0: accumulators hold the sums of one product"
        assert find_unsupported(make(MatrixProduct, **{**PRODUCT, **sums}), chip) is None


def test_movers_reach_the_memories_that_they_name() -> None:
    chip = small_chip(engines__dma__memories=("sram",))
    for kind, end in ((Copy, "source_space"), (Copy, "destination_space"), (Fill, "destination_space")):
        spaces = {n: Space.SRAM for n in ("source_space", "destination_space") if n in kind.parameters()}
        assert find_unsupported(make(kind, **{**SIZED[kind], **spaces}), chip) is None
        refused = find_unsupported(make(kind, **{**SIZED[kind], **spaces, end: Space.DRAM}), chip)
        assert refused == "dma0 does not reach dram (engines.dma.memories)", (kind, end)


@pytest.mark.parametrize("name", ["a", "b"])
def test_operands_lie_dense_or_are_one_number(name: str) -> None:
    fields = {"height": 1, "width": 1, "channels": 8, "a_channel_stride": 1, "b_channel_stride": 1}
    for kind in (ElementwiseKind.ADD, ElementwiseKind.RESCALE):
        for stride in (0, 1, 2):
            op = make(Elementwise, **{**fields, "kind": kind, f"{name}_channel_stride": stride})
            free = stride < 2 or (name == "b" and kind == ElementwiseKind.RESCALE)
            assert (find_unsupported(op, CHIP) is None) == free
    assert find_unsupported(make(Elementwise, **{**fields, "channels": 1, f"{name}_channel_stride": 2}), CHIP) is None
