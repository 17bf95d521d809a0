"""Every fault of an instruction table: alone, and against the chip that names it."""

from __future__ import annotations

import pytest
from machine_files import line_of, read_shipped_text, write_changed

from toolchain.errors import ConfigError
from toolchain.isa import load_machine

DESCRIPTORS = "isa/descriptors1024.yaml"
REGISTERS = "isa/registers32.yaml"
CHIPS = {DESCRIPTORS: "edge16.yaml", REGISTERS: "ws8_pow2.yaml"}


def faults_of(tmp_path, monkeypatch, table: str, changes, chip_changes=()) -> list[str]:
    monkeypatch.chdir(tmp_path)
    write_changed(tmp_path, CHIPS[table], list(chip_changes), "mine.yaml")
    write_changed(tmp_path, table, list(changes), table)
    with pytest.raises(ConfigError) as caught:
        load_machine("mine.yaml")
    return caught.value.faults


# the table, what is replaced, by what, the text of the line at fault, the fault
CASES = {
    "overlapping fields": (
        DESCRIPTORS,
        "      source_space: {bits: [36, 36]}",
        "      source_space: {bits: [35, 35]}",
        ["      source_space", "  copy:"],
        [
            "operations.copy.fields.source_space.bits: bits [35, 35] overlap channel",
            "operations.copy: bits [36, 36] are neither a field nor reserved",
        ],
    ),
    "uncovered bits": (
        DESCRIPTORS,
        "  end:\n    opcode: 11\n    reserved: [[31, 26], [1023, 32]]",
        "  end:\n    opcode: 11\n    reserved: [[31, 26], [1023, 48]]",
        ["  end:"],
        ["operations.end: bits [47, 32] are neither a field nor reserved"],
    ),
    "uncovered bits at the top": (
        DESCRIPTORS,
        "  end:\n    opcode: 11\n    reserved: [[31, 26], [1023, 32]]",
        "  end:\n    opcode: 11\n    reserved: [[31, 26], [1022, 32]]",
        ["  end:"],
        ["operations.end: bits [1023, 1023] are neither a field nor reserved"],
    ),
    "bits written low first": (
        DESCRIPTORS,
        "  end:\n    opcode: 11\n    reserved: [[31, 26], [1023, 32]]",
        "  end:\n    opcode: 11\n    reserved: [[26, 31], [1023, 26]]",
        ["reserved: [[26, 31]"],
        ["operations.end.reserved[0]: bits [26, 31]: write the high bit first"],
    ),
    "bits outside the word": (
        DESCRIPTORS,
        "  end:\n    opcode: 11\n    reserved: [[31, 26], [1023, 32]]",
        "  end:\n    opcode: 11\n    reserved: [[31, 26], [1024, 32], [1023, 32]]",
        ["reserved: [[31, 26], [1024"],
        ["operations.end.reserved[1]: bits [1024, 32] lie outside the 1024 bits"],
    ),
    "opcode twice": (
        DESCRIPTORS,
        "opcode: 11",
        "opcode: 10",
        ["opcode: 10\n    reserved"],
        ["operations.end.opcode: 10 is also the opcode of wait: two encodings alike"],
    ),
    "opcode too large": (
        DESCRIPTORS,
        "opcode: 11",
        "opcode: 256",
        ["opcode: 256"],
        ["operations.end.opcode: 256 does not fit the opcode's bits [7, 0] (0 to 255)"],
    ),
    "unknown operation": (
        DESCRIPTORS,
        "  end:\n",
        "  ende:\n",
        ["  ende:"],
        ['operations.ende: no such operation; did you mean "end"?'],
    ),
    "unknown parameter": (
        DESCRIPTORS,
        "      inner_bytes: {bits",
        "      inner_byte: {bits",
        ["      inner_byte:", "  copy:"],
        [
            'operations.copy.fields.inner_byte: copy has no such parameter; did you mean "inner_bytes"?',
            "operations.copy: parameter inner_bytes is bound to nothing; give it bits, or a fixed value",
        ],
    ),
    "bound twice": (
        DESCRIPTORS,
        "  copy:\n    opcode: 1\n",
        "  copy:\n    opcode: 1\n    fixed: {count0: 1}\n",
        ["    fixed:"],
        ["operations.copy.fixed.count0: is bound twice, in fields too"],
    ),
    "field too wide": (
        DESCRIPTORS,
        "      destination_stride_outer: {bits: [372, 333]}\n    reserved: [[31, 26], [1023, 373]]",
        "      destination_stride_outer: {bits: [381, 333]}\n    reserved: [[31, 26], [1023, 382]]",
        ["      destination_stride_outer: {bits: [381"],
        ["operations.fill.fields.destination_stride_outer.bits: 49 bits; a field has at most 48"],
    ),
    "wait of two bits": (
        DESCRIPTORS,
        "wait: [8, 8], wait_semaphore: [16, 9]",
        "wait: [9, 8], wait_semaphore: [16, 10]",
        ["sync:"],
        ["sync.wait: bits [9, 8]: must be one bit"],
    ),
    "tags alike": (
        REGISTERS,
        "start: {tag: {bits: [31, 31], value: 0}",
        "start: {tag: {bits: [31, 31], value: 1}",
        ["start:"],
        ["start.tag.value: 1 is also the tag of write: two encodings alike"],
    ),
    "register addresses alike": (
        REGISTERS,
        "DST_ADDRESS: {address: 0x02",
        "DST_ADDRESS: {address: 0x01",
        ["  DST_ADDRESS:"],
        ["registers.DST_ADDRESS.address: 1 is also an address of SRC_ADDRESS: two encodings alike"],
    ),
    "register address too large": (
        REGISTERS,
        "PAD: {address: 0x21, ",
        "PAD: {address: 128, ",
        ["  PAD:"],
        ["registers.PAD.address: 128 does not fit the register bits of a write word (0 to 127)"],
    ),
    "register bits left over": (
        REGISTERS,
        "  PAD: {address: 0x21, fields: {top: {bits: [3, 0]}, left: {bits: [7, 4]}}, reserved: [[23, 8]]}",
        "  PAD: {address: 0x21, fields: {top: {bits: [3, 0]}, left: {bits: [7, 4]}}, reserved: [[23, 9]]}",
        ["  PAD:"],
        ["registers.PAD: bits [8, 8] are neither a field nor reserved"],
    ),
    "unknown register field": (
        REGISTERS,
        "  matrix_product:\n    opcode: 5\n",
        "  matrix_product:\n    opcode: 5\n    constants: {CLAMP.lows: 0}\n",
        ["CLAMP.lows"],
        ['operations.matrix_product.constants.CLAMP.lows: no register field CLAMP.lows; did you mean "CLAMP.low"?'],
    ),
    "register used in part": (
        REGISTERS,
        "  matrix_product:\n    opcode: 5\n",
        "  matrix_product:\n    opcode: 5\n    constants: {PAD.top: 16}\n",
        ["constants: {PAD", "  matrix_product:"],
        [
            "operations.matrix_product.constants.PAD.top: 16 does not fit PAD.top (0 to 15)",
            "operations.matrix_product: PAD.left is left open; bind it, or give it in constants",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fault_is_exact(case, tmp_path, monkeypatch):
    table, old, new, anchors, messages = CASES[case]
    faults = faults_of(tmp_path, monkeypatch, table, [(old, new)])
    lines = [line_of(tmp_path / table, anchor) for anchor in anchors]
    assert faults == [f"{table}:{line}: {message}" for line, message in zip(lines, messages)]


# the table, its change, the chip's change, the fault's path and reason
NEEDS = {
    "address too narrow for the SRAM": (
        REGISTERS,
        [],
        [("size: 128 KiB", "size: 256 KiB")],
        "operations.copy.bind.inner_bytes: holds at most 131072, but this chip uses up to 262144 (memories.sram.size); widen "
        "this field and 67 others like it, lower memories.sram.size, or let python -m toolchain.isa FILE.yaml write a first "
        "table: copy: inner_bytes count1 count2; fill: ",
    ),
    "address too narrow for the DRAM": (
        REGISTERS,
        [],
        [("size: 256 MiB", "size: 257 MiB")],
        "operations.copy.bind.source_address: holds at most 268435455, but this chip uses up to 269484031 "
        "(memories.dram.size); widen this field and 8 others like it, lower memories.dram.size, or let python -m toolchain.isa "
        "FILE.yaml write a first table: copy: source_address "
        "destination_address source_stride1 source_stride2 destination_stride1 destination_stride2; fill: "
        "destination_address destination_stride1 destination_stride2",
    ),
    "field that starts too high": (
        REGISTERS,
        [
            (
                "COUNT1: {address: 0x0c, fields: {value: {bits: [16, 0], bias: 1",
                "COUNT1: {address: 0x0c, fields: {value: {bits: [16, 0], bias: 2",
            )
        ],
        [],
        "operations.copy.bind.count1: 17 bits hold 2 to 131073, but this chip uses 1 to 131072 (memories.sram.size)",
    ),
    "kernel larger than its field": (
        REGISTERS,
        [],
        [("depthwise: {max_kernel: [16, 16]", "depthwise: {max_kernel: [16, 17]")],
        "operations.depthwise.bind.kernel_width: 4 bits hold 1 to 16, but this chip uses 1 to 17 (limits.depthwise.max_kernel)"
        "; widen it, or let python -m toolchain.isa FILE.yaml write a first table",
    ),
    "asymmetric activations on a symmetric machine": (
        REGISTERS,
        [],
        [("symmetric_activations: true", "symmetric_activations: false")],
        "operations.pool.fixed.output_zero_point: is fixed to 0, but this chip uses -128 to 127 (numerics.activation int8)",
    ),
    "three DMA dimensions on a machine of two": (
        REGISTERS,
        [],
        [("dimensions: 2", "dimensions: 3")],
        "operations.fill.fixed.count0: is fixed to 1, but this chip uses 1 to 131072 (memories.sram.size)",
    ),
    "a table on a machine that has none": (
        REGISTERS,
        [],
        [("post: []", "post: [table]")],
        "operations.convolution.fixed.use_table: is fixed to 0, but this chip uses 0 to 1 (engines.mac.post)",
    ),
    "an operation the chip needs": (
        REGISTERS,
        [],
        [("    functions:\n", "    functions:\n      table: {lanes: 4}\n")],
        "operations: has no table; engines.vector.functions has table; give it a row, or let python -m toolchain.isa FILE.yaml "
        "write a first table (docs/instructions.md)",
    ),
    "alignment below a step": (
        REGISTERS,
        [],
        [("    alignment_bytes: 8\n    banks: 4", "    alignment_bytes: 4\n    banks: 4")],
        "operations.depthwise.bind.parameter_address: holds only multiples of 8, but this chip uses 0 to 131071 "
        "(memories.sram) in steps of 4",
    ),
    "more semaphores than the field counts": (
        REGISTERS,
        [],
        [("semaphores: 32", "semaphores: 33")],
        "operations.wait.fields.semaphore: 5 bits hold 0 to 31, but this chip uses 0 to 32 (sync.semaphores)",
    ),
    "more semaphores than a descriptor's own field counts": (
        DESCRIPTORS,
        [],
        [("semaphores: 64", "semaphores: 257")],
        "sync.signal_semaphore: 8 bits hold 0 to 255, but this chip uses 0 to 256 (sync.semaphores)",
    ),
    "more channels than the field counts": (
        DESCRIPTORS,
        [],
        [("channels: 1", "channels: 17")],
        "operations.copy.fields.channel: 4 bits hold 0 to 15, but this chip uses 0 to 16 (engines.dma.channels)",
    ),
}


@pytest.mark.parametrize("case", NEEDS)
def test_table_too_small_for_its_chip(case, tmp_path, monkeypatch):
    table, changes, chip_changes, message = NEEDS[case]
    faults = faults_of(tmp_path, monkeypatch, table, changes, chip_changes)
    assert any(fault.split(": ", 1)[1].startswith(message) for fault in faults)
    assert all(fault.startswith(f"{table}:") for fault in faults)


def test_a_table_without_what_a_key_needs_says_once_what_to_do(tmp_path, monkeypatch):
    control = "control: {bases: 7, repeat: {}}\nengines:\n"
    faults = [fault.partition(": ")[2] for fault in faults_of(tmp_path, monkeypatch, DESCRIPTORS, [], [("engines:\n", control)])]
    way_out = "let python -m toolchain.isa FILE.yaml write a first table (docs/instructions.md)"
    assert faults[:2] == [
        f"operations: has no again; control.repeat; give it a row, or {way_out}",
        "operations: has no repeat; control.repeat",
    ]
    assert "operations.copy: has no bits for source_base, but this chip uses 0 to 7 (control.bases)" in faults


def test_a_table_without_codes_for_a_third_memory(tmp_path, monkeypatch):
    table = DESCRIPTORS
    buffer = "  wbuf: {size: 64 KiB, read_bytes_per_cycle: 64.0, write_bytes_per_cycle: 32.0}\nengines:\n"
    faults = faults_of(tmp_path, monkeypatch, table, [], [("engines:\n", buffer)])
    first = line_of(tmp_path / table, "      source_space:")
    uses = "1 bits hold 0 to 1, but this chip uses 0 to 2 (dram 0, sram 1, wbuf 2)"
    assert faults[0] == (
        f"{table}:{first}: operations.copy.fields.source_space: {uses}; give it 2 bits, or let python -m toolchain.isa FILE.yaml "
        "write a first table (docs/machine.md, Memories beside the SRAM)"
    )
    others = [fault.partition(": ")[2] for fault in faults[1:]]
    assert others == [f"operations.{name}.fields.destination_space: {uses}" for name in ("copy", "fill")]


def test_an_outgrown_memory_is_one_fault(tmp_path, monkeypatch):
    for table, size in ((DESCRIPTORS, ("size: 512 KiB", "size: 64 MiB")), (REGISTERS, ("size: 128 KiB", "size: 256 KiB"))):
        assert len(faults_of(tmp_path, monkeypatch, table, [], [size])) == 1


def test_a_field_of_too_coarse_steps_is_a_fault_beside_an_outgrown_memory(tmp_path, monkeypatch):
    alignment = "    alignment_bytes: {}\n    banks: 4"
    changes = [("size: 128 KiB", "size: 256 KiB"), (alignment.format(8), alignment.format(4))]
    faults = [fault.split(": ", 1)[1] for fault in faults_of(tmp_path, monkeypatch, REGISTERS, [], changes)]
    steps = "holds only multiples of 8, but this chip uses 0 to 262143 (memories.sram) in steps of 4"
    assert f"operations.depthwise.bind.parameter_address: {steps}" in faults
    assert len([fault for fault in faults if "others like it" in fault]) == 1


@pytest.mark.parametrize("kind, shown", [("vliw", "'vliw'"), ("[registers]", "['registers']"), ("null", "None")])
def test_unknown_kind(tmp_path, monkeypatch, kind, shown):
    faults = faults_of(tmp_path, monkeypatch, REGISTERS, [("kind: registers", f"kind: {kind}")])
    line = line_of(tmp_path / REGISTERS, "kind:")
    assert faults == [f"{REGISTERS}:{line}: kind: must be one of descriptors, registers, got {shown}"]


def test_plain_text_is_no_table(tmp_path, monkeypatch):
    faults = faults_of(tmp_path, monkeypatch, REGISTERS, [(read_shipped_text(REGISTERS), "to be written\n")])
    assert faults == [f"{REGISTERS}:1: file: must be a section of keys, got 'to be written'"]


def test_key_of_a_field(tmp_path, monkeypatch):
    changes = [
        (
            "DMA_RUN: {address: 0x0e, fields: {value: {bits: [16, 0], bias: 1",
            "DMA_RUN: {address: 0x0e, fields: {value: {bits: [16, 0], bais: 1",
        )
    ]
    faults = faults_of(tmp_path, monkeypatch, REGISTERS, changes)
    line = line_of(tmp_path / REGISTERS, "bais")
    assert faults == [f'{REGISTERS}:{line}: registers.DMA_RUN.fields.value.bais: no such key; did you mean "bias"?']
