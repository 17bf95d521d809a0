"""Check that libraries of onnxruntime's custom operators run on the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from typer.testing import CliRunner

from toolchain.api import BuildOptions, Session, build
from toolchain.cli.application import application
from toolchain.cli.build import build_command
from toolchain.cli.sim import sim_command
from toolchain.errors import CompileError, ProgramError
from toolchain.foundation import inference

MODEL = """
<ir_version: 8, opset_import: ["" : 17, "ai.onnx.contrib" : 1]>
g (float[4,6] x) => (float[4,6] y) { r = Relu(x) a, b = ai.onnx.contrib.NegPos(r) y = Add(b, x) }
"""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the library of onnxruntime-extensions, which no session of the process has before and after the test."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    monkeypatch.setattr(inference, "_LIBRARIES", [])
    yield extensions.get_library_path()


def samples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(4, 6)).astype(np.float32)} for _ in range(8)]


def test_a_library_runs_its_operators_on_the_host(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = build(parser.parse_model(MODEL), BuildOptions("edge16", calibration=samples(), custom_ops=(library,)))
    (row,) = [row for row in one.figures["nodes"] if row["op"] == "NegPos"]
    assert (row["engine"], row["reason"]) == ("host", "no operator of the chip computes NegPos")
    assert any(row["engine"] == "vector" for row in one.figures["nodes"])
    sample = samples()[0]
    expected = np.maximum(sample["x"], 0) + sample["x"]
    assert np.abs(Session(one.data).run(None, sample)[0] - expected).max() <= 0.1
    monkeypatch.setattr(inference, "_LIBRARIES", [])
    with pytest.raises(ProgramError) as refusal:
        Session(one.data).run(None, sample)
    assert str(refusal.value).endswith(
        'domain "ai.onnx.contrib" is not known; give the library of its operators (--custom-ops LIBRARY)'
    )
    assert np.abs(Session(one.data, custom_ops=[library]).run(None, sample)[0] - expected).max() <= 0.1


def test_an_operator_that_the_library_lacks_is_named(library: str) -> None:
    model = parser.parse_model(MODEL.replace("NegPos", "NoSuchThing"))
    with pytest.raises(CompileError) as refusal:
        build(model, BuildOptions("edge16", calibration=samples(), custom_ops=(library,)))
    assert str(refusal.value).startswith(
        "node NoSuchThing_1 (NoSuchThing): onnxruntime does not run it by the libraries of --custom-ops: "
    )


def test_another_version_of_a_librarys_domain_is_refused(library: str) -> None:
    model = parser.parse_model(MODEL.replace('"ai.onnx.contrib" : 1', '"ai.onnx.contrib" : 2'))
    with pytest.raises(CompileError) as refusal:
        build(model, BuildOptions("edge16", calibration=samples(), custom_ops=(library,)))
    assert str(refusal.value).splitlines()[0] == (
        'node NegPos_1 (NegPos): the model imports version 2 of "ai.onnx.contrib", libraries of --custom-ops run it as version 1'
    )


def test_the_commands_take_a_library(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(parser.parse_model(MODEL), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", x=np.stack([s["x"] for s in samples()]))
    line = [str(tmp_path / "m.onnx"), "--hw", "edge16", "--calib", str(tmp_path / "c.npz")]
    run = CliRunner().invoke
    assert run(application(build_command), line).exit_code == 2
    assert run(application(build_command), [*line, "--custom-ops", library]).exit_code == 0
    monkeypatch.setattr(inference, "_LIBRARIES", [])
    assert run(application(sim_command), [str(tmp_path / "m.npu")]).exit_code == 2
    assert run(application(sim_command), [str(tmp_path / "m.npu"), "--custom-ops", library]).exit_code == 0


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "no.so"
    with pytest.raises(CompileError) as refusal:
        inference.use_custom_ops([str(file)])
    way_out = "give a shared library of onnxruntime's custom operators"
    assert str(refusal.value) == f"custom-ops {file}: no such file or directory; {way_out}"
    with pytest.raises(CompileError) as refusal:
        inference.use_custom_ops([str(tmp_path)])
    assert str(refusal.value) == f"custom-ops {tmp_path}: is a directory; {way_out}"
    file.write_bytes(b"no library")
    with pytest.raises(CompileError, match=r"^custom-ops .*: onnxruntime cannot load it: "):
        inference.use_custom_ops([str(file)])


def test_a_library_by_two_names_is_one(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(library).parent)
    inference.use_custom_ops([Path(library).name, library])
    model = parser.parse_model(MODEL).SerializeToString()
    inference.open_model(model, inference.session_options(optimized=True))
