"""Build points in child processes, so that a build that dies, hangs or fills the memory ends alone.

`run_job` is called by the engines. A server is a process with the toolchain imported. It forks a child for each job, which
costs milliseconds, and enforces the limits. A process that runs jobs (the command, a worker of dask) has a server for each
job at a time. They end with it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from toolchain.errors import CompileError, tells_lack_of_memory
from toolchain.sweep.build_job import Result, build_job, out_of_memory_result
from toolchain.sweep.points import Job, code_digest, file_digest

# One thread a build: a sweep has a build for each core, and sums do not depend on the number of cores.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_STDERR_BYTES = 1 << 14  # the last of a dying build that are looked through for lack of memory (docs/sweeps.md)
_idle: list[_Server] = []
_lock = threading.Lock()  # of the idle servers


def run_job(job: Job) -> Result:
    """Build a point on an idle server, or a new one, and return its result; a killed server gives the status `died`.

    Raise CompileError where this toolchain or a file is not that of the job, or the system cannot fork.
    """
    require_fork()
    if code_digest() != job.code:
        raise CompileError(f"{platform.node()}: has another version of the toolchain than the command; install the same")
    for file, digest in job.files.items():
        _require_file(file, digest)
    with _lock:
        server = _idle.pop() if _idle else None
    if server is None or not server.is_alive():
        server = _Server()
    try:
        result = server.run(job)
    except (EOFError, OSError):
        return Result("died", "the process that builds was killed")
    with _lock:
        _idle.append(server)
    return result


def require_fork() -> None:
    """Raise CompileError where the system cannot fork."""
    if not hasattr(os, "fork"):
        raise CompileError(
            f"{platform.node()}: npu-sweep builds points in forked processes, which {platform.system()} does not have; "
            "run it on Linux or macOS, or build the points with npu-build"
        )


def _require_file(file: str, digest: str) -> None:
    """Raise CompileError where a file is not there or has another digest than the job says."""
    try:
        status = os.stat(file)
        is_same = _digest_at(file, status.st_size, status.st_mtime_ns) == digest
    except OSError:
        raise CompileError(f"{file}: is not there on {platform.node()}; workers need the files under the same paths") from None
    if not is_same:
        raise CompileError(f"{file}: changed since the sweep began, or is another on {platform.node()}; start it again")


@lru_cache(maxsize=4096)
def _digest_at(file: str, size_bytes: int, modified_ns: int) -> str:
    """Return the digest of a file, computed again only where its size or time of change differ."""
    return file_digest(Path(file))


class _Server:
    """The client's end of a server process, which begins with it and ends when its connection closes."""

    def __init__(self) -> None:
        self._connection, remote = Pipe()
        program = f"from toolchain.sweep.build_server import serve; serve({remote.fileno()})"
        environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program], pass_fds=[remote.fileno()], env=environment, stdin=subprocess.DEVNULL
        )
        remote.close()

    def is_alive(self) -> bool:
        """Return whether the server's process still runs."""
        return self._process.poll() is None

    def run(self, job: Job) -> Result:
        """Build a point and wait for its result. Raise EOFError or OSError where the server was killed."""
        self._connection.send(job)
        return self._connection.recv()

    def __del__(self) -> None:
        """Let the server end: its connection closes."""
        self._connection.close()
        self._process.poll()


def serve(file_number: int) -> None:
    """Build the jobs that a client sends, one after the other, until the client is gone. It is the main function of a server
    process.

    `file_number`: the file descriptor of the connection to the client.
    """
    import_module("toolchain.api")  # before the first fork

    connection = Connection(file_number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client, whose end ends this
    gc.set_threshold(50_000, 20, 100)
    gc.freeze()  # pages that children share stay untouched
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        connection.send(_run_in_child(job, connection))


def _run_in_child(job: Job, client: Connection) -> Result:
    """Build a job in a forked child within its limits, and return the result with its CPU seconds. End this process if the
    client is gone."""
    import resource  # where there is fork

    receiver, sender = Pipe(duplex=False)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile() as log:
        child = multiprocessing.get_context("fork").Process(target=_build_and_send, args=(job, sender, client, log.fileno()))
        child.start()
        sender.close()
        is_ready = wait([receiver, client], job.seconds)
        try:
            if client in is_ready:  # the client is gone: it sends nothing while it waits
                sys.exit(1)
            result = receiver.recv() if is_ready else Result("time", f"takes more than {job.seconds:g} s (limits.seconds)")
        except EOFError:
            child.join()
            result = _explain_death(job, child.exitcode or 0, log)
        finally:
            child.kill()
            child.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return replace(result, cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _explain_death(job: Job, exit_code: int, log: Any) -> Result:
    """Return the result of a child that ended without one: out of memory by its last output, else died."""
    log.seek(max(0, os.fstat(log.fileno()).st_size - _STDERR_BYTES))
    text = log.read().decode(errors="replace")
    if tells_lack_of_memory(text):
        return out_of_memory_result(job)
    how = f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
    return Result("died", f"the build was {how}" if exit_code < 0 else f"the build {how}", report=text)


def _build_and_send(job: Job, sender: Connection, client: Connection, log: int) -> None:
    """Build in a child, send the result, and end the process. Output of libraries goes to the file `log`."""
    import resource

    client.close()
    os.dup2(log, 1)
    os.dup2(log, 2)
    usual = resource.getrlimit(resource.RLIMIT_DATA)
    if job.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (job.memory_bytes, usual[1]))
    result = build_job(job)
    resource.setrlimit(resource.RLIMIT_DATA, usual)
    sender.send(result)
    sender.close()
    os._exit(0)
