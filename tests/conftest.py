"""Options of the whole suite."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support import verified_passes
from tests.support.durations import DurationRecorder
from tests.support.tiers import choose_fast, deselect, find_touched_tests, list_changed_files, may_have_fast_tests
from toolchain.cli import collect_seldom
from toolchain.errors import CompileError
from toolchain.foundation.inference import host_providers
from toolchain.repair import calibrate_network
from toolchain.runtime.cuda_reference import import_cupy


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files that the chosen tests read")
    parser.addoption("--record-durations", type=Path, metavar="FILE", help="write the CPU seconds of each test to FILE, as JSON")

    parser.addoption("--fast", action="store_true", help="run the fast tier: tests/tiers.yaml")
    parser.addoption(
        "--changed",
        metavar="COMMIT",
        nargs="?",
        const="HEAD",
        help="run the fast tier and the tests that import what differs from COMMIT (default: HEAD)",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that have no test of the fast tier, where only that runs."""
    if not config.getoption("--fast") or config.getoption("--changed") is not None or collection_path.is_dir():
        return None
    return True if collection_path.name.startswith("test_") and not may_have_fast_tests(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    base = config.getoption("--changed")
    if base is None and not config.getoption("--fast"):
        return
    touched_files = set() if base is None else find_touched_tests(list_changed_files(base))
    flags = zip(items, choose_fast(item.nodeid for item in items), strict=True)
    deselect(config, items, (is_fast or item.nodeid.partition("::")[0] in touched_files for item, is_fast in flags))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--update-golden: tests side by side would overwrite each other's lines; give -n0 with it")
    collect_seldom()
    verified_passes.install()
    calibrate_network.BY_DEFAULT = "none"  # what a repair does to a network is for the tests of repair, which ask for it
    durations_file = config.getoption("--record-durations")
    if durations_file is not None or config.getoption("--fast"):
        config.pluginmanager.register(DurationRecorder(durations_file))
    if not hasattr(config, "workerinput"):
        _share_bytecode(config)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a GPU where there is none, with the sentence that a user would read."""
    for mark in item.iter_markers("cuda"):
        find = {"host": lambda: host_providers("cuda"), "backend": import_cupy}[mark.args[0]]
        try:
            find()
        except CompileError as fault:
            pytest.skip(str(fault))


def _share_bytecode(config: pytest.Config) -> None:
    """Share a folder for bytecode among the processes of the tests.
    Python may be told to write no bytecode; then each process would compile the whole project. The folder exists as long as
    the tests run.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) is not None:
        folder = tempfile.TemporaryDirectory(prefix="bytecode")
        os.environ["PYTHONPYCACHEPREFIX"] = folder.name
        config.add_cleanup(folder.cleanup)


SHIPPED = calibrate_network.BY_DEFAULT


@pytest.fixture
def repaired_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repair by the shipped default, as a user without options gets it."""
    monkeypatch.setattr(calibrate_network, "BY_DEFAULT", SHIPPED)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Return whether to write results instead of comparing them."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """End ranges where values end, for tests that judge on their calibration data."""
    monkeypatch.setattr("quant.parameters.activations._with_tails", lambda r, numerics: r)
