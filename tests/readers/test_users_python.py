"""A user's Python file as calibration data and as a judge: whatever it does is a sentence, and nothing of the command changes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from quant.calibration_data import open_data
from quant.users_python import load_function
from toolchain.cli.application import report_errors
from toolchain.errors import CompileError
from toolchain.ir.graph import TensorType
from toolchain.report.gate import Evaluation, run_evaluation

INPUTS = {"x": TensorType((1, 2), "float32")}
GOOD = "    yield np.ones((1, 2), np.float32)\n"
FEED = "import asyncio, io, os, sys\nimport numpy as np\n"

RAISING = {
    "GeneratorExit": ("def f():\n    raise GeneratorExit\n    yield\n", "f: sample 0: GeneratorExit (line 4); mend the"),
    "SystemExit": ("def f():\n    sys.exit(0)\n    yield\n", "f: sample 0: SystemExit: 0 (line 4); mend the generator"),
    "StopIteration": ("def f():\n    raise StopIteration\n", "f: StopIteration (line 4); it must return an iterable"),
    "one of its own": (
        "class Mine(BaseException): pass\ndef f():\n    yield from ()\n    raise Mine('so')\n",
        "f: sample 0: Mine: so (line 6); mend the generator",
    ),
    "cancelled": ("def f():\n    raise asyncio.CancelledError\n    yield\n", "f: sample 0: CancelledError (line 4); mend"),
    "without end": ("def f():\n    return f()\n", "f: RecursionError: maximum recursion depth exceeded"),
    "a text that fails": (
        "class Mine(Exception):\n    def __str__(self): raise GeneratorExit\ndef f():\n    raise Mine\n    yield\n",
        "f: sample 0: Mine (line 6); mend the generator",
    ),
    "no array": (
        "class A:\n    def __array__(self, *a, **k): raise GeneratorExit\ndef f():\n    yield A()\n",
        "f: sample 0: is no array: GeneratorExit (line 4); yield numpy arrays",
    ),
    "at import": ("raise GeneratorExit\n", "GeneratorExit (line 3); the file must import cleanly"),
    "a name that fails": ("def __getattr__(name): raise SystemExit(0)\n", "SystemExit: 0 (line 3); mend the file"),
    "a reader": ("class f:\n    def get_next(self): raise GeneratorExit\n", "f: sample 0: GeneratorExit (line 4); mend the"),
    "a key of its own": (
        "class K:\n    def __hash__(self): return 1\n    def __repr__(self): raise GeneratorExit\n"
        "def f():\n    yield {K(): np.ones(2)}\n",
        "f: sample 0: is no array: GeneratorExit (line 5); yield numpy arrays",
    ),
}


def feed(folder: Path, text: str) -> str:
    (folder / "feed.py").write_text(FEED + text)
    return f"{folder / 'feed.py'}:f"


@pytest.mark.parametrize("case", RAISING)
def test_whatever_it_raises_is_a_sentence(case: str, tmp_path: Path) -> None:
    text, reason = RAISING[case]
    with pytest.raises(CompileError) as refused:
        list(open_data(feed(tmp_path, text), INPUTS))
    assert str(refused.value).startswith(f"{tmp_path}/feed.py:{'' if reason.startswith('f:') else ' '}{reason}")


def test_an_interrupt_ends_it(tmp_path: Path) -> None:
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    spec = feed(tmp_path, "def f():\n    import signal\n    signal.raise_signal(signal.SIGINT)\n    yield\n")
    try:
        with pytest.raises(KeyboardInterrupt):
            list(open_data(spec, INPUTS))
    finally:
        signal.signal(signal.SIGINT, usual)


@pytest.mark.parametrize("change", ["sys.stdout = sys.stderr = None", "os.chdir('/')", "sys.path = []"])
def test_what_it_changes_of_the_process_is_as_before(change: str, tmp_path: Path) -> None:
    streams, place, path = (sys.stdout, sys.stderr), os.getcwd(), list(sys.path)
    spec = feed(tmp_path, f"{change}\ndef f():\n    {change}\n{GOOD}")
    (sample,) = open_data(spec, INPUTS)
    np.testing.assert_array_equal(sample["x"], np.ones((1, 2)))
    assert ((sys.stdout, sys.stderr), os.getcwd(), sys.path) == (streams, place, path)


def test_a_stream_that_it_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "out", "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(CompileError, match=r"feed\.py:f: sample 0: closes sys\.stdout, on which the command prints; mend"):
            list(open_data(feed(tmp_path, f"def f():\n    sys.stdout.close()\n{GOOD}"), INPUTS))


def test_it_may_import_what_lies_beside_it_whenever_it_runs(tmp_path: Path) -> None:
    (tmp_path / "beside_a_feed.py").write_text("NUMBER = 3\n")
    text = "def f():\n    from beside_a_feed import NUMBER\n    yield np.full((1, 2), NUMBER, np.float32)\n"
    (sample,) = open_data(feed(tmp_path, text), INPUTS)
    assert sample["x"].tolist() == [[3, 3]]


def test_its_dataclasses_find_their_module(tmp_path: Path) -> None:
    kind = "@dataclass\nclass D:\n    _: KW_ONLY\n    x: int\n"
    text = f"from __future__ import annotations\nfrom dataclasses import KW_ONLY, dataclass\nimport numpy as np\n{kind}"
    (tmp_path / "feed.py").write_text(f"{text}def f():\n    yield np.full((1, 2), D(x=4).x, np.float32)\n")
    (sample,) = open_data(f"{tmp_path}/feed.py:f", INPUTS)
    assert sample["x"].tolist() == [[4, 4]]


def test_a_thread_of_its_own_may_make_the_samples(tmp_path: Path) -> None:
    text = (
        "import queue, threading\ndef f():\n    q = queue.Queue()\n"
        "    threading.Thread(target=lambda: [q.put(i) for i in (1, 2, None)], daemon=True).start()\n"
        "    while (i := q.get(timeout=10)) is not None:\n        yield np.full((1, 2), i, np.float32)\n"
    )
    assert [int(s["x"][0, 0]) for s in open_data(feed(tmp_path, text), INPUTS)] == [1, 2]


def test_a_thread_of_its_own_that_fails_is_told_of_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import threading\ndef f():\n    t = threading.Thread(target=lambda: 1 / 0)\n    t.start(); t.join()\n"
    with report_errors():
        assert len(list(open_data(feed(tmp_path, text + GOOD), INPUTS))) == 1
    warning = "WARNING: a thread of the Python file ended with ZeroDivisionError: division by zero; mend it\n"
    assert capsys.readouterr().err == warning


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("raise GeneratorExit", "GeneratorExit (line 4); mend the function"),
        ("return A(), True", "GeneratorExit (line 7); mend the function"),
        ("return A()", "GeneratorExit (line 6); mend the function"),
        ("return 1j, True", "gave 1j for a number; it must give (number, True or False)"),
    ],
)
def test_a_judge(result: str, reason: str, tmp_path: Path) -> None:
    kind = "class A:\n    def __repr__(self): raise GeneratorExit\n    def __float__(self): raise GeneratorExit\n"
    spec = feed(tmp_path, f"def f(*_):\n    {result}\n{kind}")
    with pytest.raises(CompileError) as refused:
        run_evaluation(Evaluation(spec, load_function(tmp_path / "feed.py", "f")), [], [], [])
    assert str(refused.value) == f"{spec}: {reason}"


@pytest.mark.parametrize("raised", ["Mine", "Mine from Mine()", "MemoryError from Mine()"])
def test_a_text_that_fails_is_a_sentence_of_the_command(raised: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command looks through all that an exception was raised for, whether one says that memory is short."""
    text = f"class Mine(BaseException):\n    def __str__(self): raise self\ndef f():\n    raise {raised}\n    yield\n"
    with pytest.raises(SystemExit) as ended, report_errors():
        list(open_data(feed(tmp_path, text), INPUTS))
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("out of memory; " if raised.startswith("Memory") else f"{tmp_path}/feed.py:f: ")
