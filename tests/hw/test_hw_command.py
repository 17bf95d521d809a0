"""npu-hw: what it prints, and its exit codes."""

from __future__ import annotations

import pytest
from machine_files import section_text, write_changed
from typer.testing import CliRunner

from toolchain.cli.hw import app
from toolchain.hw import chip_differences, list_shipped_names, load_chip


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("name", list_shipped_names())
def test_shipped_machines_are_sound_and_say_every_term_of_their_time(name):
    code, out, err = run("check", name)
    assert (code, err, len(out.splitlines())) == (0, "", 1)
    assert out.startswith(f"{name}: no faults; instruction table ")


def test_check_says_of_an_ideal_array_what_it_does_not_charge(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_changed(tmp_path, "edge16.yaml", [(section_text("edge16.yaml", "timing"), "timing: ideal")])
    code, out, err = run("check", "mine.yaml")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "edge16: no faults; instruction table descriptors1024 (descriptors)",
        "engines.mac.timing is ideal: folds begin at once, operands enter in time, outputs leave for nothing",
    ]


def test_check_lists_the_terms_of_time_that_a_file_says_nothing_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unsaid = [(f"    {key}", "    #") for key in ("write_latency_cycles: 2", "burst_bytes: 8", "bank_cycles: 1", "words:")]
    timing = "timing: {fold_cycles: 3, window_bytes: 0, output: {lanes: 8}}"
    unsaid += [(section_text("edge16.yaml", "timing"), timing), ("    burst_bytes: 64\n", ""), (", program_memory: own", "")]
    unsaid += [
        ("    folds_overlap: false\n", ""),
        *((f"      {f}: {{lanes: 16, startup: 8}}", f"      {f}: {{lanes: 16}}") for f in ("add", "mul")),
    ]
    write_changed(tmp_path, "edge16.yaml", unsaid)
    _, out, _ = run("check", "mine.yaml")
    assert out.splitlines()[1:] == [
        "engines.mac.timing.reduction is left at its default, per_tap",
        "engines.mac.timing.depthwise_taps is left at its default, depth",
        "engines.mac.timing.input_edge_bytes is left at its default, an element for each row or column",
        "engines.mac.timing.weight_edge_bytes is left at its default, an element for each row or column",
        "engines.mac.timing.shared_outputs is left at its default, columns",
        "engines.mac.timing.output.table_lanes is left at its default, 1",
        "engines.mac.timing.output.addend_lanes is left at its default, lanes",
        "engines.mac.timing.output.overlaps is left at its default, false",
        "engines.mac.folds_overlap is left at its default, false",
        "engines.vector.functions.{add, mul}.startup is left at its default, 4",
        "memories.dram.burst_bytes is left at its default, 1",
        "memories.sram.write_latency_cycles is left at its default, 0",
        "memories.sram.burst_bytes is left at its default, 1",
        "memories.sram.bank_cycles is left at its default, 1.0",
        "memories.sram.words is left at its default, whole",
        "isa.program_memory is left at its default, dram",
    ]


def test_check_says_that_no_bank_is_charged_where_a_file_says_nothing_of_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_changed(tmp_path, "edge16.yaml", [(f"    {key}:", "    #") for key in ("bank_bytes", "bank_cycles", "words")])
    assert run("check", "mine.yaml")[1].splitlines()[1:] == ["memories.sram.bank_bytes is left at its default, any"]


def test_check_prints_every_fault_and_exits_with_2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_changed(tmp_path, "ws8_pow2.yaml", [("banks: 4", "banks: 3"), ("rounding: truncate", "rounding: double_round")])
    code, out, err = run("check", "mine.yaml")
    assert (code, out) == (2, "")
    assert [line.split(": ", 2)[1:] for line in err.splitlines()] == [
        ["memories.sram.banks", "3 banks do not divide 131072 bytes evenly"],
        [
            "numerics.rounding",
            "double_round is not defined for scale kind pow2; it has pow2, single_half_up, half_away, half_even, truncate, floor",
        ],
    ]


@pytest.mark.parametrize("command", ["check", "show", "manual"])
def test_no_such_machine(command):
    code, out, err = run(command, "none")
    assert (code, out) == (2, "")
    assert err == (
        "no machine named 'none'; known: edge16, ethos_u55_256, ethos_u65_512, nvdla_small, transformer64, wide32_w4a16, "
        "ws8_pow2 (or give the path of a YAML file)\n"
    )


