"""npu-hw manual: Markdown, a page, a header, a package."""

from __future__ import annotations

import pytest
from commands import run

from toolchain.isa import c_header, load_machine, manual, manual_page, verilog_package

FORMS = {"": manual, " --html": manual_page, " --c-header": c_header, " --verilog": verilog_package}


@pytest.mark.parametrize("option", FORMS)
def test_each_form_is_printed(option: str) -> None:
    printed = run(f"npu-hw manual ws8_pow2{option}")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out == FORMS[option](load_machine("ws8_pow2"))
