"""One folder of good and bad files for all tests of the commands, with good.onnx and island.onnx compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_files import make_all
from commands import run


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workshop")
    make_all(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("good", "island"):
            printed = run(f"npu-build {name}.onnx --hw edge16 --calib good.npz")
            assert printed.code == 0, printed.err
    return folder


@pytest.fixture
def in_workshop(workshop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(workshop)
    return workshop
