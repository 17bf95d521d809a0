"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files that the chosen tests read")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether to write what was found in the place of comparing it."""
    return bool(request.config.getoption("--update-golden"))
