"""Cases of operators that slide over space: convolutions, pools, resizing."""

from __future__ import annotations

from tests.semantics.case import Case

POOL = "kernel_shape = [3,3], strides = [2,2]"
THIRDS = "weights of a third of the largest, which int8 does not hold exactly"
CASES = (
    Case("conv", "x 2,3,9,7; v 5,3,3,3; w1 5", "y = Conv<pads = [1,1,1,1]>(x, v, w1)"),
    Case("conv no bias, stride, uneven pads", "x 1,4,10,9; v 6,4,3,2", "y = Conv<pads = [0,1,2,0], strides = [2,3]>(x, v)"),
    Case("conv dilated", "x 1,3,11,11; v 4,3,3,3", "y = Conv<dilations = [2,3], pads = [2,1,2,1]>(x, v)"),
    Case("conv grouped", "x 1,6,8,8; v 9,2,3,3; w1 9", "y = Conv<group = 3>(x, v, w1)"),
    Case("conv depthwise", "x 1,6,8,8; v 6,1,3,3; w1 6", "y = Conv<group = 6, pads = [1,1,1,1]>(x, v, w1)"),
    Case("conv depthwise twice as many", "x 1,3,8,8; v 6,1,3,3", "y = Conv<group = 3, strides = [2,2]>(x, v)"),
    Case("conv same upper", "x 1,3,8,9; v 4,3,3,3", "y = Conv<auto_pad = 'SAME_UPPER', strides = [2,2]>(x, v)"),
    Case("conv same lower", "x 1,3,8,9; v 4,3,2,4", "y = Conv<auto_pad = 'SAME_LOWER'>(x, v)"),
    Case("conv valid", "x 1,3,8,9; v 4,3,2,4", "y = Conv<auto_pad = 'VALID'>(x, v)"),
    Case("conv of one dimension", "x 2,4,15; w 6,4,5; w1 6", "y = Conv<pads = [2,2], strides = [2]>(x, w, w1)"),
    Case("conv of one dimension, relu, conv", "x 1,3,12; w 5,3,3; w2 4,5,3", "a = Conv(x, w) b = Relu(a) y = Conv(b, w2)"),
    Case("conv of three dimensions, flat in time", "x 1,3,4,6,5; v 4,3,1,3,3; w1 4", "y = Conv<pads = [0,1,1,0,1,1]>(x, v, w1)"),
    Case("conv of three dimensions, flat in space", "x 1,3,6,4,5; v 4,3,3,1,1", "y = Conv<strides = [2,1,1]>(x, v)"),
    Case("conv of three dimensions", "x 1,2,5,6,6; v 3,2,2,3,3; w1 3", "y = Conv<pads = [1,1,1,0,1,1]>(x, v, w1)"),
    Case("conv by computed weights", "x 1,4,6,6; z 5,4,2,2", "y = Conv<strides = [2,2]>(x, z)"),
    Case("correlation of templates, channel by channel", "x 1,4,7,7; z 4,1,3,3; b 4", "y = Conv<group = 4>(x, z, b)"),
    Case("conv by a computed bias", "x 1,3,6,6; v 4,3,3,3; z 4", "y = Conv(x, v, z)"),
    Case("pad into conv", "x 1,3,6,6; v 4,3,3,3", "p = int64[8] {0,0,1,2,0,0,0,1} a = Pad(x, p) y = Conv(a, v)"),
    Case(
        "pad of ones stays before conv",
        "x 1,3,6,6; v 4,3,3,3",
        "p = int64[8] {0,0,1,2,0,0,0,1} o = float {1} a = Pad(x, p, o) y = Conv(a, v)",
    ),
    Case("conv, clamp", "x 1,3,6,6; v 4,3,3,3; w1 4", "l = float {-0.3} h = float {0.5} a = Conv(x, v, w1) y = Clip(a, l, h)"),
    Case("conv, table", "x 1,3,6,6; v 4,3,3,3; w1 4", "a = Conv(x, v, w1) y = Tanh(a)"),
    Case("conv, silu", "x 1,3,6,6; v 4,3,3,3; w1 4", "a = Conv(x, v, w1) b = Sigmoid(a) y = Mul(a, b)"),
    Case("conv, residual", "x 1,4,6,6; v 4,4,3,3; w1 4", "a = Conv<pads = [1,1,1,1]>(x, v, w1) y = Add(a, x)"),
    Case("conv, residual first", "x 1,4,6,6; v 4,4,3,3; z 1,4,6,6", "a = Conv<pads = [1,1,1,1]>(x, v) y = Add(z, a)"),
    Case(
        "conv, residual of another scale, relu",
        "x 1,4,6,6; v 4,4,3,3; z 1,4,6,6",
        "a = Conv<pads = [1,1,1,1]>(x, v) b = Add(a, z) y = Relu(b)",
        ranges={"z": (-7.0, 11.0)},
    ),
    Case(
        "two convs summed, table between",
        "x 1,4,6,6; v 4,4,3,3; v2 4,4,1,1",
        "a = Conv<pads = [1,1,1,1]>(x, v) t = Sigmoid(a) b = Conv(x, v2) y = Add(t, b)",
    ),
    Case(
        "mul and add of channels into conv",
        "x 1,3,6,6; v 4,3,3,3; w1 4; k1 4,1,1; k2 4,1,1",
        "a = Conv(x, v, w1) b = Mul(a, k1) y = Add(b, k2)",
    ),
    Case("mul of one number into conv", "x 1,3,6,6; v 4,3,3,3; w1 4", "c = float {-1.75} a = Conv(x, v, w1) y = Mul(a, c)"),
    Case("mul into conv without bias", "x 1,3,6,6; v 4,3,3,3; k1 1,4,1,1", "a = Conv(x, v) y = Mul(a, k1)"),
    Case(
        "sub and div into conv",
        "x 1,3,6,6; v 4,3,3,3; w1 4; s1 4,1,1",
        "c = float {0.6} d = float {-0.4} a = Conv(x, v, w1) b = Sub(a, c) y = Div(b, d)",
    ),
    Case(
        "batch norm into conv",
        "x 1,3,6,6; v 4,3,3,3; w1 4; k1 4; k2 4; k3 4; s4 4",
        "e = float {0.1} q = Add(s4, e) a = Conv(x, v, w1) y = BatchNormalization<epsilon = 0.01>(a, k1, k2, k3, q)",
    ),
    Case(
        "batch norm alone, opset 9",
        "x 2,4,5,5; k1 4; k2 4; k3 4; s4 4",
        "e = float {0.5} q = Add(s4, e) y = BatchNormalization<epsilon = 0.01, momentum = 0.8>(x, k1, k2, k3, q)",
        opset=9,
        below_db=6.0,
        cause="its product is rounded to codes before its sum",
    ),
    Case(
        "batch norm into conv, opset 7",
        "x 1,3,6,6; v 4,3,3,3; k1 4; k2 4; k3 4; s4 4",
        "e = float {0.1} q = Add(s4, e) a = Conv(x, v) y = BatchNormalization<epsilon = 0.01, spatial = 1>(a, k1, k2, k3, q)",
        opset=7,
    ),
    Case("conv transpose", "x 1,3,5,4; u 3,4,3,3; w1 4", "y = ConvTranspose<strides = [2,2], pads = [1,1,1,1]>(x, u, w1)"),
    Case(
        "conv transpose, output padding",
        "x 1,3,5,4; u 3,4,3,2",
        "y = ConvTranspose<strides = [2,3], output_padding = [1,2]>(x, u)",
    ),
    Case("conv transpose grouped, dilated", "x 1,4,5,4; u 4,2,3,3", "y = ConvTranspose<group = 2, dilations = [2,1]>(x, u)"),
    Case("conv transpose of one dimension", "x 1,3,7; u 3,4,4", "y = ConvTranspose<strides = [2]>(x, u)"),
    Case("conv transpose same", "x 1,3,5,4; u 3,4,3,3", "y = ConvTranspose<auto_pad = 'SAME_UPPER', strides = [2,2]>(x, u)"),
    Case(
        "conv transpose, output shape", "x 1,3,5,4; u 3,4,3,3", "y = ConvTranspose<output_shape = [10,8], strides = [2,2]>(x, u)"
    ),
    Case(
        "mul and add of channels into conv transpose",
        "x 1,4,5,4; u 4,2,3,3; w1 4; k1 4,1,1; k2 4,1,1",
        "a = ConvTranspose<group = 2, strides = [2,2]>(x, u, w1) b = Mul(a, k1) y = Add(b, k2)",
    ),
    Case("max pool", "x 1,3,9,8", f"y = MaxPool<{POOL}>(x)"),
    Case(
        "max pool padded, ceil", "x 1,3,8,8", f"y = MaxPool<{POOL}, pads = [1,1,0,1], ceil_mode = 1>(x)", ranges={"x": (-3, -1)}
    ),
    Case(
        "pad with minus infinity into max pool",
        "x 1,3,8,8",
        f"p = int64[8] {{0,0,1,1,0,0,0,1}} i = float {{-inf}} a = Pad(x, p, i) y = MaxPool<{POOL}>(a)",
        ranges={"x": (-3, -1)},
    ),
    Case("max pool dilated", "x 1,3,9,8", "y = MaxPool<kernel_shape = [2,3], dilations = [2,2]>(x)", opset=12),
    Case("max pool of one dimension", "x 2,3,11", "y = MaxPool<kernel_shape = [3], strides = [2]>(x)"),
    Case("average pool, padding not counted", "x 1,3,8,8", f"y = AveragePool<{POOL}, pads = [1,1,0,1]>(x)"),
    Case("average pool, padding counted", "x 1,3,8,8", f"y = AveragePool<{POOL}, pads = [1,1,0,1], count_include_pad = 1>(x)"),
    Case("average pool, ceil", "x 1,3,8,7", f"y = AveragePool<{POOL}, ceil_mode = 1>(x)", opset=19),
    Case(
        "average pool, ceil and padding counted",
        "x 1,3,8,7",
        f"y = AveragePool<{POOL}, pads = [1,1,1,1], ceil_mode = 1, count_include_pad = 1>(x)",
        opset=19,
    ),
    Case("average pool same", "x 1,3,8,7", f"y = AveragePool<{POOL}, auto_pad = 'SAME_LOWER'>(x)"),
    Case("average pool, relu", "x 1,3,8,8", f"a = AveragePool<{POOL}, pads = [1,1,1,1]>(x) y = Relu(a)"),
    Case("average pool of one dimension", "x 2,3,11", "y = AveragePool<kernel_shape = [4], strides = [2], pads = [1,2]>(x)"),
    Case("average pool of all", "x 1,3,5,4", "y = AveragePool<kernel_shape = [5,4]>(x)"),
    Case("global average pool", "x 2,5,6,7", "y = GlobalAveragePool(x)"),
    Case("global average pool of one dimension", "x 2,5,9; w 4,5,1", "a = Conv(x, w) y = GlobalAveragePool(a)"),
    Case("global max pool", "x 2,5,6,7", "y = GlobalMaxPool(x)", ranges={"x": (-2.0, -0.5)}),
    Case(
        "nearest",
        "x 1,3,4,5",
        "r = float[0] {} s = float[4] {1,1,2,3} "
        "y = Resize<coordinate_transformation_mode = 'asymmetric', nearest_mode = 'floor'>(x, r, s)",
    ),
    Case("nearest, sizes, half pixel", "x 1,3,4,5", "s = int64[4] {1,3,8,15} y = Resize(x, , , s)"),
    Case("nearest, opset 10", "x 1,3,4,5", "s = float[4] {1,1,2,2} y = Resize(x, s)", opset=10),
    Case("upsample, opset 7", "x 1,3,4,5", "y = Upsample<scales = [1.0,1.0,2.0,3.0]>(x)", opset=7),
    Case("upsample, opset 9", "x 1,3,4,5", "s = float[4] {1,1,2,2} y = Upsample(x, s)", opset=9),
    Case(
        "linear, half pixel", "x 1,3,4,5", "s = float[4] {1,1,2,2} y = Resize<mode = 'linear'>(x, , s)", least_db=45, cause=THIRDS
    ),
    Case(
        "linear, asymmetric, opset 12",
        "x 1,3,4,5",
        "r = float[0] {} s = float[4] {1,1,3,2} "
        "y = Resize<mode = 'linear', coordinate_transformation_mode = 'asymmetric'>(x, r, s)",
        opset=12,
        least_db=45,
        cause=THIRDS,
    ),
    Case("linear by no whole factor", "x 1,3,4,5", "s = int64[4] {1,3,6,7} y = Resize<mode = 'linear'>(x, , , s)"),
    Case("depth to space", "x 1,8,3,4", "y = DepthToSpace<blocksize = 2>(x)"),
    Case("depth to space, crd", "x 1,8,3,4; v 8,8,1,1", "a = Conv(x, v) y = DepthToSpace<blocksize = 2, mode = 'CRD'>(a)"),
    Case("space to depth", "x 1,2,6,4", "y = SpaceToDepth<blocksize = 2>(x)"),
)
