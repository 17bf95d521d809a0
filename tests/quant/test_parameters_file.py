"""The parameters file: what is written reads back to the last bit, edits are taken, every fault has its line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from edge_numerics import EDGE, machine
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.file import Parameters, read_parameters, render_parameters, write_parameters
from quant.fixed_point import ScaleForm
from quant.observe import Range
from quant.parameters import activation_quant
from toolchain.errors import ConfigError
from toolchain.ir.graph import Quant

settings.register_profile("quant", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("quant")

POW2 = replace(EDGE, scale=ScaleForm("pow2"), symmetric_activations=True)

TEXT = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
RANGES = st.tuples(FLOAT, FLOAT).map(lambda v: Range(min(v), max(v)))
QUANTS = st.builds(Quant, st.floats(min_value=1e-300, max_value=1e300), st.integers(-32768, 32767))
PARAMETERS = st.builds(
    Parameters,
    tensors=st.dictionaries(TEXT, RANGES | QUANTS, max_size=5),
    observer=TEXT,
    samples=st.integers(0, 10**9),
    data=TEXT,
    model=TEXT,
    hardware=TEXT,
    sources=st.dictionaries(TEXT, TEXT, max_size=3),
)


@given(PARAMETERS)
def test_round_trip(tmp_path_factory, parameters: Parameters) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    write_parameters(path, parameters)
    parsed = read_parameters(path)
    assert dict(parsed.tensors) == dict(parameters.tensors) and list(parsed.tensors) == list(parameters.tensors)
    assert (parsed.observer, parsed.samples, parsed.data) == (parameters.observer, parameters.samples, parameters.data)
    assert (parsed.model, parsed.hardware) == (parameters.model, parameters.hardware)


def test_text() -> None:
    parameters = Parameters(
        {"x": Range(-1.0, 1e-5), "conv_1": Quant(0.125, 3)}, "minmax", 8, "calib.npz", "net.onnx", "edge", {"conv_1": "c (Conv)"}
    )
    assert render_parameters(parameters).splitlines()[6:] == [
        "version: 1",
        'model: "net.onnx"',
        'hardware: "edge"',
        'observer: "minmax"',
        "samples: 8",
        'data: "calib.npz"',
        "tensors:",
        '  "x": {low: -1.0, high: 1.0e-05}',
        '  "conv_1": {scale: 0.125, zero_point: 3}  # c (Conv)',
    ]


def test_edits_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\ntensors:\n  a: {low: -1, high: 1e1}\n  7:\n    scale: 1e-3\n    zero_point: 0\n")
    parsed = read_parameters(path, tensors=["a", "7"], numerics=EDGE)
    assert dict(parsed.tensors) == {"a": Range(-1.0, 10.0), "7": Quant(0.001, 0)}
    assert parsed.quant("7", EDGE) == Quant(0.001, 0)
    assert parsed.quant("a", EDGE) == activation_quant(Range(-1, 10), EDGE)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.yaml"
    write_parameters(path, Parameters({"x": Range(0, 1)}))
    before = path.read_text()

    def fails(parameters: Parameters) -> str:
        raise RuntimeError("no")

    monkeypatch.setattr("quant.file.write.render_parameters", fails)
    with pytest.raises(RuntimeError):
        write_parameters(path, Parameters({"x": Range(0, 2)}))
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


FAULTS = [
    ("", ["{p}:1: file: is empty"]),
    ("tensors: [\n", ["{p}:2: not YAML: expected the node content, but found '<stream end>'"]),
    ("- 1\n", ["{p}:1: file: must be a section of keys, got a list"]),
    ("version: 2\ntensors: {}\n", ["{p}:1: version: must be one of 1; got 2"]),
    ("version: 1\n", ["{p}:1: tensors: is missing"]),
    (
        "version: 1\nobserve: minmax\ntensors: {x: {low: 0, high: 1}, y: {low: 0, high: 1}}\n",
        ['{p}:2: observe: no such key; did you mean "observer"?'],
    ),
    (
        "version: 1\ntensors:\n  x: {low: 0, hihg: 1}\n  y: {low: 2, high: 1}\n  z: 3\n",
        [
            '{p}:3: tensors.x.hihg: no such key; did you mean "high"?',
            "{p}:4: tensors.y: low 2.0 is above high 1.0",
            "{p}:5: tensors.z: must be a section of keys, got 3",
            "{p}:5: tensors.z: the model has no such tensor; mend or remove its entry",
        ],
    ),
    (
        "version: 1\ntensors:\n  x: {low: 0}\n  y: {low: 0, high: 1, scale: 1, zero_point: 0}\n  z: {}\n",
        [
            "{p}:3: tensors.x: needs low and high, or scale and zero_point, and not both",
            "{p}:4: tensors.y: needs low and high, or scale and zero_point, and not both",
            "{p}:5: tensors.z: needs low and high, or scale and zero_point, and not both",
            "{p}:5: tensors.z: the model has no such tensor; mend or remove its entry",
        ],
    ),
    (
        "version: 1\ntensors:\n  x: {low: .nan, high: wide}\n  y: {scale: 0, zero_point: 0.5}\n",
        [
            "{p}:3: tensors.x.high: must be a number, got 'wide'",
            "{p}:3: tensors.x.low: must be a finite number, got nan",
            "{p}:4: tensors.y.scale: must be more than 0, got 0",
            "{p}:4: tensors.y.zero_point: must be a whole number, got 0.5",
        ],
    ),
    (
        "version: 1\ntensors:\n  x: {low: 0, high: 1}\n  x: {low: 0, high: 2}\n  y: {low: 0, high: 1}\n",
        ["{p}:4: tensors.x: given twice, first in line 3"],
    ),
    (
        "version: 1\ntensors:\n  X: {low: 0, high: 1}\n  y: {low: 0, high: 1}\n",
        [
            "{p}:3: tensors.X: the model has no such tensor; mend or remove its entry",
            "{p}:2: tensors: tensor 'x' of the model has no entry; add it, or calibrate again",
        ],
    ),
    (
        "version: 1\ntensors:\n  x: {scale: 0.3, zero_point: 4}\n  y: {low: 0, high: 1}\n",
        [
            "{p}:3: tensors.x.scale: 0.3 is no power of two, and the machine has no others (numerics.scale.kind); "
            "use 0.25 or 0.5, or give low and high",
            "{p}:3: tensors.x.zero_point: 4 where the machine has none (numerics.symmetric_activations); "
            "use 0, or give low and high",
        ],
    ),
    (
        "version: 1\ntensors:\n  x: {scale: 1.5e+308, zero_point: 0}\n  y: {scale: 3e-30, zero_point: 0}\n",
        [
            "{p}:3: tensors.x.scale: 1.5e+308 spreads the codes beyond float32; give one that fits the data, or low and high",
            "{p}:4: tensors.y.scale: 3e-30 is below the smallest, 2^-40 (9.1e-13); give one that fits the data, or low and high",
        ],
    ),
]


FAULTS_OF_BOTH_KINDS = """\
version: 1
samples: -1
weights:
  a: {scales: rows}
  fc: {scales: 32, type: int4}
