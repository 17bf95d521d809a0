"""Check that data movement for the host alone stays on the host: nothing is quantized for no gain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from bad_files import model

from toolchain.api import BuildOptions, build
from toolchain.runtime import Session

X = "(float[1,3,8,8] x)"
# what the host runs beside LogSoftmax; the graph
STAYS = {
    "between two host nodes": ({"Reshape", "Transpose"},
        f"{X} => (float[N,M] y) {{ a = LogSoftmax<axis=3>(x) b = Transpose<perm=[0,2,3,1]>(a)"
        f" s = Constant<value = int64[2] {{8, 24}}>()"
        " c = Reshape(b, s) y = LogSoftmax(c) }"),
    "behind the last host node": ({"Flatten"},
        f"{X} => (float[N,M] y) {{ a = Conv(x, w) b = LogSoftmax<axis=3>(a) y = Flatten(b) }}"),
    "before the first host node": ({"Transpose"},
        f"{X} => (float[N,C,H,W] y) {{ a = Transpose<perm=[0,2,3,1]>(x) y = LogSoftmax(a) }}"),
    "parts that the host makes": ({"Concat", "Pad"},
        f"{X} => (float[N,C,H,W] y) {{ a = LogSoftmax<axis=3>(x) b = LogSoftmax<axis=3>(a) c = Concat<axis=1>(a, b)"
        " p = Constant<value = int64[8] {0,0,1,1,0,0,1,1}>() y = Pad(c, p) }"),
    "beside a region that computes": ({"Transpose"},
        f"{X} => (float[N,C,H,W] y, float[N,C,H,W] z) {{ a = LogSoftmax<axis=3>(x) b = Transpose<perm=[0,2,3,1]>(a)"
        " z = LogSoftmax(b) y = Conv(a, w) }"),
    "two parts of one region, one computes": ({"Reshape"},
        f"{X} => (float[N,C,H,W] y, float[M] z) {{ a = LogSoftmax<axis=3>(x)"
        f" s = Constant<value = int64[1] {{192}}>() z = Reshape(a, s)"
        " b = Transpose<perm=[0,1,3,2]>(a) y = Conv(b, w) }"),
}  # fmt: skip
RUNS = {
    "no host at all": f"{X} => (float[N,C,H,W] y) {{ y = Transpose<perm=[0,2,3,1]>(x) }}",
    "a mean over no map": (
        "(float[4,6] x) => (float[N,C] y) { s = Constant<value = int64[3] {2,3,4}>() a = Reshape(x, s)"
        " b = ReduceMean<axes=[2]>(a)"
        " t = Constant<value = int64[2] {2,3}>() y = Reshape(b, t) }"
    ),
    "the chip computes what is moved": (
        f"{X} => (float[N,C,H,W] y) {{ a = Conv(x, w) b = Transpose<perm=[0,2,3,1]>(a) y = LogSoftmax(b) }}"
    ),
    "the chip computes with what is moved": (
        f"{X} => (float[N,C,H,W] y) {{ a = LogSoftmax<axis=3>(x) b = Transpose<perm=[0,1,3,2]>(a) y = Conv(b, w) }}"
    ),
}


def built(graph: str, folder: Path):
    onnx.save(model(graph), folder / "m.onnx")
    return build(folder / "m.onnx", BuildOptions("ethos_u65_512"))


@pytest.mark.parametrize("case", STAYS)
def test_stays_on_the_host(case: str, tmp_path: Path) -> None:
    moved, graph = STAYS[case]
    result = built(graph, tmp_path)
    reasons = {f["op"]: f["reason"] for f in result.figures["fallbacks"]}
    # the frontend spells Flatten as Reshape
    assert reasons.keys() - {"LogSoftmax"} == {op.replace("Flatten", "Reshape") for op in moved}
    assert {reasons[op] for op in reasons if op != "LogSoftmax"} == {"only moves data that the host makes or reads"}
    x = {"x": np.random.default_rng(4).normal(size=(1, 3, 8, 8)).astype(np.float32)}
    floats = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, x)
    for got, expected in zip(Session(result.data).run(None, x), floats, strict=True):
        assert np.abs(got - np.asarray(expected)).max() < (1e-6 if "Conv" not in graph else 0.5)


@pytest.mark.parametrize("case", RUNS)
def test_runs_on_the_chip(case: str, tmp_path: Path) -> None:
    assert {f["op"] for f in built(RUNS[case], tmp_path).figures["fallbacks"]} <= {"LogSoftmax"}


@pytest.mark.parametrize("transposed", ["transA", "transB"])
def test_only_the_part_that_moves_stays(transposed: str, tmp_path: Path) -> None:
    """A Gemm of two computed operands: what the host makes is transposed there, the product is the chip's."""
    shapes = "float[6,8] p, float[5,8] q" if transposed == "transB" else "float[8,6] p, float[8,5] q"
    operands = "k, v" if transposed == "transB" else "v, k"
    graph = (
        f"({shapes}) => (float[N,M] y) {{ v = Softmax(q) s = Softmax(p) h = Abs(s) k = LogSoftmax(h)"
        f" y = Gemm<{transposed} = 1>({operands}) }}"
    )
    result = built(graph, tmp_path)
    assert {(f["op"], f["reason"]) for f in result.figures["fallbacks"] if "oftmax" not in f["op"]} == {
        ("Transpose", "only moves data that the host makes or reads")
    }
    row = next(row for row in result.figures["nodes"] if row["op"] == "Gemm")
    assert (row["engine"], row["reason"]) == ("mac", "in part on the host: only moves data that the host makes or reads")
