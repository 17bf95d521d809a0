"""Every fault of the maps of memories and engines: one line each, with file, line, path, value and way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_files import assert_one_fault, read_shipped_text

from toolchain.errors import ConfigError
from toolchain.hw import load_chip
from toolchain.hw.cross_section_rules import MOST_SPACES
from toolchain.isa import load_machine
from toolchain.machine import Space

MAC, DMA = "    kind: mac_array\n", "    kind: dma\n"
BUFFER = "  buffer: {{size: 16 KiB, read_bytes_per_cycle: 8.0, write_bytes_per_cycle: 8.0{more}}}\nengines:\n"
SECOND = (
    "  mac0: {kind: mac_array, rows: 4, columns: 4, dataflow: os, accumulators: {entries: 64BITS}, types: [TYPES]}\n  vector:\n"
)
# One array takes uint8 and has no depthwise modes; one has them, but works on a memory of its own.
SEPARATE_MEMORIES = (
    "  mac0: {kind: mac_array, rows: 4, columns: 4, dataflow: os, depthwise: none, accumulators: {entries: 64}, types: [BOTH]}\n"
    "  mac1: {kind: mac_array, rows: 4, columns: 4, dataflow: os, accumulators: {entries: 64}, types: [BOTH],\n"
    "         memories: {input: buffer}}\n  vector:\n"
).replace("BOTH", "{activation: int8, weight: int8}, {activation: uint8, weight: int8}")


def buffer(more: str = "") -> str:
    return BUFFER.format(more=more)


def second(types: str = "{activation: int8, weight: int8}", bits: str = "") -> str:
    return SECOND.replace("TYPES", types).replace("BITS", bits)


# what is replaced by what, where the fault stands, the fault
CASES = {
    "no kind": ([(DMA, "")], "  dma:", "engines.dma.kind: is missing"),
    "a kind that is none": (
        [(DMA, "    kind: mover\n")],
        "    kind: mover",
        "engines.dma.kind: must be one of 'mac_array', 'vector', 'dma'; got 'mover'",
    ),
    "a key of another kind": (
        [(DMA, f"{DMA}    rows: 3\n")],
        "    rows: 3",
        "engines.dma.rows: no such key; known: bytes_per_cycle, channels, dimensions, in_flight_bytes, issue_cycles, kind, "
        "memories, outstanding, queue_depth, request_cycles, run_cycles, runs, transpose_block",
    ),
    "a program in no memory": (
        [("program_memory: own", "program_memory: srom")],
        "isa: {file: isa/descriptors1024.yaml, word_cycles: 8.0, program_memory: srom}",
        "isa.program_memory: no memory 'srom'; did you mean \"sram\"?; own is one that nothing else reads",
    ),
    "more channels than units that are planned for": (
        [("    channels: 1\n", "    channels: 100000000000\n")],
        "    channels: 100000000000",
        "engines.dma.channels: must be at most 64, got 100000000000",
    ),
    "a name with capitals": (
        [("  dma:\n", "  Dma:\n")],
        "  Dma:",
        "engines.Dma: 'Dma' does not match ^[a-z][a-z0-9_]*$",
    ),
    "no sram": ([("  sram:\n", "  sbuf:\n")], "memories:", "memories.sram: is missing"),
    "the old form of functions": (
        [("    functions:\n", "    lanes: 99\n    functions:\n")],
        "    lanes: 99",
        "engines.vector.lanes: no such key; known: count, functions, issue_cycles, kind, memories, queue_depth",
    ),
    "a function that is none": (
        [("      prelu:", "      prelux:")],
        "      prelux:",
        'engines.vector.functions.prelux: no such function; did you mean "prelu"?',
    ),
    "a memory that is none": (
        [(MAC, f"{MAC}    memories: {{weights: sran}}\n")],
        "    memories: {weights",
        "engines.mac.memories.weights: no memory 'sran'; did you mean \"sram\"?",
    ),
    "computing on dram": (
        [(MAC, f"{MAC}    memories: {{weights: dram}}\n")],
        "    memories: {weights",
        "engines.mac.memories.weights: dram is reached by DMA only; name an on-chip memory",
    ),
    "private to nobody": (
        [("engines:\n", buffer(", private_to: vektor"))],
        "  buffer:",
        "memories.buffer.private_to: no array or vector engine 'vektor'; did you mean \"vector\"?",
    ),
    "private to another": (
        [("engines:\n", buffer(", private_to: vector")), (MAC, f"{MAC}    memories: {{weights: buffer}}\n")],
        "    memories: {weights",
        "engines.mac.memories.weights: buffer is private to vector",
    ),
    "two of one name": (
        [(MAC, f"{MAC}    count: 2\n"), ("  vector:\n", second())],
        "engines:",
        "engines: two units would be named mac0; rename an engine",
    ),
    "accumulators of two widths": (
        [("  vector:\n", second(bits=", bits: 24"))],
        "  mac0:",
        "engines.mac0.accumulators.bits: 24, and those of mac have 32: a sum must not depend on the array that makes it",
    ),
    "an array of other types": (
        [("  vector:\n", second("{activation: int16, weight: int8}"))],
        "  mac0:",
        "engines.mac0.types: has no {activation: int8, weight: int8}, the types of numerics",
    ),
    "depthwise modes that only an array has which programs do not use": (
        [
            ("engines:\n", buffer()),
            ("  vector:\n", SEPARATE_MEMORIES),
            ("numerics:\n  activation: int8\n", "numerics:\n  activation: int8\n  more_activations: [uint8]\n"),
        ],
        "    depthwise:",
        "engines.mac.depthwise: no array that has depthwise takes {activation: uint8, weight: int8}, which another does "
        "(programs do not use mac1)",
    ),
    "a dataflow given twice": (
        [(MAC, f"{MAC}    more_dataflows: [ws, os]\n")],
        "    more_dataflows",
        "engines.mac.more_dataflows[1]: os is given twice",
    ),
    "a dataflow that is none": (
        [(MAC, f"{MAC}    more_dataflows: [rs]\n")],
        "    more_dataflows",
        "engines.mac.more_dataflows[0]: must be one of 'os', 'ws', 'is'; got 'rs'",
    ),
    "a depthwise mode given twice": (
        [(MAC, f"{MAC}    more_depthwise: [diagonal]\n")],
        "    more_depthwise",
        "engines.mac.more_depthwise[0]: diagonal is given twice",
    ),
    "depthwise modes beside none": (
        [("    depthwise: diagonal", "    depthwise: none\n    more_depthwise: [column]")],
        "    more_depthwise",
        "engines.mac.more_depthwise[0]: column beside none: name the first mode in depthwise",
    ),
    "too many spaces": (
        [("engines:\n", buffer(", private_to: mac")), (MAC, f"{MAC}    count: 15\n")],
        "memories:",
        "memories: 17 address spaces (private ones of each unit together) are more than the 16 there are codes for",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fault_is_one_exact_line(case: str, tmp_path: Path) -> None:
    changes, anchor, message = CASES[case]
    assert_one_fault(tmp_path, changes, anchor, message, load_machine)


@pytest.mark.parametrize(("kind", "what"), [("mac_array", "multiplies"), ("dma", "moves data")])
def test_a_machine_has_an_array_and_a_mover(kind: str, what: str, tmp_path: Path) -> None:
    lines = read_shipped_text("edge16.yaml").split("\n")
    start = next(i for i, line in enumerate(lines) if line == f"    kind: {kind}") - 1
    end = next(i for i in range(start + 1, len(lines)) if not lines[i].startswith("    "))
    (tmp_path / "mine.yaml").write_text("\n".join(lines[:start] + lines[end:]))
    with pytest.raises(ConfigError, match=rf"engines: has no engine of kind {kind}: nothing {what}$"):
        load_chip(str(tmp_path / "mine.yaml"))


def test_every_space_has_a_code() -> None:
    assert len(Space) == MOST_SPACES
