"""Finds the tests that reach a mutant: tests run once with probes, and a probe logs who evaluates a mutant's expression.

It cannot see who takes the expression's result from a cache, nor processes that lack the probes' module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from mutations import Mutant

MODULE, LOG = "mutant_probes", "MUTANT_PROBES_LOG"
# The text of the probes' module. pytest names the test at hand in the environment, which processes of the test have too.
SOURCE = f"""
import os

seen = set()


def log(mutant):
    place = mutant, os.environ.get("PYTEST_CURRENT_TEST", "")
    if place not in seen and "{LOG}" in os.environ:
        seen.add(place)
        with open(os.environ["{LOG}"], "a", encoding="utf-8") as file:
            file.write("%d\\t%s\\n" % place)
"""


def add_probes(text: str, mutant_by_number: Mapping[int, Mutant]) -> str:
    """Return a file's text with a probe in front of the expression of each of its mutants, which must not overlap."""
    for number, mutant in sorted(mutant_by_number.items(), key=lambda item: -item[1].start):
        probe = f"(__import__({MODULE!r}).log({number}), ({mutant.old}))[1]"
        text = replace(mutant, new=probe).apply(text)
    return text


def read_reaching_tests(log: Path) -> dict[int, list[str] | None]:
    """Return the tests that reached each mutant, by its number, a test of each file before the second of any.

    A fixture may be shared: what it reaches, the whole file of its test reaches. None: reached as modules are imported,
    so any test may see it.
    """
    tests: dict[int, dict[str, None]] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        number, _, place = line.partition("\t")
        test, _, phase = place.rpartition(" ")
        tests.setdefault(int(number), {})[test if phase == "(call)" else test.partition("::")[0]] = None
    return {number: None if "" in reaching else _interleave_files(reaching) for number, reaching in tests.items()}


def _interleave_files(tests: Iterable[str]) -> list[str]:
    """Return the tests in such an order that the second of a file follows the first of every file."""
    counts: Counter[str] = Counter()
    rank_and_test: list[tuple[int, str]] = []
    for test in tests:
        file = test.partition("::")[0]
        rank_and_test.append((counts[file], test))
        counts[file] += 1
    return [test for _, test in sorted(rank_and_test, key=lambda pair: pair[0])]
