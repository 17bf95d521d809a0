"""The name a user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, choices: Iterable[str]) -> str:
    """'; did you mean "banks"?', or nothing where no name is near."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""
