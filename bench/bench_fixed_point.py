"""Measure the speed of the fixed-point core against onnxruntime and plain numpy, in one run on one core, as ratios.

    `python bench/bench_fixed_point.py [--json OUT] [--part requantize|conv|depthwise|tiles] [--repeats N]`.

The unit is CPU seconds (best of N), not wall time, because the machine is shared.
Here onnxruntime runs one thread with weights as constants; ours holds them as ConvWeights.
A ratio above 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from onnx_builder import build_model  # noqa: E402

from quant import fixed_point as fp  # noqa: E402
from quant.fixed_point import Requant, Rounding  # noqa: E402
from toolchain.cli.application import report_errors, require_writable  # noqa: E402
from toolchain.foundation.atomic_files import write_atomically  # noqa: E402
from toolchain.foundation.inference import open_model, session_options  # noqa: E402

# (size, ic, oc, kernel, stride, how often): the convolutions of ResNet-50 at 224 x 224.
RESNET50 = [
    (224, 3, 64, 7, 2, 1),
    (56, 64, 64, 1, 1, 1),
    (56, 64, 64, 3, 1, 3),
    (56, 64, 256, 1, 1, 4),
    (56, 256, 64, 1, 1, 2),
    (56, 256, 128, 1, 1, 1),
    (56, 128, 128, 3, 2, 1),
    (28, 128, 512, 1, 1, 4),
    (56, 256, 512, 1, 2, 1),
    (28, 512, 128, 1, 1, 3),
    (28, 128, 128, 3, 1, 3),
    (28, 512, 256, 1, 1, 1),
    (28, 256, 256, 3, 2, 1),
    (14, 256, 1024, 1, 1, 6),
    (28, 512, 1024, 1, 2, 1),
    (14, 1024, 256, 1, 1, 5),
    (14, 256, 256, 3, 1, 5),
    (14, 1024, 512, 1, 1, 1),
    (14, 512, 512, 3, 2, 1),
    (7, 512, 2048, 1, 1, 3),
    (14, 1024, 2048, 1, 2, 1),
    (7, 2048, 512, 1, 1, 2),
    (7, 512, 512, 3, 1, 2),
]
# Depthwise layers of MobileNetV2 and EfficientNet-Lite0 at 224 x 224.
DEPTHWISE = [
    (112, 32, 32, 3, 1, 1),
    (112, 96, 96, 3, 2, 1),
    (56, 144, 144, 3, 1, 1),
    (56, 144, 144, 3, 2, 1),
    (28, 192, 192, 3, 1, 2),
    (28, 240, 240, 5, 1, 1),
    (14, 384, 384, 3, 1, 4),
    (14, 672, 672, 5, 1, 2),
    (14, 576, 576, 3, 2, 1),
    (7, 960, 960, 3, 1, 3),
]
TILES = [(4, 8, 8, 3), (8, 16, 16, 3), (8, 16, 16, 1), (8, 64, 64, 3), (16, 32, 32, 3)]


def cpu_seconds(run: Callable[[], Any], repeats: int) -> float:
    """Return the least CPU time of one call; short calls are timed in batches."""
    run()
    start = time.process_time()
    run()
    batch = max(1, int(2e-3 / max(time.process_time() - start, 1e-6)))
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(batch):
            run()
        best = min(best, (time.process_time() - start) / batch)
    return best


def bench_requantize(repeats: int) -> list[dict[str, Any]]:
    """Measure 10 M int32 accumulators per channel, against the form one writes first in numpy int64; return a row a case."""
    rng = np.random.default_rng(0)
    rows = []
    for c, dtype in ((64, np.int8), (256, np.int8), (64, np.int16)):
        n = 10_000_000 // c
        acc = rng.integers(-(2**24), 2**24, (n, c)).astype(np.int32)
        multiplier, shift = rng.integers(2**30, 2**31, c), rng.integers(38, 42, c)
        if dtype is np.int16:
            shift -= 8
        low, high = fp.type_limits(np.dtype(dtype))
        for rule in (Rounding.SINGLE_HALF_UP, Rounding.DOUBLE_ROUND, Rounding.HALF_EVEN, Rounding.HALF_AWAY):
            r = Requant(multiplier, shift, rule, 3, low, high)

            def straightforward(acc=acc, r=r, rule=rule, low=low, high=high, dtype=dtype) -> np.ndarray:
                p = acc.astype(np.int64) * r.multiplier
                return np.clip(_round_shift(p, acc, r.shift, rule) + r.zero_point, low, high).astype(dtype)

            np.testing.assert_array_equal(fp.requantize(acc, r, dtype), straightforward())
            ours = cpu_seconds(lambda acc=acc, r=r, dtype=dtype: fp.requantize(acc, r, dtype), repeats)
            theirs = cpu_seconds(straightforward, max(2, repeats // 3))
            rows.append(
                {"case": f"c={c} {np.dtype(dtype).name} {rule}", "ours_s": ours, "numpy_s": theirs, "ratio": theirs / ours}
            )
    return rows


def _round_shift(p: np.ndarray, acc: np.ndarray, shift: np.ndarray, rule: Rounding) -> np.ndarray:
    half = np.int64(1) << (shift - 1)
    if rule is Rounding.SINGLE_HALF_UP:
        return (p + half) >> shift
    if rule is Rounding.DOUBLE_ROUND:
        nudge = np.where(shift > 31, np.int64(1 << 30), np.int64(0))
        return (p + half + np.where(acc >= 0, nudge, -nudge)) >> shift
    if rule is Rounding.HALF_AWAY:
        return (p + half - (p < 0)) >> shift
    return (p + half - 1 + ((p >> shift) & 1)) >> shift


def bench_conv(layers: Sequence[tuple[int, ...]], depthwise: bool, repeats: int) -> list[dict[str, Any]]:
    """Measure u8s8 convolutions to int32 against onnxruntime's ConvInteger (int32) and QLinearConv (uint8); return a row a
    layer."""
    rng = np.random.default_rng(0)
    rows = []
    for size, ic, oc, k, stride, count in layers:
        x = rng.integers(0, 256, (1, size, size, ic)).astype(np.uint8)
        w = rng.integers(-128, 128, (oc, k, k, 1 if depthwise else ic)).astype(np.int8)
        groups, pad = (ic if depthwise else 1), k // 2
        weights = fp.ConvWeights(w, groups)

        def ours(x=x, weights=weights, stride=stride, pad=pad) -> np.ndarray:
            return fp.conv2d(x, weights, strides=(stride, stride), pads=(pad, pad, pad, pad), x_zero_point=3)

        feed = {"x": np.ascontiguousarray(x.transpose(0, 3, 1, 2))}
        wt = np.ascontiguousarray(w.transpose(0, 3, 1, 2))
        integer = _session("ConvInteger", wt, size, ic, stride, pad, groups)
        linear = _session("QLinearConv", wt, size, ic, stride, pad, groups)
        y = ours()
        np.testing.assert_array_equal(integer.run(None, feed)[0].transpose(0, 2, 3, 1), y)
        macs = y.size * k * k * (1 if depthwise else ic)
        row: dict[str, Any] = {"case": f"{size}x{size}x{ic} -> {oc}, {k}x{k}/{stride}", "count": count, "macs": macs}
        row["ours_s"] = cpu_seconds(ours, repeats)
        row["conv_integer_s"] = cpu_seconds(lambda s=integer, f=feed: s.run(None, f), 2)
        row["qlinear_conv_s"] = cpu_seconds(lambda s=linear, f=feed: s.run(None, f), repeats)
        row["ratio_conv_integer"] = row["conv_integer_s"] / row["ours_s"]
        row["ratio_qlinear_conv"] = row["qlinear_conv_s"] / row["ours_s"]
        rows.append(row)
    return rows


def _session(op: str, w: np.ndarray, size: int, ic: int, stride: int, pad: int, groups: int) -> Any:
    """Return an onnxruntime session of one operator; its constants are zero point 3 and scale 0.01."""
    values: dict[str, np.ndarray] = {"w": w, "xz": np.array(3, np.uint8)}
    names, kind = ["x", "w", "xz"], TensorProto.INT32
    if op == "QLinearConv":
        names, kind = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], TensorProto.UINT8
        values |= {n: np.array(v, np.float32) for n, v in (("xs", 0.1), ("ws", 0.01), ("ys", 3.0))}
        values |= {"wz": np.array(0, np.int8), "yz": np.array(5, np.uint8), "b": np.zeros(w.shape[0], np.int32)}
    node = helper.make_node(op, names, ["y"], strides=[stride, stride], pads=[pad] * 4, group=groups)
    types = {"x": TensorProto.UINT8, "y": kind}
    model = build_model([node], {"x": [1, ic, size, size]}, {"y": None}, values, opset=13, types=types)
    return open_model(model.SerializeToString(), session_options(optimized=True))


def bench_tiles(repeats: int) -> list[dict[str, Any]]:
    """Measure one call on small tiles, which shows its overhead; return a row a tile."""
    rng = np.random.default_rng(0)
    rows = []
    for size, ic, oc, k in TILES:
        x = rng.integers(-128, 128, (1, size, size, ic)).astype(np.int8)
        w = rng.integers(-128, 128, (oc, k, k, ic)).astype(np.int8)
        weights, bias, half = fp.ConvWeights(w), np.arange(oc, dtype=np.int32), k // 2
        pads = (half, half, half, half)
        r = Requant(np.full(oc, 2**30 + 5), np.full(oc, 40), Rounding.DOUBLE_ROUND, 0, -128, 127)
        acc = fp.conv2d(x, weights, pads=pads, x_zero_point=3, bias=bias)
        row: dict[str, Any] = {"case": f"{size}x{size}x{ic} -> {oc}, {k}x{k}"}
        row["conv_us"] = 1e6 * cpu_seconds(
            lambda x=x, w=w, b=bias, p=pads: fp.conv2d(x, w, pads=p, x_zero_point=3, bias=b), repeats
        )
        row["conv_prepared_us"] = 1e6 * cpu_seconds(
            lambda x=x, w=weights, b=bias, p=pads: fp.conv2d(x, w, pads=p, x_zero_point=3, bias=b), repeats
        )
        row["requantize_us"] = 1e6 * cpu_seconds(lambda a=acc, r=r: fp.requantize(a, r), repeats)
        rows.append(row)
    return rows


def totals(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the ratios over the whole table, each layer as often as the network has it."""
    sums = {key: sum(r[key] * r["count"] for r in rows) for key in ("ours_s", "conv_integer_s", "qlinear_conv_s", "macs")}
    return {
        "ratio_conv_integer": sums["conv_integer_s"] / sums["ours_s"],
        "ratio_qlinear_conv": sums["qlinear_conv_s"] / sums["ours_s"],
        "gmac_per_s": sums["macs"] / sums["ours_s"] / 1e9,
    }


