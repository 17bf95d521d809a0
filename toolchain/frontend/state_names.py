"""List how models name the input and the output that are one state, in a single table.

Each row is a pattern of an input's name and the names of outputs that may go with it; `{0}` and `{1}` are its
groups.
Inputs of many models end in _in and outputs in _out without being a state.
The patterns therefore use only words for something that is remembered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_WORDS = r"(?:h|c|hidden|cell|state|states|cache|caches|memory|mem|rnn|lstm|gru|hx|cx)"
_NUMBER = r"(?:_?[0-9]+)?"

_TABLE = (
    (r"past_key_values\.([0-9]+)\.(key|value)", ("present.{0}.{1}", "present_key_values.{0}.{1}")),
    (r"past_(.+)", ("present_{0}",)),
    (r"past\.(.+)", ("present.{0}",)),
    (rf"({_WORDS}{_NUMBER})", ("{0}n", "{0}N", "{0}_n", "{0}_out", "{0}_next", "new_{0}", "next_{0}", "out_{0}")),
    (r"(h|c)0", ("{0}n", "{0}1")),
    (rf"(.*{_WORDS}{_NUMBER})_in", ("{0}_out", "{0}")),
    (rf"(.*_{_WORDS}{_NUMBER})", ("{0}_out", "{0}_n", "{0}_next")),
    (rf"(?:in|prev|previous|old|last)_({_WORDS}{_NUMBER})", ("out_{0}", "next_{0}", "new_{0}", "{0}")),
)


def names_of_present(past: str) -> Iterator[str]:
    """Yield names of an output that may be the state `past` of the next run, the likeliest first."""
    for pattern, presents in _TABLE:
        match = re.fullmatch(pattern, past, re.ASCII)
        if match is not None:
            yield from (present.format(*match.groups()) for present in presents)


def pair_by_name(inputs: Iterable[str], outputs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(input, output) of each input whose name the table knows, with an output of such a name."""
    remaining_outputs = dict.fromkeys(outputs)
    for past in inputs:
        present = next((name for name in names_of_present(past) if name in remaining_outputs), None)
        if present is not None:
            del remaining_outputs[present]
            yield past, present
