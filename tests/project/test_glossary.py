"""docs/glossary.md names places that exist; the words that people grep for are in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "glossary.md").read_text()
PLACES = sorted(set(re.findall(r"`((?:toolchain|quant|simulator)/[\w/.]*)`", TEXT)))
SEARCHED = (
    "prefetch", "live range", "liveness", "lifetime", "canonicalize", "legalize", "double buffer", "layer fusion", "depth-first",
    "loop tiling", "spill", "residency", "halo", "requantize", "zero point", "calibration", "observer", "partition", "epilogue",
)  # fmt: skip


def test_places_exist() -> None:
    assert len(PLACES) > 80
    assert [place for place in PLACES if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("word", SEARCHED)
def test_words_of_the_field_are_there(word: str) -> None:
    assert word in TEXT


def test_the_front_page_is_short_and_names_every_term_once() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    terms = [cell for row in re.findall(r"^\| ([^|]+) \|", TEXT, re.M) for cell in row.split(", ") if row not in ("term", "---")]
    assert sorted({t for t in terms if terms.count(t) > 1}) == []
