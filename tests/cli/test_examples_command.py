"""npu-hw example: the examples of a checkout and of the wheel."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from commands import contents, run

import toolchain
from toolchain.cli.hw import DESCRIPTIONS

ROOT = Path(__file__).parents[2]
CLASSIFIER = ROOT / "examples" / "classifier"


def test_an_example_is_copied_into_a_new_folder(tmp_path: Path) -> None:
    printed = run(f"npu-hw example classifier {tmp_path}/a/b")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out == f"{tmp_path}/a/b: 5 files of the example classifier\n"
    assert contents(tmp_path / "a" / "b") == contents(CLASSIFIER)


def test_all_examples_keep_their_folders(tmp_path: Path) -> None:
    assert run(f"npu-hw example all {tmp_path}/all").code == 0
    assert contents(tmp_path / "all" / "classifier") == contents(CLASSIFIER)
    assert (tmp_path / "all" / "sweeps" / "classifier.yaml").is_file() and (tmp_path / "all" / "python_api.py").is_file()
    lines = run("npu-hw example list").out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names == list(DESCRIPTIONS) and all(line.endswith(f"  {DESCRIPTIONS[name]}") for line, name in zip(lines, names))
    assert all((tmp_path / "all" / name).is_dir() for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("classifer DIR", "classifer: is no example; there are classifier, "),
        ("../quant DIR", "../quant: is no example; there are classifier, "),
        ("classifier", "classifier: needs a folder to go to, npu-hw example classifier "),
        ("classifier DIR", "DIR/README.md: is there already; give a new folder\n"),
        ("classifier DIR/README.md", "DIR/README.md: "),
    ],
)
def test_refusals_leave_the_folder_as_it_is(arguments: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    printed = run(f"npu-hw example {arguments.replace('DIR', str(tmp_path))}")
    assert printed.code == 2 and printed.err.startswith(message.replace("DIR", str(tmp_path))) and printed.err.count("\n") == 1
    assert [*contents(tmp_path)] == ["README.md"] and (tmp_path / "README.md").read_text() == "mine"


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"] and "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "toolchain.__version__"}}
    sources = [file for package in ("toolchain", "quant", "simulator") for file in (ROOT / package).rglob("*.py")]
    assert [f.name for f in sources if f'"{toolchain.__version__}"' in f.read_text()] == ["__init__.py"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of a copy of the checkout."""
    if int(importlib.metadata.version("setuptools").partition(".")[0]) < 77:
        pytest.skip("the wheel needs setuptools>=77")
    folder = tmp_path_factory.mktemp("wheel")
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "env", "tests", "docs", "bench", "build", "dist")
    shutil.copytree(ROOT, folder / "source", ignore=skip)
    script = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=folder / "source", check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_brings_the_examples(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    script = "from toolchain import cli; cli.run_command('hw')"
    done = subprocess.run(
        [sys.executable, "-c", script, "example", "classifier", "c"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "c: 5 files of the example classifier\n", "")
    assert contents(tmp_path / "c") == contents(CLASSIFIER)


def test_the_wheel_says_who_what_and_for_which_python(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        text = files.read(next(name for name in files.namelist() if name.endswith("/METADATA"))).decode()
    keys = re.findall(r"^([A-Z][\w-]*): ", text.partition("\n\n")[0], re.MULTILINE)
    assert {"Name", "Version", "Summary", "Author", "License-Expression", "License-File", "Classifier", "Keywords"} <= {*keys}
    assert f"\nVersion: {toolchain.__version__}\n" in text and "\nClassifier: Typing :: Typed\n" in text
    assert text.partition("\n\n")[2].startswith("# ")
