"""Cases of functions of one number, alone and in chains."""

from __future__ import annotations

from tests.semantics.case import Case

STEPS = "a step function: a code beside a step is a whole step away"
VIEW = "s = int64[3] {2,3,40} a = Reshape(x, s)"
WIDE = {"x": (-4.0, 6.0)}
SMOOTH = {
    **dict.fromkeys(
        ("Exp", "Sigmoid", "Tanh", "Erf", "Sin", "Cos", "Atan", "Sinh", "Cosh", "Asinh", "Softplus", "Mish"), (-2.5, 1.8)
    ),
    **dict.fromkeys(("Abs", "Neg", "Softsign", "Relu", "HardSwish", "Selu", "Elu", "Gelu", "LeakyRelu"), (-2.5, 4.2)),
    **dict.fromkeys(("HardSigmoid", "Celu"), (-4.0, 3.2)),
    **dict.fromkeys(("Log", "Sqrt", "Reciprocal"), (0.6, 4.0)),
    **dict.fromkeys(("Asin", "Acos", "Atanh"), (-0.9, 0.6)),
    "Tan": (-1.1, 0.9),
    "Acosh": (1.2, 4.0),
}
ATTRIBUTES = (
    ("LeakyRelu", "alpha = 0.3"),
    ("Elu", "alpha = 1.7"),
    ("Selu", "alpha = 1.2, gamma = 0.8"),
    ("Celu", "alpha = 0.6"),
    ("HardSigmoid", "alpha = 0.4, beta = 0.3"),
    ("Gelu", "approximate = 'tanh'"),
)
CASES = (
    *(Case(kind, "x 3,80", f"{VIEW} y = {kind}(a)", ranges={"x": at}) for kind, at in SMOOTH.items()),
    *(Case(f"{kind}, {how}", "x 3,80", f"y = {kind}<{how}>(x)", ranges=WIDE) for kind, how in ATTRIBUTES),
    *(
        Case(kind, "x 3,80", f"{VIEW} y = {kind}(a)", ranges=WIDE, least_db=20, below_db=8, cause=STEPS)
        for kind in ("Floor", "Ceil", "Round", "ThresholdedRelu")
    ),
    Case("Sign", "x 3,80", f"{VIEW} y = Sign(a)", ranges=WIDE),
    Case("Swish", "x 3,80", f"{VIEW} y = Swish<alpha = 1.3>(a)", opset=24, ranges=WIDE),
    Case("Clip", "x 3,80", f"{VIEW} l = float {{-0.4}} h = float {{1.2}} y = Clip(a, l, h)"),
    Case("clip with limits as inputs", "x 3,80", "l = float {-0.4} h = float {1.2} y = Clip(x, l, h)"),
    Case("clip with one limit", "x 3,80", "h = float {1.2} y = Clip(x, , h)"),
    Case("clip, opset 10", "x 3,80", "y = Clip<min = -0.4, max = 1.2>(x)", opset=10),
    Case("clips and a relu in a row", "x 3,80", "l = float {0.3} h = float {6} a = Relu(x) b = Clip(a, l, h) y = Relu(b)"),
    Case("clip with its limits the wrong way round", "x 3,80", "l = float {0.8} h = float {0.5} a = Add(x, x) y = Clip(a, l, h)"),
    Case(
        "hard sigmoid, written out",
        "x 3,80",
        "c = float {3} l = float {0} h = float {6} a = Add(x, c) b = Clip(a, l, h) y = Div(b, h)",
        ranges=WIDE,
    ),
    Case(
        "hard swish, written out",
        "x 3,80",
        "c = float {3} l = float {0} h = float {6} a = Add(x, c) b = Clip(a, l, h) d = Mul(x, b) y = Div(d, h)",
        ranges=WIDE,
    ),
    Case("hard swish by hard sigmoid", "x 3,80", "a = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x) y = Mul(a, x)", ranges=WIDE),
    Case(
        "gelu, written out",
        "x 3,80",
        "r = float {1.41421356} o = float {1} h = float {0.5} a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h)",
        ranges=WIDE,
    ),
    Case("silu", "x 3,80", "a = Sigmoid(x) y = Mul(x, a)", ranges=WIDE),
    Case("affine, then tanh", "x 3,80", "m = float {1.7} b = float {-0.4} a = Mul(x, m) c = Add(a, b) y = Tanh(c)"),
    Case("one minus, one over", "x 3,80", "o = float {1} c = float {2.5} a = Sub(o, x) b = Add(a, c) y = Div(o, b)"),
    Case("a power of a number", "x 3,80", "c = float {2} y = Pow(c, x)"),
    Case(
        "smaller and larger than a function of it",
        "x 3,80",
        "h = float {0.5} a = Tanh(x) b = Mul(x, h) y = Min(a, b) q = Max(a, b)",
        outputs="y q",
        ranges=WIDE,
    ),
    Case(
        "a function on other dimensions",
        "x 2,3,4,5; v 3,3,1,1",
        "a = Conv(x, v) t = Transpose<perm = [0,2,3,1]>(a) y = Sigmoid(t)",
    ),
)
