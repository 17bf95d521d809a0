"""Backends of other packages, announced by a real entry point: run, compared, and told of by name where they fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import toy_backend
from commands import run

from toolchain.codegen import Region, read_container
from toolchain.errors import CompileError
from toolchain.runtime import Session, random_feeds, verify
from toolchain.runtime.backend import Execution

PACKAGES = {
    "toys": {"toy": "TOY", "wrong": "WRONG", "broken": "BROKEN", "untimed": "UNTIMED", "short": "SHORT", "one-time": "ONE_TIME"},
    "odd": {"backwards": "BACKWARDS", "wide": "WIDE", "nothing": "NOTHING"},
    "others": {"empty": "EMPTY", "gone": "GONE", "twice": "TOY"},
    "more": {"twice": "WRONG"},
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install what `pip install` would leave: a folder with METADATA and entry_points.txt for each package."""
    for package, points in PACKAGES.items():
        folder = tmp_path / "site" / f"{package}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(f"{name} = toy_backend:{attribute}\n" for name, attribute in points.items())
        (folder / "entry_points.txt").write_text(f"[npu_toolchain.backends]\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield


@pytest.mark.parametrize("model", ["good.npu", "island.npu"])
def test_a_backend_of_another_package(model: str, installed: None, in_workshop: Path) -> None:
    simulator, toy = Session(model, timing=True), Session(model, backend="toy", timing=True)
    feeds = random_feeds(simulator.get_inputs(), seed=2)
    ours, theirs = simulator.run_detailed(feeds), toy.run_detailed(feeds)
    assert all(np.array_equal(ours.outputs[n], v) for n, v in theirs.outputs.items())
    assert all(np.array_equal(ours.codes[n], v) for n, v in theirs.codes.items())
    for a, b in zip(ours.segments, theirs.segments, strict=True):
        assert (a.where == "npu (simulator)") == (b.where == "npu (toy)")
        if a.simulation and b.simulation:
            assert np.array_equal(a.simulation.start, b.simulation.start)
            same = ("cycles", "macs", "dram_read_bytes", "sram_peak_bytes", "busy_cycles", "engines")
            assert all(getattr(a.simulation, n) == getattr(b.simulation, n) for n in same)
    assert verify(toy, Session(model, backend="reference"), feeds)[1] is None


def test_an_object_is_a_backend_too(in_workshop: Path) -> None:
    session = Session("good.npu", backend=toy_backend.TOY)
    assert session.run_detailed(random_feeds(session.get_inputs())).segments[0].where == "npu (Toy)"
    with pytest.raises(CompileError, match=r"^backend int: has no load; docs/backends\.md says what it must have$"):
        Session("good.npu", backend=7)  # type: ignore[arg-type]


def test_the_command_reports_measured_times(installed: None, in_workshop: Path, tmp_path: Path) -> None:
    report_by_backend = {}
    for backend in ("simulator", "toy"):
        line = (
            f"--input good.npz --backend {backend} --json {tmp_path}/{backend}.json --trace {tmp_path}/{backend}.trace --verify"
        )
        printed = run(f"npu-sim good.npu {line}")
        assert (printed.code, printed.err) == (0, "")
        report_by_backend[backend] = json.loads((tmp_path / f"{backend}.json").read_text()) | {"segments": None}
        assert f"on npu ({backend})" in printed.out
        assert ("% of cycles, by cause" in printed.out) == (backend == "simulator")
    for part in (report_by_backend["simulator"], *report_by_backend["simulator"]["layers"]):
        assert part.pop("attribution")
    for part in (report_by_backend["toy"], *report_by_backend["toy"]["layers"]):
        assert part.pop("attribution") is None
    assert report_by_backend["toy"] == report_by_backend["simulator"]


def test_a_backend_without_times(installed: None, in_workshop: Path, tmp_path: Path) -> None:
    for backend in ("untimed", "reference"):
        printed = run(f"npu-sim good.npu --input good.npz --backend {backend} --output {tmp_path}/{backend}.npz")
        assert printed.code == 0
        assert printed.out.startswith("good on edge16: no cycles, the backend gives no times\n")
        refused = run(f"npu-sim good.npu --backend {backend} --trace {tmp_path}/t.json --output {tmp_path}/none.npz")
        reason = f"--trace {tmp_path}/t.json: backend {backend} gives no times; the simulator does\n"
        assert (refused.code, refused.out, refused.err) == (2, "", reason)
    assert {p.name for p in tmp_path.iterdir()} - {"site"} == {"untimed.npz", "reference.npz"}
    assert (tmp_path / "untimed.npz").read_bytes() == (tmp_path / "reference.npz").read_bytes()


def test_a_backend_that_is_wrong_is_found_out(installed: None, in_workshop: Path) -> None:
    printed = run("npu-sim good.npu --input good.npz --backend wrong --verify")
    assert printed.code == 1
    assert printed.err.startswith("DIFFERS: output 'y' differs from the integer reference in ")
    assert printed.err.endswith("but backend wrong does not tell what its operations write; npu-sim --dump-memory does\n")


MUST = "docs/backends.md says what it must"


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("nobody", "--backend nobody: must be one of backwards, broken, cuda, empty, gone, nothing, one-time, reference, short, "
                   "simulator, toy, twice, untimed, wide, wrong; a package adds one by an entry point of npu_toolchain.backends"),
        ("broken", "backend broken: TimeoutError: the board does not answer"),
        ("short", f"backend short: gives {{less}} bytes of dram, the program has {{dram}}; {MUST} give"),
        ("one-time", f"backend one-time: gives times that are not int64[{{ops}}], one for each operation; {MUST} give"),
        ("backwards", f"backend backwards: gives an operation that ends before it starts, or starts before cycle 0; {MUST} give"),
        ("wide", f"backend wide: gives memory sram that is no uint8 array of one dimension; {MUST} give"),
        ("nothing", f"backend nothing: gives ndarray, not an Execution; {MUST} give"),
        ("empty", f"--backend empty: has no load; {MUST} have"),
        ("gone", "--backend gone: others cannot be loaded: AttributeError: module 'toy_backend' has no attribute 'GONE'"),
        ("twice", "--backend twice: more and others both have one of this name; uninstall one of them"),
    ],
)  # fmt: skip
def test_refused(backend: str, reason: str, installed: None, in_workshop: Path, tmp_path: Path) -> None:
    region = read_container("good.npu").segments[0]
    assert isinstance(region, Region)
    printed = run(f"npu-sim good.npu --input good.npz --backend {backend} --output {tmp_path}/y.npz")
    message = reason.format(less=region.dram_bytes - 1, dram=region.dram_bytes, ops=len(region.op_layers))
    assert (printed.code, printed.out, printed.err) == (2, "", f"{message}\n")
    assert not (tmp_path / "y.npz").exists()


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (lambda dram: Execution(cast(Any, [dram])), "gives memories as list, not by name"),
        (lambda dram: Execution({"dram": dram}, cast(Any, [0]), cast(Any, [1])), "gives times that are no arrays"),
    ],
)
def test_results_of_another_form_are_refused(result: Callable[[np.ndarray], Execution], reason: str, in_workshop: Path) -> None:
    class Odd(toy_backend.Toy):
        def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
            return result(dram)

    session = Session("good.npu", backend=Odd())
    with pytest.raises(CompileError, match=rf"^backend Odd: {reason}; docs/backends\.md says what it must give$"):
        session.run_detailed(random_feeds(session.get_inputs()))
