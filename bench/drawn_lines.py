"""Draws command lines and users' Python files at random: every option of every command with values good and bad.

bench/fuzz_readers.py runs them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

import corrupt_files
from typer.main import get_command

FILES = ("good.onnx", "good.npu", "good.npz", "good.npy", "good.yaml", "good.sched", "good.txt", "good.json", "feed.py", "OUT")
VALUES = (
    *FILES,
    *(
        "feed.py:f",
        "feed.py:g",
        "feed.py:",
        ":f",
        ".",
        "..",
        "missing",
        "missing/OUT",
        "/dev/null",
        "/dev/stdout",
        "new",
        "-",
        "",
    ),
    *(
        "edge16",
        "ws8_pow2",
        "transformer64",
        "edge16.yaml",
        "cpu",
        "cuda",
        "simulator",
        "reference",
        "cycles",
        "memory",
        "traffic",
    ),
    *("energy", "none", "fast", "full", "minmax", "percentile", "mse", "auto", "all", "plan", "quantize", "end", "0:0", "0:end"),
    *("x=1,3,8,8", "x=1,3,16,16", "x=", "=1", "x=0,3,8,8", "x=-1,3,8,8", "x=1,3,8", "q=1,3,8,8", "x=1000000000,3,8,8", "x=1;2"),
    *("a:x=1,3,8,8", "b:x=1,3,6,6", "a:", ":x=1", "a:good.npz", "plain", "good", "x=0.5", "x=1,2,3", "x=nan", "x=1e400", "s=0.1"),
    *(
        "x=int8",
        "*=int16",
        "w=int4",
        "y=float32",
        "*=",
        "=int8",
        "x=y",
        "none=y",
        "Conv",
        "Sigmoid",
        "*",
        "[",
        "x*",
        "constants=0",
    ),
    *(
        "constants=0x100000",
        "input:x=0x8000",
        "dram=1",
        "constants=-1",
        "constants=x",
        "reduction",
        "latency",
        "nothing",
        "96KiB",
    ),
    *("1 TiB", "-1KiB", "0KiB", "4e3", "0.99", "1.5", "40", "99", "true", "\udcff", "é", "x" * 300),
    *(n for n in corrupt_files.NUMBERS if n),
)
PYTHON = (
    *(
        "yield np.ones((1, 3, 8, 8), np.float32)",
        "yield {'x': np.zeros((1, 3, 8, 8), np.float32)}",
        "return",
        "yield",
        "yield None",
    ),
    *("raise GeneratorExit", "raise SystemExit(0)", "raise StopIteration", "raise Mine", "raise Mine('so')"),
    *("sys.exit('a\\nb')", "1 / 0", "f()", "return f()", "yield f", "yield Array()", "yield {1: Array()}", "yield {Array(): 1}"),
    *("yield {'x': [[1], [2, 3]]}", "yield {'x': 'text'}", "yield {'x': None}", "yield 7", "yield '\\x1b[2J'", "yield [[]]"),
    *("yield np.full((1, 3, 8, 8), np.nan)", "yield np.zeros((1, 3, 8, 8), object)", "yield np.zeros((0, 3, 8, 8))"),
    *("sys.stdout = None", "sys.stderr = io.StringIO()", "sys.stdout.close()", "os.chdir('/')", "sys.path.clear()", "print('x')"),
    *("return iter([])", "return (0.5, True)", "return 0.5, False", "return (Array(), True)", "return 1j, True", "return 'a', 1"),
    *("import missing", "from feed import f", "sys.argv = None", "warnings.simplefilter('error')", "np.seterr(all='raise')"),
    *(
        "threading.Thread(target=print).start()",
        "raise KeyError({})",
        "raise ExceptionGroup('e', [ValueError()])",
        "random.seed(1)",
    ),
    *(
        "del sys.modules['numpy']",
        "raise BaseExceptionGroup('e', [Mine()])",
        "raise Mine from Mine()",
        "assert False",
        "x = (",
        "\\",
    ),
)
HEAD = """import io, os, random, sys, threading, warnings
import numpy as np
class Mine(BaseException):
    def __str__(self): raise self
class Array:
    def __array__(self, *_, **__): raise Mine
    def __repr__(self): raise Mine
    def __float__(self): raise Mine
"""


@dataclass(frozen=True)
class Option:
    name: str
    takes_value: bool


def options() -> Mapping[str, Sequence[Option]]:
    """Command, a subcommand behind it -> its options."""
    # By their names: an attribute of toolchain.cli is the entry point until the module of that name is imported.
    application, build, dis, hw, sim = (import_module(f"toolchain.cli.{n}") for n in ("application", "build", "dis", "hw", "sim"))
    build_app, sim_app = (application.application(f) for f in (build.build_command, sim.sim_command))
    groups = {"npu-build": build_app, "npu-sim": sim_app, "npu-dis": dis.app, "npu-hw": hw.app}
    commands = {name: get_command(app) for name, app in groups.items()}
    hardware = commands.pop("npu-hw")
    commands |= {f"npu-hw {name}": command for name, command in getattr(hardware, "commands").items()}  # noqa: B009
    return {
        name: [Option(p.opts[0], not getattr(p, "is_flag", False)) for p in command.params if p.opts[0].startswith("-")]
        for name, command in commands.items()
    }


def command_line(rng: random.Random, commands: Mapping[str, Sequence[Option]]) -> tuple[str, ...]:
    """A command with up to four of its options, each with a value that may be another option's."""
    name = rng.choice((*commands, "npu-build", "npu-build", "npu-sim"))
    line = name.split()
    if rng.random() < 0.95:
        target = {"npu-build": "good.onnx", "npu-sim": "good.npu", "npu-dis": "good.npu"}.get(name, "edge16")
        line.append(target if rng.random() < 0.9 else rng.choice(VALUES))
    if name == "npu-build" and rng.random() < 0.9:
        line += ["--hw", "edge16", "-o", "OUT"]
    if name == "npu-hw diff" and rng.random() < 0.9:
        line.append(rng.choice(VALUES))
    for option in rng.choices(commands[name], k=rng.randrange(1, 5)) if commands[name] else ():
        line.append(option.name)
        if option.takes_value and rng.random() < 0.98:
            line.append(rng.choice(VALUES))
    return tuple(line)


def python_file(rng: random.Random, _: bytes) -> bytes:
    """A file of the user's: a few statements when it is imported, and a few in its function."""
    at_import = [rng.choice(PYTHON) for _ in range(rng.choice((0, 0, 0, 1)))]
    body = [rng.choice(PYTHON) for _ in range(rng.choice((1, 1, 2, 3)))]
    kind = rng.choice(("def f(*_):", "def f(*_):", "class f:\n  def get_next(self, *_):", "class f:\n  def __iter__(self):"))
    return "\n".join([HEAD, *at_import, kind, *(f"    {line}" for line in body), ""]).encode()
