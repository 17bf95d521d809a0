"""Small networks for the tests of repair, with channels of very unequal size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quant.calibrate import calibrate, default_observer
from quant.repair.choices import Quantization
from quant.structural_ranges import adjust_ranges
from tests.support.numerics_variants import with_numerics
from toolchain.compiler import select_model
from toolchain.frontend import load_model
from toolchain.isa import load_machine
from toolchain.repair.network import Network

Sample = dict[str, np.ndarray]
UNEQUAL = 2.0 ** np.arange(8)  # of eight channels


def nothing(*_: object) -> None:
    """A progress that nobody looks at."""


def samples(shape: tuple[int, ...], count: int = 16, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def network(
    text: str, weights: dict[str, np.ndarray], folder: Path, machine: str = "edge16", *, per_tensor: bool = False
) -> Network:
    """Return the network of an ONNX graph in text.

    `text`: an ONNX graph.
    `weights`: initializers of the graph.
    """
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]>\n{text}')
    proto.graph.initializer.extend(numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items())
    proto = onnx.shape_inference.infer_shapes(proto)
    onnx.save(proto, folder / "net.onnx")
    model, target = load_model(folder / "net.onnx"), load_machine(machine)
    if per_tensor:
        target = with_numerics(target, weights_per_channel=False)
    return Network(model, select_model(model, target), target)


def plain(net: Network, data: list[Sample]) -> Quantization:
    """Calibrated as a build does, with nothing repaired."""
    tensors = sorted({tensor for tensor, _ in net.origins.values()})
    numerics = net.chip.numerics
    ranges = calibrate(net.model.proto, data, tensors, observer=default_observer(numerics), numerics=numerics)
    return Quantization(adjust_ranges(net.model.proto, ranges).ranges)


def convolutions(folder: Path, machine: str = "edge16", *, per_tensor: bool = False, clamp: float | None = None) -> Network:
    """Return the network x -> Conv c -> Relu r (or Clip to `clamp`) -> depthwise d -> Relu e -> Conv y.
    The channels of c are UNEQUAL; y's weights compensate, so that all channels count equally.
    """
    rng = np.random.default_rng(0)
    sizes = UNEQUAL.reshape(8, 1, 1, 1)
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)) * sizes / 16,
        "b1": rng.standard_normal(8) * UNEQUAL / 16,
        "w2": rng.standard_normal((8, 1, 3, 3)) + 1,
        "w3": rng.standard_normal((4, 8, 1, 1)) / UNEQUAL.reshape(1, 8, 1, 1),
        "low": np.array(0.0),
        "high": np.array(clamp or 0.0),
    }
    act = "Relu(c)" if clamp is None else "Clip(c, low, high)"
    return network(
        f"""g (float[1,3,8,8] x) => (float[1,4,8,8] y) {{
            c = Conv <pads=[1,1,1,1]> (x, w1, b1)
            r = {act}
            d = Conv <pads=[1,1,1,1], group=8> (r, w2)
            e = Relu(d)
            y = Conv(e, w3)
        }}""",
        weights,
        folder,
        machine,
        per_tensor=per_tensor,
    )


def residual(folder: Path) -> Network:
    """A sum and a pool between convolutions, and a fully connected layer behind them."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 3, 1, 1)) * UNEQUAL.reshape(8, 1, 1, 1),
        "w2": rng.standard_normal((8, 8, 1, 1)) * UNEQUAL.reshape(8, 1, 1, 1) / UNEQUAL.reshape(1, 8, 1, 1),
        "shape": np.array([1, 8], np.int64),
        "w3": rng.standard_normal((4, 8)) / UNEQUAL,
    }
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [1, 8])
    del weights["shape"], shape
    return network(
        """g (float[1,3,4,4] x) => (float[1,8,1,1] p, float[1,8,4,4] y) {
            a = Conv(x, w1)
            b = Conv(a, w2)
            s = Add(a, b)
            r = Relu(s)
            m = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r)
            q = Conv(m, w4)
            p = GlobalAveragePool(q)
            y = Conv(r, w5)
        }""",
        {n: w for n, w in weights.items() if n != "w3"} | {"w4": -weights["w2"], "w5": 1.5 * weights["w2"]},
        folder,
    )


def make_norm_network(folder: Path) -> Network:
    """A sum that only a norm on the host reads, before it a product whose channels are UNEQUAL, behind it another product."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 8)) * UNEQUAL,
        "gamma": 1 + rng.random(8),
        "beta": rng.standard_normal(8),
        "w2": rng.standard_normal((8, 8)) / 4,
    }
    return network(
        """g (float[1,16,8] x) => (float[1,16,8] y) {
            p = MatMul(x, w1)
            s = Add(p, x)
            n = LayerNormalization <axis=-1> (s, gamma, beta)
            y = MatMul(n, w2)
        }""",
        weights,
        folder,
    )
