from __future__ import annotations

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.run_in_process import run_script

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script(ROOT / "scripts" / "plan_memory.py", *arguments)


def test_plan_and_picture(tmp_path: Path) -> None:
    out = tmp_path / "plan.svg"
    done = run(str(DATA / "B.1048576.csv"), "--capacity", "1048576", "--plot", str(out))
    assert done.returncode == 0, done.stderr
    assert "bound   1048576 bytes (proved optimal)" in done.stdout
    boxes = [e for e in ElementTree.parse(out).iter() if e.tag.endswith("title")]
    assert len(boxes) == 170


def test_does_not_fit_prints_the_live_set() -> None:
    done = run(str(DATA / "A.1048576.csv"), "--capacity", "1000000")
    assert done.returncode == 1
    assert "live at step 966656: 15 buffers, 1048576 bytes" in done.stdout
    assert "62.60%" in done.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "FILE:1: the file is empty; expected the header id,lower,upper,size"),
        ("id,lower,upper,size\n", "FILE:1: no buffers after the header"),
        ("id,lower,upper\n", "FILE:1: no column size; expected the header id,lower,upper,size"),
        ("id,lower,upper,size,gaps\n", "FILE:1: column gaps is not supported; known are id, lower, upper, size, alignment"),
        ("id,lower,upper,size,size\na,0,1,4,8\n", "FILE:1: column size is given twice"),
        ("id,lower,upper,size\na,0,1,x\n", "FILE:2: size: 'x' is not a whole number"),
        ("id,lower,upper,size\na,0,1\n", "FILE:2: ends before column size"),
        ("id,lower,upper,size\na\n", "FILE:2: ends before columns lower, upper, size"),
        ("id,lower,upper,size\n,0,1,4\n", "FILE:2: id: is empty; give every buffer a name"),
        (
            "id,lower,upper,size,alignment\na,0,1,4,1\nb,x,1,,z\na,0,1,4,0\nc,0,1,-1,1\n",
            "FILE:3: lower: 'x' is not a whole number\nFILE:3: size: '' is not a whole number\n"
            "FILE:3: alignment: 'z' is not a whole number\nFILE:4: buffer a: the name is given twice, first in line 2\n"
            "FILE:5: buffer c: size -1 is negative",
        ),
        ("id,lower,upper,size\na,0,1,2,3\n", "FILE:2: more fields than the header has columns"),
        ("id,lower,upper,size\na,0,1,4\nb,0,1,-4\n", "FILE:3: buffer b: size -4 is negative"),
        (
            f"id,lower,upper,size\na,0,1,{10**20}\n",
            f"FILE:2: the buffers take {10**20 + 1} bytes together; addresses end at {2**60}",
        ),
        ("id,lower,upper,size\na,3,3,4\n", "FILE:2: buffer a: live range [3, 3) is empty"),
        ("id,lower,upper,size\na,0,1,4\na,0,1,4\n", "FILE:3: buffer a: the name is given twice, first in line 2"),
        ("id,lower,upper,size\na,0,1,400\n", "FILE: buffer a: size 400 is larger than the capacity 100"),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "in.csv"
    file.write_text(text)
    done = run(str(file), "--capacity", "100")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "".join(f"plan_memory: {line.replace('FILE', str(file))}\n" for line in message.splitlines())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--capacity", "16KiB"), "argument --capacity: '16KiB' is no number of bytes; write it out, for example 16384"),
        (("--capacity", "-1"), "capacity -1 is negative"),
        (("--minimize", "--effort", "-1"), "effort -1 is negative; give 0 or more search nodes"),
        ((), "give --capacity N, or --minimize, or both"),
    ],
)
def test_refused_options(options: tuple[str, ...], message: str) -> None:
    done = run(str(DATA / "A.1048576.csv"), *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"plan_memory.py: error: {message}"


def test_a_spreadsheet_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,lower,upper,size\na,0,1,64\n", encoding="utf-8-sig")
    done = run(str(tmp_path / "in.csv"), "--capacity", "100", "--addresses")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\na,0\n")


def test_no_file() -> None:
    done = run("nowhere.csv", "--capacity", "100")
    assert (done.returncode, done.stderr) == (2, "plan_memory: nowhere.csv: no such file or directory\n")


def test_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_bytes(b"\xff\xfe\x00\x01")
    done = run(str(file), "--capacity", "100")
    assert done.returncode == 2
    assert done.stderr.startswith(f"plan_memory: {file}:1: not a CSV file: ")
    assert "Traceback" not in done.stderr
