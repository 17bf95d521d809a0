"""Check operators whose form ONNX changed: the last opset of the old and the first of the new match onnxruntime."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx_text import model, save
from same_outputs import check_same

from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.frontend.read_onnx import opset_with

X = "(float[2,3,4,6] x) => (float[a,b,c,d] y)"
ANY = "(float[2,3,4,6] x) => (float[] y)"
BEFORE_AND_AFTER = [  # operator, last opset before, its spelling, the spelling of the next
    ("Clip", 10, f"{X} {{ y = Clip<min = -0.5, max = 0.25>(x) }}",
     f"{X} {{ l = float {{-0.5}} h = float {{0.25}} y = Clip(x, l, h) }}"),
    (
        "Pad", 10, f"{X} {{ y = Pad<pads = [0,0,1,2,0,0,0,1], value = 2.0>(x) }}",
        f"{X} {{ p = int64[8] {{0,0,1,2,0,0,0,1}} v = float {{2}} y = Pad(x, p, v) }}",
    ),
    (
        "Slice", 9, f"{X} {{ y = Slice<starts = [1,2], ends = [3,6], axes = [2,3]>(x) }}",
        f"{X} {{ s = int64[2] {{1,2}} e = int64[2] {{3,6}} i = int64[2] {{2,3}} y = Slice(x, s, e, i) }}",
    ),
    (
        "Split", 12, f"{X} {{ a, y = Split<axis = 3, split = [4,2]>(x) }}",
        f"{X} {{ s = int64[2] {{4,2}} a, y = Split<axis = 3>(x, s) }}",
    ),
    ("Dropout", 11, f"{X} {{ y = Dropout<ratio = 0.5>(x) }}", f"{X} {{ r = float {{0.5}} y = Dropout(x, r) }}"),
    ("TopK", 9, f"{X} {{ y, i = TopK<k = 2>(x) }}", f"{X} {{ k = int64[1] {{2}} y, i = TopK(x, k) }}"),
    (
        "Resize", 10, f"{X} {{ s = float[4] {{1,1,2,3}} y = Resize(x, s) }}",
        f"{X} {{ r = float[0] {{}} s = float[4] {{1,1,2,3}} y = Resize<coordinate_transformation_mode = 'asymmetric', "
        "nearest_mode = 'floor'>(x, r, s) }",
    ),
    *(
        (
            f"Resize by {h}, {w}", 10, f"{X} {{ s = float[4] {{1,1,{h},{w}}} y = Resize(x, s) }}",
            f"{X} {{ s = float[4] {{1,1,{h},{w}}} r = float[0] {{}} y = Resize<coordinate_transformation_mode = 'asymmetric', "
            "nearest_mode = 'floor'>(x, r, s) }",
        )
        for h, w in ((0.75, 0.4), (1.5, 0.4), (0.75, 2))
    ),
    (
        "Resize by sizes", 12,
        f"{X} {{ r = float[0] {{}} s = float[0] {{}} z = int64[4] {{2,3,8,12}} y = Resize(x, r, s, z) }}",
        f"{X} {{ z = int64[4] {{2,3,8,12}} y = Resize(x, , , z) }}",
    ),
    *((op, 12, *[f"{X} {{ y = {op}<axis = 1>(x) }}"] * 2) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    ("Squeeze", 12, f"{ANY} {{ a = Unsqueeze<axes = [1]>(x) y = Squeeze<axes = [1]>(a) }}",
     f"{ANY} {{ i = int64[1] {{1}} a = Unsqueeze(x, i) y = Squeeze(a, i) }}"),
    ("ReduceSum", 12, f"{ANY} {{ y = ReduceSum<axes = [2], keepdims = 0>(x) }}",
     f"{ANY} {{ i = int64[1] {{2}} y = ReduceSum<keepdims = 0>(x, i) }}"),
    *(
        (op, 17, f"{ANY} {{ y = {op}<axes = [1,3]>(x) }}", f"{ANY} {{ i = int64[2] {{1,3}} y = {op}(x, i) }}")
        for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare")
    ),
]  # fmt: skip
WINDOWS = "r = float[2,4] {1,0,5,3,0,1,2,3} b = int64[2] {0,1} y = RoiAlign<output_height = 2, output_width = 3>(x, r, b)"
BEFORE_AND_AFTER.append(("RoiAlign", 15, f"{X} {{ {WINDOWS} }}", f"{X} {{ {WINDOWS} }}"))
WAVES = "(float[2,8,6,1] x) => (float[a,b,c,d] y)"
BEFORE_AND_AFTER.append(("DFT", 19, f"{WAVES} {{ y = DFT<axis = 2>(x) }}", f"{WAVES} {{ i = int64 {{2}} y = DFT(x, , i) }}"))
GROUPS = "(float[2,3,4,6] x, float[3] w, float[3] w1) => (float[a,b,c,d] y) { y = GroupNormalization<num_groups = 1>(x, w, w1) }"
OLD_AND_NEW_FORMS = [
    pytest.param(opset, text, id=f"{op} {opset}")
    for op, last, old, new in BEFORE_AND_AFTER
    for opset, text in ((last, old), (last + 1, new))
]
OLD_AND_NEW_FORMS += [pytest.param(21, GROUPS, id="GroupNormalization 21")]


@pytest.mark.parametrize(("opset", "text"), OLD_AND_NEW_FORMS)
def test_a_spelling_means_the_same_up_to_its_last_opset_and_from_its_first(tmp_path: Path, opset: int, text: str) -> None:
    check_same(save(model(text, opset), tmp_path))


def test_a_resize_of_opset_10_whose_larger_part_changes_no_size(tmp_path: Path) -> None:
    path = save(model(f"{X} {{ s = float[4] {{1,1,1.1,0.5}} y = Resize(x, s) }}", 10), tmp_path)
    with pytest.raises(CompileError) as caught:
        load_model(path)
    assert str(caught.value) == (
        "node Resize_0 (Resize): scales [1.0, 1.0, 1.100000023841858, 0.5] make an axis smaller, and scale others without "
        "changing their sizes\n  help: export with opset 11 or newer"
    )


def test_an_empty_part_of_a_concat_is_nothing(tmp_path: Path) -> None:
    ends = "s = int64[1] {6} e = int64[1] {9} i = int64[1] {3}"
    path = save(model(f"{X} {{ {ends} n = Slice(x, s, e, i) a = Concat<axis = 3>(x, n) y = Relu(a) }}"), tmp_path)
    assert [n.op.op_type for n in load_model(path).graph.nodes] == ["Relu"]
    check_same(path)


@pytest.mark.parametrize(
    "product",
    [
        "w = float[0,5] {} a = MatMul(n, w)",
        "t = Transpose<perm = [0,1,3,2]>(n) w = float[4,2] {1,2,3,4,5,6,7,8} a = MatMul(t, w)",
    ],
)
def test_a_product_of_nothing_stays_as_it_is(tmp_path: Path, product: str) -> None:
    ends = "s = int64[1] {6} e = int64[1] {9} i = int64[1] {3}"
    path = save(model(f"{ANY} {{ {ends} n = Slice(x, s, e, i) {product} y = Relu(a) }}"), tmp_path)
    check_same(path)


@pytest.mark.parametrize(
    ("opset", "text"),
    [
        (13, f"{X} {{ a, y = Split<axis = 3>(x) }}"),
        (17, f"{X} {{ y = Clip(x) }}"),
        (13, f"{ANY} {{ y = ReduceSum(x) }}"),
        (18, f"{ANY} {{ y = ReduceMean<noop_with_empty_axes = 1>(x) }}"),
    ],
)
def test_an_input_left_out_may_be_written_as_an_empty_name(tmp_path: Path, opset: int, text: str) -> None:
    proto = model(text, opset)
    proto.graph.node[0].input.append("")
    check_same(save(proto, tmp_path))


def test_a_graph_without_nodes_keeps_its_opset() -> None:
    assert opset_with([], 17) == 17
    assert opset_with(["Relu", "Attention"], 17) == 23
