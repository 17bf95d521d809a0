"""Records the CPU seconds of every test in a file: the fast tier is chosen by them, and slow tests need a reason."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

PROPERTY = "cpu_s"


class DurationRecorder:
    """Sums user and system seconds of each test, its fixtures and its processes; a shared fixture counts for its first test."""

    def __init__(self, file: Path) -> None:
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
        if not hasattr(session.config, "workerinput"):
            seconds = {test: round(value, 2) for test, value in sorted(self.seconds.items())}
            self.file.write_text(json.dumps(seconds, indent=0) + "\n", encoding="utf-8")


def cpu_seconds() -> float:
    """Return user and system seconds of this process and of its children that ended."""
    return sum(os.times()[:4])
