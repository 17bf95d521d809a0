"""Write a machine's instruction cases as files, and read them: an .npz each, optionally texts for $readmemh, and
index.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.conformance.directory import INDEX, kit_directory, sha256
from toolchain.errors import InternalError
from toolchain.foundation.module_registry import files_of, merge_tables
from toolchain.hw import Chip
from toolchain.isa import Machine
from toolchain.machine import MachineOp
from toolchain.plugin import get_plugins
from toolchain.vectors import draws
from toolchain.vectors.case import Draw, InstructionCase, MemoryBytes, run_case

Cases = Callable[[type[MachineOp], Chip], Iterator[tuple[str, Draw]]]  # (name, draw) of an operation on a chip


Array = NDArray[Any]
LINE_BYTES = 16


def load_draws() -> dict[type[MachineOp], Cases]:
    """Return, by operation, the function that yields its cases. A plug-in's function comes before a shipped one.

    Raise InternalError where two shipped files draw one operation.
    """
    of_plugins = {op: cases for loaded in get_plugins().values() for op, cases in loaded.plugin.draws.items()}
    return {**_load_files(), **of_plugins}


@cache
def _load_files() -> dict[type[MachineOp], Cases]:
    return merge_tables(files_of(draws), "CASES", "draws the operation")


def instruction_cases(machine: Machine) -> Iterator[InstructionCase]:
    """Yield the cases of each operation of the machine's instruction table, as far as the machine can have them.

    Operations come in the order of `machine.registry.OPERATIONS`. Raise InternalError for an operation without a file
    of draws.
    """
    for name, plan in machine.isa.plans.items():
        drawn = load_draws().get(plan.operation)
        if drawn is None:
            raise InternalError(f"no file of toolchain.vectors.draws draws the operation {name}")
        for case_name, draw in drawn(plan.operation, machine.chip):
            case = run_case(machine, name, case_name, draw)
            if case is not None:
                yield case


@dataclass(frozen=True, eq=False)
class ReadCase:
    """A case as its file holds it.

    `name`: OPERATION.CASE. `words`: the program's bytes. `start`, `end`: int64[op], the cycles at which operations do so.
    `memory`: by memory, its bytes before and after. `metadata`: the file's other keys, such as `cycles` and `program`.
    """

    name: str
    words: bytes
    memory: Mapping[str, MemoryBytes]
    start: Array
    end: Array
    metadata: Mapping[str, Any]


def write_instruction_cases(out_dir: Path, machine: Machine, hexadecimal: bool = False) -> list[InstructionCase]:
    """Write OPERATION.CASE.npz for each case, and index.json; return the cases.

    `hexadecimal`: also write .hex files for $readmemh. The whole directory is written or nothing. The same machine
    gives the same bytes, and an earlier set of cases is replaced. Raise FixedPointError for a directory that holds
    something else.
    """
    written: list[InstructionCase] = []
    index: list[dict[str, Any]] = []
    with kit_directory(out_dir) as staging:
        for case in instruction_cases(machine):
            stem = f"{case.operation}.{case.name}"
            _write_npz(staging / f"{stem}.npz", case, machine)
            more = list(_write_hex(staging, stem, case, machine)) if hexadecimal else []
            index_entry = {"file": f"{stem}.npz", "operation": case.operation, "about": case.about, "cycles": case.cycles}
            index.append(index_entry | {"sha256": sha256(staging / f"{stem}.npz"), "more": more})
            written.append(case)
        (staging / INDEX).write_text(json.dumps(index, indent=1) + "\n", newline="\n")
    return written


def _write_npz(path: Path, case: InstructionCase, machine: Machine) -> None:
    """Write a case as .npz: words, start, end, arrays of each memory, and all else as JSON in `case`."""
    arrays: dict[str, Any] = {"words": np.frombuffer(case.words, np.uint8), "start": case.start, "end": case.end}
    for name, memory_bytes in case.memory.items():
        arrays |= {
            f"{name}_ranges": memory_bytes.ranges,
            f"{name}_before": memory_bytes.before,
            f"{name}_after": memory_bytes.after,
        }
    program = [{"operation": op.NAME, **{p: int(getattr(op, p)) for p in op.parameters()}} for op in case.ops]
    metadata = {"machine": machine.chip.name, "operation": case.operation, "about": case.about, "cycles": case.cycles}
    metadata |= {"word_bytes": machine.isa.word_bytes, "memories": list(case.memory), "program": program}
    np.savez_compressed(path, case=np.array(json.dumps(metadata)), **arrays)


def _write_hex(directory: Path, stem: str, case: InstructionCase, machine: Machine) -> Iterator[str]:
    """Write a case as .hex files and yield their names.

    There is one word a line; memories have one byte an entry, with @ADDRESS where a range begins.
    """
    size = machine.isa.word_bytes
    words = [case.words[at : at + size][::-1].hex() for at in range(0, len(case.words), size)]
    yield _write_lines(directory / f"{stem}.words.hex", [f"// {case.cycles} cycles", *words])
    for name, memory_bytes in case.memory.items():
        for when, values in (("before", memory_bytes.before), ("after", memory_bytes.after)):
            yield _write_lines(directory / f"{stem}.{name}.{when}.hex", _hex_lines(memory_bytes.ranges, values))


def _hex_lines(ranges: Array, values: Array) -> Iterator[str]:
    """Yield the lines of a text for $readmemh: an address before each range, then its bytes."""
    at = 0
    for address, size in ranges.tolist():
        yield f"@{address:x}"
        for first in range(at, at + size, LINE_BYTES):
            yield bytes(values[first : min(first + LINE_BYTES, at + size)]).hex(" ")
        at += size


def _write_lines(path: Path, lines: Any) -> str:
    """Write a text file and return its name."""
    path.write_text("\n".join(lines) + "\n", newline="\n")
    return path.name


def read_instruction_cases(directory: Path) -> Iterator[ReadCase]:
    """Yield the cases that `write_instruction_cases` wrote, in the order of index.json.

    Nothing is checked: not the sums in the index either. Errors of reading are Python's and numpy's own.
    """
    for entry in json.loads((directory / INDEX).read_text()):
        with np.load(directory / entry["file"]) as file:
            metadata = json.loads(str(file["case"]))
            memory = {m: MemoryBytes(file[f"{m}_ranges"], file[f"{m}_before"], file[f"{m}_after"]) for m in metadata["memories"]}
            yield ReadCase(Path(entry["file"]).stem, file["words"].tobytes(), memory, file["start"], file["end"], metadata)
