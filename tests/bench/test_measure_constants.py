"""The measurement of tuned numbers: which modules a change reaches, and what its page keeps."""

from __future__ import annotations

import importlib

from bench import measure_constants as measuring
from bench.measure_constants import Constant, Measured


def test_a_number_is_changed_in_its_importers_or_by_another_import() -> None:
    importlib.import_module("toolchain.repair.weight_rounding")
    least = Constant("quant/repair/damping.py", "LEAST", "0.01", 0.01)
    assert {m.__name__ for m in measuring.importers(least)} >= {"quant.repair.damping", "toolchain.repair.weight_rounding"}
    assert measuring.is_read_at_import(least)  # DAMPINGS is made of it
    assert not measuring.is_read_at_import(Constant("quant/repair/damping.py", "_OUTPUTS", "32", 32))


def test_the_page_has_effects_and_earlier_rows_and_no_number_that_nothing_read() -> None:
    numbers = [Constant("toolchain/schedule/a.py", name, "4", 4) for name in ("_GOOD", "_UNREAD")]
    record = {("", "planning", "", 1.0): Measured("", "planning", "", 1.0, {"net cycles": 100.0}, 0.0)}
    for number in numbers:
        for factor, cycles in ((0.5, 110.0), (2.0, 100.0)):
            figures = {"net cycles": cycles} if number.name == "_GOOD" else {}
            record[number.path, number.name, "4", factor] = Measured(number.path, number.name, "4", factor, figures, 0.0)
    old = "| `{}` | `toolchain/schedule/b.py` | 2 | - | - |"
    good = "| `_GOOD` | `toolchain/schedule/a.py` | 4 | {} | - |"
    titles = measuring.TITLES[1], measuring.EARLIER_TEXT
    before = "\n".join((good.format("-"), titles[0], old.format("_SAME"), titles[1], old.format("_OLD")))
    page = measuring.page(record, numbers, before)
    assert measuring.split_rows(page) == [[good.format("net cycles +10.00 %")], [old.format("_SAME")], [old.format("_OLD")]]
    assert page.count(measuring.HEAD) == 3
