"""Cases of operators that move data, and of shapes as people export them."""

from __future__ import annotations

from tests.semantics.case import Case

PARTS = "each neighbour's part is rounded to 8 bits, as weights are"
CASES = (
    Case("given out twice", "x 2,6", "y = Relu(x) b = Identity(y)", "y b"),
    *(
        Case(
            f"rows at a place that {who}",
            f"x 1,3,8,4; z 1,3,2,4; p {n}",
            f"i = {place} y = TensorScatter(x, z, i)",
            opset=24,
            ranges={"p": (0.5, 6.5)},
        )
        for who, n, place in (
            ("the host computes", "1", "Cast<to = 7>(p)"),
            ("the chip computes", "1,7", "ArgMax<axis = 1, keepdims = 0>(p)"),
        )
    ),
    Case(
        "rows between slices that end at a computed place",  # one place: the file's tensors between nodes have a shape each
        "x 1,3,8,4; z 1,3,2,4; p 1",
        "zero = int64[1] {0} two = int64[1] {2} eight = int64[1] {8} i = Cast<to = 7>(p) j = Add(i, two) "
        "a = Slice(x, zero, i, two) b = Slice(x, j, eight, two) y = Concat<axis = 2>(a, z, b)",
        ranges={"p": (3.1, 3.9)},
    ),
    Case("identity, dropout, cast", "x 2,6", "a = Identity(x) b = Dropout(a) c = Cast<to = 1>(b) y = Relu(c)"),
    Case("dropout, opset 9", "x 2,6", "a = Dropout<ratio = 0.3>(x) y = Sigmoid(a)", opset=9),
    Case(
        "reshape",
        "x 2,6,4; w 5,8",
        "s = int64[3] {0,-1,8} t = int64[2] {-1,8} a = Reshape(x, s) b = Reshape(a, t) y = Gemm<transB = 1>(b, w)",
    ),
    Case("flatten, relu", "x 2,3,2,2", "a = Flatten(x) y = Relu(a)"),
    Case(
        "squeeze and unsqueeze",
        "x 2,1,5",
        "i = int64[1] {1} j = int64[2] {0,3} a = Squeeze(x, i) b = Tanh(a) y = Unsqueeze(b, j)",
    ),
    Case(
        "squeeze and unsqueeze, opset 11",
        "x 2,1,5",
        "a = Squeeze<axes = [1]>(x) b = Tanh(a) y = Unsqueeze<axes = [0,3]>(b)",
        opset=11,
    ),
    Case("rows of updates at constant places", "x 5,4; z 2,4", "i = int64[2,1] {3,1} a = Relu(x) y = ScatterND(a, i, z)"),
    Case(
        "elements added at constant places",
        "x 3,5; z 3,2",
        "i = int64[3,2] {1,4,1,4,1,4} y = ScatterElements<axis = 1, reduction = 'add'>(x, i, z)",
    ),
    Case("copies of several dimensions", "x 2,3,4", "r = int64[3] {2,1,3} y = Tile(x, r)"),
    Case("transpose", "x 2,3,4,5", "y = Transpose<perm = [0,3,1,2]>(x)"),
    Case("transposes in a row", "x 2,3,4", "a = Transpose<perm = [1,0,2]>(x) b = Transpose<perm = [2,0,1]>(a) y = Relu(b)"),
    Case("transpose of five dimensions", "x 2,2,3,4,2", "a = Sigmoid(x) y = Transpose<perm = [4,0,2,1,3]>(a)"),
    Case(
        "reshape, function, reshape",
        "x 2,3,4",
        "s = int64[2] {6,4} t = int64[3] {2,3,4} a = Reshape(x, s) b = Softplus(a) y = Reshape(b, t)",
    ),
    Case(
        "reshape, sums, reshape",
        "x 2,3,4; z 2,3,4; k 4",
        "s = int64[2] {6,4} a = Reshape(x, s) b = Reshape(z, s) c = Add(a, b) d = Mul(c, k) y = Sub(d, b)",
    ),
    Case("reshape, conv", "x 2,60; v 5,3,2,3", "s = int64[4] {2,3,4,5} a = Reshape(x, s) y = Conv(a, v)"),
    Case("reshape, pool", "x 2,60", "s = int64[4] {2,3,4,5} a = Reshape(x, s) y = MaxPool<kernel_shape = [2,3]>(a)"),
    Case("product, conv", "x 2,3,4,6; z 2,3,6,5; v 5,3,2,3", "a = MatMul(x, z) y = Conv(a, v)"),
    Case("conv, product", "x 2,3,4,6; v 5,3,2,3; w 4,7", "a = Conv(x, v) y = MatMul(a, w)"),
    Case("reshape, prelu", "x 2,3,4; k 4", "s = int64[2] {6,4} a = Reshape(x, s) y = PRelu(a, k)"),
    Case(
        "reshape, quotient",
        "x 2,3,4; z 2,3,4",
        "s = int64[2] {6,4} a = Reshape(x, s) b = Reshape(z, s) y = Div(a, b)",
        ranges={"z": (0.4, 2.0)},
    ),
    Case(
        "conv of one dimension, concat", "x 2,3,9; w 4,3,3; w2 2,3,3", "a = Conv(x, w) b = Conv(x, w2) y = Concat<axis = 1>(a, b)"
    ),
    Case(
        "conv of one dimension, slice, concat with what is none",
        "x 2,3,9; w 4,3,3",
        "i = int64[1] {1} j = int64[1] {6} k = int64[1] {-1} a = Conv(x, w) b = Slice(a, i, j, k) c = Slice(x, i, j, k) "
        "y = Concat<axis = 1>(b, c)",
    ),
    Case(
        "conv of one dimension, pad, gate",
        "x 2,3,9; w 4,3,3; w2 4,4,1",
        "p = int64[6] {0,0,3,0,0,1} a = Conv(x, w) b = Pad(a, p) m = GlobalAveragePool(b) g = Conv(m, w2) h = Sigmoid(g) "
        "y = Mul(h, b)",
    ),
    Case(
        "conv of one dimension, nearest resize",
        "x 2,3,9; w 4,3,3",
        's = float[3] {1,1,2} a = Conv(x, w) y = Resize<mode = "nearest">(a, , s)',
    ),
    Case(
        "conv of one dimension, linear resize",
        "x 2,3,9; w 4,3,3",
        's = float[3] {1,1,3} a = Conv(x, w) y = Resize<mode = "linear">(a, , s)',
    ),
    Case(
        "conv of one dimension between transposes, residual sum",
        "x 2,9,4; w 4,4,3",
        "a = Transpose<perm = [0,2,1]>(x) b = Conv<pads = [1,1]>(a, w) c = Add(a, b) y = Transpose<perm = [0,2,1]>(c)",
    ),
    Case("concat of unlike scales", "x 2,3,4; z 2,2,4; q 2,1,4", "y = Concat<axis = 1>(x, z, q)", ranges={"z": (-4.0, 9.0)}),
    Case(
        "concat of what is read elsewhere",
        "x 2,3; z 2,3",
        "a = Sigmoid(x) b = Tanh(z) y = Concat<axis = -1>(a, b) r = Add(a, b)",
        outputs="y r",
    ),
    Case("concat of one, of nothing", "x 2,3", "a = Concat<axis = 0>(x) y = Sigmoid(a)"),
    Case(
        "concat with constants",
        "x 2,3; k 2,2; k2 2,1",
        "a = Sigmoid(x) y = Concat<axis = 1>(k, a, k2)",
        below_db=6.0,
        cause="the constants have their own codes, not those that the sum rounds to",
    ),
    Case("concat of a concat", "x 2,3; z 2,3", "a = Concat<axis = 1>(x, z) b = Concat<axis = 1>(a, x) y = Relu(b)"),
    Case(
        "slice",
        "x 2,9,8",
        "s = int64[2] {1,0} e = int64[2] {9,7} i = int64[2] {1,-1} t = int64[2] {2,3} y = Slice(x, s, e, i, t)",
    ),
    Case("slice, opset 9", "x 2,9,8", "y = Slice<starts = [1,-3], ends = [8,100], axes = [1,2]>(x)", opset=9),
    Case(
        "slice backwards",
        "x 2,9",
        "s = int64[1] {-1} e = int64[1] {-100} i = int64[1] {1} t = int64[1] {-2} y = Slice(x, s, e, i, t)",
    ),
    Case(
        "split",
        "x 2,9; w 4,3",
        "p = int64[3] {2,3,4} a, b, y = Split<axis = 1>(x, p) q = Relu(a) r = Gemm<transB = 1>(b, w)",
        outputs="y q r",
    ),
    Case("split in equal parts, opset 11", "x 2,8", "a, b = Split<axis = 1>(x) y = Sub(a, b)", opset=11),
    Case("split, opset 11", "x 2,8", "a, b = Split<axis = 1, split = [3,5]>(x) y = Concat<axis = 1>(b, a)", opset=11),
    Case("split in uneven parts", "x 2,8", "a, b, y = Split<axis = 1, num_outputs = 3>(x) r = Mul(a, b)", outputs="y r"),
    Case("gather", "x 3,8", "i = int64[4] {1,3,5,0} y = Gather<axis = 1>(x, i)"),
    Case("gather of one", "x 3,8", "i = int64 {-2} y = Gather<axis = 1>(x, i)"),
    Case("gather many", "x 3,40", "i = int64[20] {39,0,38,1,37,2,36,3,35,4,34,5,33,6,32,7,31,8,30,9} y = Gather<axis = 1>(x, i)"),
    Case("pad", "x 2,3,4", "p = int64[6] {0,1,2,0,0,1} c = float {0.6} y = Pad(x, p, c)"),
    Case("pad with nothing", "x 2,3", "p = int64[4] {0,0,0,0} a = Pad(x, p) y = Tanh(a)"),
    Case("pad of axes", "x 2,3,4,4", "p = int64[4] {1,0,0,2} c = float {-0.2} i = int64[2] {2,-1} y = Pad(x, p, c, i)"),
    Case("pad, opset 9", "x 2,3,4,4", "y = Pad<pads = [0,0,1,0,0,0,0,2], value = 1.25>(x)", opset=9),
    Case("pad by less than nothing", "x 2,5,6", "p = int64[6] {0,-1,2,0,0,-2} y = Pad(x, p)"),
    Case("crop", "x 2,5,6", "p = int64[6] {0,-1,0,0,0,-2} y = Pad(x, p)"),
    Case("pad by the edge", "x 2,5,6", "p = int64[6] {0,1,2,0,0,1} y = Pad<mode = 'edge'>(x, p)"),
    Case("long reflection", "x 1,2,40", "p = int64[6] {0,0,21,0,0,30} y = Pad<mode = 'reflect'>(x, p)"),
    Case("long edges", "x 2,30,3", "p = int64[6] {0,25,0,0,19,0} y = Pad<mode = 'edge'>(x, p)"),
    Case("edges beyond the dimension", "x 2,3,4", "p = int64[6] {0,5,20,0,4,0} y = Pad<mode = 'edge'>(x, p)"),
    Case("wrapped around several times", "x 2,3,4", "p = int64[6] {0,7,9,0,4,0} y = Pad<mode = 'wrap'>(x, p)"),
    Case("pad by the other end", "x 2,5,3", "p = int64[6] {0,2,1,0,3,0} y = Pad<mode = 'wrap'>(x, p)"),
    Case(
        "long and backwards",
        "x 30,2,3",
        "b = int64[1] {-3} e = int64[1] {-99} a = int64[1] {0} d = int64[1] {-1} y = Slice(x, b, e, a, d)",
    ),
    Case(
        "gather of many places",
        "x 2,40",
        f"i = int64[39] {{{','.join(str(i * 17 % 40) for i in range(39))}}} y = Gather<axis = 1>(x, i)",
    ),
    Case("cubic", "x 1,3,5,4", "s = int64[4] {1,3,7,9} y = Resize<mode = 'cubic'>(x, , , s)", least_db=45.0, cause=PARTS),
    Case(
        "linear, smaller",
        "x 1,3,9,8",
        "s = int64[4] {1,3,4,3} y = Resize<mode = 'linear', antialias = 1>(x, , , s)",
        least_db=45.0,
        cause=PARTS,
    ),
    Case("nearest, no whole factor", "x 1,3,5,4", "s = int64[4] {1,3,7,3} y = Resize(x, , , s)"),
    Case("pad by reflection", "x 1,2,5,6", "p = int64[8] {0,0,1,2,0,0,2,1} y = Pad<mode = 'reflect'>(x, p)"),
    Case("expand", "x 3,1,4", "s = int64[3] {3,5,4} y = Expand(x, s)"),
    Case("expand to a higher rank", "x 1,4", "s = int64[3] {2,3,1} y = Expand(x, s)"),
    Case("expand to nothing more", "x 3,4", "s = int64[2] {1,4} a = Expand(x, s) y = Relu(a)"),
    Case("tile", "x 3,1,4", "s = int64[3] {1,5,1} y = Tile(x, s)"),
    Case("two inputs, two outputs", "x 2,6; z 2,6", "a = Add(x, z) y = Sigmoid(a) q = Mul(a, z)", outputs="y q"),
    Case("top k, opset 9", "x 2,6", "y, i = TopK<k = 3>(x)", opset=9),
    Case("scatter, opset 9", "x 3,4; k 1,4", "i = int64[1,4] {2,0,1,2} a = Sigmoid(x) y = Scatter(a, i, k)", opset=9),
    Case(
        "grid sample, opset 16",
        "x 1,2,4,4; z 1,3,3,2",
        "a = Relu(x) y = GridSample<mode = 'bilinear'>(a, z)",
        opset=16,
        ranges={"z": (-1, 1)},
    ),
    Case(
        "windows of a map, opset 15",
        "x 1,3,8,8",
        "r = float[2,4] {1,0,5,3,0,1,2,3} b = int64[2] {0,0} a = Relu(x) "
        "y = RoiAlign<output_height = 2, output_width = 3>(a, r, b)",
        opset=15,
    ),
    Case("fourier transform, opset 17", "x 1,8,1", "a = Relu(x) y = DFT(a)", opset=17),
    Case("an input without dimensions", "x; k 1", "i = int64[1] {0} a = Unsqueeze(x, i) y = Mul(a, k)"),
    Case("a scalar", "x 3,4; z 3", "m = ReduceMean<keepdims = 0>(x) a = Add(m, z) b = Sigmoid(m) y = Mul(a, b)"),
    Case(
        "five dimensions", "x 2,2,3,4,2; k 3,4,2", "a = Add(x, k) b = Relu(a) i = int64[1] {4} y = ReduceMean<keepdims = 0>(b, i)"
    ),
    Case(
        "channel shuffle",
        "x 1,6,3,4; v 6,6,1,1",
        "s = int64[5] {1,2,3,3,4} t = int64[4] {1,6,3,4} a = Conv(x, v) b = Reshape(a, s) "
        "c = Transpose<perm = [0,2,1,3,4]>(b) y = Reshape(c, t)",
    ),
)
