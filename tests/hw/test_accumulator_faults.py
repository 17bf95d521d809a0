"""Every fault of accumulators that are a memory: one line each, with file, line, path, value and way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_files import assert_one_fault, write_changed

from toolchain.hw import load_chip

MAC, VECTOR, FUNCTIONS = "    kind: mac_array\n", "    kind: vector\n", "    functions:\n"
IN_ARRAY, IN_MEMORY = "{bits: 32, entries: 4096}", "{bits: 32, entries: 4096, memory: acc}"
MEMORY = ("engines:\n", "  acc: {size: 32 KiB, read_bytes_per_cycle: 64.0, write_bytes_per_cycle: 64.0}\nengines:\n")
ACCUMULATORS, SUMS = (IN_ARRAY, IN_MEMORY), (VECTOR, f"{VECTOR}    memories: {{sums: acc}}\n")
EMIT = (FUNCTIONS, f"{FUNCTIONS}      emit: {{lanes: 16}}\n")
NOBODY = (
    "engines.mac.accumulators.memory: no vector engine takes sums out of acc: one needs functions.emit, memories.sums acc, "
    "and tables, input and output where mac has parameters, input and output"
)

# what is replaced by what, where the fault stands, the fault
CASES = {
    "a memory that is none": (
        [MEMORY, (IN_ARRAY, IN_MEMORY.replace("acc", "ac"))],
        "    accumulators:",
        "engines.mac.accumulators.memory: no memory 'ac'; did you mean \"acc\"?",
    ),
    "on dram": (
        [(IN_ARRAY, IN_MEMORY.replace("acc", "dram"))],
        "    accumulators:",
        "engines.mac.accumulators.memory: dram is reached by DMA only; name an on-chip memory",
    ),
    "among activations": (
        [(IN_ARRAY, IN_MEMORY.replace("acc", "sram"))],
        "    accumulators:",
        "engines.mac.accumulators.memory: sums lie in a memory of their own, not among activations in sram",
    ),
    "too small": (
        [(MEMORY[0], MEMORY[1].replace("32 KiB", "8 KiB")), ACCUMULATORS, SUMS, EMIT],
        "    accumulators:",
        "engines.mac.accumulators.entries: 4096 sums of 4 bytes are more than the 8 KiB of memories.acc",
    ),
    "too small for two": (
        [MEMORY, (IN_ARRAY, IN_MEMORY.replace("32", "40")), (MAC, f"{MAC}    count: 2\n"), SUMS, EMIT],
        "    accumulators:",
        "engines.mac.accumulators.entries: 4096 sums of 8 bytes, of 2 arrays are more than the 32 KiB of memories.acc",
    ),
    "several products at a time": (
        [MEMORY, ACCUMULATORS, SUMS, EMIT, ("limits: {", "limits: {matrix_product: {max_batches: 4}, ")],
        "limits:",
        "limits.matrix_product.max_batches: 4, and mac has its sums in acc, those of one product at a time: leave it at 1",
    ),
    "nobody emits": ([MEMORY, ACCUMULATORS, SUMS], "    accumulators:", NOBODY),
    "the one that emits reads activations elsewhere": (
        [
            (MEMORY[0], f"  other: {{size: 1 KiB, read_bytes_per_cycle: 1.0, write_bytes_per_cycle: 1.0}}\n{MEMORY[1]}"),
            ACCUMULATORS,
            (VECTOR, f"{VECTOR}    memories: {{sums: acc, input: other}}\n"),
            EMIT,
        ],
        "    accumulators:",
        NOBODY,
    ),
    "emits from nowhere": (
        [EMIT],
        "      emit:",
        "engines.vector.functions.emit: needs engines.vector.memories.sums, the accumulators that it takes sums from",
    ),
    "sums of no array": ([MEMORY, SUMS], "    memories:", "engines.vector.memories.sums: no array has its accumulators in acc"),
    "sums that are another's": (
        [(MEMORY[0], MEMORY[1].replace("}", ", private_to: mac}")), ACCUMULATORS, SUMS, EMIT],
        "    memories:",
        "engines.vector.memories.sums: acc is private to mac",
    ),
    "operands among sums": (
        [MEMORY, ACCUMULATORS, SUMS, EMIT, (MAC, f"{MAC}    memories: {{weights: acc}}\n")],
        "    memories:",
        "engines.mac.memories.weights: acc is the accumulators of mac: only sums lie there",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fault_is_one_exact_line(case: str, tmp_path: Path) -> None:
    changes, anchor, message = CASES[case]
    assert_one_fault(tmp_path, changes, anchor, message, load_chip)


def test_without_a_fault_it_loads(tmp_path: Path) -> None:
    write_changed(tmp_path, "edge16.yaml", [MEMORY, ACCUMULATORS, SUMS, EMIT])
    chip = load_chip(str(tmp_path / "mine.yaml"))
    (mac,) = chip.workers("mac_array")
    assert chip.emitter(mac) is chip.of_kind("vector")[0] and not chip.unused
