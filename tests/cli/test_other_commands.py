"""npu-sim, npu-dis and the reference executor as their users meet them, and how all commands write files."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from commands import contents, run

from toolchain.foundation.atomic_files import write_files

CLASSIFIER = Path(__file__).parents[2] / "examples" / "classifier"


def done(line: str) -> str:
    """Return the stdout of a command that must succeed."""
    printed = run(line)
    assert (printed.code, printed.err) == (0, "")
    return printed.out


def run_with_warning(line: str) -> None:
    """Runs what must succeed, and warns of the few samples that it is calibrated on."""
    printed = run(line)
    assert printed.code == 0 and printed.err.startswith("WARNING: calibrated on ")


def test_simulation_and_reference_write_the_same_bytes(in_workshop: Path, tmp_path: Path) -> None:
    for name in ("good", "island"):
        done(f"npu-sim {name}.npu --input good.npz --output {tmp_path}/sim.npz")
        output = done(f"reference {name}.npu --input good.npz --output {tmp_path}/reference.npz")
        assert output == f"wrote {tmp_path}/reference.npz: 1 output\n"
        assert (tmp_path / "sim.npz").read_bytes() == (tmp_path / "reference.npz").read_bytes()
        with np.load(tmp_path / "sim.npz") as outputs:
            assert outputs.files == ["y"]
            assert outputs["y"].shape == (1, 4, 8, 8)


def test_reference_of_an_onnx_model(in_workshop: Path, tmp_path: Path) -> None:
    done(f"reference good.npu --input good.npz --output {tmp_path}/a.npz")
    run_with_warning(
        f"reference good.onnx --hw edge16 --calib good.npz --shape x=1,3,8,8 --input good.npz --output {tmp_path}/b.npz"
    )
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_reference_says_what_is_random(in_workshop: Path, tmp_path: Path) -> None:
    printed = run(f"reference good.onnx --hw edge16 --output {tmp_path}/a.npz")
    assert printed.code == 0
    assert printed.out == f"wrote {tmp_path}/a.npz: 1 output of random inputs; give --input IN.npz\n"
    assert printed.err == (
        "WARNING: calibrated and judged on RANDOM inputs: bits and cycles are right, accuracy means NOTHING; give --calib DATA\n"
    )


def test_reference_as_a_module(in_workshop: Path, tmp_path: Path) -> None:
    arguments = f"good.npu --input good.npz --output {tmp_path}/a.npz".split()
    subprocess.run([sys.executable, "-m", "toolchain.reference", *arguments], check=True)
    assert (tmp_path / "a.npz").exists()


def test_simulation_says_what_ran_where(in_workshop: Path, tmp_path: Path) -> None:
    out = done(f"npu-sim island.npu --input good.npz --json {tmp_path}/a.json --trace {tmp_path}/trace.json")
    figures = json.loads((tmp_path / "a.json").read_text())
    assert [s["where"] for s in figures["segments"]] == ["npu (simulator)", "CPUExecutionProvider", "npu (simulator)"]
    assert "1 node on CPUExecutionProvider" in out.splitlines()[-1]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert done("npu-sim good.npu").splitlines()[-1] == "note: ran on random inputs; give --input IN.npz"


def test_simulation_for_the_machine_asked_for(in_workshop: Path, tmp_path: Path) -> None:
    done("npu-sim good.npu --hw edge16 --input good.npz")
    text = (CLASSIFIER.parents[1] / "hw_configs" / "edge16.yaml").read_text()
    (tmp_path / "edge16.yaml").write_text(text.replace("description: 16x16", "description: the same, 16x16"))
    done(f"npu-sim good.npu --hw {tmp_path}/edge16.yaml --input good.npz")


@pytest.mark.parametrize(
    "hw",
    [
        pytest.param("edge16", marks=pytest.mark.exhaustive),
        pytest.param("ws8_pow2", marks=pytest.mark.exhaustive),
        "ethos_u55_256",
    ],
)
def test_the_classifiers_listing_assembles_to_the_same_file(hw: str, in_workshop: Path, tmp_path: Path) -> None:
    """One machine of each instruction table."""
    line = f"npu-build {CLASSIFIER}/classifier.onnx --hw {hw} --calib {CLASSIFIER}/calib.npz --samples 2"
    run_with_warning(f"{line} -o {tmp_path}/a.npu")
    listing = done(f"npu-dis {tmp_path}/a.npu")
    assert "block4.depthwise" in listing
    (tmp_path / "a.txt").write_text(listing)
    done(f"npu-dis {tmp_path}/a.npu --assemble {tmp_path}/a.txt -o {tmp_path}/b.npu")
    assert (tmp_path / "a.npu").read_bytes() == (tmp_path / "b.npu").read_bytes()


# --- writing


def test_all_files_or_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "folder").mkdir()
    before = contents(tmp_path)
    for missing in (tmp_path / "none" / "b", tmp_path / "folder"):
        with pytest.raises(OSError):
            write_files({tmp_path / "a": b"new", missing: b"new"})
        assert contents(tmp_path) == before
    write_files({tmp_path / "a": b"new", tmp_path / "b": b"too"})
    assert contents(tmp_path).keys() == {"a", "b", "folder"}
    assert (tmp_path / "a").read_bytes() == b"new"


def test_the_fault_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(OSError) as fault:
        write_files({tmp_path / "none" / "b": b"new"})
    assert fault.value.filename == str(tmp_path / "none" / "b")


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk; the system names neither."""
    resource = pytest.importorskip("resource")
    (tmp_path / "a").write_text("old")
    before = contents(tmp_path)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, usual[1]))
    try:
        with pytest.raises(OSError) as fault:
            write_files({tmp_path / "a": b"new", tmp_path / "b": bytes(2000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert fault.value.filename == str(tmp_path / "b")
    assert contents(tmp_path) == before


def test_what_fails_leaves_no_new_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "a").mkdir()
    for folder in (tmp_path / "new" / "inner", tmp_path / "there"):
        with pytest.raises(OSError):
            write_files({folder / "b": b"new", tmp_path / "a": b"a directory"}, [folder])
        assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "there"]
    write_files({tmp_path / "new" / "inner" / "b": b"new"}, [tmp_path / "new" / "inner"])
    assert (tmp_path / "new" / "inner" / "b").read_bytes() == b"new"


def test_the_last_file_is_renamed_last_and_streams_are_written_before(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("old")
    with pytest.raises(OSError, match="No space"):
        write_files({tmp_path / "a": b"new", "/dev/full": b"figures", tmp_path / "b": b"new"})
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "old", "b": "old", "c": "old"}
    renamed: list[str] = []
    with mock.patch("os.replace", side_effect=lambda _, target: renamed.append(Path(target).name)):
        write_files({tmp_path / name: b"new" for name in "bac"})
    assert renamed == ["b", "a", "c"]


def test_no_stream_is_written_before_all_files_fit(tmp_path: Path) -> None:
    with small_files(1000), open(tmp_path / "read", "w+b") as read:
        with (
            mock.patch("toolchain.foundation.atomic_files.is_stream", side_effect=lambda path: Path(path).name == "read"),
            pytest.raises(OSError),
        ):
            write_files({tmp_path / "read": b"figures", tmp_path / "b": bytes(2000)})
        assert read.read() == b""


@contextmanager
def small_files(limit_bytes: int) -> Iterator[None]:
    """A limit on the size of files stands for a full disk: a write beyond it fails."""
    resource = pytest.importorskip("resource")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


BUILD = "npu-build good.onnx --hw edge16 --calib good.npz --json {0}/j.json --dump-schedule {0}/s.txt --image {0}/i -o {0}/o.npu"
WRITING = [  # the last is the command's -o
    (BUILD, ["j.json", "s.txt", "i", "o.npu"]),
    ("npu-sim good.npu --json {0}/j.json --trace {0}/t.json --output {0}/o.npz", ["j.json", "t.json", "o.npz"]),
    ("npu-sim good.npu --dump-memory end --out {0}/d", ["d"]),
    ("npu-dis good.npu -o {0}/o.txt", ["o.txt"]),
    ("npu-hw vectors edge16 --out {0}/kit", ["kit"]),
    ("scripts/calibrate.py good.onnx --data good.npz --hw edge16 -o {0}/p.yaml", ["p.yaml"]),
]


@pytest.mark.parametrize(("line", "outputs"), WRITING, ids=[line.rpartition(" ")[0][:24] for line, _ in WRITING])
def test_a_full_disk_leaves_every_old_file(line: str, outputs: list[str], in_workshop: Path, tmp_path: Path) -> None:
    """Full for the largest file, when others have been written, and for all."""
    with mock.patch("os.replace", wraps=os.replace) as replace:
        assert run(line.format(tmp_path)).code == 0
    assert not replace.called or tmp_path / outputs[-1] in (path := Path(replace.call_args.args[1]), path.parent)
    sizes = [p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()]
    for path in [tmp_path / name for name in outputs]:
        if path.is_dir() and path.name != "kit":  # a folder must be new
            shutil.rmtree(path)
        elif path.is_file():
            path.write_text("old")
    before = {p.relative_to(tmp_path): p.read_bytes() if p.is_file() else b"" for p in tmp_path.rglob("*")}
    for limit_bytes in {max(sizes) - 1, 1}:
        with small_files(limit_bytes):
            printed = run(line.format(tmp_path))
        assert printed.code == 2 and re.fullmatch(r"\S+: file too large\n", printed.err), printed.err
        assert {p.relative_to(tmp_path): p.read_bytes() if p.is_file() else b"" for p in tmp_path.rglob("*")} == before


def test_what_cannot_be_replaced_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with (
        mock.patch("os.replace", side_effect=OSError(errno.EBUSY, "busy", ".a.x1y2", None, "a")),
        pytest.raises(OSError) as fault,
    ):
        write_files({tmp_path / "a": b"new"})
    assert fault.value.filename == str(tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_files({tmp_path / "link": b"new"})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_new_files_have_the_usual_rights(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_files({tmp_path / "made": b""})
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_pipe_is_written_to(in_workshop: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", "from toolchain.cli import sim; sim()", "good.npu", "--json", str(tmp_path / "pipe")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as simulation:
        figures = json.loads((tmp_path / "pipe").read_text())
    assert simulation.returncode == 0
    assert figures["cycles"] > 0
    assert (tmp_path / "pipe").is_fifo()
