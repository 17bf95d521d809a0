"""Every fault of a machine's YAML: one line each, with file, line, path, value and way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_files import line_of, read_shipped_text, section_text, write_changed

from toolchain.errors import ConfigError
from toolchain.hw import load_chip, read_chip_file, write_bytes
from toolchain.isa import load_machine


def faults_of(path: str = "mine.yaml") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_machine(path)
    return caught.value.faults


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


TIMING = section_text("edge16.yaml", "timing")
LIMITS = next(line for line in read_shipped_text("edge16.yaml").splitlines() if line.startswith("limits:"))

# what is replaced, by what, the fault; the fault's line is that of ANCHORS or of the replacement's first line
CASES = {
    "unknown key": ("banks: 8", "bank: 8", 'mine.yaml:{line}: memories.sram.bank: no such key; did you mean "banks"?'),
    "the beginning of a key": (
        "    banks: 8\n",
        "    latncy: 8\n    banks: 8\n",
        'mine.yaml:{line}: memories.sram.latncy: no such key; did you mean "latency_cycles"?',
    ),
    "unknown section": (
        "sync: {semaphores: 64}",
        "sync: {semaphores: 64}\nregisters: {}",
        "mine.yaml:{line}: registers: no such key; known: clock, control, description, energy, engines, host, isa, layout, "
        "limits, memories, name, numerics, sync",
    ),
    "an operator without steps": (
        LIMITS,
        "limits: {decompose: [Softmax, Softmin]}",
        "mine.yaml:{line}: limits.decompose[1]: must be one of 'Div', 'GRU', 'GroupNormalization', 'InstanceNormalization', "
        "'LSTM', 'LayerNormalization', 'LogSoftmax', 'RMSNormalization', 'RNN', 'Softmax', 'Sqrt'; got 'Softmin'",
    ),
    "unknown key in a list": (
        "- {activation: int8, weight: int8}",
        "- {activation: int8, weight: int8, rat: 1}",
        'mine.yaml:{line}: engines.mac.types[0].rat: no such key; did you mean "rate"?',
    ),
    "wrong unit": (
        "size: 512 KiB",
        "size: 512 KB",
        "mine.yaml:{line}: memories.sram.size: '512 KB' is no quantity; write it as '512 KiB' (units: B, KiB, MiB, "
        "GiB, kB, MB, GB)",
    ),
    "bytes for a frequency": (
        "500 MHz",
        "500 MiB",
        "mine.yaml:{line}: clock.frequency: '500 MiB' is no quantity; write it as '500 MHz' (units: Hz, kHz, MHz, GHz)",
    ),
    "part of a byte": (
        "size: 512 KiB",
        "size: 0.3 KiB",
        "mine.yaml:{line}: memories.sram.size: '0.3 KiB' is 307.2 in base units, not a whole number",
    ),
    "a forgotten unit": (
        "size: 512 KiB",
        "size: 512",
        "mine.yaml:{line}: memories.sram.size: 512 has no unit; write it as '512 KiB', or as '512 B' where B is meant",
    ),
    "a frequency without its unit": (
        "500 MHz",
        "500",
        "mine.yaml:{line}: clock.frequency: 500 has no unit; write it as '500 MHz', or as '500 Hz' where Hz is meant",
    ),
    "no size": (
        "size: 512 KiB",
        "size: 0 KiB",
        "mine.yaml:{line}: memories.sram.size: '0 KiB' must be at least 1 and at most 2^48 in base units",
    ),
    "endless size": (
        "size: 512 KiB",
        f"size: {'9' * 400} GiB",
        f"mine.yaml:{{line}}: memories.sram.size: '{'9' * 400} GiB' must be at least 1 and at most 2^48 in base units",
    ),
    "a memory's clock without its unit": (
        "banks: 8",
        "frequency: 800\n    banks: 8",
        "mine.yaml:{line}: memories.sram.frequency: 800 has no unit; write it as '500 MHz', or as '800 Hz' where Hz is meant",
    ),
    "an unknown arbitration": (
        "banks: 8",
        "arbitration: fair\n    banks: 8",
        "mine.yaml:{line}: memories.sram.arbitration: must be one of 'fixed', 'round_robin', 'fcfs'; got 'fair'",
    ),
    "zero banks": ("banks: 8", "banks: 0", "mine.yaml:{line}: memories.sram.banks: must be at least 1, got 0"),
    "a text for a number": (
        "banks: 8",
        "banks: eight",
        "mine.yaml:{line}: memories.sram.banks: must be a whole number, got 'eight'",
    ),
    "a fraction of a row": ("rows: 16", "rows: 16.5", "mine.yaml:{line}: engines.mac.rows: must be a whole number, got 16.5"),
    "yes for a number": ("rows: 16", "rows: yes", "mine.yaml:{line}: engines.mac.rows: must be a whole number, got true"),
    "nothing for a number": ("rows: 16", "rows:", "mine.yaml:{line}: engines.mac.rows: must be a whole number, got nothing"),
    "endless bandwidth": (
        "bytes_per_cycle: 16.0",
        "bytes_per_cycle: .inf",
        "mine.yaml:{line}: engines.dma.bytes_per_cycle: must be a finite number, got inf",
    ),
    "a list for a section": (
        "clock: {frequency: 500 MHz}",
        "clock: [500 MHz]",
        "mine.yaml:{line}: clock: must be a section of keys, got a list",
    ),
    "unknown choice": (
        "dataflow: os",
        "dataflow: rs",
        "mine.yaml:{line}: engines.mac.dataflow: must be one of 'os', 'ws', 'is'; got 'rs'",
    ),
    "unknown rounding": (
        "rounding: double_round",
        "rounding: nearest",
        "mine.yaml:{line}: numerics.rounding: must be one of 'single_half_up', 'double_round', 'half_away', 'half_even', "
        "'truncate', 'floor', 'fp32_rne', 'pow2', 'scale16', 'reduced16'; got 'nearest'",
    ),
    "no instruction table": (
        "isa: {file: isa/descriptors1024.yaml, word_cycles: 8.0, program_memory: own}\n",
        "",
        "mine.yaml:{line}: isa: is missing (python -m toolchain.isa mine.yaml descriptors -o isa/mine.yaml writes a first table),"
        " for example {{file: isa/mine.yaml, word_cycles: 8.0}}",
    ),
    "missing key": ("    rows: 16\n", "", "mine.yaml:{line}: engines.mac.rows: is missing"),
    "pair of one": (
        LIMITS,
        "limits: {pool: {max_kernel: [3]}}",
        "mine.yaml:{line}: limits.pool.max_kernel: must be a list [height, width], for example [3, 3], got [3]",
    ),
    "number for a pair": (
        LIMITS,
        "limits: {convolution: {max_pad: 1}}",
        "mine.yaml:{line}: limits.convolution.max_pad: must be a list [height, width], for example [1, 1], got 1",
    ),
    "pair of three": (
        LIMITS,
        "limits: {depthwise: {max_stride: [1, 2, 2]}}",
        "mine.yaml:{line}: limits.depthwise.max_stride: must be a list [height, width], for example [3, 3], got [1, 2, 2]",
    ),
    "text for a list": (
        "post: [table, add]",
        "post: table",
        "mine.yaml:{line}: engines.mac.post: must be a list, for example [table, add], got 'table'",
    ),
    "section for a list of sections": (
        "types:\n      - {activation: int8, weight: int8}",
        "types: {activation: int8, weight: int8}",
        "mine.yaml:{line}: engines.mac.types: must be a list, for example [{{activation: int8, weight: int8}}], "
        "got a section of keys",
    ),
    "too few semaphores": (
        "sync: {semaphores: 64}",
        "sync: {semaphores: 2}",
        "mine.yaml:{line}: sync.semaphores: 2 are fewer than the 3 "
        "with which mac, vector, a DMA channel can wait for one another",
    ),
    "a burst that is no power of two": (
        "burst_bytes: 64",
        "burst_bytes: 48",
        "mine.yaml:{line}: memories.dram.burst_bytes: 48 is no power of two, as bursts of memories are",
    ),
    "banks that do not divide": (
        "banks: 8",
        "banks: 7",
        "mine.yaml:{line}: memories.sram.banks: 7 banks do not divide 524288 bytes evenly",
    ),
    "words that are no bytes": (
        "bank_bytes: 8",
        "bank_bytes: all",
        "mine.yaml:{line}: memories.sram.bank_bytes: must be a whole number, got 'all'",
    ),
    "banks that give less than the port": (
        "bank_bytes: 8",
        "bank_bytes: 4",
        "mine.yaml:{line}: memories.sram.bank_bytes: 8 banks of 4 bytes give 32 bytes a cycle, and a port 64",
    ),
    "banks that are busy for too long": (
        "bank_bytes: 8  # each bank is a macro with an address of its own\n    bank_cycles: 1",
        "bank_bytes: 16\n    bank_cycles: 4",
        "mine.yaml:{line}: memories.sram.bank_bytes: 8 banks of 16 bytes, each busy for 4 cycles with a word, give 32 bytes a "
        "cycle, and a port 64",
    ),
    "words that do not fill the memory": (
        "bank_bytes: 8",
        "bank_bytes: 24",
        "mine.yaml:{line}: memories.sram.bank_bytes: 8 banks of 24 bytes do not divide the memory's 524288 bytes",
    ),
    "banks wider than any memory": (
        "bank_bytes: 8",
        "bank_bytes: 4096",
        "mine.yaml:{line}: memories.sram.bank_bytes: 8 banks of 4096 bytes are 32768 bytes side by side, more than 16384, the "
        "widest memory that is planned for",
    ),
    "runs of words that there are not": (
        "words: whole",
        "words: half",
        "mine.yaml:{line}: memories.sram.words: must be one of 'whole', 'packed'; got 'half'",
    ),
    "more bases of the host than there are": (
        "sync: {semaphores: 64}",
        "sync: {semaphores: 64}\ncontrol: {bases: 3, host_bases: 4}",
        "mine.yaml:{line}: control.host_bases: 4 are more than the machine's control.bases=3",
    ),
    "operands without bases": (
        "sync: {semaphores: 64}",
        "sync: {semaphores: 64}\ncontrol: {operand_bases: true}",
        "mine.yaml:{line}: control.operand_bases: adds base registers to addresses, and control.bases is 0",
    ),
    "indices without bases": (
        "sync: {semaphores: 64}",
        "sync: {semaphores: 64}\ncontrol: {indirect: {max_index: 9}}",
        "mine.yaml:{line}: control.indirect: reads base registers from memory, and control.bases is 0",
    ),
    "alignment that does not divide": (
        "alignment_bytes: 16",
        "alignment_bytes: 24",
        "mine.yaml:{line}: memories.sram.alignment_bytes: 24 does not divide the memory's 524288 bytes",
    ),
    "array without the machine's types": (
        "  weight: int8\n  scale",
        "  weight: int4\n  scale",
        "mine.yaml:{line}: engines.mac.types: has no {{activation: int8, weight: int4}}, the types of numerics",
    ),
    "types twice": (
        "      - {activation: int8, weight: int8}\n",
        "      - {activation: int8, weight: int8}\n      - {activation: int8, weight: int8}\n",
        "mine.yaml:{line}: engines.mac.types[1]: int8 by int8 is given twice",
    ),
    "a type of activations twice": (
        "  activation: int8\n",
        "  more_activations: [int8]\n  activation: int8\n",
        "mine.yaml:{line}: numerics.more_activations[0]: int8 is given twice",
    ),
    "a type of weights twice": (
        "  weight: int8\n",
        "  more_weights: [int8]\n  weight: int8\n",
        "mine.yaml:{line}: numerics.more_weights[0]: int8 is given twice",
    ),
    "a pair that an array has not": (
        "  weight: int8\n",
        "  more_weights: [int4]\n  weight: int8\n",
        "mine.yaml:{line}: numerics.more_weights[0]: int4: engines.mac.types has no pair with it",
    ),
    "the first types in no pair": (
        "  weight: int8\n  scale",
        "  weight: int4\n  more_weights: [int8]\n  scale",
        "mine.yaml:{line}: engines.mac.types: has no {{activation: int8, weight: int4}}, the first types of numerics, nor has "
        "another array",
    ),
    "no such timing": (
        TIMING,
        "timing: idle",
        "mine.yaml:{line}: engines.mac.timing: must be a section of keys, got 'idle'",
    ),
    "an unknown term": (
        TIMING,
        "timing: {fold_cycle: 3}",
        'mine.yaml:{line}: engines.mac.timing.fold_cycle: no such key; did you mean "fold_cycles"?',
    ),
    "a reduction that there is not": (
        TIMING,
        "timing: {reduction: packed}",
        "mine.yaml:{line}: engines.mac.timing.reduction: must be per_tap, dense or a list of [channels, taps], for example "
        "[[32, 1], [8, 4]]; got 'packed'",
    ),
    "a reduction in blocks of none": (
        TIMING,
        "timing: {reduction: []}",
        "mine.yaml:{line}: engines.mac.timing.reduction: must be per_tap, dense or a list of [channels, taps], for example "
        "[[32, 1], [8, 4]]; got []",
    ),
    "a block of no taps": (
        TIMING,
        "timing: {reduction: [[16, 0]]}",
        "mine.yaml:{line}: engines.mac.timing.reduction[0][1]: must be at least 1, got 0",
    ),
    "a diagonal that takes no taps": (
        TIMING,
        "timing: {depthwise_taps: 0}",
        "mine.yaml:{line}: engines.mac.timing.depthwise_taps: must be at least 1, got 0",
    ),
    "a function that no element passes": (
        "mul: {lanes: 16, startup: 8}",
        "mul: {lanes: 16, startup: 8, passes: 0}",
        "mine.yaml:{line}: engines.vector.functions.mul.passes: must be at least 1, got 0",
    ),
    "an edge that takes nothing": (
        TIMING,
        "timing: {input_edge_bytes: 0}",
        "mine.yaml:{line}: engines.mac.timing.input_edge_bytes: must be at least 1, got 0",
    ),
    "a way out of no lanes": (
        TIMING,
        "timing: {output: {lanes: some}}",
        "mine.yaml:{line}: engines.mac.timing.output.lanes: must be a whole number, got 'some'",
    ),
    "post operation twice": (
        "post: [table, add]",
        "post: [add, table, add]",
        "mine.yaml:{line}: engines.mac.post[2]: add is given twice",
    ),
    "too few accumulators": (
        "entries: 4096",
        "entries: 255",
        "mine.yaml:{line}: engines.mac.accumulators.entries: 255 are fewer than the 256 of a 16 x 16 array (os)",
    ),
    "left shift of a multiplier": (
        "shift_min: 0",
        "shift_min: -1",
        "mine.yaml:{line}: numerics.scale.shift_min: must be at least 0 for kind multiplier, got -1",
    ),
    "shift range upside down": (
        "shift_min: 0, shift_max: 62",
        "shift_min: 9, shift_max: 8",
        "mine.yaml:{line}: numerics.scale.shift_min: 9 is above shift_max 8",
    ),
    "shift beyond the arithmetic": (
        "shift_max: 62",
        "shift_max: 63",
        "mine.yaml:{line}: numerics.scale.shift_max: must be at most 62, got 63",
    ),
    "rounding of another scale form": (
        "rounding: double_round",
        "rounding: pow2",
        "mine.yaml:{line}: numerics.rounding: pow2 is not defined for scale kind multiplier; it has single_half_up, "
        "double_round, half_away, half_even, truncate, floor, scale16, reduced16",
    ),
    "rounding of an operation": (
        "rounding: double_round",
        "rounding: double_round\n  per_op: {add: fp32_rne}",
        "mine.yaml:{line}: numerics.per_op.add: fp32_rne is not defined for scale kind multiplier; it has single_half_up, "
        "double_round, half_away, half_even, truncate, floor, scale16, reduced16",
    ),
    "rounding of no operation": (
        "rounding: double_round",
        "rounding: double_round\n  per_op: {addd: floor}",
        "mine.yaml:{line}: numerics.per_op.addd: must be one of 'convolution', 'matrix_product', 'average_pool', 'add', 'sub', "
        "'mul', 'rescale', 'prelu'; got 'addd'",
    ),
    "multiplier too wide for the rounding": (
        "rounding: double_round",
        "rounding: scale16",
        "mine.yaml:{line}: numerics.scale.multiplier_bits: 31 bits; rounding scale16 takes at most 15",
    ),
    "shift too small for the rounding": (
        "rounding: double_round",
        "rounding: reduced16",
        "mine.yaml:{line}: numerics.scale.shift_min: 0 is below 17, the least of rounding reduced16",
    ),
    "table of another width": (
        "entries: 256}",
        "entries: 513, interpolation: tosa}",
        "mine.yaml:{line}: numerics.table.entries: int8 activations use 256 entries, got 513",
    ),
    "table with nothing between": (
        "entries: 256}",
        "entries: 256, interpolation: tosa}",
        "mine.yaml:{line}: numerics.table.interpolation: 256 entries hold every code; nothing is interpolated",
    ),
    "no such table file": (
        "isa/descriptors1024.yaml",
        "isa/descriptors2048.yaml",
        "mine.yaml:{line}: isa.file: there is no file 'isa/descriptors2048.yaml' beside this one or among the shipped; "
        "mkdir -p isa && python -m toolchain.isa mine.yaml descriptors -o isa/descriptors2048.yaml writes a first one",
    ),
    "name of odd letters": (
        "name: edge16",
        "name: edge 16",
        r"mine.yaml:{line}: name: 'edge 16' does not match ^[A-Za-z][A-Za-z0-9_\-]*$",
    ),
}


ANCHORS = {
    "no instruction table": "format:",
    "operands without bases": "control:",
    "indices without bases": "control:",
    "more bases of the host than there are": "control:",
    "unknown section": "registers:",
    "missing key": "  mac:",
    "nothing for a number": "rows:",
    "array without the machine's types": "types:\n",
    "the first types in no pair": "types:\n",
    "types twice": "{activation: int8, weight: int8}\n    accumulators",
    "rounding of an operation": "per_op:",
    "rounding of no operation": "per_op:",
    "multiplier too wide for the rounding": "scale: {kind",
    "shift too small for the rounding": "scale: {kind",
}


@pytest.mark.parametrize("case", CASES)
def test_fault_is_one_exact_line(case, tmp_path):
    old, new, message = CASES[case]
    write_changed(tmp_path, "edge16.yaml", [(old, new)])
    file_faults = [
        fault for fault in faults_of() if fault.startswith("mine.yaml:")
    ]  # and not what its table lacks for these changes
    assert file_faults == [message.format(line=line_of(tmp_path / "mine.yaml", ANCHORS.get(case, new)))]


def test_the_keys_that_there_are_are_told_once(tmp_path):
    changes = [("    banks: 8\n", "    banks: 8\n    hue: 1\n    tint: 2\n"), ("sync:", "colour: 3\nsync:")]
    write_changed(tmp_path, "edge16.yaml", changes)
    line = line_of(tmp_path / "mine.yaml", "    hue:")
    hue, tint, colour = (fault for fault in faults_of() if "no such key" in fault)
    assert hue.startswith(f"mine.yaml:{line}: memories.sram.hue: no such key; known: alignment_bytes, ")
    assert tint == f"mine.yaml:{line + 1}: memories.sram.tint: no such key; known: those of line {line}"
    assert "colour: no such key; known: clock, control, " in colour


def test_all_faults_show_at_once_in_the_order_of_the_file(tmp_path):
    changes = [("500 MHz", "fast"), ("banks: 8", "bank: 8"), ("    rows: 16\n", "")]
    write_changed(tmp_path, "edge16.yaml", changes)
    file = tmp_path / "mine.yaml"
    assert [fault.split(": ")[:2] for fault in faults_of()] == [
        [f"mine.yaml:{line_of(file, 'clock:')}", "clock.frequency"],
        [f"mine.yaml:{line_of(file, 'bank:')}", "memories.sram.bank"],
        [f"mine.yaml:{line_of(file, '  mac:')}", "engines.mac.rows"],
    ]


def test_faults_of_every_kind_show_at_once(tmp_path):
    """Keys given twice, words, numbers out of range, what sections ask of each other, and fields of the instruction table."""
    changes = [
        ("500 MHz", "fast"),
        ("    rows: 16\n", "    rows: 16\n    rows: 8\n"),
        ("    burst_bytes: 64\n", "    burst_bytes: 48\n"),
        ("rounding: double_round", "rounding: nearest"),
        ("semaphores: 64", "semaphores: 2"),
        ("    size: 512 KiB\n", "    size: 32 MiB\n"),
    ]
    write_changed(tmp_path, "edge16.yaml", changes)
    file = tmp_path / "mine.yaml"
    fault_places = [fault.split(": ")[:2] for fault in faults_of()]
    assert fault_places[:5] == [
        [f"mine.yaml:{line_of(file, 'fast')}", "clock.frequency"],
        [f"mine.yaml:{line_of(file, '48')}", "memories.dram.burst_bytes"],
        [f"mine.yaml:{line_of(file, '    rows: 8')}", "engines.mac.rows"],
        [f"mine.yaml:{line_of(file, 'nearest')}", "numerics.rounding"],
        [f"mine.yaml:{line_of(file, 'semaphores: 2')}", "sync.semaphores"],
    ]
    assert (
        [place.split(":")[0] for place, _ in fault_places[5:]]
        == ["hw_configs/isa/descriptors1024.yaml"] * len(fault_places[5:])
        != []
    )


def test_what_hangs_on_a_fault_is_not_told(tmp_path):
    """The number of accumulators is not checked for an array whose rows are unknown."""
    write_changed(tmp_path, "edge16.yaml", [("    rows: 16\n", "    rows: many\n"), ("entries: 4096", "entries: 20")])
    assert [fault.split(": ")[1] for fault in faults_of()] == ["engines.mac.rows"]


def test_sums_of_int16_codes_have_no_room_for_the_headroom_of_int8(tmp_path):
    """Operands of 16 bits with 20 of headroom saturate: sums were noise (1 dB), and bits agreed."""
    write_changed(tmp_path, "wide32_w4a16.yaml", [("  add_left_shift: 14\n", "")])
    line = line_of(tmp_path / "mine.yaml", "numerics:")
    assert faults_of() == [
        f"mine.yaml:{line}: numerics.add_left_shift: 20 bits on int16 codes overflow the 32 bits of a sum; give at most 15"
    ]


@pytest.mark.parametrize(("functions", "post"), [("add", ""), ("sub", ""), ("mul", ", add"), ("mul", "")])
def test_headroom_of_sums_needs_scales_that_undo_it(functions, post, tmp_path):
    """The least that a machine has is 2**-shift_max; a machine that makes no sums needs none."""
    changes = [
        (section_text("edge16.yaml", "functions"), f"functions:\n      {functions}: {{lanes: 8}}"),
        ("post: [table, add]", f"post: [table{post}]"),
        ("shift_max: 62", "shift_max: 15"),
    ]
    write_changed(tmp_path, "edge16.yaml", changes)
    fault = (
        "numerics.add_left_shift: 20 bits of headroom leave a sum by scales of 2**-20, and shift_max 15 gives none below 2**-15; "
        "give at most 15, or raise scale.shift_max to 20 or more"
    )
    assert any(message.endswith(fault) for message in read_chip_file("mine.yaml").faults) == (functions != "mul" or bool(post))


@pytest.mark.parametrize("symmetric", [False, True])
def test_uint8_codes_need_zero_points(tmp_path, symmetric):
    changes = [
        ("{activation: int8, weight: int8}", "{activation: uint8, weight: int8}"),
        ("  activation: int8\n", "  activation: uint8\n"),
    ]
    changes += [("  rounding: double_round", "  symmetric_activations: true\n  rounding: double_round")] if symmetric else []
    write_changed(tmp_path, "edge16.yaml", changes)
    if not symmetric:
        assert load_machine("mine.yaml").chip.numerics.activation.limits == (0, 255)
        return
    line = line_of(tmp_path / "mine.yaml", "symmetric_activations")
    assert faults_of() == [
        f"mine.yaml:{line}: numerics.symmetric_activations: zero points of 0 leave uint8 no code for a negative number; "
        "leave it false, or have signed activations"
    ]


def test_a_softmax_unit_that_no_program_can_use(tmp_path):
    unit = ("      table: {lanes: 16, startup: 8}", "      table: {lanes: 16, startup: 8}\n      softmax: {lanes: 4}")
    symmetric = ("  rounding: double_round", "  symmetric_activations: true\n  rounding: double_round")
    write_changed(tmp_path, "edge16.yaml", [unit])
    assert not any("no program can use it" in fault for fault in faults_of())  # its table has no row for it, either
    write_changed(tmp_path, "edge16.yaml", [unit, symmetric])
    line = line_of(tmp_path / "mine.yaml", "softmax")
    assert faults_of() == [
        f"mine.yaml:{line}: engines.vector.functions.softmax: no program can use it: a softmax of 8 bits has the least code for "
        "0, and numerics.symmetric_activations is true; leave it out, or have int16 activations"
    ]


def test_tables_of_a_further_type_need_a_rule_between_their_entries(tmp_path):
    write_changed(tmp_path, "transformer64.yaml", [("table: {entries: 256, interpolation: tosa}", "table: {entries: 256}")])
    line = line_of(tmp_path / "mine.yaml", "  table: {entries")
    assert faults_of() == [
        f"mine.yaml:{line}: numerics.table.interpolation: tables of int16 activations have 513 entries, which need a rule "
        "between them: tosa or tflite"
    ]


WIDE = ("  activation: int8\n", "  activation: int8\n  more_activations: [int32]\n")


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        (
            ("multiplier_bits: 31,", "multiplier_bits: 15,"),
            "scale: {kind",
            "numerics.scale: the largest scale, by multiplier_bits and shift_min, is 32767; int8 codes become int32 "
            "(more_activations) by up to 16909321",
        ),
        (
            ("      rescale: {lanes: 16, startup: 8}\n", ""),
            "more_activations",
            "numerics.more_activations[0]: int32 is rescaled to and from other types, and engines.vector.functions has "
            "no rescale",
        ),
        (
            (
                "{kind: multiplier, multiplier_bits: 31, shift_min: 0, shift_max: 62}\n  rounding: double_round",
                "{kind: float32}\n  rounding: fp32_rne",
            ),
            "rounding:",
            "numerics.rounding: fp32_rne keeps 24 bits of a code; int32 has 32 (numerics.more_activations)",
        ),
    ],
)
def test_what_wide_codes_need(tmp_path, change, key, message):
    write_changed(tmp_path, "edge16.yaml", [WIDE, change])
    assert faults_of() == [f"mine.yaml:{line_of(tmp_path / 'mine.yaml', key)}: {message}"]


def test_faults_of_the_instruction_table_show_beside_those_of_the_chip(tmp_path):
    write_changed(tmp_path, "edge16.yaml", [("banks: 8", "banks: 0")])
    table = "isa/descriptors1024.yaml"
    write_changed(tmp_path, table, [("word_bits: 1024", "word_bits: 1001")], table)
    chip_line, table_line = line_of(tmp_path / "mine.yaml", "banks:"), line_of(tmp_path / table, "word_bits:")
    assert faults_of() == [
        f"mine.yaml:{chip_line}: memories.sram.banks: must be at least 1, got 0",
        f"{table}:{table_line}: word_bits: must be a multiple of 8, got 1001",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine.yaml:1: file: is empty"),
        ("# nothing\n", "mine.yaml:1: file: is empty"),
        ("just text\n", "mine.yaml:1: file: must be a section of keys, got 'just text'"),
        ("a: [1\nb: 2\n", "mine.yaml:2: not YAML: the bracket opened in line 1 is not closed before this"),
        ("a: 1\n\tb: 2\n", "mine.yaml:2: not YAML: indented with a tab; YAML takes spaces"),
        (
            "a:\n  b: 1\n c: 2\n",
            "mine.yaml:3: not YAML: indented otherwise than the keys of its section, which begins in line 1",
        ),
        (
            "a: 1\n  b: 2\n",
            "mine.yaml:2: not YAML: a key where a value is expected: indented deeper than the keys beside it, or a text with "
            "': ' lacks quotes",
        ),
        ("a: 1\nb\nc: 2\n", "mine.yaml:2: not YAML: a key without ':' and value"),
        ("a: 'x\nb: 2\n", "mine.yaml:1: not YAML: the quote opened here is not closed"),
        ("a: @x\n", "mine.yaml:1: not YAML: '@' cannot begin a value; put the text in quotes"),
        ("a: *b\n", "mine.yaml:1: not YAML: found undefined alias 'b'"),
        ("name: &a [*a]\n", "mine.yaml:1: name[0]: nests too deep or contains itself"),
        ("a: &a {b: 1}\nc:\n  <<: *a\n", "mine.yaml:3: c: keys must be plain names"),
        ("? [a, b]\n: 1\n", "mine.yaml:1: file: keys must be plain names"),
        ("a: 1\n---\nb: 2\n", "mine.yaml:2: not YAML: a second document begins here ('---'); a file is one document"),
        ('a: 1\nb: "\\U00110000"\n', "mine.yaml:2: not YAML: a number here is too large for what it stands for"),
        (f"%YAML 1.{'1' * 5000}\n---\na: 1\n", "mine.yaml:1: not YAML: a number here is too large for what it stands for"),
        ("a: 2001-02-30\n", "mine.yaml:1: a: '2001-02-30' is no timestamp"),
    ],
)
def test_a_file_that_is_no_machine(text, message, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    assert faults_of() == [message]


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00name")
    assert faults_of() == ["mine.yaml:1: not YAML: not UTF-8 text"]


def test_no_such_file():
    assert faults_of("none.yaml") == ["none.yaml: no such file or directory"]


def test_no_such_name():
    assert faults_of("edge61") == [
        "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)",
    ]


def test_a_chip_loads_without_its_instruction_table(tmp_path):
    write_changed(tmp_path, "edge16.yaml", [("isa/descriptors1024.yaml", "isa/none.yaml")])
    assert load_chip("mine.yaml").isa.file == "isa/none.yaml"


COARSE = "the largest scale, by multiplier_bits and shift_min, is 255; int8 codes become int16 (more_activations) by up to 259"


@pytest.mark.parametrize(("bits", "message"), [(8, f"numerics.scale: {COARSE}"), (9, None)])
def test_scales_take_codes_of_8_bits_to_16(bits: int, message: str | None, tmp_path: Path) -> None:
    """The scales span the same range, 32,767 over 127."""
    mixed = [
        ("  activation: int8\n", "  activation: int8\n  more_activations: [int16]\n"),
        ("multiplier_bits: 31,", f"multiplier_bits: {bits},"),
        ("  table: {entries: 256}\n", "  table: {entries: 256, interpolation: tosa}\n"),
        (
            "      - {activation: int8, weight: int8}\n",
            "      - {activation: int8, weight: int8}\n      - {activation: int16, weight: int8}\n",
        ),
    ]
    write_changed(tmp_path, "edge16.yaml", mixed)
    if message is None:
        assert load_chip(str(tmp_path / "mine.yaml")).numerics.scale.multiplier_bits == bits
        return
    with pytest.raises(ConfigError) as caught:
        load_chip(str(tmp_path / "mine.yaml"))
    assert [fault.partition(": ")[2] for fault in caught.value.faults] == [message]


def test_no_bytes_are_written_in_bytes() -> None:
    assert [write_bytes(size) for size in (0, 1, 1 << 19)] == ["0 B", "1 B", "512 KiB"]
