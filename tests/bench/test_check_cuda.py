"""bench/check_cuda.py runs without a GPU, says what that leaves unproved, and names what differs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import check_cuda

from tests.support.device_arrays import DeviceArray, DeviceLibrary
from toolchain.runtime import cuda_reference

ON_CPU = check_cuda.Hosts("cpu", False)


class WrongLibrary(DeviceLibrary):
    """A device that loses the last bit of every code."""

    def asarray(self, a: Any) -> DeviceArray:
        return super().asarray(np.asarray(a) & ~1)


@pytest.mark.parametrize(
    ("library", "verdict"), [(DeviceLibrary, "ok on the CPU; on a GPU UNPROVED"), (WrongLibrary, "FAILED: ")]
)
def test_integers(library: type, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cuda_reference, "import_cupy", library)
    record = check_cuda.Record()
    check_cuda.check_integers("ad_autoencoder", "edge16", ON_CPU, record)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("integers of ad_autoencoder on edge16: reference ")
    assert verdict in line
    assert record.failed == (library is WrongLibrary)


def test_a_network_wholly_on_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    record = check_cuda.Record()
    check_cuda.check_whole_network(ON_CPU, record)
    expected = "classifier wholly on the host: CPUExecutionProvider, 0 nodes on the CPU, ok on the CPU; on a GPU UNPROVED\n"
    assert (record.failed, capsys.readouterr().out) == (0, expected)


def test_distances() -> None:
    x = np.array([1.0, -4.0, np.inf], np.float32)
    assert check_cuda.measure_distance(x, x) == 0
    assert check_cuda.measure_distance(x, x + np.float32(2)) == 0.5
    assert check_cuda.measure_distance(x, np.array([1.0, -4.0, 5.0], np.float32)) == np.inf
    assert check_cuda.measure_distance(x, x[:2]) == np.inf


def test_the_environment_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = check_cuda.find_hosts()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("packages: ")
    assert [line.partition(":")[0] for line in lines[1:]] == ["host cuda", "backend cuda"]
    assert (lines[1] == "host cuda: starts") == (hosts.host == "cuda")


@pytest.mark.cuda("host")
@pytest.mark.cuda("backend")
def test_everything_on_a_gpu() -> None:
    assert check_cuda.main([]) == 0
