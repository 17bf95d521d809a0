"""Cases of operators that the normal form spells as others."""

from __future__ import annotations

from tests.semantics.case import Case

STEPS = "the chip rounds between steps that the file has as one operator"
REDUCED = ("ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
CASES = (
    *(
        Case(
            f"{kind} over {where}",
            "x 2,5,3",
            f"i = int64[{len(axes.split(','))}] {{{axes}}} y = {kind}(x, i)",
            ranges={"x": (0.6, 1.4)},
            **({"below_db": 6.0, "cause": STEPS} if kind == "ReduceSumSquare" else {}),
        )
        for kind in REDUCED
        for where, axes in (("the middle", "1"), ("two", "0,2"))
    ),
    Case("a mean over no neighbours", "x 2,3,4", "i = int64[2] {0,2} y = ReduceMean(x, i)", below_db=6.0, cause=STEPS),
    Case("a maximum over no neighbours", "x 2,3,4", "i = int64[2] {0,2} y = ReduceMax(x, i)"),
    *(Case(f"{kind} over the first of three", "x 4,2,5", f"y = {kind}<axis = 0>(x)") for kind in ("Softmax", "LogSoftmax")),
    Case("softmax over channels", "x 2,6,4,3; w 5,6,1,1", "a = Conv(x, w) y = Softmax<axis = 1>(a)"),
    Case("hard max over the middle", "x 2,5,3", "y = Hardmax<axis = 1>(x)"),
    Case("lp norm", "x 3,8", "y = LpNormalization<axis = 1>(x)"),
    Case("lp norm of magnitudes", "x 4,3", "y = LpNormalization<axis = 0, p = 1>(x)"),
    Case("mean and variance", "x 2,3,4,5", "y = MeanVarianceNormalization(x)"),
    Case("mean and variance of rows", "x 2,3,4,5", "y = MeanVarianceNormalization<axes = [3]>(x)"),
    Case(
        "local response",
        "x 2,7,4,3",
        "y = LRN<size = 3, alpha = 0.3, beta = 0.6, bias = 1.5>(x)",
    ),
    Case(
        "attention of heads",
        "x 2,3,4,8; z 2,3,6,8; q 2,3,6,8",
        "y = Attention(x, z, q)",
        opset=23,
        below_db=9.0,
        cause=STEPS,
    ),
    Case(
        "causal attention of groups",
        "x 1,4,5,8; z 1,2,5,8; q 1,2,5,8",
        "y = Attention<is_causal = 1>(x, z, q)",
        opset=23,
        below_db=9.0,
        cause=STEPS,
    ),
    Case("rotary embedding", "x 1,2,4,8; k 1,4,4; k2 1,4,4", "y = RotaryEmbedding(x, k, k2)", opset=23),
    Case(
        "one step into a cache",
        "x 2,3,8,4; z 2,3,1,4",
        "a = Constant<value_ints = [11, 6]>() y = TensorScatter<axis = 2, mode = 'circular'>(x, z, a)",
        opset=24,
    ),
)
