"""Options of the whole suite."""

from __future__ import annotations

import gc
import inspect
import os
import tempfile
from pathlib import Path

import pytest

from tests.support.durations import DurationRecorder
from tests.support.tiers import (
    choose_fast,
    deselect,
    find_touched_tests,
    list_changed_files,
    may_be_fast,
    may_have_fast_tests,
)
from toolchain.cli import collect_seldom
from toolchain.errors import CompileError

SHIPPED = pytest.StashKey[str]()  # the repair of a build whose options name none


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
    if not _is_only_fast(config) or collection_path.is_dir():
        return None
    return True if collection_path.name.startswith("test_") and not may_have_fast_tests(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> list[pytest.Item] | None:
    """Make no tests of a function that has none in the fast tier, where only that runs: parametrizing them takes seconds."""
    if not _is_only_fast(collector.config) or not name.startswith("test") or not inspect.isroutine(obj):
        return None
    return None if may_be_fast(f"{collector.nodeid}::{name}") else []


def _is_only_fast(config: pytest.Config) -> bool:
    """Return whether the fast tier alone was asked for."""
    return bool(config.getoption("--fast")) and config.getoption("--changed") is None


def pytest_collection_finish() -> None:
    """Keep modules and tests from the garbage collector, which else goes through all of them again and again."""
    gc.freeze()


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
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        _prepare_compiler(config)  # where this process runs tests
    durations_file = config.getoption("--record-durations")
    if durations_file is not None or config.getoption("--fast"):
        config.pluginmanager.register(DurationRecorder(durations_file))
    if not hasattr(config, "workerinput"):
        _share_bytecode(config)


def _prepare_compiler(config: pytest.Config) -> None:
    """Import the compiler, verify what its passes give, and repair nothing by default, which tests of repair ask for."""
    from tests.support import verified_passes
    from toolchain.repair import calibrate_network

    collect_seldom()
    verified_passes.install()
    config.stash[SHIPPED] = calibrate_network.BY_DEFAULT
    calibrate_network.BY_DEFAULT = "none"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a GPU where there is none, with the sentence that a user would read."""
    from toolchain.foundation.inference import host_providers
    from toolchain.runtime.cuda_reference import import_cupy

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


@pytest.fixture
def repaired_by_default(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repair by the shipped default, as a user without options gets it."""
    monkeypatch.setattr("toolchain.repair.calibrate_network.BY_DEFAULT", request.config.stash[SHIPPED])


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Return whether to write results instead of comparing them."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """End ranges where values end, for tests that judge on their calibration data."""
    monkeypatch.setattr("quant.parameters.activations._with_tails", lambda r, numerics: r)
