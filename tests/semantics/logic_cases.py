"""Cases of comparisons, logic and choices: what is chosen on both sides of a step is alike at the step."""

from __future__ import annotations

from tests.semantics.case import Case

CASES = (
    *(
        Case(f"{kind} of two", "x 2,3,4,5; z 2,3,4,5", f"a = {kind}(x, z) y = Where(a, {order})")
        for kind, order in (("Greater", "x, z"), ("Less", "x, z"), ("GreaterOrEqual", "z, x"), ("LessOrEqual", "z, x"))
    ),
    *(
        Case(f"{kind} of a number", "x 3,40", f"c = float {{0.3}} a = {kind}(x, c) y = Where(a, x, c)")
        for kind in ("Greater", "Less", "GreaterOrEqual", "LessOrEqual")
    ),
    Case(
        "greater than each its own, on both sides",
        "x 4,5; k 5",
        "a = Greater(k, x) b = Less(k, x) c = Or(a, b) y = Where(c, x, k)",
    ),
    Case("equal to zero", "x 3,40; z 3,40", "o = float {0} r = Relu(x) a = Equal(r, o) y = Where(a, z, x)"),
    Case("equal to a moved self", "x 3,8; z 3,8", "m = Max(x, z) a = Equal(m, x) y = Where(a, x, z)"),
    Case(
        "logic",
        "x 2,3,4; z 3,4; k 4",
        "o = float {0} a = Greater(x, o) b = Less(z, o) c = And(a, b) d = Xor(c, a) e = Not(d) f = Or(e, b) y = Where(f, x, k)",
    ),
    Case("not not", "x 3,9", "o = float {0} a = Greater(x, o) b = Not(a) c = Not(b) y = Where(c, x, o)"),
    Case("where not", "x 3,9; z 3,9", "a = Greater(x, z) b = Not(a) y = Where(b, z, x)"),
    Case("a truth as a number", "x 3,9; z 3,9", "o = float {0} a = Greater(x, o) n = Cast<to = 1>(a) y = Mul(n, x)"),
    Case(
        "a truth as a number in between",
        "x 3,9",
        "o = float {0} a = Greater(x, o) i = Cast<to = 7>(a) n = Cast<to = 1>(i) y = Mul(n, x)",
    ),
    Case("a number as a truth", "x 3,9; z 3,9", "r = Relu(x) a = Cast<to = 9>(r) y = Where(a, x, z)"),
    Case("never nan, never infinite", "x 3,9; z 3,9", "r = Relu(x) a = IsNaN(r) b = IsInf(r) c = Or(a, b) y = Where(c, z, r)"),
    Case("where, all broadcast", "x 3,1; z 1,4; q 2,1,1", "o = float {0} a = Greater(q, o) y = Where(a, x, z)"),
    Case("where, constants on both sides", "x 2,3,4,5; k 5; k2 3,1,1", "o = float {0} a = Greater(x, o) y = Where(a, k, k2)"),
    Case(
        "where by a constant",
        "x 3,4; z 3,4",
        "i = int64[4] {1,0,0,1} c = Cast<to = 9>(i) o = float {0.4} a = Where(c, x, o) y = Where(c, a, z)",
    ),
    Case("where, of channels", "x 1,8,5,5; w 8,8,1,1", "a = Conv(x, w) o = float {0} b = Greater(a, o) y = Where(b, x, a)"),
    Case(
        "moved truths",
        "x 2,3,4,5",
        "o = float {0} a = Greater(x, o) b = Transpose<perm = [0,1,3,2]>(a) c = Not(b) d = Concat<axis = 2>(b, c) "
        "n = Cast<to = 1>(d) y = Mul(n, n)",
    ),
    Case("clip by what is computed", "x 3,40; z; q", "l = Min(z, q) h = Max(z, q) y = Clip(x, l, h)"),
    Case("clip by one that is computed", "x 3,40; z", "y = Clip(x, z)"),
    Case("clip from above by what is computed", "x 3,40; q", "l = float {-0.2} y = Clip(x, l, q)"),
    Case("max and min of a constant", "x 3,40; k 40", "a = Max(x, k) s = float {0.1} b = Add(k, s) y = Min(b, a)"),
    *(
        Case(f"{kind} as a number", "x 3,20; z 3,1", f"a = {kind}<axis = 1>(x) f = Cast<to = 1>(a) y = Mul(f, z)")
        for kind in ("ArgMax", "ArgMin")
    ),
    Case(
        "one hot",
        "x 6,5; z 6,5",
        "a = ArgMax<axis = 1, keepdims = 0>(x) d = int64 {5} v = float[2] {0.25,1} o = OneHot(a, d, v) y = Mul(o, z)",
    ),
    Case(
        "the last of the largest channels",
        "x 1,5,4,4",
        "a = ArgMax<axis = 1, select_last_index = 1>(x) i = int64[5,1,1] {0,1,2,3,4} e = Equal(a, i) o = float {0} "
        "y = Where(e, x, o)",
    ),
    Case(
        "scores masked by a choice",
        "x 4,9; z 4,9",
        "o = float {0.6} i = float {-inf} a = Less(x, o) b = Where(a, z, i) y = Softmax(b)",
    ),
)
