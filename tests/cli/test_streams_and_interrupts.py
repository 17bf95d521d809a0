"""Commands with no room for what they print, with Ctrl-C, in a terminal of another alphabet, with no room for dumps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from bad_files import model
from commands import contents, run
from onnx import ModelProto, numpy_helper

from toolchain.cli import THREADS_RAN_ON, application

COMMAND = "from toolchain.cli import {0}; {0}()"


def start_process(command: str, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", COMMAND.format(command), *arguments], stderr=subprocess.PIPE, **options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("command", "arguments"),
    [("dis", ["good.npu"]), ("hw", ["list"]), ("hw", ["schema"]), ("build", ["--help"]), ("sim", ["--version"])],
)
def test_no_room_for_what_is_printed(command: str, arguments: list[str], in_workshop: Path) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full, start_process(command, *arguments, stdout=full, env=buffered) as process:
        assert process.stderr
        assert process.stderr.read() == b"standard output: no space left on device\n"
    assert process.returncode == 2


@pytest.mark.parametrize("stream", [1, 2])
def test_a_stream_that_is_closed(stream: int, in_workshop: Path) -> None:
    arguments = ["good.npu", "-o", "listing.txt"] if stream == 1 else ["nothing.npu"]
    closed = f"exec {sys.executable} -c '{COMMAND.format('dis')}' \"$@\" {stream}>&-"
    done = subprocess.run(["sh", "-c", closed, "sh", *arguments], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0 if stream == 1 else 2, b"", b"")


ENDLESS = """
import pathlib, time


def f():
    pathlib.Path("running").touch()
    while True:
        time.sleep(0.01)
    yield
"""


def interrupt_process(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    assert process.stderr
    assert process.stderr.read() == b"interrupted\n"
    assert process.wait() == 130


def test_an_interrupt_while_modules_are_imported(in_workshop: Path) -> None:
    before = contents(in_workshop)
    code = "from toolchain.cli import build; print(flush=True); build()"
    command = [sys.executable, "-c", code, "good.onnx", "--hw", "edge16", "-o", "z.npu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.1)
        interrupt_process(process)
    assert contents(in_workshop) == before


def test_an_interrupt_of_a_build(in_workshop: Path, tmp_path: Path) -> None:
    """The interrupt comes during calibration on a generator that never ends."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    arguments = [f"{in_workshop}/good.onnx", "--hw", "edge16", "--calib", "endless.py:f", "-o", "z.npu"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with start_process("build", *arguments, stdout=subprocess.DEVNULL, env=environment, cwd=tmp_path) as process:
        while not (tmp_path / "running").exists():
            assert process.poll() is None
            time.sleep(0.01)
        interrupt_process(process)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["endless.py", "running"]


THREAD = """
import threading, time
import numpy as np


def f():
    threading.Thread(target=time.sleep, args=({seconds},)).start()
    yield {{"x": np.zeros((1, 3, 8, 8), np.float32)}}
"""


@pytest.mark.parametrize(("seconds", "warnings"), [(1000, 1), (0.1, 0)])
def test_a_thread_of_the_users_file_does_not_keep_the_command(
    in_workshop: Path, tmp_path: Path, seconds: float, warnings: int
) -> None:
    (tmp_path / "threads.py").write_text(THREAD.format(seconds=seconds))
    arguments = ["good.onnx", "--hw", "edge16", "--calib", f"{tmp_path}/threads.py:f", "-o", f"{tmp_path}/z.npu"]
    with start_process("build", *arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0 and f"wrote {tmp_path}/z.npu" in out
    assert err.count(THREADS_RAN_ON) == warnings


def test_names_that_the_terminal_cannot_show(in_workshop: Path, tmp_path: Path) -> None:
    proto = model()
    proto.graph.node[-1].output[0] = proto.graph.output[0].name = "выход"
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    arguments = [f"{tmp_path}/m.onnx", "--hw", "edge16", "--calib", "good.npz", "-o", f"{tmp_path}/m.npu"]
    with start_process("build", *arguments, stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "ascii"}) as process:
        assert process.stderr and process.stdout
        out, err = process.communicate()
    assert process.returncode == 0 and b"Error" not in err
    assert b"\\u0432\\u044b\\u0445\\u043e\\u0434" in out