tensors:
  x: {low: 0, hihg: 1}
  z: {low: 0, high: 1}
  v: {scale: 0.3, zero_point: 0}
"""


def test_faults_of_form_hide_no_others(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(FAULTS_OF_BOTH_KINDS)
    with pytest.raises(ConfigError) as caught:
        read_parameters(path, tensors=["x", "y", "v"], layers=lambda: ["fc"], numerics=POW2)
    assert caught.value.faults == [
        f"{path}:2: samples: must be at least 0, got -1",
        f"{path}:4: weights.a.scales: must be tensor, channel or a group's size, a multiple of 16 from 16 to 256; got 'rows'",
        f'{path}:7: tensors.x.hihg: no such key; did you mean "high"?',
        f"{path}:8: tensors.z: the model has no such tensor; mend or remove its entry",
        f"{path}:6: tensors: tensor 'y' of the model has no entry; add it, or calibrate again",
        f"{path}:4: weights.a: the machine has no such layer with weights; mend or remove its entry",
        f"{path}:9: tensors.v.scale: 0.3 is no power of two, and the machine has no others (numerics.scale.kind); "
        "use 0.25 or 0.5, or give low and high",
        f"{path}:5: weights.fc.type: int4 where the machine has int8 weights, and int16 in two planes; give one of these",
        f"{path}:5: weights.fc.scales: the machine has no groups of 32 weights (engines.mac.groups); use channel or tensor",
    ]


def test_a_repair_that_cannot_be_read_says_nothing_of_names(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\nrepair: {effort: fast, hosted: 3}\ntensors:\n  x: {low: 0}\n  z: {low: 0, high: 1}\n")
    with pytest.raises(ConfigError) as caught:
        read_parameters(path, tensors=["x", "y"], numerics=POW2)
    assert caught.value.faults == [
        f"{path}:2: repair.hosted: must be a list, got 3",
        f"{path}:4: tensors.x: needs low and high, or scale and zero_point, and not both",
    ]


@pytest.mark.parametrize("scales", ["33", "0", "512", "3.5", "yes", "[1]", "rows"])
def test_scales_that_weights_cannot_have(scales: str, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"version: 1\nweights: {{a: {{scales: {scales}}}}}\ntensors: {{}}\n")
    with pytest.raises(ConfigError) as caught:
        read_parameters(path)
    (fault,) = caught.value.faults
    assert fault.startswith(
        f"{path}:2: weights.a.scales: must be tensor, channel or a group's size, a multiple of 16 from 16 to "
    )


@pytest.mark.parametrize(("text", "faults"), FAULTS)
def test_faults(tmp_path: Path, text: str, faults: list[str]) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_parameters(path, tensors=["x", "y"], numerics=POW2)
    assert caught.value.faults == [fault.replace("{p}", str(path)) for fault in faults]


@pytest.mark.parametrize(
    ("codes", "existing", "absent", "ends"), [("int8", -128, 200, "-128 to 127"), ("uint8", 200, -128, "0 to 255")]
)
def test_a_code_that_does_not_exist(codes: str, existing: int, absent: int, ends: str, tmp_path: Path) -> None:
    path, numerics = tmp_path / "p.yaml", machine(activation=codes)
    path.write_text(f"version: 1\ntensors:\n  x: {{scale: 0.3, zero_point: {existing}}}\n")
    assert read_parameters(path, numerics=numerics).tensors == {"x": Quant(0.3, existing)}
    path.write_text(f"version: 1\ntensors:\n  x: {{scale: 0.3, zero_point: {absent}}}\n")
    with pytest.raises(ConfigError, match=rf"x\.zero_point: {absent} is no {codes} code; use {ends}$"):
        read_parameters(path, numerics=numerics)


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_parameters(tmp_path / "absent.yaml")
    assert caught.value.faults == [f"{tmp_path}/absent.yaml: no such file or directory"]
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not YAML: not UTF-8 text"):
        read_parameters(tmp_path / "binary.yaml")
