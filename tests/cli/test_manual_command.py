"""npu-hw manual: Markdown, a page, a header, a package."""

from __future__ import annotations

import pytest
from commands import run

from toolchain.isa import load_machine
from toolchain.isa.constants import c_header
from toolchain.isa.manual import manual, manual_page
from toolchain.isa.verilog import verilog_package

FORMS = {"": manual, " --html": manual_page, " --c-header": c_header, " --verilog": verilog_package}


@pytest.mark.parametrize("option", FORMS)
def test_each_form_is_printed(option: str) -> None:
    printed = run(f"npu-hw manual ws8_pow2{option}")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out == FORMS[option](load_machine("ws8_pow2"))
