"""Nodes that contradict themselves or their inputs: each refused in one sentence; their neighbours, which are right, are not."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx_text import model, save
from same_outputs import check_same

from toolchain.errors import CompileError
from toolchain.frontend import load_model

DISAGREE = "the specification and onnxruntime do not agree what that is"
CONV = "float[4,3,3,3] w"
BRANCH = "{} () => (float[a] u) {{ u = Relu(x) }}"
BODY = "b (int64 i, bool c, float[a] u) => (bool d, float[a] v) { d = Identity(c) v = Neg(u) }"
# inputs besides x, nodes, message behind "node NAME (OPERATOR): "
MAP = [
    (CONV, "y = Conv<kernel_shape = [5,5]>(x, w)", 'kernel_shape=[5, 5], but its weights "w" are [3, 3] wide'),
    (
        CONV,
        "y = Conv<auto_pad = 'VALID', pads = [1,1,1,1]>(x, w)",
        "auto_pad=VALID and pads=[1, 1, 1, 1] contradict each other\n"
        "  help: leave one of them out: only auto_pad=NOTSET goes with pads",
    ),
    (
        "float[4,2,3,3] w",
        "y = Conv<group = 2>(x, w)",
        "its input has 3 channels; its weights [4, 2, 3, 3] with group=2 take 4, and their 4 outputs must divide by the group",
    ),
    (
        "float[4,1,3,3] w",
        "y = Conv<group = 3>(x, w)",
        "its input has 3 channels; its weights [4, 1, 3, 3] with group=3 take 3, and their 4 outputs must divide by the group",
    ),
    (f"{CONV}, float[3] w2", "y = Conv(x, w, w2)", 'its bias "w2" is [3]; it has 4 output channels'),
    (
        CONV,
        "y = Conv<dilations = [4,4]>(x, w)",
        "its window of 9x9 is larger than its input of 8x8, padding counted",
    ),
    (
        "float[2,3,3,3] w",
        "y = ConvTranspose(x, w)",
        "its input has 3 channels; its weights [2, 3, 3, 3] take 2, which group=1 must divide",
    ),
    (
        "float[3,2,2,1] w",
        "y = ConvTranspose<output_shape = [12,9]>(x, w)",
        "output_shape=[12, 9] is beyond the 9x8 that its window and strides reach",
    ),
    (
        "float[3,2,1,1] w",
        "y = ConvTranspose<pads = [4,4,4,4]>(x, w)",
        "pads=[4, 4, 4, 4] leave nothing of the 8x8 that it makes",
    ),
    (
        "float[3,2,1,1] w",
        "y = ConvTranspose<strides = [2,2], auto_pad = 'SAME_UPPER'>(x, w)",
        f"auto_pad=SAME_UPPER with strides=[2, 2] beyond its window: {DISAGREE}\n"
        "  help: give the size as output_shape=[...], or the padding as pads=[...]",
    ),
    *(
        (
            "",
            f"y = {pool}Pool<auto_pad = 'SAME_UPPER', dilations = [3,3], kernel_shape = [3,3]>(x)",
            f"auto_pad=SAME_UPPER with dilations=[3, 3]: {DISAGREE}\n  help: give the padding as pads=[...], without auto_pad",
        )
        for pool in ("Max", "Average")
    ),
    (
        "",
        "y = MaxPool<auto_pad = 'SAME_LOWER', strides = [3,3], kernel_shape = [1,1]>(x)",
        f"auto_pad=SAME_LOWER with strides=[3, 3] beyond its window: {DISAGREE}\n"
        "  help: give the padding as pads=[...], without auto_pad",
    ),
    (
        "",
        "y = MaxPool<kernel_shape = [3,3], pads = [3,0,0,0]>(x)",
        "pads=[3, 0, 0, 0] must be smaller than kernel_shape=[3, 3], as onnxruntime has it\n"
        "  help: pad the input by a Pad before it",
    ),
    (
        "",
        "y = AveragePool<kernel_shape = [3,2], dilations = [4,1], strides = [2,2]>(x)",
        "its window of 9x2 is larger than its input of 8x8, padding counted",
    ),
    ("", "i = int64[1] {3} y = Gather<axis = 1>(x, i)", 'its indices "i" hold 3; the dimension has 3 elements: -3 to 2'),
    ("", "i = int64[1] {-4} y = Gather<axis = -3>(x, i)", 'its indices "i" hold -4; the dimension has 3 elements: -3 to 2'),
    (
        "",
        "i = int64[1,1,1,1] {9} y = GatherElements<axis = 3>(x, i)",
        'its indices "i" hold 9; the dimension has 8 elements: -8 to 7',
    ),
    ("", "i = int64[1,1,1,1] {0} y = GatherElements<axis = 4>(x, i)", "axis 4 is outside rank 4: -4 to 3"),
    ("", "i = int64[1,2] {0,7} y = GatherND(x, i)", 'its indices "i" hold 7; the dimension has 3 elements: -3 to 2'),
    ("", "a = int64 {4} y = CumSum(x, a)", "axis 4 is outside rank 4: -4 to 3"),
    ("", "y = Transpose<perm = [0,1]>(x)", "perm=[0, 1] is no order of the 4 dimensions of its input"),
    ("", "s = int64[2] {5,5} y = Reshape(x, s)", "[1, 3, 8, 8] has 192 elements, the shape [5, 5] 25"),
    ("", "s = int64[5] {0,0,0,0,0} y = Reshape(x, s)", "[1, 3, 8, 8] has 192 elements, the shape [0, 0, 0, 0, 0] 0"),
    ("", "y, z = Split<axis = 1, num_outputs = 3>(x)", "num_outputs=3, but it has 2 outputs"),
    ("", "s = int64[2] {1,2} y, z = Split<axis = 4>(x, s)", "axis 4 is outside rank 4: -4 to 3"),
    (
        "",
        "p = int64[8] {0,3,0,0,0,0,0,0} y = Pad<mode = 'reflect'>(x, p)",
        "pads=[0, 3, 0, 0, 0, 0, 0, 0]: dimension 1 of 3 has 2 to reflect, not 3",
    ),
    ("", "a = float[2] {0,1} y = Clip(x, a)", 'its limit "a" is [2]; it must be one number, []'),
    ("float[3] w", "y = LayerNormalization<axis = 2>(x, w)", '"w" [3] does not broadcast to its input [1, 3, 8, 8]'),
    (
        "float[1,12,8] w, float[1,12,3] r",
        "s = int64[3] {3,8,8} v = Reshape(x, s) y = GRU(v, w, r)",
        'has no hidden_size; its recurrent weights "r" are for 3 units\n  help: write hidden_size=3 into the node',
    ),
    (
        "float[4] w",
        "y = InstanceNormalization(x, w, w)",
        '"w" is [4]; its input [1, 3, 8, 8] takes [3]',
    ),
    (
        "float[8] w",
        "k = int64[2] {8,24} r = Reshape(x, k) t = Transpose(r) y = InstanceNormalization(t, w, w)",
        "its input [24, 8] has no dimension behind the channels to normalize over",
    ),
    (
        "float[2,1,3,8,8] w",
        "y = PRelu(x, w)",
        'its slope "w" [2, 1, 3, 8, 8] does not broadcast to its input [1, 3, 8, 8]\n'
        "  help: give the slope as many dimensions as the input at most, each 1 or the input's",
    ),
    *(
        (
            "",
            f"j = int64{of} {{1}} k = int64[1] {{0}} o = int64[1] {{1}} t = int64[2] {{1,1}} z = float {{0}} y = {call}",
            f'its operand "j" is {shape}; it must be a list of numbers, [n]',
        )
        for of, shape in (("", "[]"), ("[1,1]", "[1, 1]"))
        for call in (
            *(f"{name}(x, j)" for name in ("ReduceSum", "ReduceMax", "ReduceMean", "Split", "Squeeze", "Reshape")),
            *(f"Slice(x, {operands})" for operands in ("j, o", "k, j", "k, o, j", "k, o, k, j")),
            "Pad(x, t, z, j)",
        )
    ),
    (
        "",
        "j = int64[0] {} y = Squeeze(x, j)",
        f'its axes "j" are an empty list: {DISAGREE}\n  help: leave them out, or name them',
    ),
    *(
        ("", f"j = int64[{count}] {{{values}}} {body}", f'its operand "{operand}" is [{count}]; it must be one number, []')
        for count, values in ((0, ""), (2, "1,1"))
        for operand, body in (
            ("j", "y = CumSum(x, j)"),
            ("j", "y = Trilu(x, j)"),
            ("b", f"b = Cast<to = 9>(j) y = If(b)<then_branch = {BRANCH.format('t')}, else_branch = {BRANCH.format('e')}>"),
            ("j", f"y = Loop(j, , x)<body = {BODY}>"),
        )
    ),
    *(
        ("", f"y = RandomNormal{like}", f"scale={scale}: must be above 0")
        for scale in ("0", "-1")
        for like in (f"<shape = [2], scale = {scale}.0>()", f"Like<scale = {scale}.0>(x)")
    ),
    *(
        ("", f"y = RandomUniform{like}", "low=2 and high=1: low must not be above high")
        for like in ("<shape = [2], low = 2.0>()", "Like<low = 2.0>(x)")
    ),
    *(
        ("", f"y = {call}", f"{said}: {number} is beyond 32 bits")
        for number in (-(2**63), 2**63 - 1)
        for call, said in (
            *((f"{name}<axis = {number}>(x)", f"axis={number}") for name in ("Concat", "Softmax", "LogSoftmax", "Split")),
            (f"MaxPool<kernel_shape = [1,1], strides = [1,{number}]>(x)", f"strides=[1, {number}]"),
            (f"DepthToSpace<blocksize = {number}>(x)", f"blocksize={number}"),
        )
    ),
    (
        "",
        "b = int64[1] {0} s = int64[4] {0,65536,65536,1} z = Slice(x, b, b) y = Reshape<allowzero = 1>(z, s)",
        'its output "y" would have the shape [0, 65536, 65536, 1]; 268,435,456 elements are the most',
    ),
    *(
        (
            "",
            f"i = int64[1,2] {{0,0}} y = GatherND<batch_dims = {count}>(x, i)",
            f"batch_dims={count}: its data [1, 3, 8, 8] and indices [1, 2] have 1 at most",
        )
        for count in (-1, 2, -(2**31))
    ),
    ("", "y = LRN<size = 0>(x)", "size=0: must be 1 or more"),
    ("", "y = DepthToSpace<blocksize = 2>(x)", "blocksize=2: its square must divide the 3 channels of its input"),
    (
        "",
        "s = float {0} e = float {1e20} d = float {1} y = Range(s, e, d)",
        'its output "y" would have the shape [9223372036854775807]; 268,435,456 elements are the most',
    ),
]


def on_map(inputs: str, body: str, folder: Path) -> Path:
    proto = model(f"(float[1,3,8,8] x{', ' if inputs else ''}{inputs}) => (float[a] y) {{ {body} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return save(proto, folder)


@pytest.mark.parametrize(("inputs", "body", "message"), MAP)
def test_refused(inputs: str, body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as fault:
        load_model(on_map(inputs, body, tmp_path))
    thing, _, reason = str(fault.value).partition("): ")
    assert (thing.startswith("node "), reason) == (True, message)


def test_all_are_told_at_once(tmp_path: Path) -> None:
    """Two of one node, one of another, one in a branch; what comes of them has no type, and no sentence."""
    text = """(float[1,3,8,8] x, float[4,3,3,3] w, float[3] w2) => (float[a] y) <bool i = {1}> {
        a = Conv<kernel_shape = [5,5]>(x, w, w2)
        b = Relu(a)
        c = Transpose<perm = [0,0]>(x)
        d = Conv<kernel_shape = [5,5]>(b, w, w2)
        e = If (i) <then_branch = then () => (float[a] f) { f = Transpose<perm = [1]>(x) },
          else_branch = other () => (float[a] g) { g = Relu(x) }>
        y = Concat<axis = 0>(c, d, e)
    }"""
    proto = model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(CompileError) as fault:
        load_model(save(proto, tmp_path))
    assert str(fault.value).split("\n") == [
        'node Conv_0 (Conv): kernel_shape=[5, 5], but its weights "w" are [3, 3] wide',
        'node Conv_0 (Conv): its bias "w2" is [3]; it has 4 output channels',
        "node Transpose_2 (Transpose): perm=[0, 0] is no order of the 4 dimensions of its input",
        "node Transpose_0 (Transpose): perm=[1] is no order of the 4 dimensions of its input",
    ]


RIGHT = [
    (CONV, "y = Conv<auto_pad = 'VALID', kernel_shape = [3,3]>(x, w)"),
    (CONV, "y = Conv<dilations = [3,3], pads = [0,0,0,0]>(x, w)"),
    ("", "i = int64[2] {-3,2} y = Gather<axis = 1>(x, i)"),
    ("", "i = int64[1,2] {0,-3} y = GatherND(x, i)"),
    ("", "y = MaxPool<auto_pad = 'SAME_UPPER', strides = [3,3], kernel_shape = [2,2]>(x)"),
    ("", "y = MaxPool<kernel_shape = [3,3], pads = [2,2,2,2], dilations = [2,2]>(x)"),
    ("", "y = AveragePool<kernel_shape = [9,2], strides = [2,2], ceil_mode = 1>(x)"),
    ("", "p = int64[8] {0,2,0,0,0,2,0,0} y = Pad<mode = 'reflect'>(x, p)"),
    ("float[8] w", "y = LayerNormalization(x, w)"),
    ("float[3,1,8] w", "y = LayerNormalization<axis = 1>(x, w)"),
    ("float[8,8] w", "y = PRelu(x, w)"),
    ("", "a = float[1] {0} b = float[1] {1} y = Clip(x, a, b)"),
    ("", "s = int64[2] {0,-1} y = Reshape(x, s)"),
    ("", "y = RandomUniformLike<low = 0.5, high = 0.5>(x)"),
    *(
        ("float[3,2,3,2] w", f"y = ConvTranspose<strides = [2,3], output_shape = {size}{auto}>(x, w)")
        for size in ("[16,24]", "[17,23]", "[18,25]", "[15,20]", "[3,2]")
        for auto in ("", ", auto_pad = 'SAME_UPPER'", ", auto_pad = 'SAME_LOWER'", ", auto_pad = 'VALID'")
    ),
    ("float[3,2,2,1] w", "y = ConvTranspose<strides = [1,3], output_shape = [1,24], auto_pad = 'VALID'>(x, w)"),
    ("float[3,2,3,3] w", "y = ConvTranspose<strides = [2,2], auto_pad = 'SAME_LOWER', output_padding = [1,1]>(x, w)"),
]


@pytest.mark.parametrize(("inputs", "body"), RIGHT)
def test_taken_as_onnxruntime_does(inputs: str, body: str, tmp_path: Path) -> None:
    check_same(on_map(inputs, body, tmp_path))


def test_a_promise_of_a_function(tmp_path: Path) -> None:
    proto = onnx.load(on_map(CONV, "y = Conv(x, w)", tmp_path))
    attribute = proto.graph.node[0].attribute.add()
    attribute.name, attribute.ref_attr_name, attribute.type = "auto_pad", "q", onnx.AttributeProto.STRING
    with pytest.raises(CompileError) as fault:
        load_model(save(proto, tmp_path))
    assert str(fault.value) == (
        'node Conv_0: attribute auto_pad stands for "q" of a function, and the node is in none\n  help: export the model again'
    )


@pytest.mark.parametrize(
    ("opset", "body", "message"),
    [
        (9, "y = Pad(x)", 'node Pad_0 (Pad): lacks its attribute "pads"'),
        (9, "y = Slice(x)", 'node Slice_0 (Slice): lacks its attribute "ends"'),
        (9, "y = Upsample(x)", "node Upsample_0 (Upsample): has 1 inputs, 2 to 2 are allowed"),
        (9, "y, z = TopK(x)", 'node TopK_0 (TopK): lacks its attribute "k"'),
    ],
)
def test_old_spellings_are_complete(opset: int, body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as fault:
        load_model(save(model(f"(float[1,3,8,8] x) => (float[a,b,c,d] y) {{ {body} }}", opset), tmp_path))
    assert str(fault.value) == message
