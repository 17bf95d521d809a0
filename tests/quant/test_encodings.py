"""AIMET's encodings and onnxruntime's calibration data readers: what other tools have found is taken, and given back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from quant.calibration_data import open_data
from quant.encodings import read_encodings, render_encodings
from quant.file import read_parameters
from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from quant.parameters import activation_quant, quant_range
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError, ConfigError
from toolchain.hw import load_chip
from toolchain.ir.graph import Quant, TensorType

MACHINES = {name: load_chip(name).numerics for name in ("edge16", "ws8_pow2", "wide32_w4a16")}
MACHINES["uint8"] = replace(MACHINES["edge16"], activation=CodeType.UINT8)


@pytest.mark.parametrize("hw", MACHINES)
def test_what_is_written_reads_back_as_the_same_codes(hw: str, tmp_path: Path) -> None:
    numerics = MACHINES[hw]
    entries = {"x": Range(-1.5, 3.0), "y": Range(0.0, 6.0), "z": activation_quant(Range(-0.1, 0.7), numerics)}
    (tmp_path / "m.encodings").write_text(render_encodings(entries, numerics))
    parameters = read_parameters(tmp_path / "m.encodings", tensors=list(entries), numerics=numerics)
    for name, entry in entries.items():
        expected = entry if isinstance(entry, Quant) else activation_quant(entry, numerics)
        got = parameters.quant(name, numerics)
        assert got.zero_point == expected.zero_point and got.scale == pytest.approx(expected.scale, rel=1e-12)


def test_wide_codes_are_written_and_read_as_such(tmp_path: Path) -> None:
    numerics, types = load_chip("transformer64").numerics, {"y": CodeType.INT16}
    entries = {"x": Range(-1.5, 3.0), "y": Range(-2.0, 6.0)}
    (tmp_path / "m.encodings").write_text(render_encodings(entries, numerics, types))
    parameters = read_parameters(tmp_path / "m.encodings", tensors=list(entries), numerics=numerics)
    assert parameters.types == types
    for name, codes in {"x": CodeType.INT8, **types}.items():
        assert parameters.quant(name, numerics) == activation_quant(entries[name], numerics.of(codes))


@pytest.mark.parametrize("hw", ["edge16", "uint8"])
def test_the_file_is_as_aimet_writes_it(hw: str) -> None:
    """uint8 codes from 0, offset at most 0: real = scale (q + offset)."""
    numerics = MACHINES[hw]
    (entry,) = json.loads(render_encodings({"x": Range(-1.0, 3.0)}, numerics))["activation_encodings"]["x"]
    assert (entry["bitwidth"], entry["dtype"], entry["is_symmetric"], entry["offset"]) == (8, "int", "False", -64)
    assert entry["min"] == pytest.approx(entry["scale"] * entry["offset"])
    assert entry["max"] == pytest.approx(entry["scale"] * (255 + entry["offset"]))


ENTRY = {"name": "x", "enc_type": "PER_TENSOR", "dtype": "INT", "bw": 8, "is_sym": False, "scale": [0.05], "offset": [-20]}


def written(path: Path, *entries: object, version: str = "1.0.0") -> Path:
    path.write_text(json.dumps({"version": version, "activation_encodings": list(entries), "param_encodings": []}))
    return path


def test_version_one_is_read(tmp_path: Path) -> None:
    entries, types = read_encodings(
        written(tmp_path / "m.json", ENTRY, {**ENTRY, "name": "y", "bw": 16, "offset": [-300]}), load_chip("edge16").numerics
    )
    assert entries == {"x": Quant(0.05, -108), "y": Range(0.05 * -300, 0.05 * (65535 - 300))}
    assert types == {}
    assert read_encodings(tmp_path / "m.json", MACHINES["uint8"])[0]["x"] == Quant(0.05, 20)
    assert read_encodings(tmp_path / "m.json", load_chip("transformer64").numerics) == (
        {"x": Quant(0.05, -108), "y": Quant(0.05, -32768 + 300)},
        {"y": CodeType.INT16},
    )


def test_a_machine_without_that_scale_takes_the_range(tmp_path: Path) -> None:
    numerics = load_chip("ws8_pow2").numerics
    (code_entry,) = read_encodings(written(tmp_path / "m.json", ENTRY), numerics)[0].values()
    assert isinstance(code_entry, Range) and (code_entry.low, code_entry.high) == (-1.0, pytest.approx(11.75))
    code_range = quant_range(activation_quant(code_entry, numerics), numerics)
    assert code_range.high >= 0.96 * code_entry.high


BAD = {
    "no json": ("{", "is no JSON: "),
    "no version": (
        '{"activation_encodings": []}',
        "version None is no encodings file that is known; export one of version 0.6.1 or ",
    ),
    "no list": ('{"version": "1.0.0"}', "activation_encodings: must be a mapping (0.6.1) or a list (1.0.0)"),
    "float": (json.dumps({**ENTRY, "dtype": "FLOAT"}), "activation_encodings.x: dtype 'FLOAT' is no integer; it needs bitwidth"),
    "channels": (json.dumps({**ENTRY, "scale": [0.1, 0.2]}), "activation_encodings.x: too many values to unpack"),
    "offset": (json.dumps({**ENTRY, "offset": [3]}), "activation_encodings.x: bitwidth 8, scale 0.05, offset 3; it needs"),
    "a list for a name": (json.dumps({**ENTRY, "name": []}), "activation_encodings[0].name: is []; give the name of a tensor"),
    "a mapping for a name": (json.dumps({**ENTRY, "name": {"a": 1}}), "activation_encodings[0].name: is {'a': 1}; give the name"),
    "lacking": (json.dumps({"name": "x", "bw": 8}), "activation_encodings.x: lacks 'scale'; it needs bitwidth, scale and offset"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(case: str, tmp_path: Path) -> None:
    text, message = BAD[case]
    if '"bw"' in text:
        text = f'{{"version": "1.0.0", "activation_encodings": [{text}]}}'
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_encodings(tmp_path / "m.json", load_chip("edge16").numerics)
    assert f"{tmp_path}/m.json: {message}" in str(caught.value)


def model(folder: Path) -> Path:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Sigmoid(x) }'
    )
    onnx.save(proto, folder / "m.onnx")
    np.savez(folder / "data.npz", x=np.random.default_rng(0).standard_normal((4, 2, 4, 4)).astype(np.float32))
    return folder / "m.onnx"


def test_a_build_takes_them_and_says_what_is_missing(tmp_path: Path) -> None:
    path = model(tmp_path)
    options = BuildOptions("edge16", str(tmp_path / "data.npz"), parameters=str(tmp_path / "p.encodings"))
    written(tmp_path / "p.encodings", ENTRY, {**ENTRY, "name": "nobody"})
    with pytest.raises(ConfigError) as caught:
        build(path, options)
    assert str(caught.value) == (
        f"{tmp_path}/p.encodings: tensor 'y' of the model has no activation encoding; add it, or calibrate with "
        "scripts/calibrate.py"
    )
    written(tmp_path / "p.encodings", ENTRY, {**ENTRY, "name": "y", "scale": [1 / 255], "offset": [0]})
    graph = build(path, options).container.graph
    assert {t.quant for t in graph.types.values() if t.quant} == {Quant(0.05, -108), Quant(1 / 255, -128)}


READER = """
import numpy as np

class Reader:
    def __init__(self):
        self.left = 3

    def get_next(self):
        self.left -= 1
        return {"x": np.full((1, 2), self.left, np.float32)} if self.left >= 0 else None

from onnxruntime.quantization import CalibrationDataReader

class Derived(Reader, CalibrationDataReader):
    pass

ready = Derived()

class Broken:
    def __init__(self):
        raise ValueError("no data")
"""


@pytest.mark.parametrize("name", ["Reader", "Derived", "ready"])
def test_a_calibration_data_reader_is_read_afresh_each_time(name: str, tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(READER)
    samples = open_data(f"{tmp_path}/r.py:{name}", {"x": TensorType((1, 2), "float32")})
    for _ in range(2):
        assert [float(s["x"][0, 0]) for s in samples] == [2.0, 1.0, 0.0]


def test_a_reader_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(READER)
    with pytest.raises(CompileError) as caught:
        list(open_data(f"{tmp_path}/r.py:Broken", {"x": TensorType((1, 2), "float32")}))
    assert "Broken: ValueError: no data (line " in str(caught.value)
