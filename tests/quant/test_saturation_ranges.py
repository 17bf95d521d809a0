"""A tensor's codes end where the functions that read it stop telling its values apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from quant.fidelity import sqnr_db
from quant.float_session import open_session
from toolchain.api import Build, BuildOptions, build
from toolchain.compiler import select_model
from toolchain.frontend import load_model
from toolchain.ir.graph import Quant
from toolchain.isa import load_machine
from toolchain.passes.saturation_ranges import SaturationRange
from toolchain.repair.calibrate_network import calibrate_network
from toolchain.repair.network import Network
from toolchain.repair.weight_rounding import correct_biases
from toolchain.runtime import Session

SHAPE = (1, 8, 16, 16)
SWISH = "h = HardSwish(a)"


def model(folder: Path, body: str, *, outputs: str = "float[1,8,16,16] y") -> Path:
    """`a` is a convolution of x that goes beyond -40 and 40."""
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[1,8,16,16] x) => ({outputs}) {{ a = Conv(x, w) {body} }}'
    proto = parser.parse_model(text)
    rng = np.random.default_rng(1)
    for name, scale in (("w", 12.0), ("u", 0.4)):
        if any(name in n.input for n in proto.graph.node):
            value = (scale * rng.standard_normal((8, 8, 1, 1)) / np.sqrt(8)).astype(np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(value, name))
    for node in proto.graph.node:
        node.name = f"node_{node.output[0]}"
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / "m.onnx")
    np.savez(folder / "c.npz", x=rng.standard_normal((24, *SHAPE)).clip(-3, 3).astype(np.float32))
    return folder / "m.onnx"


def built(path: Path, hw: str = "edge16", **options: object) -> Build:
    data = str(path.with_name("c.npz"))
    return build(path, BuildOptions(hw, calibration=data, level=0, **options))  # type: ignore[arg-type]


def quant_of(compiled: Build, tensor: str) -> Quant:
    quant = next(t.quant for n, t in compiled.container.graph.types.items() if n.partition("@")[0] == tensor)
    assert quant is not None
    return quant


def ends(quant: Quant) -> tuple[float, float]:
    return quant.scale * (-128 - quant.zero_point), quant.scale * (127 - quant.zero_point)


def levels(path: Path, compiled: Build) -> float:
    """dB of the outputs on samples that were not calibrated on."""
    with np.load(path.with_name("c.npz")) as data:
        samples = [{"x": x} for x in data["x"][16:]]
    real, chip = open_session(path), Session(compiled.container, backend="reference")
    return sqnr_db(*(np.stack([s.run(None, x)[0] for x in samples]) for s in (real, chip)))


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        ("y = Sigmoid(a)", -6.5, 6.5),  # half a code of 1/255 from its ends
        ("y = Tanh(a)", -3.3, 3.3),
        ("y = HardSwish(a)", -3.3, None),
        ("h = Sigmoid(a) y = Mul(a, h)", -4.0, None),
        ("b = MaxPool<kernel_shape=[1,1]>(a) c = Transpose<perm=[0,1,3,2]>(b) y = Sigmoid(c)", -6.5, 6.5),
    ],
)
def test_codes_end_where_the_function_does(function: str, low: float, high: float | None, tmp_path: Path) -> None:
    first, last = ends(quant_of(built(model(tmp_path, function)), "a"))
    assert low <= first <= 0.8 * low
    assert last > 40 if high is None else 0.8 * high <= last <= high


def test_what_is_cut_costs_no_code_of_the_output(tmp_path: Path) -> None:
    """Check that values far beyond the range get the code of its end."""
    path = model(tmp_path, "y = Sigmoid(a)")
    compiled = built(path)
    y = quant_of(compiled, "y")
    with np.load(path.with_name("c.npz")) as data:
        sample = {"x": data["x"][0]}
    real, got = (
        np.asarray(s.run(None, sample)[0]) for s in (open_session(path), Session(compiled.container, backend="reference"))
    )
    tail = np.minimum(real, 1 - real) < 0.01 * y.scale
    assert tail.mean() > 0.2
    assert np.abs(real - got)[tail].max() <= 0.51 * y.scale


@pytest.mark.parametrize(
    "body",
    [
        f"{SWISH} y = Add(a, h)",  # a sum tells all of it
        f"{SWISH} y = Concat<axis=1>(a, h)",
        "b = Concat<axis=1>(a, x) y = HardSwish(b)",  # operands are judged each by itself
    ],
)
def test_what_others_read_keeps_its_range(body: str, tmp_path: Path) -> None:
    channels = 16 if "Concat" in body else 8
    compiled = built(model(tmp_path, body, outputs=f"float[1,{channels},16,16] y"))
    assert ends(quant_of(compiled, "a"))[0] < -30


def test_an_output_keeps_its_range(tmp_path: Path) -> None:
    compiled = built(model(tmp_path, "y = HardSwish(a)", outputs="float[1,8,16,16] y, float[1,8,16,16] a"))
    assert ends(quant_of(compiled, "a"))[0] < -30


def test_a_given_scale_is_kept_and_a_given_range_is_not(tmp_path: Path) -> None:
    path = model(tmp_path, "y = Sigmoid(a)")
    lines = ["version: 1", "tensors:", "  x: {low: -3.0, high: 3.0}", "  y: {low: 0.0, high: 1.0}"]
    for entry, wide in (("{scale: 0.5, zero_point: 0}", True), ("{low: -64.0, high: 63.5}", False)):
        (tmp_path / "p.yaml").write_text("\n".join([*lines, f"  a: {entry}", ""]))
        quant = quant_of(built(path, parameters=str(tmp_path / "p.yaml")), "a")
        assert (quant == Quant(0.5, 0)) == wide and (quant.scale < 0.06) != wide


def test_no_report_takes_it_for_a_loss(tmp_path: Path) -> None:
    """Most of the values lie beyond the codes, and their reader has what it had."""
    compiled = built(model(tmp_path, f"{SWISH} y = Conv(h, u)"), error_report=True)
    assert compiled.errors is not None
    row = next(r for r in compiled.errors.rows if r.tensor == "a")
    assert row.own_db > 35 and row.clipped_share == 0
    assert not any("outside the codes" in w for w in compiled.warnings)


def test_codes_are_finer_for_it(tmp_path: Path) -> None:
    """Half of the range tells a HardSwish nothing: the other half has twice the codes."""
    path = model(tmp_path, f"{SWISH} y = Conv(h, u)")
    compiled = built(path)
    (tmp_path / "p.yaml").write_text(plain_ranges(path, compiled))
    assert levels(path, compiled) > levels(path, built(path, parameters=str(tmp_path / "p.yaml"))) + 1


def plain_ranges(path: Path, compiled: Build) -> str:
    """A parameters file with the scale of all that was seen."""
    with np.load(path.with_name("c.npz")) as data:
        values = np.concatenate([np.tensordot(weights(path), x[0], 1).ravel() for x in data["x"][:16]])
    scale = float(values.max() - values.min()) / 255
    quant_by_tensor = {n: quant_of(compiled, n) for n in ("x", "h", "y")} | {
        "a": Quant(scale, round(-128 - values.min() / scale))
    }
    lines = [f"  {n}: {{scale: {q.scale!r}, zero_point: {q.zero_point}}}" for n, q in quant_by_tensor.items()]
    return "\n".join(["version: 1", "tensors:", *lines, ""])


def weights(path: Path) -> np.ndarray:
    initializer = next(i for i in onnx.load(path).graph.initializer if i.name == "w")
    return numpy_helper.to_array(initializer)[:, :, 0, 0]


def test_what_lies_further_than_was_seen_still_counts() -> None:
    """Silent from -6 to -4 and from 5 on: -8 is two beyond the end, 9 is none."""
    saturation = SaturationRange(low=-4.0, high=5.0, least=-6.0, most=np.inf)
    x = np.array([-8, -6, -5, -4, 0, 5, 9], np.float32)
    assert (
        saturation.clip_to_effective(x).tolist() == [-6, -4, -4, -4, 0, 5, 5]
        and saturation.clip_to_effective(x).dtype == np.float32
    )


def test_a_range_that_is_too_short_is_named_as_ever(tmp_path: Path) -> None:
    """Check that the report names a range that is too short by the values which the codes do not hold.
    This is so whatever saturation the consumer has.
    """
    path = model(tmp_path, f"{SWISH} y = Conv(h, u)")
    compiled = built(path)
    quant_by_tensor = {n: q for n in ("x", "h", "y") if (q := quant_of(compiled, n))}
    lines = [f"  {n}: {{scale: {q.scale!r}, zero_point: {q.zero_point}}}" for n, q in quant_by_tensor.items()]
    (tmp_path / "p.yaml").write_text("\n".join(["version: 1", "tensors:", *lines, "  a: {low: -20.0, high: 8.0}", ""]))
    spoiled = built(path, parameters=str(tmp_path / "p.yaml"), error_report=True)
    assert spoiled.errors is not None
    first = spoiled.errors.findings[0]
    assert (first.tensor, first.cause) == ("a", "clipped tail") and 0.1 < first.clipped_share < 0.5


def test_repair_does_not_answer_for_it(tmp_path: Path) -> None:
    """A bias that made up for what lies beyond the codes would be wrong for all within."""
    path, machine = model(tmp_path, f"{SWISH} y = Conv(h, u)"), load_machine("edge16")
    normal = load_model(path)
    network = Network(normal, select_model(normal, machine), machine)
    with np.load(path.with_name("c.npz")) as data:
        samples = [{"x": x} for x in data["x"]]
    before = calibrate_network(network, samples[:16], None, "none", lambda *_: None).quantization
    after = correct_biases(network, before, samples[:16], lambda *_: None).quantization
    real = np.stack([open_session(path).run(None, s)[0] for s in samples[16:]])
    plain, repaired = (np.stack([network.session(q).run(None, s)[0] for s in samples[16:]]) for q in (before, after))
    assert sqnr_db(real, repaired) > sqnr_db(real, plain) - 0.5
