"""A sweep on a dask cluster of processes: workers and the scheduler are killed, and the table has the same bytes in the end."""

from __future__ import annotations

import csv
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from tiny_sweep import TINY, write_tiny

from tests.cli.commands import run

WAIT_SECONDS = 60.0  # for what was measured to take 2 to 20
SLOW = TINY.replace("model: tiny.onnx", "model: tiny.onnx, calib: 'data.py:slow'")
DATA = """import os, time
from pathlib import Path
import numpy as np

def slow():
    with open(Path(__file__).parent / "begun", "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(0.5)
    for seed in range(4):
        yield {"x": np.random.default_rng(seed).normal(size=(1, 4, 8, 8)).astype(np.float32)}
"""


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def find_free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    arguments, null = [sys.executable, "-m", *command], subprocess.DEVNULL
    with subprocess.Popen(arguments, start_new_session=True, stdout=null, stderr=null) as leader:
        try:
            yield leader
        finally:
            os.killpg(leader.pid, signal.SIGKILL)


def start_scheduler(port: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return process("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")


def start_worker(port: int, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    options = ("--nthreads", "1", "--no-dashboard", "--no-nanny", "--local-directory", str(folder), "--death-timeout", "60")
    return process("distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", *options)


def start_sweep(file: Path, port: int, out: Path) -> subprocess.Popen[str]:
    program = "from toolchain.cli import sweep; sweep()"
    arguments = [str(file), "--scheduler", f"tcp://127.0.0.1:{port}", "-o", str(out)]
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_a_killed_scheduler_stops_with_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra sweep is not installed")
    file, port = write_tiny(tmp_path, SLOW), find_free_port()
    (tmp_path / "data.py").write_text(DATA)
    log = tmp_path / "begun"

    def count_begun() -> int:
        return len(set(log.read_text().split())) if log.exists() else 0  # builds: each has a process of its own

    with start_scheduler(port), start_worker(port, tmp_path / "w1") as first:
        sweep = start_sweep(file, port, tmp_path / "out")
        wait_for(lambda: count_begun() >= 2)  # one is built, another begun
        os.killpg(first.pid, signal.SIGKILL)
        with start_worker(port, tmp_path / "w2"):
            out, err = sweep.communicate(timeout=WAIT_SECONDS)
    assert sweep.returncode == 0, err
    assert "4 points: 4 built; 4 new results in" in out
    assert count_begun() == 5  # the one that died with its worker was built again

    (tmp_path / "sweep.store").unlink()
    with start_scheduler(port) as lost, start_worker(port, tmp_path / "w3"):
        sweep = start_sweep(file, port, tmp_path / "again")
        wait_for(lambda: count_begun() >= 7)
        time.sleep(0.3)  # the result of the first is on its way, the second takes a second
        os.killpg(lost.pid, signal.SIGKILL)
        out, err = sweep.communicate(timeout=WAIT_SECONDS)
    address = f"tcp://127.0.0.1:{port}"
    assert err == f"--scheduler {address}: the connection is lost; what was built is stored, the same command goes on\n"
    assert sweep.returncode == 2 and out == ""

    printed = run(f"npu-sweep {file} -o {tmp_path / 'again'} --jobs 2")
    assert printed.code == 0 and "4 points: 4 built; 3 new results in" in printed.out
    assert (tmp_path / "again" / "results.csv").read_bytes() == (tmp_path / "out" / "results.csv").read_bytes()
    assert len({row["key"] for row in csv.DictReader((tmp_path / "out" / "results.csv").open())}) == 4


def test_no_scheduler_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="the extra sweep is not installed")
    monkeypatch.setattr("toolchain.sweep.engines.CONNECT_SECONDS", 1)
    address = f"tcp://127.0.0.1:{find_free_port()}"
    printed = run(f"npu-sweep {write_tiny(tmp_path)} --scheduler {address}")
    assert printed.code == 2 and printed.err.startswith(f"--scheduler {address}: no dask scheduler answers (")
    assert printed.err.endswith("start one: dask scheduler\n") and printed.err.count("\n") == 1
