"""The manual of a machine: complete, the same as a page, and right where it draws."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.support.accumulator_machines import emitting
from tests.support.control_flow_machines import with_control
from tests.support.machine_variants import with_keys
from toolchain.hw import list_shipped_names
from toolchain.isa import Machine, load_machine
from toolchain.isa.manual import blocks, manual, manual_page
from toolchain.isa.manual.figures import Fields, Strip, WindowFigure
from toolchain.isa.manual.machine_parts import operations
from toolchain.machine import Convolution

MANUALS = {name: load_machine(name) for name in list_shipped_names()}
MANUALS["emitting"] = emitting(load_machine("edge16"))
MANUALS["granules"] = with_keys(load_machine("edge16"), layout={"feature_maps": {"granule": 16, "order": "line"}})
CHOICES = {"count": 2, "more_dataflows": ["ws"], "more_depthwise": ["column"]}
ENGINES = json.loads(load_machine("edge16").chip.model_dump_json())["engines"]
MANUALS["choices"] = with_keys(load_machine("edge16"), engines=ENGINES | {"mac": ENGINES["mac"] | CHOICES})
MANUALS["registers"] = with_control(load_machine("edge16"), "registers", 64)


def section(machine: Machine, operation: str) -> str:
    text = "\n\n".join(block for block in operations(machine) if isinstance(block, str))
    return re.split(r"\n\n###? ", text.partition(f"### {operation} (opcode")[2])[0]


@pytest.mark.parametrize("name", MANUALS)
def test_the_meaning_of_an_operation_names_all_that_programs_choose(name: str) -> None:
    """Every parameter with bits and more than one value is named in the text before the table of bits, or is a type
    or unit.
    """
    machine = MANUALS[name]
    for operation, plan in machine.isa.plans.items():
        text = section(machine, operation)
        words = set(re.findall(r"[a-z][a-z_0-9]*", text.partition("| parameter |")[0]))
        words |= set(re.findall(r"[a-z_]+_type", text.partition("Types of codes by their numbers")[2]))
        needs = {s.name: plan.operation.need(s.name, machine.chip) for s in plan.slots}
        chosen = {parameter for parameter, need in needs.items() if need.low < need.high}
        assert chosen <= words, (operation, chosen - words)


@pytest.mark.parametrize("name", MANUALS)
def test_the_page_has_all_of_the_markdown(name: str) -> None:
    """Every word of the Markdown's text, and a drawing for each figure."""
    machine = MANUALS[name]
    page = manual_page(machine)
    reader = _Text()
    reader.feed(page)
    shown = " ".join("".join(reader.words).replace("*", "").split())
    figures = [block for block in blocks(machine) if not isinstance(block, str)]
    assert page.count("<svg ") == len(figures) == page.count("</svg>") >= 7
    for block in (b for b in blocks(machine) if isinstance(b, str) and not b.startswith(("|", "```", "-"))):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"[`*]|^#+ ", "", block))
        for sentence in (" ".join(s.split()) for s in plain.split("\n")):
            assert sentence.lstrip("- ") in shown, sentence
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", page)  # it needs nothing beside itself
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(re.findall(r'id="([^"]*)"', page))


