#!/usr/bin/env python3
"""Send sleeping tasks through npu-sweep's engine, and print the rate and the most memory of the scheduler.

    `python bench/bench_sweep.py [TASKS] [--workers N] [--threads N] [--sleep SECONDS]`.

Starts a dask scheduler and its workers as processes of this machine, without nannies and dashboards.
Many threads a worker hide the sleeps, so that what is seen is the rate of the scheduler and the engine.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from toolchain.sweep.build_job import Result
from toolchain.sweep.engines import run_on_cluster
from toolchain.sweep.points import Job


def sleep(seconds: float, job: Job) -> Result:
    """Return an empty result of a job after so many seconds."""
    time.sleep(seconds)
    return Result("built", metrics={"cycles": len(job.key)})


@contextmanager
def process(*command: str) -> Iterator[int]:
    """Run a Python module as a process for the time of a context, whose value is its process id."""
    null = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, "-m", *command], stdout=null, stderr=null) as child:
        try:
            yield child.pid
        finally:
            child.kill()


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has had resident so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    """Start the cluster, run the tasks and print rate and memory after each tenth of them."""
    parser = argparse.ArgumentParser(description="Rate of npu-sweep's engine on dask, and memory of the scheduler.")
    parser.add_argument("tasks", type=int, nargs="?", default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="Tasks at a time of a worker.")
    parser.add_argument("--sleep", type=float, default=1e-3, help="Seconds of a task.")
    args = parser.parse_args()
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"
    host, port = address.split(":")
    with ExitStack() as stack:
        scheduler = stack.enter_context(
            process("distributed.cli.dask_scheduler", "--host", host, "--port", port, "--no-dashboard")
        )
        for _ in range(args.workers):
            options = ("--nthreads", str(args.threads), "--no-nanny", "--no-dashboard")
            stack.enter_context(process("distributed.cli.dask_worker", f"tcp://{address}", *options))
        engine = run_on_cluster(f"tcp://{address}", partial(sleep, args.sleep))
        start = time.monotonic()
        jobs = (Job(f"{index:064}", "", "", {}, {}, {}, {}) for index in range(args.tasks))
        for done, _ in enumerate(engine(jobs), 1):
            if done % max(1, args.tasks // 10) == 0:
                rate = done / (time.monotonic() - start)
                print(f"{done:,} tasks: {rate:,.0f} a second, scheduler {peak_bytes(scheduler) / 2**20:,.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
