"""Suggests the name that a user may have meant, for the end of an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, choices: Iterable[str]) -> str:
    """Return '; did you mean "banks"?' with the choice nearest to `word`, or an empty text where none is near."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""
