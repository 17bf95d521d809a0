"""npu-build --dump-schedule and --schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from toolchain.cli.build import main as build


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "two.onnx"
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((8, 8, 3, 3)).astype(np.float32) for n in ("v", "w")}
    nodes = [helper.make_node("Conv", [a, w], [b], b, pads=[1] * 4) for a, w, b in (("x", "v", "middle"), ("middle", "w", "y"))]
    shape = [1, 8, 12, 12]
    onnx.save(build_model(nodes, {"x": shape}, {"y": shape}, weights, opset=13), path)
    return path


def _build(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["npu-build", *map(str, arguments)])
    try:
        build()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_dumped_schedule_given_back_makes_the_same_file(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, schedule = tmp_path / "a.npu", tmp_path / "b.npu", tmp_path / "a.sched"
    assert _build(monkeypatch, model, "--hw", "edge16", "-o", first, "--dump-schedule", schedule) == 0
    assert 'layer "middle"' in schedule.read_text()
    assert _build(monkeypatch, model, "--hw", "edge16", "-o", second, "--schedule", schedule) == 0
    assert first.read_bytes() == second.read_bytes()


def test_what_is_wrong_ends_with_2_and_nothing_is_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule, target = tmp_path / "a.sched", tmp_path / "a.npu"
    schedule.write_text('region 0\n  alloc "mid" in sram\n  layer "meddle"\n    for row by 2\n      call\n')
    assert _build(monkeypatch, model, "--hw", "edge16", "-o", target, "--schedule", schedule) == 2
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f'{schedule}:2: alloc "mid": the region has no such tensor; did you mean "middle"?',
        f'{schedule}:3: layer "meddle": there is no such layer; did you mean "middle"?',
    ]
    assert not target.exists()


def test_the_schedule_is_not_overwritten(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = tmp_path / "a.sched"
    schedule.write_text("region 0\n")
    assert _build(monkeypatch, model, "--hw", "edge16", "--schedule", schedule, "--dump-schedule", schedule) == 2
    assert "is the same file as --schedule; it would be overwritten" in capsys.readouterr().err
    assert _build(monkeypatch, model, "--hw", "edge16", "--schedule", tmp_path / "none.sched") == 2
    assert "none.sched: no such file or directory" in capsys.readouterr().err


def test_of_several_entries_each_has_its_own(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = ("--entry", "one:x=1,8,12,12", "--entry", "two:x=1,8,12,12")
    first, second, schedule = tmp_path / "a.npu", tmp_path / "b.npu", tmp_path / "a.sched"
    assert _build(monkeypatch, model, "--hw", "edge16", *entries, "-o", first, "--dump-schedule", schedule) == 0
    assert [line.split("level")[0] for line in schedule.read_text().splitlines() if line.startswith("region")] == [
        'region 0 entry "one" ',
        'region 0 entry "two" ',
    ]
    assert _build(monkeypatch, model, "--hw", "edge16", *entries, "-o", second, "--schedule", schedule) == 0
    assert first.read_bytes() == second.read_bytes()
    assert _build(monkeypatch, model, "--hw", "edge16", "-o", second, "--schedule", schedule) == 2
