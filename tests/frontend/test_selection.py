"""Check that the chip's rule for an operator is close to the float model, and leaves no node on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx_text import model, save
from test_data_movement import same_bits, select_file

MAP = "(float[2,6,5,7] x"
DECONV = f"{MAP}, float[6,%s] w, float[%d] w2) => (float[a,b,c,d] y) {{ y = ConvTranspose<%s>(x, w, w2) }}"
TRANSPOSED = [
    DECONV % ("4,2,2", 4, "strides = [2,2]"),
    DECONV % ("4,4,4", 4, "strides = [2,2], pads = [1,1,1,1]"),
    DECONV % ("4,3,3", 4, "strides = [2,2], pads = [1,1,1,1], output_padding = [1,1]"),
    DECONV % ("4,3,5", 4, "strides = [3,2], pads = [0,2,1,0]"),
    DECONV % ("4,3,3", 4, "strides = [1,1], pads = [1,1,1,1]"),
    DECONV % ("4,3,3", 4, "strides = [2,1], dilations = [2,1], pads = [2,0,1,2]"),
    DECONV % ("2,4,4", 4, "group = 2, strides = [2,2], pads = [1,1,1,1]"),
    DECONV % ("1,4,4", 6, "group = 6, strides = [2,2], pads = [1,1,1,1]"),
    DECONV % ("3,2,2", 3, "strides = [3,3]"),
    DECONV % ("3,3,3", 3, "strides = [1,1], pads = [2,2,2,2]"),
    DECONV % ("3,2,2", 3, "strides = [2,2], pads = [2,3,4,2]"),
    "(float[1,8,20] x, float[8,4,8] w) => (float[a,b,c] y) { y = ConvTranspose<strides = [4], pads = [2,2]>(x, w) }",
]
SPREAD = [
    "(float[2,12,3,5] x) => (float[a,b,c,d] y) { y = DepthToSpace<blocksize = 2>(x) }",
    "(float[2,12,3,5] x) => (float[a,b,c,d] y) { y = DepthToSpace<blocksize = 2, mode = 'CRD'>(x) }",
    "(float[2,3,4,6] x, float[4,12,1,1] w) => (float[a,b,c,d] y) { z = SpaceToDepth<blocksize = 2>(x) y = Conv(z, w) }",
]
REDUCED = [
    f"{MAP}) => (float[a,b,c,d] y) {{{{ axes = int64[{{0}}] {{{{{{1}}}}}} y = {{2}}<keepdims = {{3}}>(x, axes) }}}}".format(
        len(axes), ",".join(map(str, axes)), kind, keep
    )
    for kind in ("ReduceMean", "ReduceMax")
    for axes, keep in (((1,), 1), ((2,), 0), ((3,), 1), ((1, 2, 3), 0), ((1, 2), 1), ((0, 1), 0))
] + [
    f"(float[3,10,8] x) => (float[a,b] y) {{ axes = int64[1] {{{axis}}} y = {kind}<keepdims = 0>(x, axes) }}"
    for kind in ("ReduceMean", "ReduceMax", "ReduceSum")
    for axis in (1, 2)
]

COPIED = [
    f"{MAP}) => (float[a,b,c,d] y) {{ p = int64[8] {{0,0,2,1,0,0,3,2}} y = Pad<mode = 'reflect'>(x, p) }}",
    f"{MAP}) => (float[a,b,c,d] y) {{ p = int64[8] {{0,1,2,0,0,0,1,3}} y = Pad<mode = 'edge'>(x, p) }}",
    f"{MAP}) => (float[a,b,c,d] y) {{ p = int64[8] {{0,-1,2,-3,0,2,-1,-1}} y = Pad(x, p) }}",
    f"{MAP}) => (float[a,b,c,d] y) {{ p = int64[8] {{0,-1,0,-3,0,0,-2,0}} y = Pad(x, p) }}",
    f"{MAP}) => (float[a,b,c,d] y) {{ s = int64[1] {{-1}} e = int64[1] {{-99}} a = int64[1] {{1}} y = Slice(x, s, e, a, s) }}",
    f"{MAP}) => (float[a,b,c,d] y) {{ s = int64[3] {{4,1,5}} e = int64[3] {{1,4,-99}} a = int64[3] {{1,2,3}} "
    "d = int64[3] {-1,2,-2} y = Slice(x, s, e, a, d) }",
    f"{MAP}) => (float[a,b,c,d] y) {{ i = int64[7] {{3,4,5,0,2,4,1}} y = Gather<axis = 1>(x, i) }}",
    f"{MAP}) => (float[a,b,c,d,e] y) {{ i = int64[2,2] {{1,2,3,4}} y = Gather<axis = 2>(x, i) }}",
    "(float[2,6,1,1] x) => (float[a,b,c,d] y) { s = int64[4] {2,6,3,5} y = Expand(x, s) }",
    "(float[2,6,5] x, float[2,1,5] w, float[2,2,5] w2) => (float[a,b,c] y) { y = Concat<axis = 1>(w, x, w2) }",
    "(float[3,1] x) => (float[a,b,c] y) { s = int64[3] {2,3,4} y = Expand(x, s) }",
    "(float[2,1,5] x) => (float[a,b,c] y) { s = int64[3] {1,3,1} y = Tile(x, s) }",
]

EXPANDED = [
    f"{MAP}, float[4,6,3,3] w) => (float[{','.join('abcdefg'[: len(shape)])}] y) {{ s = int64[{len(shape)}] "
    f"{{{','.join(map(str, shape))}}} c = Conv(x, w) {before}e = Expand({'k' if before else 'c'}, s) y = Neg(e) }}"
    for shape, before in (
        ((1, 2, 4, 3, 5), ""),
        ((3, 2, 4, 3, 5), ""),
        ((3, 2, 4, 3, 5), "k = GlobalAveragePool(c) "),
        ((2, 1, 2, 4, 3, 5), "k = ReduceMax<keepdims = 1>(c) "),
        ((2, 4, 3, 5), "k = GlobalAveragePool(c) "),
    )
] + [
    f"{MAP}, float[4,6,3,3] w, float[4,4] w2) => (float[a,b,c,d,e] y) {{ s = int64[5] {{2,1,1,1,1}} "
    "c = Conv(x, w) e = Expand(c, s) p = Transpose<perm = [0,1,3,4,2]>(e) y = MatMul(p, w2) }",
    f"{MAP}, float[4,6,3,3] w) => (float[a,b,c,d] y) {{ s = int64[5] {{2,2,4,3,5}} c = Conv(x, w) e = Expand(c, s) "
    "a = int64[1] {0} y = ReduceMean<keepdims = 0>(e, a) }",
    "(float[3,1,5] x) => (float[a,b,c,d] y) { s = int64[4] {2,3,4,5} y = Expand(x, s) }",
    "(float[3,1,5] x) => (float[a,b,c,d] y) { s = int64[4] {2,3,4,5} t = int64[3] {1,1,1} e = Expand(x, t) y = Expand(e, s) }",
]

POOLED = [
    f"{MAP}) => (float[a,b,c,d] y) {{{{ y = AveragePool<kernel_shape = [{{0}}], strides = [{{1}}], pads = [{{2}}], "
    "ceil_mode = 1, count_include_pad = 1>(x) }}".format(*window)
    for window in (("2,3", "2,1", "0,0,0,1"), ("3,3", "2,2", "1,1,1,1"), ("3,2", "3,3", "0,1,2,1"), ("2,4", "3,3", "1,0,0,2"))
]

RESIZED = [
    f"{MAP}) => (float[a,b,c,d] y) {{ s = float[4] {{1,1,{scales}}} "
    f"y = Resize<mode = 'linear', coordinate_transformation_mode = '{how}'>(x, , s) }}"
    for scales, how in (("2,2", "half_pixel"), ("3,2", "pytorch_half_pixel"), ("1,4", "asymmetric"), ("2,1", "half_pixel"))
]


@pytest.mark.parametrize("graph", [*TRANSPOSED, *SPREAD, *REDUCED, *COPIED, *EXPANDED, *POOLED, *RESIZED])
def test_the_chip_computes_it(graph: str, tmp_path: Path) -> None:
    path = save(model(graph), tmp_path)
    assert not select_file(path).fallbacks
    same_bits(path)


@pytest.mark.parametrize("machine", ["ethos_u55_256", "wide32_w4a16", "ws8_pow2"])
@pytest.mark.parametrize("graph", [TRANSPOSED[1], TRANSPOSED[6], SPREAD[1], REDUCED[0]])
def test_on_other_machines(graph: str, machine: str, tmp_path: Path) -> None:
    path = save(model(graph), tmp_path)
    assert not select_file(path, machine).fallbacks
    same_bits(path, machine, least_db=12.0)


STAYS = [
    (
        "(float[1,1,1100] x) => (float[a,b,c] y) { s = int64[1] {-1} e = int64[1] {-9999} a = int64[1] {2} "
        "y = Slice(x, s, e, a, s) }",
        "a step of -1 (negative ones become copies up to 16 elements, a product up to a matrix of 1,048,576)",
    ),
    (
        "(float[1,1,1200] x) => (float[a,b,c] y) { p = int64[6] {0,0,1100,0,0,0} y = Pad<mode = 'reflect'>(x, p) }",
        "padding by mode='reflect' that copies did not replace (up to 1,024 elements at each end)",
    ),
    (
        "(float[1,1,2] x) => (float[a,b,c] y) { p = int64[6] {0,0,15,0,0,0} y = Pad<mode = 'wrap'>(x, p) }",
        "padding by mode='wrap' that copies did not replace (up to 1,024 elements at each end and 7 times the dimension)",
    ),
    (
        "(float[1,2,20] x) => (float[a,b,c] y) { p = int64[6] {0,0,-20,0,0,1} y = Pad(x, p) }",
        "negative padding: pads [0, 0, -20, 0, 0, 1]",
    ),
]


@pytest.mark.parametrize(("graph", "reason"), STAYS)
def test_moves_that_stay_on_the_host_say_why(graph: str, reason: str, tmp_path: Path) -> None:
    (fallback,) = select_file(save(model(graph), tmp_path)).fallbacks
    assert fallback.reason == reason


def test_dimensions_that_are_no_neighbours_go_one_after_the_other(tmp_path: Path) -> None:
    graph = "(float[2,6,5,7,3] x) => (float[a,b,c,d,e] y) { axes = int64[2] {1,3} y = ReduceMean(x, axes) }"
    assert not select_file(save(model(graph), tmp_path)).fallbacks


def test_transposed_weights_that_are_computed(tmp_path: Path) -> None:
    graph = f"{MAP}, float[6,4,2,2] z) => (float[a,b,c,d] y) {{ y = ConvTranspose<strides = [2,2]>(x, z) }}"
    (fallback,) = select_file(save(model(graph, weights={}), tmp_path)).fallbacks
    assert fallback.reason == "its weights or bias are computed, not constant"


ADDRESSES = "copies take their addresses from the program, none from what another operation has written"
NOT_FLOAT = "tensor a is int32, not float32"


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        ("(int32[3,4] a, int32[4,2] w) => (int32[p,q] y) { y = MatMul(a, w) }", NOT_FLOAT),
        ("(int32[1,3,4,4] a) => (int32[p,q,r,s] y) { y = Relu(a) }", NOT_FLOAT),
        (
            "(int32[3,4] a) => (int32[p,q] y) { y = CumSum(a, axis) axis = Constant<value_int = 1>() }",
            "no operator of the chip computes CumSum",
        ),
        ("(float[1,3,4,4] a, float z) => (float[p,q,r,s] y) { y = Mod<fmod = 1>(a, z) }", "no operator of the chip computes Mod"),
        (
            "(float[3,4] a, int64[2] z) => (float[p,q] y) { y = Gather(a, z) }",
            f"its indices are computed, or more than 16 evenly rising runs: {ADDRESSES}",
        ),
        (
            "(float[3,4] a, int64[3,2] z) => (float[p,q] y) { y = GatherElements<axis = 1>(a, z) }",
            f"it moves single elements: {ADDRESSES}",
        ),
        (
            "(float[3,4] a, int64[2,1] z, float[2,4] u) => (float[p,q] y) { y = ScatterND(a, z, u) }",
            f"its places are computed, or constant and too many runs: {ADDRESSES}",
        ),
        (
            "(int64[3] a) => (float[p,q] y) { d = int64 {4} v = float[2] {0,1} y = OneHot(a, d, v) }",
            "tensor a is int64, and nothing of the chip makes it, from which its largest number were known",
        ),
        (
            "(float[3,4] a, int32[3,4] z) => (bool[p,q] y) { y = Less(z, z) }",
            "tensor z is int32, and nothing of the chip makes it, from which its largest number were known",
        ),
        ("(float[3,4] a, int8[3,4] z) => (bool[p,q] y) { y = Less(z, z) }", "tensor z is int8, not float32 or bool"),
        (
            "(float[3,4] a) => (int64[p,q] y) { y = Cast<to = 7>(a) }",
            "a cast from float32 to int64: a real number loses its fraction, which no operation of the chip does",
        ),
        (
            "(float[1,3,4,2] a) => (float[p,q,r,s] y) {"
            " y = MaxPool<kernel_shape = [2,2], dilations = [1,3], pads = [0,1,0,1]>(a) }",
            "a window lies in padding alone, whose largest element is the lowest float32",
        ),
    ],
)
def test_the_type_is_the_reason_only_where_another_would_help(graph: str, reason: str, tmp_path: Path) -> None:
    (fallback,) = select_file(save(model(graph), tmp_path)).fallbacks
    assert fallback.reason == reason


@pytest.mark.parametrize(("kind", "pool"), [("ReduceMean", "AveragePool"), ("ReduceMax", "MaxPool")])
def test_what_is_reduced_over_rows_and_columns_arrives_channels_last(kind: str, pool: str, tmp_path: Path) -> None:
    text = f"(float[2,6,5,7] x) => (float[a,b,c,d] y) {{ axes = int64[2] {{2,3}} t = Tanh(x) y = {kind}(t, axes) }}"
    graph = select_file(save(model(text), tmp_path)).graph
    assert [(type(node.op).__name__, node.inputs) for node in graph.nodes] == [("Unary", ("x@nhwc",)), (pool, ("t",))]