class _Text(HTMLParser):
    """A parser that collects the visible text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_links_lead_to_headings() -> None:
    for machine in MANUALS.values():
        text = manual(machine)
        anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)", text, re.MULTILINE)}
        assert set(re.findall(r"\(#([^)]*)\)", text)) <= anchors


def test_the_example_of_rounding_is_the_machine_s() -> None:
    """An eighth of each sum: towards zero; and of edge16 rounded twice, by the formula that the manual has."""
    pattern = r"(?m)^\| x \|(.*) \|\n.*\n\| q \|(.*) \|$"
    rows: dict[str, list[list[int]]] = {}
    for name in ("ws8_pow2", "edge16"):
        match = re.search(pattern, manual(load_machine(name)))
        assert match is not None
        rows[name] = [[int(v) for v in row.split("|")] for row in match.groups()]
    x, q = rows["ws8_pow2"]
    assert q == [max(-128, min(127, int(v / 8))) for v in x] and len(x) > 15
    x, q = rows["edge16"]
    m, s = 1 << 30, 33
    assert q == [(v * m + (1 << s - 1) + (1 << 30) * (1 if v >= 0 else -1)) >> s for v in x]


def test_a_convolution_says_its_way_out_in_order() -> None:
    text = section(load_machine("edge16"), "convolution")
    places = [
        text.index(step)
        for step in ("wrap(sum[y, x, o] + bias[o])", "requantize(a, multiplier[o]", "use_table = 1", "use_add = 1")
    ]
    assert places == sorted(places)
    assert "use_table" not in section(load_machine("ws8_pow2"), "convolution").partition("| parameter |")[0]


@pytest.mark.parametrize(("layout", "first"), [("none", "a00 a01 a02 a10 a11 a12 b00"), ("tiles", "a00 b00 a01 b01 a02 b02")])
def test_drawn_weights_lie_as_the_machine_has_them(layout: str, first: str) -> None:
    machine = load_machine("edge16")
    if layout == "tiles":
        chip = machine.chip.model_copy(update={"layout": machine.chip.layout.model_copy(update={"weight_tile": (3, 2)})})
        machine = Machine(chip, machine.isa)
    strips = [block for block in blocks(machine) if isinstance(block, Strip) and "Weights of 3 output" in block.caption]
    expected = first.split()
    assert len(strips) == 1 and list(strips[0].cells[: len(expected)]) == expected[: len(strips[0].cells)]


def test_entries_are_drawn_as_they_lie() -> None:
    machine = load_machine("ws8_pow2")
    (strip,) = [block for block in blocks(machine) if isinstance(block, Strip) and block.caption.startswith("bias ")]
    entry_bytes = bytes(int(cell, 16) for cell in strip.cells)
    assert int.from_bytes(entry_bytes[:8], "little", signed=True) == -8187 and entry_bytes[8:] == bytes([1, 0, 0, 0, 3, 0, 0, 0])
    (fields,) = [block for block in blocks(machine) if isinstance(block, Fields) and block.caption.startswith("An entry")]
    assert fields.fields == (("shift", 127, 96), ("multiplier", 95, 64), ("bias", 63, 0))


def test_a_window_is_drawn_where_it_lies() -> None:
    window = WindowFigure("w.", (3, 3), (1, 1), (2, 2), (2, 2), (2, 1), (0, 1))
    assert window.text().splitlines()[2:] == ["    . . w w .", "    . x x x .", "    . x W W .", "    . x x x .", "    . . . . ."]
    assert window.svg().count("<rect") == 25


def test_what_a_parameter_s_text_says_is_what_it_needs() -> None:
    machine = load_machine("ws8_pow2")
    text = section(machine, "convolution")
    step = Convolution.need("parameter_address", machine.chip).step
    assert (
        f"| parameter_address | 13:0 of PARAMETER_ADDRESS | stored * 8 | 0 to 131064 | 0 to 131064, multiples of {step} |" in text
    )
    assert "Registers that it reads, all of which must have been written: A_ADDRESS, A_ROW," in text


def test_softmax_says_its_tables() -> None:
    text = section(load_machine("transformer64"), "softmax")
    table = text.partition("inverse_table, 513 entries:\n")[2].partition("\n```")[0].split()
    assert len(table) == 513 and (int(table[0]), int(table[-1])) == (32767, 16384)
    assert np.all(np.diff([int(v) for v in table]) <= 0)


@pytest.mark.parametrize("most", [1, 2])
def test_a_product_says_its_batches_where_it_has_several(most: int) -> None:
    machine = with_keys(load_machine("transformer64"), limits={"matrix_product": {"max_batches": most}})
    assert ("`batches`: so many such products" in section(machine, "matrix_product")) == (most > 1)
