"""scripts/demo.py in small: what the README's first command shows must hold."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from toolchain.runtime import Session

ROOT = Path(__file__).parents[2]
IMAGES, SIMULATED = 200, 10
LARGEST_LOSS_POINTS = 0.5


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """(what it printed, its JSON, the compiled file)."""
    folder = tmp_path_factory.mktemp("demo")
    report, compiled = folder / "demo.json", folder / "classifier.npu"
    arguments = ["--images", str(IMAGES), "--simulate", str(SIMULATED), "--json", str(report), "-o", str(compiled)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo.py"), *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(report.read_text()), compiled


def test_int8_is_within_half_a_point_of_float(demo: tuple[str, dict[str, Any], Path]) -> None:
    scores = demo[1]["scores"]
    assert scores["images"] == IMAGES
    assert scores["top1_float"] > 0.9
    assert abs(scores["points"]) <= LARGEST_LOSS_POINTS + 1e-9  # one image of 200 is half a point
    assert scores["agreement"] >= 0.99
    assert scores["sqnr_db"] > 30


def test_the_simulator_gives_the_references_bits(demo: tuple[str, dict[str, Any], Path]) -> None:
    assert demo[1]["simulated"] == SIMULATED
    assert demo[1]["differing"] == []
    assert f"{SIMULATED} images on the simulator: the same bits as the integer reference" in demo[0]


def test_every_cycle_is_accounted_for(demo: tuple[str, dict[str, Any], Path]) -> None:
    build = demo[1]["build"]
    assert build["fallbacks"] == []
    assert sum(layer["cycles"] for layer in build["layers"]) == build["cycles"] >= build["roofline_cycles"]
    assert sum(layer["macs"] for layer in build["layers"]) == build["macs"]
    assert f"{build['cycles']:,} cycles" in demo[0]
    assert all(busy <= build["cycles"] for busy in build["busy_cycles"].values())


def test_the_kept_file_answers_as_the_demo_says(demo: tuple[str, dict[str, Any], Path]) -> None:
    with np.load(ROOT / "examples" / "classifier" / "test.npz") as data:
        x, y = data["x"][:IMAGES].astype(np.float32) / np.float32(255), data["y"][:IMAGES]
    session = Session(demo[2], backend="reference")
    classes = [int(session.run(None, {"x": image[None, None]})[0].argmax()) for image in x]
    assert np.mean(classes == y) == pytest.approx(demo[1]["scores"]["top1_int"])


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "o.npu").write_text("old")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    command = importlib.import_module("demo")
    monkeypatch.setattr(command, "run", lambda *_: SimpleNamespace(built=SimpleNamespace(data=b"new")))
    monkeypatch.setattr(command, "demo_json", lambda _: "figures")
    monkeypatch.setattr(sys, "argv", ["demo.py", "-o", str(tmp_path / "o.npu"), "--json", "/dev/full"])
    with pytest.raises(SystemExit):
        command.main()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("o.npu", "old")]