def test_a_dump_appears_whole_or_not_at_all(in_workshop: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    (tmp_path / "00-normal.txt").write_text("old")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, usual[1]))
    try:
        printed = run(f"npu-build good.onnx --hw edge16 -o {tmp_path}/z.npu --dump-after all --dump-dir {tmp_path}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert (printed.code, printed.err) == (2, f"{tmp_path}/00-normal.txt: file too large\n")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"00-normal.txt": "old"}


def test_a_full_disk_leaves_old_dumps_and_every_other_file(in_workshop: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    line = (
        f"npu-build good.onnx --hw edge16 -o {tmp_path}/z.npu --dump-after fuse --dump-dir {tmp_path}/d --json {tmp_path}/z.json"
    )
    assert run(line).code == 0
    before, usual = contents(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "z.npu").stat().st_size - 1, usual[1]))
    try:
        printed = run(f"{line} -O0 --host-node Relu_1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert (printed.code, printed.err.splitlines()[-1]) == (2, f"{tmp_path}/z.npu: file too large")
    assert contents(tmp_path) == before


def test_a_build_that_fails_writes_the_dumps_of_the_stages_that_it_got_through(in_workshop: Path, tmp_path: Path) -> None:
    (tmp_path / "z.npu").write_text("old")
    line = f"npu-build good.onnx --hw edge16 -o {tmp_path}/z.npu --dump-after all --dump-dir {tmp_path}/d"
    printed = run(f"{line} --calib feed.py:fails")
    assert printed.code == 2 and "feed.py:fails" in printed.err
    stages = [f"{stage}.{kind}" for stage in ("00-normal", "01-compose", "02-select") for kind in ("onnx", "txt")]
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == [*stages, "constants.npz"]
    assert (tmp_path / "z.npu").read_text() == "old"


def test_dumps_of_all_regions_are_in_one_file(in_workshop: Path, tmp_path: Path) -> None:
    assert run(f"npu-build island.onnx --hw edge16 -o {tmp_path}/z.npu --dump-after program --dump-dir {tmp_path}/d").code == 0
    assert (tmp_path / "d" / "07-program.txt").read_text().count("region ") == 2


def test_memory_that_is_not_there(in_workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("Unable to allocate 8.00 GiB")

    monkeypatch.setattr(import_module("toolchain.cli.dis"), "read_container", fails)
    printed = run("npu-dis good.npu")
    message = "out of memory: Unable to allocate 8.00 GiB; close other programs, or take smaller inputs\n"
    assert (printed.code, printed.err) == (2, message)


def test_names_with_control_characters_are_spelled(tmp_path: Path) -> None:
    """Such characters would move the cursor, and change the text on the screen."""
    proto = model("(float[1,3,8,8] x) => (float[1,4,8,8] y) { y = Frobnicate(x) }")
    proto.graph.node[0].name = "a\x1b[2Jb"
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert run(f"npu-build {tmp_path}/m.onnx --hw edge16").err == "node a\\x1b[2Jb (Frobnicate): is not an ONNX operator\n"


def test_names_in_what_is_printed_are_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables keep their lines; the report is in JSON as the model says it."""
    monkeypatch.chdir(tmp_path)
    odd = "\x1b[2J\nz"
    (tmp_path / "m.onnx").write_bytes(_with_names(odd).SerializeToString())
    entries = [f"--entry a:x{odd}=1,3,8,8", f"--entry b:x{odd}=2,3,8,8"]
    for line in (
        "npu-build m.onnx --hw edge16 -o m.npu --explain --json m.json",
        f"npu-build m.onnx --hw edge16 -o m2.npu {' '.join(entries)}",
        "npu-sim m.npu --verify",
        "npu-dis m.npu",
    ):
        printed = run(line)
        assert printed.code == 0, printed.err
        assert "\\x1b[2J" in printed.out
        assert all(c.isprintable() or c == "\n" for c in printed.out + printed.err)
        assert not any(text.startswith("z") for text in printed.out.splitlines())
    layers = json.loads((tmp_path / "m.json").read_text())["layers"]
    assert f"Relu{odd}" in {layer["name"] for layer in layers}


def _with_names(odd: str) -> ModelProto:
    """A model of chip and host nodes whose names, and those of its tensors and of its dimension, end so."""
    text = "{ a = Relu(x) c = Concat<axis = 1>(a, a) d = Round(c) y = Slice(d, i, j, j) }"
    proto = model(f"(float[n,3,8,8] x) => (float[n,2,8,8] y) {text}")
    proto.graph.initializer.extend(numpy_helper.from_array(np.array([v]), n) for n, v in (("i", 1), ("j", 3)))
    for node in proto.graph.node:
        node.name = node.op_type + odd
        node.input[:] = [name if name in ("i", "j") else name + odd for name in node.input]
        node.output[:] = [name + odd for name in node.output]
    for value in (*proto.graph.input, *proto.graph.output):
        value.name += odd
        value.type.tensor_type.shape.dim[0].dim_param += odd
    return proto


def test_commands_print_in_one_way() -> None:
    """`say` spells control characters out. Schemas and headers, which are files on stdout, are written as they are."""
    folder = Path(application.__file__).parent
    lines = [f"{f.name}: {line.strip()}" for f in sorted(folder.glob("*.py")) for line in f.read_text().splitlines()]
    assert [line for line in lines if "print(" in line] == [
        "application.py: print(printable_lines(text), end=end, file=sys.stderr if is_fault else sys.stdout)",
        "memory_limit.py: print(out_of_memory(fault, limit_bytes()), file=sys.stderr)",
    ]