def test_list():
    code, out, _ = run("list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "edge16",
        "ethos_u55_256",
        "ethos_u65_512",
        "nvdla_small",
        "transformer64",
        "wide32_w4a16",
        "ws8_pow2",
    ]


def test_show_has_defaults_and_derived_figures():
    code, out, _ = run("show", "edge16")
    assert code == 0
    assert "    queue_depth: 4\n" in out
    assert "# peak: 256 MAC a cycle, 128 GMAC/s\n" in out


@pytest.mark.parametrize("name", ["edge16", "ethos_u55_256", "nvdla_small", "wide32_w4a16", "ws8_pow2"])
def test_what_show_prints_is_the_same_machine(name, tmp_path):
    _, shown, _ = run("show", name)
    assert "{}" not in shown.replace("per_op: {}", "")
    (tmp_path / "shown.yaml").write_text(shown)
    assert run("diff", name, str(tmp_path / "shown.yaml")) == (0, "no difference\n", "")


def test_show_marks_limits_that_are_not_set():
    _, shown, _ = run("show", "edge16")
    assert "  pool:\n    max_kernel: null  # no limit\n    max_stride: null  # no limit\n" in shown


def test_the_balance_knows_the_dma(tmp_path):
    assert "# loads from DRAM: at most 8 bytes a cycle, 4 GB/s (memories.dram.read_bytes_per_cycle)\n" in run("show", "edge16")[1]
    write_changed(tmp_path, "edge16.yaml", [("bytes_per_cycle: 16.0", "bytes_per_cycle: 2.0")])
    _, shown, _ = run("show", str(tmp_path / "mine.yaml"))
    assert "# loads from DRAM: at most 2 bytes a cycle, 1 GB/s (engines.dma: channels x bytes_per_cycle)\n" in shown
    assert "# balance: 128 MAC for each byte loaded, to be bound by neither\n" in shown


def test_diff():
    assert run("diff", "edge16", "edge16") == (0, "no difference\n", "")
    code, out, _ = run("diff", "ethos_u55_256", "ethos_u65_512")
    assert code == 1
    assert "memories.sram.size: 2 MiB -> 384 KiB\n" in out


def test_diff_of_one_key(tmp_path, monkeypatch):
    """One table for both: nothing is said of it."""
    monkeypatch.chdir(tmp_path)
    write_changed(tmp_path, "edge16.yaml", [("frequency: 500 MHz", "frequency: 600 MHz")])
    assert run("diff", "edge16", "mine.yaml")[:2] == (1, "clock.frequency: 500 MHz -> 600 MHz\n")


def test_diff_of_engines_that_only_have_other_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = [("  mac:\n", "  core:\n")]
    write_changed(tmp_path, "edge16.yaml", name)
    assert run("diff", "edge16", "mine.yaml")[:2] == (1, "engines (renamed): mac -> core\n")
    write_changed(tmp_path, "edge16.yaml", [*name, ("    rows: 16\n", "    rows: 8\n")])
    _, out, _ = run("diff", "edge16", "mine.yaml")
    assert "engines.mac.rows: 16 -> -\n" in out and "engines.core.rows: - -> 8\n" in out and "renamed" not in out


def test_what_is_private_to_a_renamed_engine_is_no_difference():
    chip = load_chip("edge16")
    private_memory = chip.memories["sram"].model_copy(update={"private_to": "mac"})
    one = chip.model_copy(update={"memories": {**chip.memories, "wbuf": private_memory}})
    engines = {{"mac": "core"}.get(name, name): engine for name, engine in chip.engines.items()}
    memories = {**chip.memories, "wbuf": private_memory.model_copy(update={"private_to": "core"})}
    two = chip.model_copy(update={"engines": engines, "memories": memories})
    assert chip_differences(one, two) == [("engines (renamed)", "mac", "core")]


def test_check_names_engines_that_programs_cannot_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_changed(tmp_path, "edge16.yaml", [("    kind: dma\n", "    kind: dma\n    memories: [sram]\n")])
    code, out, _ = run("check", "mine.yaml")
    message = "engines.dma.memories has no dram: compiled programs move between dram and sram"
    assert (code, out.splitlines()[1]) == (0, f"engines.dma is not used by compiled programs: {message}")


def test_manual_and_header():
    assert run("manual", "ws8_pow2")[1].startswith("# ws8_pow2: instruction set\n")
    assert run("manual", "--c-header", "ws8_pow2")[1].startswith("/* ws8_pow2, instruction table registers32: ")
    assert run("schema")[1].startswith('{\n "$defs"')
