"""docs/security.md lists the bounds as the code has them, all of them."""

from __future__ import annotations

import re
from pathlib import Path

from toolchain import input_limits
from toolchain.memory.io import csv_format

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def test_the_page_has_every_bound_with_its_figure() -> None:
    figures_on_page = {name: figure for figure, name in re.findall(r"\| ([\d,]+) \| `(\w+)` \|$", PAGE, re.M)}
    limits = {
        n: v for module in (input_limits, csv_format) for n, v in vars(module).items() if n.isupper() and isinstance(v, int)
    }
    assert figures_on_page == {name: f"{value:,}" for name, value in limits.items()}


def test_the_page_names_the_formats_of_images() -> None:
    assert "PNG, JPEG\nand BMP" in PAGE
    assert input_limits.IMAGE_FORMATS == ("PNG", "JPEG", "BMP")
