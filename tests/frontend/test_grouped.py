"""GroupQueryAttention is what onnxruntime computes of it, and where that leaves a cache undefined, what was there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_text import save
from same_outputs import session

from scripts.onnx_builder import build_model
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.frontend.read_onnx import newest_opset

pytestmark = pytest.mark.skipif(newest_opset() < 24, reason="the installed onnxruntime reads no TensorScatter")
HEADS, GROUPS, DEPTH, TABLE = 4, 2, 16, 64


def model(
    rows: int = 4,
    batch: int = 1,
    places: int = 16,
    total: int = 16,
    packed: bool = False,
    rotated: int = DEPTH,
    opset: int = 21,
    kind: int = TensorProto.FLOAT,
    more: str = "",
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one GroupQueryAttention.

    `rows`: new rows.
    `places`: places of the cache, 0: there is none.
    `rotated`: numbers of a head that are rotated.
    `more`: inputs by name.
    """
    real, inputs, types = helper.tensor_dtype_to_np_dtype(kind), dict[str, list[int]](), dict[str, int]()

    def add_input(name: str, shape: list[int], of: int = kind) -> str:
        inputs[name], types[name] = shape, of
        return name

    widths = {"q": HEADS, "k": GROUPS, "v": GROUPS}
    if packed:
        names = [add_input("q", [batch, rows, sum(widths.values()) * DEPTH]), "", ""]
    else:
        names = [add_input(n, [batch, rows, count * DEPTH]) for n, count in widths.items()]
    names += [add_input(f"past_{n}", [batch, GROUPS, places, DEPTH]) if places else "" for n in "kv"]
    names += [add_input("last", [batch], TensorProto.INT32), "total"]
    angle = np.arange(TABLE)[:, None] * 10.0 ** (-np.arange(rotated // 2) / DEPTH)
    constants = {"total": np.array(total, np.int32), "cos": np.cos(angle).astype(real), "sin": np.sin(angle).astype(real)}
    names += ["cos", "sin"] if rotated else ["", ""]
    names += [add_input("at", [batch, rows], TensorProto.INT64) if "at" in more else ""]
    names += [add_input("bias", [batch, HEADS, rows, max(places, total)]) if "bias" in more else ""]
    names += [add_input("sink", [HEADS]) if "sink" in more else "", "", "", "", ""]
    names += [add_input("count", [batch], TensorProto.INT32) if "count" in more else ""]
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": int(rotated > 0), **attributes}
    outputs = ["y", "present_k", "present_v"]
    node = helper.make_node("GroupQueryAttention", names, outputs, "n", domain="com.microsoft", **attributes)
    constants = {n: v for n, v in constants.items() if n in names}
    types |= dict.fromkeys(outputs, kind)
    return build_model([node], inputs, dict.fromkeys(outputs), constants, opset=opset, types=types)


CASES: dict[str, tuple[list[int], dict[str, Any]]] = {  # the last place that holds a token behind the run, of each sample
    "a step": ([9], {"rows": 1}),
    "a chunk": ([9], {}),
    "one product for all": ([9], {"packed": True}),
    "two samples": ([9, 4], {"rows": 1, "batch": 2}),
    "the first chunk": ([3], {"total": 4}),
    "the first chunk, no cache": ([3], {"total": 4, "places": 0}),
    "the first chunk, a cache of its size": ([3], {"total": 4, "places": 4}),
    "a cache that grows": ([7], {"total": 8, "places": 4}),
    "neighbours turned": ([9], {"rotary_interleaved": 1}),
    "nothing turned": ([9], {"rotated": 0}),
    "a window": ([9], {"local_window_size": 3}),
    "a window of the first chunk": ([3], {"total": 4, "places": 0, "local_window_size": 2}),
    "bent scores": ([9], {"softcap": 0.5, "scale": 0.1}),
    "a bias": ([9], {"more": "bias"}),
    "a chunk that is not full": ([2, 9], {"batch": 2, "more": "count"}),
    "places given": ([9], {"more": "at"}),
    "all seen": ([9], {"causal": 0}),
    "an older opset": ([9], {"opset": 14}),
    "half precision": ([9], {"rows": 1, "kind": TensorProto.FLOAT16}),
}
COUNTS = np.array([3, 1], np.int32)


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime_computes_it(name: str, tmp_path: Path) -> None:
    last, options = CASES[name]
    proto = model(**options)
    path, loaded = save(proto, tmp_path), load_model(save(proto, tmp_path))
    rng, rows = np.random.default_rng(1), options.get("rows", 4)
    feeds = {n: rng.normal(size=loaded.types[n].shape).astype(loaded.types[n].dtype) for n in loaded.graph.inputs}
    feeds |= {"last": np.array(last, np.int32), "count": COUNTS[: len(last)]}
    feeds["at"] = np.array(last)[:, None] + 1 - rows + np.arange(rows)
    feeds = {n: feeds[n] for n in loaded.graph.inputs}
    expected = [np.asarray(v) for v in session(str(path)).run(None, feeds)]
    outputs = [np.asarray(v) for v in session(loaded.proto.SerializeToString()).run(None, feeds)]
    counts = feeds.get("count", np.full(len(last), rows))
    tolerance = 1e-3 if expected[0].dtype == np.float16 else 1e-5
    for sample, (end, count) in enumerate(zip(last, counts)):
        before = end + 1 - count
        assert np.abs(expected[0][sample, :count] - outputs[0][sample, :count]).max() < tolerance
        for kind, expected_present, present in zip("kv", expected[1:], outputs[1:]):
            assert (
                expected_present.shape == present.shape
                and np.abs(expected_present - present)[sample, :, : end + 1].max() < tolerance
            )
            past = feeds.get(f"past_{kind}", present)[sample]
            untouched = np.r_[:before, before + rows : past.shape[1]].astype(int)
            assert np.array_equal(present[sample][:, untouched], past[:, untouched])
    assert not {n.op.op_type for n in loaded.graph.nodes}.intersection(("GroupQueryAttention", "Attention", "RotaryEmbedding"))
    assert {source for node in loaded.graph.nodes for source in node.sources} == {"n"}


def test_what_onnxruntime_clears_is_no_difference(tmp_path: Path) -> None:
    """Check that onnxruntime's zeros after the last token of a cache are accepted.
    The operator clears a cache that is not in its place; on random inputs something differs there.
    """
    built = build(save(model(), tmp_path), BuildOptions("transformer64"))
    assert next((t.name, t.shape) for t in built.container.outputs) == ("y", (1, 4, HEADS * DEPTH))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"more": "sink"}, r"has sinks \(head_sink\)"),
        ({"smooth_softmax": 1}, r"has sinks \(smooth_softmax\)"),
        ({"sliding_window_cache": 1, "local_window_size": 4}, r"is of windows that it moves itself \(sliding_window_cache\)"),
        ({"kv_num_heads": 3}, "has num_heads=4, kv_num_heads=3; the first must be a multiple of the second"),
        ({"rotated": 0, "do_rotary": 1}, r"turns by its places \(do_rotary\) and has no cos_cache or sin_cache"),
    ],
)
def test_what_is_not_read_is_refused(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=rf"^node n \(GroupQueryAttention\): {reason}"):
        load_model(save(model(**options), tmp_path))
