"""Records the CPU seconds of every test in a file: the fast tier is chosen by them, and slow tests need a reason."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.tiers import find_function, read_durations

PROPERTY = "cpu_s"
UNRECORDED_S = 1.0  # ten times what the fast tier takes unrecorded, so that a busy computer names nothing else


class DurationRecorder:
    """Sums user and system seconds of each test, its fixtures and its processes; a shared fixture counts for its first test.

    `file`: where they are written. None: only tests that should be recorded are named, which the fast tier else takes.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.last_s = cpu_seconds()

    def pytest_runtest_logstart(self) -> None:
        self.last_s = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give the report of each phase the seconds since the one before; reports travel from workers to the writing process."""
        report = yield
        now_s = cpu_seconds()
        report.user_properties = [*report.user_properties, (PROPERTY, now_s - self.last_s)]
        self.last_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += sum(float(str(value)) for name, value in report.user_properties if name == PROPERTY)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.file is not None and not hasattr(session.config, "workerinput"):
            seconds = {test: round(value, 2) for test, value in sorted(self.seconds.items())}
            self.file.write_text(json.dumps(seconds, indent=0) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name each function that is not recorded and took long, with its seconds."""
        unrecorded: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self.seconds.items():
            if find_function(test) not in read_durations():
                unrecorded[find_function(test)] += seconds
        for function, seconds in sorted(unrecorded.items()):
            if seconds > UNRECORDED_S:
                terminalreporter.write_line(f"{function} took {seconds:.1f} CPU s: record it in tests/durations.json")


def cpu_seconds() -> float:
    """Return user and system seconds of this process and of its children that ended."""
    return sum(os.times()[:4])
