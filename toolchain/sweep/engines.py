"""Run the jobs of a sweep side by side: by joblib on this machine, or by dask.distributed on a cluster.

An engine takes jobs and yields each with its result as soon as it is there, in no fixed order. A failed build is a result too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from toolchain.errors import CompileError, first_line
from toolchain.sweep.build_job import Result
from toolchain.sweep.build_server import run_job
from toolchain.sweep.extra import import_extra
from toolchain.sweep.points import Job

WINDOW = 1000  # jobs with the scheduler at once, as measured in docs/sweeps.md; its memory does not grow with the sweep
CONNECT_SECONDS = (
    10  # within which a scheduler answers, dask's own default is 30 (https://docs.dask.org/en/stable/configuration.html)
)

Outcome = tuple[Job, Result]
Engine = Callable[[Iterable[Job]], Iterator[Outcome]]


def run_here(workers: int) -> Engine:
    """Return an engine that runs so many builds at a time on this machine, each in a process of its own.

    Raise CompileError where joblib is not installed.
    """
    joblib = import_extra("joblib", "npu-sweep")

    def run(jobs: Iterable[Job]) -> Iterator[Outcome]:
        # Threads: each waits for a process of its own that builds.
        parallel = joblib.Parallel(n_jobs=workers, backend="threading", batch_size=1, return_as="generator_unordered")
        yield from parallel(joblib.delayed(_run_with_job)(job) for job in jobs)

    return run


def run_on_cluster(address: str, task: Callable[[Job], Result] = run_job) -> Engine:
    """Return an engine on the cluster of a scheduler. At most WINDOW jobs are with the scheduler at once.

    `task`: the function that a worker calls with a job.
    Raise CompileError where dask is not installed or no scheduler answers. The engine raises it where the connection is lost or
    a worker cannot build at all.
    """
    distributed = import_extra("distributed", f"--scheduler {address}")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it logs of a lost scheduler is said in one sentence
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as fault:
        reason = f"no dask scheduler answers ({first_line(fault)}); start one: dask scheduler"
        raise CompileError(f"--scheduler {address}: {reason}") from None

    def run(jobs: Iterable[Job]) -> Iterator[Outcome]:
        remaining, jobs_by_task = iter(jobs), dict[str, Job]()

        def submit(job: Job) -> Any:
            jobs_by_task[f"build-{job.key}"] = job
            return client.submit(task, job, key=f"build-{job.key}", pure=False)

        running = distributed.as_completed(loop=client.loop, raise_errors=False)
        running.update([submit(job) for job in islice(remaining, WINDOW)])
        for future in running:
            yield jobs_by_task.pop(future.key), _result_of(future, address, distributed)
            future.release()
            running.update([submit(job) for job in islice(remaining, 1)])

    return run


def _run_with_job(job: Job) -> Outcome:
    return job, run_job(job)


def _result_of(future: Any, address: str, distributed: Any) -> Result:
    """Return the result of a task that has ended; a killed worker gives the status `died`.

    Raise CompileError where the scheduler is gone or the worker cannot build.
    """
    if future.status == "finished":
        try:
            return future.result()
        except Exception:  # it went before its result came
            raise _lost(address) from None
    if future.cancelled():
        raise _lost(address)
    fault = future.exception()
    if isinstance(fault, distributed.scheduler.KilledWorker):
        return Result("died", "every worker that built it was killed")
    if isinstance(fault, CompileError):
        raise fault
    raise CompileError(f"--scheduler {address}: a worker cannot build: {type(fault).__name__}: {first_line(fault)}")


def _lost(address: str) -> CompileError:
    """Return the error for a scheduler that is gone."""
    return CompileError(f"--scheduler {address}: the connection is lost; what was built is stored, the same command goes on")
