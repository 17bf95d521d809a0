"""A build that hangs, dies or fills the memory is a result with its reason, and the next build runs."""

from pathlib import Path

import pytest
from tiny_sweep import TINY, write_tiny

from toolchain.errors import CompileError
from toolchain.sweep import Store, list_grid, read_sweep
from toolchain.sweep.build_job import Result
from toolchain.sweep.build_server import run_job
from toolchain.sweep.points import Job, JobMaker


def first_job(file: Path) -> Job:
    sweep = read_sweep(file)
    return JobMaker(sweep).make(next(list_grid(sweep)))


CASES = [
    ("good", "", "built", ""),
    ("hangs", "limits: {seconds: 0.5}\n", "time", "takes more than 0.5 s (limits.seconds)"),
    ("dies", "", "died", "the build was killed by SIGKILL"),
    ("exits", "", "died", "the build ended with exit code 7"),
    ("fills", "limits: {memory: 1 GiB}\n", "memory", "needs more memory than there is of 1,073,741,824 bytes (limits.memory)"),
    ("nothing", "", "refused", "{folder}/data.py: no function 'nothing' (functions: batches, good, hangs, dies, exits, fills)"),
]


@pytest.mark.parametrize(("function", "limits", "status", "reason"), CASES)
def test_what_became_of_a_build(function: str, limits: str, status: str, reason: str, tmp_path: Path) -> None:
    text = TINY.replace("model: tiny.onnx", f"model: tiny.onnx, calib: 'data.py:{function}'") + limits
    result = run_job(first_job(write_tiny(tmp_path, text)))
    assert (result.status, result.reason) == (status, reason.format(folder=tmp_path))
    assert bool(result.metrics) == (status == "built")
    assert status != "built" or (result.metrics["sqnr_db"] or 0) > 20


def test_a_file_that_changed_is_not_built(tmp_path: Path) -> None:
    job = first_job(write_tiny(tmp_path))
    write_tiny(tmp_path, weight=3.0)
    with pytest.raises(CompileError, match=r"tiny\.onnx: changed since the sweep began"):
        run_job(job)


def test_the_store_gives_results_again_as_far_as_their_limits_are_the_same(tmp_path: Path) -> None:
    file = write_tiny(tmp_path, TINY + "limits: {seconds: 5}\n")
    job, other = first_job(file), first_job(write_tiny(tmp_path, TINY + "limits: {seconds: 6}\n"))
    assert job.key == other.key
    for result, is_reused in ((Result("built", metrics={"cycles": 3}), True), (Result("time"), False), (Result("refused"), True)):
        with Store(tmp_path / "results") as store:
            store.add(job, result)
        with Store(tmp_path / "results") as store:
            assert store.find(job) == result
            assert store.find(other) == (result if is_reused else None)
    with Store(tmp_path / "results") as store:
        store.add(job, Result("died", report="why"))
        assert store.find(job) is None
        assert store.read_report(job.key[:12]) == "why"


def test_a_foreign_file_is_no_store(tmp_path: Path) -> None:
    file = write_tiny(tmp_path)
    with pytest.raises(
        CompileError, match=r"--store .*sweep\.yaml: cannot be used as a store of results: file is not a database"
    ):
        Store(file)
