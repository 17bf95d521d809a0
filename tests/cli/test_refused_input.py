"""Broken input to every command: one message, exit code 2, and not a byte of any file changed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import contents, run
from overwrites import OVERWRITES
from refusals import BUILD, MACHINES, REFERENCE, RUN
from script_refusals import SCRIPT_USAGE, SCRIPTS

from toolchain.compiler import STAGES
from toolchain.hw import list_shipped_names

WITHOUT_CUDA = ("--host cuda",)


def has_cuda() -> bool:
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def steady(text: str, folder: Path) -> str:
    """Replace the parts that other tests check: file locations, machine and stage names, digests."""
    text = text.replace(str(folder.resolve()), "FOLDER")
    text = text.replace(", ".join(list_shipped_names()), "MACHINES").replace(", ".join(STAGES), "STAGES")
    return re.sub("digest [0-9a-f]{12}", "digest DIGEST", text)


@pytest.mark.parametrize(("line", "message"), [*BUILD, *MACHINES, *RUN, *REFERENCE, *OVERWRITES, *SCRIPTS])
def test_refused(line: str, message: str, in_workshop: Path) -> None:
    if line.endswith(WITHOUT_CUDA) and has_cuda():
        pytest.skip("CUDA is here")
    before = contents(in_workshop)
    printed = run(line)
    assert (printed.code, printed.out, steady(printed.err, in_workshop)) == (2, "", message + "\n")
    assert contents(in_workshop) == before


USAGE = (
    "npu-build",
    "npu-build good.onnx --hw edge16 --frobnicate",
    "npu-build good.onnx --hw edge16 --samples many",
    "npu-build good.onnx extra.onnx --hw edge16",
    "npu-build good.onnx --hw",
    "npu-build good.onnx --hw edge16 -O",
    "npu-sim",
    "npu-sim good.npu --verbose",
    "npu-dis",
    "npu-hw frobnicate",
    "npu-hw check",
    "reference good.npu",
)


@pytest.mark.parametrize("line", USAGE)
def test_wrong_usage_is_a_few_plain_lines(line: str, in_workshop: Path) -> None:
    """The words are typer's and argparse's, and change with them."""
    before = contents(in_workshop)
    printed = run(line)
    assert (printed.code, printed.out) == (2, "")
    assert 1 <= len(printed.err.strip().splitlines()) <= 6
    assert re.search(r"(?m)^(Error|python -m toolchain.reference: error): \S", printed.err)
    assert printed.err.isascii()
    assert "Traceback" not in printed.err
    assert contents(in_workshop) == before


@pytest.mark.parametrize(("line", "message"), SCRIPT_USAGE)
def test_wrong_usage_of_a_script_ends_with_the_fault(line: str, message: str, in_workshop: Path) -> None:
    before = contents(in_workshop)
    printed = run(line)
    name = Path(line.split(" ")[0]).name
    assert (printed.code, printed.out, printed.err.splitlines()[-1]) == (2, "", f"{name}: error: {message}")
    assert contents(in_workshop) == before


def script(name: str) -> list[str]:
    script_path = Path(sys.executable).with_name(name)
    command = str(script_path) if script_path.exists() else shutil.which(name)
    return [command] if command else [sys.executable, "-c", f"from toolchain.cli import {name[4:]}; {name[4:]}()"]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "npu-build",
            "cut.onnx --hw edge16",
            "cut.onnx: is not an ONNX model, or is damaged or cut short\n  help: export or copy the file again",
        ),
        ("npu-sim", "good.npu --input shape.npz", "shape.npz: input 'x' has shape [1, 3, 4, 8]; the model takes [1, 3, 8, 8]"),
        ("npu-dis", "missing.npu", "missing.npu: no such file or directory"),
        ("npu-hw", "check banks.yaml", "banks.yaml:26: memories.sram.banks: must be at least 1, got 0"),
    ],
)
def test_as_installed(name: str, arguments: str, message: str, in_workshop: Path) -> None:
    before = contents(in_workshop)
    done = subprocess.run([*script(name), *arguments.split()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message + "\n")
    assert contents(in_workshop) == before


def test_the_reader_of_a_listing_may_leave_early(in_workshop: Path) -> None:
    dis = subprocess.Popen([*script("npu-dis"), "good.npu"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert dis.stdout and dis.stderr
    dis.stdout.close()
    assert dis.stderr.read() == b""
    dis.wait()