def main() -> None:
    """Run the parts of the command line and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--part", choices=["requantize", "conv", "depthwise", "tiles"], action="append")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with report_errors():
        require_writable({"--json": options.json}, {})
        results = run(options.part, options.repeats)
        if options.json is not None:
            write_atomically(options.json, json.dumps(results, indent=1).encode())


def run(chosen: Sequence[str] | None, repeats: int) -> dict[str, Any]:
    """Return the rows of each part, the `chosen` ones or all for None, which are printed as they come."""
    parts = chosen or ["requantize", "conv", "depthwise", "tiles"]
    results: dict[str, Any] = {}
    for part in parts:
        if part == "requantize":
            rows = bench_requantize(repeats)
        elif part == "tiles":
            rows = bench_tiles(repeats)
        else:
            rows = bench_conv(DEPTHWISE if part == "depthwise" else RESNET50, part == "depthwise", repeats)
            results[f"{part}_total"] = totals(rows)
        results[part] = rows
        print(f"\n{part}")
        for row in rows:
            figures = "  ".join(f"{k} {v:.3g}" for k, v in row.items() if k not in ("case", "count", "macs"))
            print(f"  {row['case']:36s} {figures}")
        if f"{part}_total" in results:
            print("  total: " + "  ".join(f"{k} {v:.3g}" for k, v in results[f"{part}_total"].items()))
    return results


if __name__ == "__main__":
    main()
