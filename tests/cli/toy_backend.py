"""A backend of another package: the program runs in a process of its own, which is given files and gives files back."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from toolchain.isa import machine_to_json
from toolchain.runtime import Execution, Program

CHILD = """
import sys
import numpy as np
from simulator import simulate
from toolchain.isa import decode, machine_from_json
machine, until, dram = machine_from_json(open("machine.json").read()), int(sys.argv[1]), np.load("dram.npy")
found = decode(open("words.bin", "rb").read(), machine.isa)
done = simulate(machine.chip, found.ops, found.words, dram, [(0, dram.size)], until=None if until < 0 else until)
np.savez("done.npz", start=done.start, end=done.end, **done.memory)
"""


class Toy:
    observes = False

    def __init__(self, program: Program | None = None):
        self._given = program

    def load(self, program: Program, *, timing: bool, check: bool) -> Toy:
        return type(self)(program)

    @property
    def _program(self) -> Program:
        assert self._given is not None
        return self._given

    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "words.bin").write_bytes(self._program.region.program)
            (Path(folder) / "machine.json").write_text(machine_to_json(self._program.machine))
            np.save(Path(folder) / "dram.npy", dram)
            line = [sys.executable, "-c", CHILD, "-1" if until is None else str(until)]
            subprocess.run(line, cwd=folder, check=True)
            with np.load(Path(folder) / "done.npz") as done:
                return Execution({"dram": done["dram"], "sram": done["sram"]}, done["start"], done["end"])


class Wrong(Toy):
    """Every byte that it gives back is one more."""

    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
        execution = super().run(dram, until=until)
        return Execution({"dram": execution.memory["dram"] + np.uint8(1)}, execution.start, execution.end)


class Broken(Toy):
    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
        raise TimeoutError("the board does not answer\nsecond line")


class Untimed(Toy):
    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
        return Execution(super().run(dram, until=until).memory)


class Short(Toy):
    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
        return Execution({"dram": dram[1:]})


class Backwards(Toy):
    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
        execution = super().run(dram, until=until)
        return Execution(execution.memory, execution.end, execution.start)


class Wide(Toy):
    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
        return Execution({"dram": dram, "sram": np.zeros(4, np.int16)})


class Nothing(Toy):
    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Any:
        return dram


class OneTime(Toy):
    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
        return Execution({"dram": dram}, np.zeros(1, np.int64), np.zeros(1, np.int64))


TOY, WRONG, BROKEN, UNTIMED, SHORT, ONE_TIME = Toy(), Wrong(), Broken(), Untimed(), Short(), OneTime()
BACKWARDS, WIDE, NOTHING = Backwards(), Wide(), Nothing()
EMPTY = object()
