"""The machines that are shipped: sound, different in kind, and what their sources say."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest

from quant.fixed_point.core.codes import CodeType
from tests.support.unsigned_machines import make_unsigned
from toolchain.errors import ProgramError
from toolchain.hw import chip_differences, chip_lines, chip_schema, list_shipped_names, load_chip, read_source
from toolchain.hw.section import write_bytes, write_hertz
from toolchain.isa import load_machine, machine_digest, machine_from_json, machine_to_json, table_schema
from toolchain.isa.constants import c_header
from toolchain.isa.instruction_table import RegisterTable
from toolchain.isa.manual import manual
from toolchain.isa.verilog import verilog_package

NAMES = list_shipped_names()


def test_there_are_machines_of_every_kind():
    chips = [load_chip(name) for name in NAMES]
    assert len(chips) >= 5
    assert {c.array.dataflow for c in chips} >= {"os", "ws"}
    assert {c.array.depthwise for c in chips} >= {"diagonal", "column"}
    assert {c.dma_dimensions for c in chips} >= {2, 3}
    assert {len(c.of_kind("dma")) for c in chips} >= {1, 2}
    assert {c.array.post for c in chips} >= {(), ("table",), ("table", "add")}
    assert {c.numerics.activation for c in chips} == {"int8", "int16"}
    assert {c.numerics.weight for c in chips} == {"int4", "int8"}
    assert {c.numerics.scale.kind for c in chips} >= {"pow2", "multiplier"}
    assert len({c.numerics.rounding for c in chips}) >= 3
    assert len({c.sram.alignment_bytes for c in chips}) >= 3
    assert {load_machine(name).isa.kind for name in NAMES} == {"registers", "descriptors"}


@pytest.mark.parametrize("name", NAMES)
def test_the_file_has_the_machine_s_name(name):
    assert load_chip(name).name == name


@pytest.mark.parametrize(
    ("name", "macs", "size", "dram", "sram"),
    [("ethos_u55_256", 256, 2 << 20, 1.0, 8.0), ("ethos_u65_512", 512, 393216, 3.75, 16.0)],
)
def test_ethos_machines_have_vela_s_figures(name, macs, size, dram, sram):
    chip = load_chip(name)
    assert (chip.macs_per_cycle, chip.sram.size) == (macs, size)
    assert (chip.dram.read_bytes_per_cycle, chip.sram.read_bytes_per_cycle) == (dram, sram)
    assert (chip.dram.burst_bytes, chip.sram.burst_bytes) == (128, 32)


@pytest.mark.parametrize("name", NAMES)
def test_json_holds_the_whole_machine(name):
    machine = load_machine(name)
    text = machine_to_json(machine)
    again = machine_from_json(text)
    assert again == machine
    assert machine_to_json(again) == text
    assert machine_digest(again) == machine_digest(machine)


def test_json_holds_small_quantities(tmp_path):
    text = files("hw_configs").joinpath("edge16.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("512 KiB", "512 B").replace("500 MHz", "5 Hz"))
    machine = load_machine(str(tmp_path / "mine.yaml"))
    assert machine_from_json(machine_to_json(machine)) == machine


def test_digests_differ():
    assert len({machine_digest(load_machine(name)) for name in NAMES}) == len(NAMES)


def test_the_digest_is_of_what_the_yaml_means(tmp_path):
    text = files("hw_configs").joinpath("edge16.yaml").read_text()
    (tmp_path / "mine.yaml").write_text("# mine\n" + text.replace("512 KiB\n", "524288\n"))
    assert machine_digest(load_machine(str(tmp_path / "mine.yaml"))) == machine_digest(load_machine("edge16"))


def test_the_digest_is_not_of_descriptions(tmp_path):
    text = files("hw_configs").joinpath("edge16.yaml").read_text()
    digests = []
    for old, new in (("", ""), ("description: 16x16", "description: my 16x16"), ("name: edge16", "name: mine")):
        (tmp_path / "mine.yaml").write_text(text.replace(old, new))
        digests.append(machine_digest(load_machine(str(tmp_path / "mine.yaml"))))
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_does_not_depend_on_the_order_of_keys(tmp_path):
    text = files("hw_configs").joinpath("edge16.yaml").read_text()
    digests = set()
    for rules in ("{add: floor, mul: truncate}", "{mul: truncate, add: floor}"):
        (tmp_path / "mine.yaml").write_text(text.replace("rounding: double_round", f"rounding: double_round\n  per_op: {rules}"))
        digests.add(machine_digest(load_machine(str(tmp_path / "mine.yaml"))))
    assert len(digests) == 1


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '{"chip": {}, "isa": {"kind": "registers"}}', machine_to_json(load_machine("edge16")).replace("0", "x", 1)],
)
def test_a_damaged_embedded_machine_is_refused(text):
    with pytest.raises(ProgramError, match=r"^embedded machine is damaged: "):
        machine_from_json(text)


def test_an_embedded_table_with_an_overlap_is_refused():
    data = json.loads(machine_to_json(load_machine("edge16")))
    data["isa"]["operations"]["end"]["reserved"].append([40, 40])
    with pytest.raises(
        ProgramError, match=r"^embedded machine is damaged: operations.end.*: bits \[40, 40\] overlap reserved\[1\]$"
    ):
        machine_from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("section", "key", "value", "reason"),
    [
        ("memories", "sram", {"banks": 7}, "memories.sram.banks: 7 banks do not divide 524288 bytes evenly"),
        ("engines", "mac", {"depth": 100_000}, "engines.mac.depth: 100000 is more than 16384, the largest side of an array"),
        ("sync", "semaphores", 2, "sync.semaphores: 2 are fewer than the 3"),
        ("sync", "semaphores", 9999, "operations.signal.fields.semaphore: 8 bits hold 0 to 255"),
    ],
)
def test_an_embedded_machine_obeys_the_rules_of_the_files(section, key, value, reason):
    data = json.loads(machine_to_json(load_machine("edge16")))
    old = data["chip"][section][key]
    data["chip"][section][key] = {**old, **value} if isinstance(value, dict) else value
    with pytest.raises(ProgramError, match=r"^embedded machine is damaged: ") as fault:
        machine_from_json(json.dumps(data))
    assert reason in str(fault.value)


def test_the_editor_schemas_are_current():
    root = files("hw_configs")
    assert root.joinpath("chip.schema.json").read_text() == chip_schema(), "run: npu-hw schema > hw_configs/chip.schema.json"
    assert root.joinpath("isa.schema.json").read_text() == table_schema(), "run: npu-hw schema --isa > hw_configs/isa.schema.json"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_loads_as_the_same_machine(name, tmp_path):
    (tmp_path / "shown.yaml").write_text("\n".join(chip_lines(load_chip(name))))
    assert load_chip(str(tmp_path / "shown.yaml")) == load_chip(name)


def test_differences():
    a, b = load_chip("ethos_u55_256"), load_chip("ethos_u65_512")
    differences = chip_differences(a, b)
    assert ("memories.sram.size", "2 MiB", "384 KiB") in differences
    assert ("clock.frequency", "500 MHz", "1 GHz") in differences
    assert chip_differences(a, a) == []
    assert ("energy", "-", "none") not in differences
    with_energy = chip_differences(load_chip("edge16"), a)
    assert ("energy.pj_per_mac", "0.2", "-") in with_energy


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(1, "1 B"), (1000, "1000 B"), (524288, "512 KiB"), (1 << 30, "1 GiB"), (1025 << 10, "1025 KiB")]
)
def test_sizes_are_written_for_people(size_bytes, text):
    assert write_bytes(size_bytes) == text


def test_frequencies_are_written_for_people():
    assert [write_hertz(f) for f in (1, 32768, 500_000_000, 1_500_000_000)] == ["1 Hz", "32768 Hz", "500 MHz", "1500 MHz"]


@pytest.mark.parametrize("name", NAMES)
def test_the_manual_names_every_parameter_and_register(name):
    machine = load_machine(name)
    text = manual(machine)
    for operation, plan in machine.isa.plans.items():
        section = text.partition(f"### {operation} ")[2].partition("### ")[0]
        names = {line.split(" | ")[0].strip("| ") for line in section.splitlines()}
        once = section.partition("which have no bits: ")[2].partition(".")[0]
        names |= {part.split()[0] for part in once.split(", ") if part}
        assert {*plan.operation.parameters()} <= names
    assert all(f"| {r} |" in text for r in getattr(machine.isa.table, "registers", {}))


@pytest.mark.parametrize("name", NAMES)
def test_the_c_header_defines_each_name_once(name):
    names = [line.split()[1] for line in c_header(load_machine(name)).splitlines() if line.startswith("#define")]
    assert len(names) == len(set(names))
    assert f"{name.upper()}_OPCODE_CONVOLUTION" in names


@pytest.mark.parametrize(
    ("machine", "low", "high", "codes"),
    [
        (load_machine("edge16"), -128, 127, "256 entries of int8, the least code's first"),
        (make_unsigned(load_machine("edge16")), 0, 255, "256 entries of uint8, the least code's first"),
        (load_machine("wide32_w4a16"), -32768, 32767, "513 entries of int16, the ends of its segments from the least code on"),
    ],
    ids=["int8", "uint8", "int16"],
)
def test_manual_and_header_say_what_codes_are(machine, low, high, codes):
    assert f", {low} to {high}: so are zero points, clamps and values of fills." in manual(machine)
    assert f"A function's table has {codes}." in manual(machine)
    assert f"_ACTIVATION_LOW {f'({low})' if low < 0 else low}\n" in c_header(machine)
    assert f"_ACTIVATION_HIGH {high}\n" in c_header(machine)


def test_lines_are_those_of_key_and_value():
    source = read_source("a:\n  b: >\n    text\n  c:\n    - 1\n    - 2\n", "x.yaml")
    assert source.fault(("a", "c", 1), "wrong") == "x.yaml:6: a.c[1]: wrong"
    assert source.fault(("a", "c"), "wrong") == "x.yaml:4: a.c: wrong"
    assert source.fault(("a", "d"), "is missing") == "x.yaml:1: a.d: is missing"


@pytest.mark.parametrize("name", NAMES)
def test_every_verilog_struct_has_the_width_of_its_word(name):
    machine = load_machine(name)
    text = verilog_package(machine)
    structs = re.findall(r"typedef struct packed \{(.*?)\} (\w+);", text, re.DOTALL)
    widths = {struct: sum(int(high) + 1 for high in re.findall(r"\[(\d+):0\]", body)) for body, struct in structs}
    assert {f"{operation}_word_t" for operation in machine.isa.plans} <= set(widths)
    assert {width for struct, width in widths.items() if struct.endswith("_word_t")} == {machine.isa.table.word_bits}
    for register, entry in getattr(machine.isa.table, "registers", {}).items():
        assert isinstance(machine.isa.table, RegisterTable)
        part = machine.isa.table.write.value[0] + 1
        assert widths[f"{register.lower()}_register_t"] == part * entry.words


def test_a_copy_holds_no_values_that_follow_from_other_fields() -> None:
    chip = load_machine("transformer64").chip
    keys = chip.numerics_keys.model_copy(update={"more_weights": ()})
    one_type = chip.model_copy(update={"numerics_keys": keys})
    assert one_type.weights_for(CodeType.INT16) == chip.weight_types[:1]
    assert one_type.model_copy(update={"numerics_keys": chip.numerics_keys}).weights_for(CodeType.INT16) == chip.weight_types
    timing = chip.array.timing.model_copy(update={"input_edge_bytes": chip.array.edge_bytes[0] + 1})
    assert chip.array.model_copy(update={"timing": timing}).edge_bytes[0] == chip.array.edge_bytes[0] + 1
