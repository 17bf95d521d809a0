"""Cases of sums, products, matrices, means."""

from __future__ import annotations

from tests.semantics.case import Case

TWO_STEPS = "the chip rounds once more than the file's nodes say, inside an operator that it spells in two"
CASES = (
    Case("einsum of attention", "x 1,6,2,8; z 1,5,2,8", "y = Einsum<equation = 'bqhd,bkhd->bhqk'>(x, z)"),
    Case("einsum, outer", "x 2,6; z 2,5", "y = Einsum<equation = 'bi,bj->bji'>(x, z)"),
    Case("einsum, diagonal and sum", "x 4,4; z 4,3", "y = Einsum<equation = 'ii,ij->ij'>(x, z)"),
    Case("add", "x 2,3,4,5; z 2,3,4,5", "y = Add(x, z)"),
    Case("add, broadcast", "x 2,3,4,5; z 3,1,5", "y = Add(x, z)"),
    Case("add, both broadcast", "x 3,1; z 1,4", "y = Add(x, z)"),
    Case("add of a constant", "x 2,3,4,5; k 4,5", "y = Add(k, x)"),
    Case("add of the same", "x 2,7", "y = Add(x, x)"),
    Case("add, relu", "x 2,7; z 2,7", "a = Add(x, z) y = Relu(a)"),
    Case("sub", "x 2,3,4,5; z 2,3,4,5", "y = Sub(x, z)"),
    Case("sub, turned, broadcast", "x 1,5; z 4,5", "y = Sub(z, x)"),
    Case("sub of a constant", "x 4,5; k 5", "y = Sub(x, k)"),
    Case("sub from a constant", "x 4,5; k 5", "y = Sub(k, x)"),
    Case("mul", "x 2,3,4,5; z 2,3,4,5", "y = Mul(x, z)"),
    Case("mul, clamp", "x 6,7; z 6,7", "l = float {-1.5} h = float {0.2} a = Mul(x, z) y = Clip(a, l, h)"),
    Case("mul by what is computed of it", "x 1,4,5,5; z 1,4,1,1", "g = Sigmoid(z) y = Mul(x, g)"),
    Case("mul by a constant", "x 4,5; k 4,5", "y = Mul(k, x)"),
    Case("mul by a constant of a higher rank", "x 7; k 1,1", "y = Mul(x, k)"),
    Case("add of a constant of a higher rank", "x 3,5; k 1,1,1", "y = Add(x, k)"),
    *(
        Case(
            f"{kind} with a number of a higher rank", "x 7", f"c = float[1,1] {{1.7}} y = {kind}(x, c)", ranges={"x": (0.4, 2.9)}
        )
        for kind in ("Div", "Max", "Min", "Pow", "Sub")
    ),
    Case(
        "squeeze and excite",
        "x 1,6,5,5; w 3,6,1,1; w2 6,3,1,1",
        "a = GlobalAveragePool(x) b = Conv(a, w) c = Relu(b) d = Conv(c, w2) e = HardSigmoid(d) y = Mul(x, e)",
    ),
    Case(
        "constants in a row",
        "x 2,3,4; k 3,1; k2 4",
        "a = Add(x, k) y = Add(a, k2)",
        below_db=6.0,
        cause="their sum is a constant of more codes than 8 bits hold",
    ),
    Case(
        "factors in a row",
        "x 2,3,4; k 4; k2 4",
        "a = Mul(x, k) y = Mul(a, k2)",
        below_db=6.0,
        cause="their product is a constant of more codes than 8 bits hold",
    ),
    Case(
        "nothing added, multiplied",
        "x 2,6",
        "o = float {0} i = float {1} a = Add(x, o) b = Mul(a, i) c = Sub(b, o) d = Div(c, i) e = Pow(d, i) y = Sigmoid(e)",
    ),
    Case("a constant of equal values", "x 2,3", "c = float[2,3] {0.7,0.7,0.7,0.7,0.7,0.7} a = Add(x, c) y = Mul(a, c)"),
    Case(
        "div by a constant",
        "x 3,4; s 4",
        "e = float {0.25} q = Add(s, e) y = Div(x, q)",
        below_db=9.0,
        cause="reciprocals are no codes: the constant is rounded too",
    ),
    Case("div by a tensor", "x 3,4; z 3,4", "y = Div(x, z)", ranges={"z": (0.3, 2.0)}),
    Case("pow 2", "x 3,40", "e = float {2} y = Pow(x, e)"),
    Case("pow 3", "x 3,40", "e = float {3} y = Pow(x, e)"),
    Case("pow -1", "x 3,40", "e = float {-1} y = Pow(x, e)", ranges={"x": (0.7, 2.0)}),
    Case("sum of three", "x 2,30; z 2,30; q 30", "y = Sum(x, z, q)", below_db=4.5, cause=TWO_STEPS),
    Case("sum of one", "x 2,30", "a = Sum(x) y = Tanh(a)"),
    Case("mean of two", "x 2,30; z 2,30", "y = Mean(x, z)", below_db=6.0, cause=TWO_STEPS),
    Case("max of two", "x 2,30; z 2,30", "y = Max(x, z)"),
    Case("max of three, min of three", "x 2,30; z 2,30; q 30", "a = Max(x, z, q) y = Min(a, x, q)"),
    Case("max and min with a number", "x 2,30", "l = float {-0.2} h = float[1] {1.1} a = Max(x, l) y = Min(h, a)"),
    Case("prelu of channels", "x 1,4,5,5; w 4,1,1", "y = PRelu(x, w)"),
    Case("prelu of any slope", "x 3,5; k 3,5", "y = PRelu(x, k)"),
    Case("prelu of one slope", "x 3,5", "s = float[1] {0.3} y = PRelu(x, s)"),
    Case("prelu of a slope with leading ones", "x 1,4,5,5; k 1,4,1,1", "y = PRelu(x, k)"),
    Case("prelu of a computed slope", "x 3,5; z 3,5", "a = Sigmoid(z) y = PRelu(x, a)"),
    Case("gemm", "x 3,7; w 5,7; w1 5", "y = Gemm<transB = 1>(x, w, w1)"),
    Case("gemm, all attributes", "x 7,3; w 7,5; w1 1,5", "y = Gemm<transA = 1, alpha = 0.5, beta = -1.5>(x, w, w1)"),
    Case("gemm, bias of one number", "x 3,7; w 7,5", "b = float {0.8} y = Gemm(x, w, b)"),
    Case("gemm, a matrix as bias", "x 3,7; w 7,5; k 3,1", "y = Gemm<beta = 2.0>(x, w, k)"),
    Case(
        "gemm of two computed",
        "x 7,3; z 5,7; q 3,5",
        "y = Gemm<transA = 1, transB = 1, alpha = 0.5, beta = 2.0>(x, z, q)",
        below_db=6.0,
        cause=TWO_STEPS,
    ),
    Case(
        "gemm, mul, add, relu",
        "x 3,7; w 5,7; w1 5; k1 5; k2 5",
        "a = Gemm<transB = 1>(x, w, w1) b = Mul(a, k1) c = Add(b, k2) y = Relu(c)",
    ),
    Case("matmul by a constant", "x 2,3,7; w 7,5; k 5", "a = MatMul(x, w) y = Add(a, k)"),
    Case("matmul by a vector", "x 3,7; w 7", "y = MatMul(x, w)"),
    Case("matmul of a constant on the left", "x 7,4; k 5,7", "y = MatMul(k, x)"),
    Case("matmul by constants of many", "x 2,3,7; k 2,7,5", "y = MatMul(x, k)"),
    Case("matmul of constants of many on the left", "x 3,2,4,7; k 2,5,4", "y = MatMul(k, x)"),
    Case("matmul of two computed", "x 2,3,4,7; z 2,3,7,5", "y = MatMul(x, z)"),
    Case("matmul, broadcast", "x 2,4,7; z 7,5", "y = MatMul(x, z)"),
    Case(
        "attention",
        "x 2,5,8; z 2,5,8",
        "t = Transpose<perm = [0,2,1]>(z) s = MatMul(x, t) f = float {0.35} m = Mul(s, f) p = Softmax(m) y = MatMul(p, z)",
    ),
    Case("mean over rows and columns", "x 2,3,5,4", "a = int64[2] {2,3} y = ReduceMean(x, a)"),
    Case("mean over columns, dropped", "x 2,3,5,4", "a = int64[1] {-1} y = ReduceMean<keepdims = 0>(x, a)"),
    Case("mean over the last", "x 2,5,9", "a = int64[1] {2} y = ReduceMean<keepdims = 0>(x, a)"),
    Case("mean over the middle", "x 2,5,9", "y = ReduceMean<axes = [1], keepdims = 0>(x)", opset=13),
    Case("mean over all", "x 2,5,9", "y = ReduceMean<keepdims = 0>(x)"),
    Case("mean over channels", "x 2,6,4,4; v 6,6,1,1", "a = Conv(x, v) i = int64[1] {1} y = ReduceMean(a, i)"),
    Case("mean over no neighbours", "x 2,6,4,4", "i = int64[2] {0,2} y = ReduceMean(x, i)"),
    Case("mean of one dimension after conv", "x 2,5,9; w 4,5,2", "a = Conv(x, w) i = int64[1] {2} y = ReduceMean(a, i)"),
    Case("sum over the last", "x 3,9", "a = int64[1] {1} y = ReduceSum(x, a)", below_db=6.0, cause=TWO_STEPS),
    Case(
        "sum over rows, opset 11",
        "x 2,3,5,4",
        "y = ReduceSum<axes = [2], keepdims = 0>(x)",
        opset=11,
        below_db=6.0,
        cause=TWO_STEPS,
    ),
    Case("max over rows and columns", "x 2,3,5,4", "a = int64[2] {2,3} y = ReduceMax<keepdims = 0>(x, a)"),
    Case("max over the last", "x 3,9", "y = ReduceMax<axes = [1]>(x)", opset=13),
    Case("max over the middle", "x 3,9,4", "y = ReduceMax<axes = [1], keepdims = 0>(x)", opset=13),
    *(
        Case(
            f"{kind} over the middle, opset 13",
            "x 2,5,3",
            f"a = {kind}<axes = [1], keepdims = 0>(x) y = Relu(a)",
            opset=13,
            ranges={"x": (0.6, 1.4)},
        )
        for kind in ("ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
    ),
    Case("ReduceL2 over the last, opset 21", "x 3,9", "i = int64[1] {-1} a = Sigmoid(x) y = ReduceL2(a, i)"),
    Case("layer norm", "x 3,16; k 16; k2 16", "y = LayerNormalization<axis = -1>(x, k, k2)"),
    Case(
        "layer norm, written out",
        "x 3,16; k 16; k2 16",
        "i = int64[1] {-1} e = float {0.00001} t = float {2} m = ReduceMean(x, i) d = Sub(x, m) p = Pow(d, t) "
        "v = ReduceMean(p, i) a = Add(v, e) r = Sqrt(a) n = Div(d, r) g = Mul(n, k) y = Add(g, k2)",
    ),
    Case(
        "layer norm of channels, by a reciprocal",
        "x 2,16,3,3",
        "i = int64[1] {1} e = float {0.00001} m = ReduceMean(x, i) d = Sub(x, m) p = Mul(d, d) "
        "v = ReduceMean(p, i) a = Add(v, e) r = Sqrt(a) q = Reciprocal(r) y = Mul(d, q)",
    ),
    *(
        Case(
            f"layer norm, its scale taken apart, by {kind}",
            "x 3,16; k 16; k2 16",
            "i = int64[1] {-1} e = float {0.001} m = ReduceMean(x, i) d = Sub(x, m) p = Mul(d, d) v = ReduceMean(p, i) "
            f"a = Add(v, e) r = Sqrt(a) q = Reciprocal(r) s = Mul(q, k) c = Mul(x, s) t = Mul(m, s) {end}",
        )
        for kind, end in (("Sub", "y = Sub(c, t)"), ("Add", "u = Sub(k2, t) y = Add(c, u)"))
    ),
    Case(
        "root-mean-square norm, written out",
        "x 3,16; k 16",
        "i = int64[1] {-1} e = float {0.00001} t = float {2} a = Sigmoid(x) p = Pow(a, t) v = ReduceMean(p, i) b = Add(v, e) "
        "r = Sqrt(b) n = Div(a, r) y = Mul(n, k)",
    ),
    Case("root-mean-square norm, opset 23", "x 3,16; k 16", "y = RMSNormalization<axis = -1>(x, k)", opset=23),
    Case("softmax", "x 3,9", "y = Softmax(x)"),
    Case("softmax over two dimensions, opset 11", "x 2,3,5", "y = Softmax<axis = 1>(x)", opset=11),
    Case("hard max over two dimensions, opset 11", "x 2,3,5", "y = Hardmax<axis = 1>(x)", opset=11),
    Case("softmax of the last, opset 11", "x 2,3,5", "y = Softmax<axis = 2>(x)", opset=11),
    Case("softmax of a sigmoid over two dimensions, opset 11", "x 2,3,5", "a = Sigmoid(x) y = Softmax<axis = -2>(a)", opset=11),
    Case("cast like", "x 2,3,5; w 2", "a = CastLike(x, w) y = Tanh(a)"),
    Case(
        "softmax written out",
        "x 2,3,5",
        "k = int64[1] {1} m = ReduceMax(x, k) d = Sub(x, m) e = Exp(d) t = ReduceSum(e, k) y = Div(e, t)",
    ),
    Case(
        "log softmax written out",
        "x 2,3,5",
        "k = int64[1] {-1} m = ReduceMax(x, k) d = Sub(x, m) e = Exp(d) t = ReduceSum(e, k) l = Log(t) y = Sub(d, l)",
    ),
    Case("log softmax, opset 9", "x 2,3,5", "y = LogSoftmax(x)", opset=9),
)
