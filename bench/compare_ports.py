#!/usr/bin/env python3
"""Compare networks whose inputs or outputs have parts of unlike unit: all nodes on the chip, and ports left to the host.

    `python bench/compare_ports.py [--hw edge16 ws8_pow2 ...] [--case far_offset ...] [--seed 1]`.

It makes networks and data itself. A line has case and machine, the SQNR of the worst part in dB and the expected cycles.
A part is an output, or an index of one of its last two axes. Its mean is no signal.
The samples are others than those of calibration.
The last column says whether a part below 30 dB is named in a warning or a note.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from toolchain.api import Build, BuildOptions, build
from toolchain.hw import list_shipped_names
from toolchain.runtime import Session

Arrays = dict[str, np.ndarray]
UNITS = np.array([1e-3, 1.0, 40.0, 4000.0], np.float32)


@dataclass(frozen=True)
class PortCase:
    """A network in ONNX text, whose input x and output y the text declares.

    `constants`: shapes of initializers that are drawn, or their values.
    `inputs`: float32 samples along a first axis for each input.
    """

    signature: str
    nodes: str
    constants: Mapping[str, tuple[int, ...] | np.ndarray]
    inputs: Callable[[np.random.Generator, int], Arrays]

    def make_model(self, seed: int) -> onnx.ModelProto:
        """Return the network with weights drawn for a seed."""
        rng = np.random.default_rng(seed)
        proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {self.signature} {{ {self.nodes} }}')
        for name, value in self.constants.items():
            if isinstance(value, tuple):
                fan_in = value[0] if len(value) == 2 else int(np.prod(value[1:]))
                value = rng.standard_normal(value) / np.sqrt(max(fan_in, 1))
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return proto


def _draw_normal(*shape: int) -> Callable[[np.random.Generator, int], Arrays]:
    """Return a function that draws standard normal samples of this shape for x; its argument is their number."""
    return lambda rng, count: {"x": rng.standard_normal((count, *shape)).astype(np.float32)}


def _draw_scaled(mean: np.ndarray, unit: np.ndarray, *shape: int) -> Callable[[np.random.Generator, int], Arrays]:
    return lambda rng, count: {"x": (mean + unit * rng.standard_normal((count, *shape))).astype(np.float32)}


def _draw_picture_and_features(rng: np.random.Generator, count: int) -> Arrays:
    picture = rng.standard_normal((count, 1, 3, 8, 8)).astype(np.float32)
    return {"x": picture, "f": (UNITS * (3 + rng.standard_normal((count, 1, 4)))).astype(np.float32)}


_ROWS = "h = MatMul(x, w) r = Relu(h) p = MatMul(r, v)"
CASES = {
    "far offset": PortCase(
        "(float[1,24] x) => (float[1,4] y)",
        f"c = Sub(x, mean) x1 = Div(c, unit) {_ROWS.replace('x,', 'x1,')} y = Identity(p)",
        {"w": (24, 16), "v": (16, 4), "mean": np.array(305.0), "unit": np.array(3.0)},
        _draw_scaled(np.array(305.0), np.array(3.0), 1, 24),
    ),
    "features of unlike unit": PortCase(
        "(float[1,4] x) => (float[1,3] y)",
        f"c = Sub(x, mean) x1 = Div(c, unit) {_ROWS.replace('x,', 'x1,')} y = Identity(p)",
        {"w": (4, 16), "v": (16, 3), "mean": 2 * UNITS, "unit": UNITS},
        _draw_scaled(2 * UNITS, UNITS, 1, 4),
    ),
    "features without a scaler": PortCase(
        "(float[1,4] x) => (float[1,3] y)",
        f"{_ROWS} y = Identity(p)",
        {"w": np.random.default_rng(3).standard_normal((4, 16)) / UNITS[:, None], "v": (16, 3)},
        _draw_scaled(2 * UNITS, UNITS, 1, 4),
    ),
    "features beside a picture": PortCase(
        "(float[1,3,8,8] x, float[1,4] f) => (float[1,4] y)",
        "a = Conv<pads=[1,1,1,1]>(x, k) b = Relu(a) m = GlobalAveragePool(b) g = Flatten(m) "
        "s = Sub(f, mean) t = Div(s, unit) x1 = Concat<axis=1>(g, t) h = MatMul(x1, w) r = Relu(h) y = MatMul(r, v)",
        {"k": (8, 3, 3, 3), "w": (12, 16), "v": (16, 4), "mean": 3 * UNITS, "unit": UNITS},
        _draw_picture_and_features,
    ),
    "boxes beside scores": PortCase(
        "(float[1,8,6,6] x) => (float[1,9,36] y)",
        "a = Conv(x, k) s = Conv(x, l) q = Sigmoid(s) "
        "u = Reshape(a, box) z = Reshape(q, box) b = Mul(u, size) y = Concat<axis=1>(b, z)",
        {
            "k": (4, 8, 1, 1),
            "l": (5, 8, 1, 1),
            "size": np.array(80.0),
        },
        _draw_normal(1, 8, 6, 6),
    ),
    "denormalization": PortCase(
        "(float[1,20] x) => (float[1,4] y)",
        f"{_ROWS} q = Mul(p, unit) y = Add(q, mean)",
        {"w": (20, 32), "v": (32, 4), "unit": UNITS, "mean": 20 * UNITS},
        _draw_normal(1, 20),
    ),
    "denormalization of rows": PortCase(
        "(float[1,8,20] x) => (float[1,8,4] y)",
        f"{_ROWS} q = Mul(p, unit) y = Add(q, mean)",
        {"w": (20, 32), "v": (32, 4), "unit": UNITS, "mean": np.array([0, 0, 0, 0.1])},
        _draw_normal(1, 8, 20),
    ),
    "rows of unlike unit": PortCase(
        "(float[1,20] x) => (float[1,3,8] y)",
        "h = MatMul(x, w) r = Relu(h) a = MatMul(r, v) b = MatMul(r, v1) c = MatMul(r, v2) d = Relu(c) e = Mul(d, large) "
        "a1 = Unsqueeze(a, one) b1 = Unsqueeze(b, one) e1 = Unsqueeze(e, one) y = Concat<axis=1>(a1, b1, e1)",
        {"w": (20, 32), "v": (32, 8), "v1": (32, 8), "v2": (32, 8), "large": np.array(3000.0)},
        _draw_normal(1, 20),
    ),
    "decoded sizes": PortCase(
        "(float[1,8,6,6] x) => (float[1,6,36] y)",
        "a = Conv(x, k) u = Reshape(a, box) t = Sigmoid(u) o, w, s = Split<axis=1>(t, split) "
        "c = Mul(o, size) d = Mul(w, two) e = Mul(d, d) z = Mul(e, anchor) y = Concat<axis=1>(c, z, s)",
        {"k": (6, 8, 1, 1), "size": np.array(96.0), "two": np.array(2.0), "anchor": np.array([30.0, 61.0]).reshape(1, 2, 1)},
        _draw_normal(1, 8, 6, 6),
    ),
    "classifier": PortCase(
        "(float[1,20] x) => (float[1,8] y)", f"{_ROWS} y = Identity(p)", {"w": (20, 32), "v": (32, 8)}, _draw_normal(1, 20)
    ),
}
_INTEGERS = {"box": [1, -1, 36], "one": [1], "split": [2, 2, 2]}


def measure_worst_part(proto: onnx.ModelProto, built: Build, inputs: Arrays) -> float:
    """Return the SQNR of the worst part in dB."""
    session, float_model = Session(built.data), ReferenceEvaluator(proto)
    samples = [{name: values[i] for name, values in inputs.items()} for i in range(len(next(iter(inputs.values()))))]
    exact = np.stack([np.asarray(next(iter(float_model.run(None, sample)))) for sample in samples]).astype(np.float64)
    error = exact - np.stack([session.run(None, sample)[0] for sample in samples])
    parts = [(exact.reshape(-1), error.reshape(-1))]
    for axis in range(max(2, exact.ndim - 2), exact.ndim):
        parts += [(np.take(exact, i, axis).ravel(), np.take(error, i, axis).ravel()) for i in range(exact.shape[axis])]
    return min(10 * float(np.log10(max(x.var(), 1e-30) / max(np.mean(e**2), 1e-30))) for x, e in parts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", nargs="+", default=list_shipped_names(), help="machines (default: all that are shipped)")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES), help="networks (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and data (default 1)")
    args = parser.parse_args()
    print(
        "| case | machine | dB on the chip | by default | cycles on the chip | by default | named below 30 dB |\n|" + "---|" * 7
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in args.case:
            for machine in args.hw:
                print(compare_case(CASES[name], machine, args.seed, Path(folder)).format(name, machine), flush=True)


@dataclass(frozen=True)
class Comparison:
    """The worst part in dB and the expected cycles, on the chip and by default.

    `is_named`: a warning or a note of the default build names an output or a part.
    """

    decibels: tuple[float, float]
    cycles: tuple[int, int]
    is_named: bool

    def format(self, case: str, machine: str) -> str:
        """Return a line of the table."""
        named = "" if self.decibels[1] >= 30 else "yes" if self.is_named else "no"
        levels, cycles = (f"{d:.1f}" for d in self.decibels), (f"{c:,}" for c in self.cycles)
        return f"| {' | '.join((case, machine, *levels, *cycles, named))} |"


def compare_case(case: PortCase, machine: str, seed: int, folder: Path) -> Comparison:
    """Build a case twice and judge both on samples that neither saw."""
    proto, rng = case.make_model(seed), np.random.default_rng(seed)
    for name, values in _INTEGERS.items():
        if any(name in node.input for node in proto.graph.node):
            proto.graph.initializer.append(numpy_helper.from_array(np.array(values), name))
    onnx.save(proto, folder / "model.onnx")
    calibration: dict[str, Any] = case.inputs(rng, 32)
    np.savez(folder / "data.npz", **calibration)
    others = case.inputs(rng, 64)
    builds = [
        build(folder / "model.onnx", BuildOptions(machine, calibration=str(folder / "data.npz"), states=("none",), host_ports=on))
        for on in (False, True)
    ]
    on_chip, default = (measure_worst_part(proto, b, others) for b in builds)
    cycles = (builds[0].figures["expected_cycles"], builds[1].figures["expected_cycles"])
    lines = (*builds[1].warnings, *builds[1].notes)
    return Comparison((on_chip, default), cycles, any(" dB" in line and "against float" in line for line in lines))


if __name__ == "__main__":
    main()
