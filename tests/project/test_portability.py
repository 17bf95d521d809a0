"""The project outside Linux: names of files, ends of lines, processes by spawn, and what only POSIX has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import hw_configs
from toolchain.api import BuildOptions, build
from toolchain.hw.formats import upgrade_text
from toolchain.isa import load_machine
from toolchain.isa.machine import machine_to_json
from toolchain.schedule.parser import read_schedule

ROOT = Path(__file__).parents[2]
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
MODEL = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,8,8] x) => (float[1,3,8,8] y) {
    a = Relu(x) y = Add(a, x) }""")


def find_bad_names(files: Iterable[str]) -> list[str]:
    """Return paths of which a part is reserved on Windows, or differs from another in case only."""
    names = {"/".join(Path(file).parts[:depth]) for file in files for depth in range(1, len(Path(file).parts) + 1)}
    first_names: dict[str, str] = {}
    return [
        name
        for name in sorted(names)
        if first_names.setdefault(name.casefold(), name) != name
        or name.rpartition("/")[2].partition(".")[0].casefold() in RESERVED
        or name.endswith((".", " "))
        or set('<>:"\\|?*') & set(name)
    ]


def test_file_names_are_unique_without_case_and_none_is_reserved() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    assert len(files) > 1000 and find_bad_names(filter(None, files)) == []


def test_bad_names_are_seen() -> None:
    files = ["a/B.py", "a/b.py", "A/c.py", "d/aux.py", "d/com1", "d/x.", "d/a:b", "d/company.py"]
    assert find_bad_names(files) == ["a", "a/b.py", "d/a:b", "d/aux.py", "d/com1", "d/x."]


# --- ends of lines


def with_crlf(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    data = source.read_bytes()
    assert b"\n" in data and b"\r" not in data
    target.write_bytes(data.replace(b"\n", b"\r\n"))
    return target


def test_machines_of_either_line_end_are_equal(tmp_path: Path) -> None:
    shipped = Path(hw_configs.__path__[0])
    for file in ("ws8_pow2.yaml", "isa/registers32.yaml"):
        with_crlf(shipped / file, tmp_path / file)
    assert machine_to_json(load_machine(str(tmp_path / "ws8_pow2.yaml"))) == machine_to_json(load_machine("ws8_pow2"))


def test_an_upgrade_keeps_the_line_ends_of_the_file() -> None:
    old = "name: old\nengines:\n  vector:\n    kind: vector\n    lanes: 8\n    operations: [add, relu]\nmemories: {}\n"
    upgraded = upgrade_text(old, "old.yaml").text
    assert "functions:" in upgraded
    assert upgrade_text(old.replace("\n", "\r\n"), "old.yaml").text == upgraded.replace("\n", "\r\n")


def test_schedules_and_parameters_of_either_line_end_give_the_same_bytes(tmp_path: Path) -> None:
    onnx.save(MODEL, tmp_path / "model.onnx")
    run = [sys.executable, "scripts/calibrate.py", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "p.yaml")]
    images = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=images)
    subprocess.run([*run, "--data", str(tmp_path / "calib.npz")], cwd=ROOT, check=True, capture_output=True)
    first = build(MODEL, BuildOptions("edge16", parameters=str(tmp_path / "p.yaml"), level=0))
    with_crlf(tmp_path / "p.yaml", tmp_path / "crlf.yaml")
    assert build(MODEL, BuildOptions("edge16", parameters=str(tmp_path / "crlf.yaml"), level=0)).data == first.data
    schedule = tmp_path / "s.sched"
    schedule.write_bytes((ROOT / "examples/schedules/residual.sched").read_bytes())
    assert read_schedule(with_crlf(schedule, tmp_path / "crlf.sched")) == read_schedule(schedule)


# --- processes and systems

# Names that Windows lacks: taken from the modules before the toolchain is imported, in the child too.
ELSEWHERE = """
import multiprocessing, os, signal, sys
import numpy as np, onnx, onnxruntime  # these do use them where they are
for module in ("resource", "fcntl", "grp", "pwd", "termios", "tty", "pty", "syslog"):
    sys.modules[module] = None
for name in ("O_CLOEXEC", "O_NOFOLLOW", "fork", "forkpty", "uname", "sched_getaffinity", "memfd_create", "killpg", "wait4",
             "mkfifo", "geteuid", "getuid", "setsid", "pread"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGBUS", "SIGTRAP", "SIGCHLD", "SIGALRM", "SIGHUP", "SIGPIPE"):
    delattr(signal, name)

def build_bytes(count):
    import pickle
    from toolchain.api import BuildOptions, Session, build
    built = build(onnx.load(sys.argv[1]), BuildOptions("edge16", level=count))
    return built.data, pickle.dumps(Session(built))

if __name__ == "__main__":
    import pkgutil, pickle
    import quant, simulator, toolchain
    for package in (toolchain, quant, simulator):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if module.name not in ("toolchain.reference.__main__", "toolchain.isa.__main__"):
                __import__(module.name)
    from toolchain.api import CompileError
    from toolchain.foundation.atomic_files import write_files
    from toolchain.sweep.build_server import require_fork
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        data, session = pool.apply(build_bytes, (1,))
    assert build_bytes(1)[0] == data
    assert pickle.loads(session).run(None, {"x": np.ones((1, 3, 8, 8), np.float32)})[0].shape == (1, 3, 8, 8)
    write_files({sys.argv[2] + "/model.npu": data})
    try:
        require_fork()
    except CompileError as refusal:
        print(refusal)
"""


def test_a_system_with_spawn_alone_builds_and_runs(tmp_path: Path) -> None:
    onnx.save(MODEL, tmp_path / "model.onnx")
    (tmp_path / "main.py").write_text(ELSEWHERE)
    done = subprocess.run(
        [sys.executable, "main.py", "model.onnx", str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "npu-sweep builds points in forked processes" in done.stdout
    assert (tmp_path / "model.npu").read_bytes() == build(MODEL, BuildOptions("edge16", level=1)).data
