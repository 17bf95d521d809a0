#!/usr/bin/env python3
"""Run a sweep on a dask cluster of this machine whose processes are killed, and compare its table with an undisturbed one.

    `python bench/check_cluster.py [BUILDS] [--workers N]`.

A worker is killed when a fifth and two fifths of the builds are stored, the scheduler at three fifths. Then the same command
goes on with a new cluster. Prints the CPU seconds of the builds, of all other processes, and the time of a further run.
Exit code 1: a table differs, or a command ends otherwise than it should.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from make_conv_chain import chain

NETWORKS, ROWS = 10, (8, 16, 32)
STORED = re.compile(r"; ([\d,]+) new results? in ([\d,.]+) CPU s")
_TICK = os.sysconf("SC_CLK_TCK")


def write_sweep(folder: Path, builds: int) -> Path:
    """Write small chains of convolutions and a sweep of at least so many builds; return its file."""
    lines = ["networks:"]
    for index in range(NETWORKS):
        onnx.save(
            chain(layers=12 + 4 * index, channels=8 + 8 * (index % 3), size=8 + index, kernel=3), folder / f"net{index}.onnx"
        )
        lines.append(f"  net{index}: {{model: net{index}.onnx}}")
    sizes = [f"{64 + 32 * index} KiB" for index in range(-(-builds // (NETWORKS * len(ROWS))))]
    keys = f"{{engines.mac.rows: {list(ROWS)}, memories.sram.size: [{', '.join(sizes)}]}}"
    lines += ["machines:", f"  edge: {{file: edge16, keys: {keys}}}", "options: {level: 1, repair: none}", ""]
    file = folder / "sweep.yaml"
    file.write_text("\n".join(lines))
    return file


def read_stat(pid: int) -> tuple[int, float]:
    """Return the parent of a process, and its CPU seconds without those of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICK


def find_children(pid: int) -> list[int]:
    """Return the process ids of a process's children."""
    children = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and read_stat(int(entry.name))[0] == pid:
                children.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return children


@dataclass
class Cluster:
    """A scheduler and its workers, each a process under a nanny.

    `cpu_seconds`: by process, what it took when it was last looked at.
    """

    port: int
    scheduler: subprocess.Popen[bytes]
    nannies: list[subprocess.Popen[bytes]]
    cpu_seconds: dict[int, float] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The scheduler's address."""
        return f"tcp://127.0.0.1:{self.port}"

    def measure(self) -> None:
        """Record the CPU seconds of scheduler, nannies, workers and build servers; builds are not among these."""
        workers = [child for nanny in self.nannies for child in find_children(nanny.pid)]
        servers = [child for worker in workers for child in find_children(worker)]
        for pid in (self.scheduler.pid, *(nanny.pid for nanny in self.nannies), *workers, *servers):
            try:
                self.cpu_seconds[pid] = read_stat(pid)[1]
            except OSError:  # it has ended
                continue

    def kill_worker(self) -> None:
        """Kill the worker of the first nanny: the child that takes the most CPU time, next to a resource tracker."""
        worker = max(find_children(self.nannies[0].pid), key=lambda pid: read_stat(pid)[1])
        print(f"  kills worker {worker}", flush=True)
        os.kill(worker, signal.SIGKILL)

    def kill_scheduler(self) -> None:
        """Kill the scheduler."""
        print(f"  kills scheduler {self.scheduler.pid}", flush=True)
        self.scheduler.kill()


@contextmanager
def start_cluster(workers: int, folder: Path) -> Iterator[Cluster]:
    """Start a scheduler and workers of one thread."""
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]

    def start(stack: ExitStack, *command: str) -> subprocess.Popen[bytes]:
        null = subprocess.DEVNULL
        child = stack.enter_context(
            subprocess.Popen([sys.executable, "-m", *command], start_new_session=True, stdout=null, stderr=null)
        )
        stack.callback(_kill_group, child.pid)
        return child

    with ExitStack() as stack:
        options = ("--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        scheduler = start(stack, "distributed.cli.dask_scheduler", *options)
        options = ("--nthreads", "1", "--no-dashboard", "--local-directory", str(folder))
        nannies = [start(stack, "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", *options) for _ in range(workers)]
        yield Cluster(port, scheduler, nannies)


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def count_stored(store: Path) -> int:
    """Return how many results a store has on the disk."""
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
            return database.execute("select count(*) from results").fetchone()[0]
    except sqlite3.Error:  # there is none yet
        return 0


def run_sweep(
    sweep: Path, out: Path, cluster: Cluster | None = None, events: list[tuple[int, Callable[[], None]]] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends. `events`: what happens when so many results are stored, in order."""
    command = [sys.executable, "-c", "from toolchain.cli import sweep; sweep()", str(sweep), "-o", str(out)]
    command += ["--store", str(out.with_suffix(".store"))]
    command += [] if cluster is None else ["--scheduler", cluster.address]
    remaining = list(events or ())
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=output, stderr=errors, text=True) as child:
            while child.poll() is None:
                time.sleep(1.0)
                if cluster is not None:
                    cluster.measure()
                if remaining and count_stored(out.with_suffix(".store")) >= remaining[0][0]:
                    remaining.pop(0)[1]()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, child.returncode, output.read(), errors.read())


def count_new(done: subprocess.CompletedProcess[str]) -> tuple[int, float]:
    """Return how many builds a command has made, and their CPU seconds. Exits where it failed."""
    match = STORED.search(done.stdout)
    if done.returncode != 0 or match is None:
        sys.exit(f"exit code {done.returncode}: {done.stdout}{done.stderr}")
    return int(match[1].replace(",", "")), float(match[2].replace(",", ""))


def children_cpu_seconds() -> float:
    """Return the CPU seconds of this process's children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_undisturbed(sweep: Path, folder: Path, workers: int) -> bytes:
    """Run the sweep on a cluster and print its overhead; return the table."""
    start = time.monotonic()
    with start_cluster(workers, folder) as cluster:
        before = children_cpu_seconds()
        builds, cpu_seconds = count_new(run_sweep(sweep, folder / "calm", cluster))
        client = children_cpu_seconds() - before
        others = client + sum(cluster.cpu_seconds.values())
    print(f"undisturbed: {builds:,} builds of {cpu_seconds / builds:.2f} CPU s, {time.monotonic() - start:,.0f} s by the clock")
    print(f"  all other processes {others:.1f} CPU s ({others / cpu_seconds:.1%}), of which the command {client:.1f}", flush=True)
    return (folder / "calm" / "results.csv").read_bytes()


def run_disturbed(sweep: Path, folder: Path, workers: int, builds: int) -> bytes:
    """Run the sweep while workers and scheduler are killed, and the same command again; return the table."""
    out = folder / "rough"
    with start_cluster(workers, folder) as cluster:
        worker, fifth = cluster.kill_worker, builds // 5
        done = run_sweep(sweep, out, cluster, [(fifth, worker), (2 * fifth, worker), (3 * fifth, cluster.kill_scheduler)])
        lost = f"--scheduler {cluster.address}: the connection is lost; what was built is stored, the same command goes on\n"
    lines = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith("progress: ")]
    if (done.returncode, lines) != (2, [lost]):
        sys.exit(f"without its scheduler the command ended with exit code {done.returncode}: {done.stderr}")
    print(f"disturbed: exit code 2 with one sentence, {count_stored(out.with_suffix('.store')):,} builds stored", flush=True)
    with start_cluster(workers, folder) as cluster:
        new, cpu_seconds = count_new(run_sweep(sweep, out, cluster))
    print(f"  the same command: {new:,} builds, {cpu_seconds:.1f} CPU s", flush=True)
    return (out / "results.csv").read_bytes()


def main() -> None:
    """Run both sweeps and compare them. A difference ends the program with exit code 1."""
    parser = argparse.ArgumentParser(description="A sweep on a dask cluster whose processes are killed.")
    parser.add_argument("builds", type=int, nargs="?", default=2000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        sweep = write_sweep(folder, args.builds)
        calm = run_undisturbed(sweep, folder, args.workers)
        rows = list(csv.DictReader(calm.decode().splitlines()))
        rough = run_disturbed(sweep, folder, args.workers, len(rows))
        start, before = time.monotonic(), children_cpu_seconds()
        new, _ = count_new(run_sweep(sweep, folder / "rough"))
        cpu = children_cpu_seconds() - before
        print(f"another run: {new} builds, {time.monotonic() - start:.1f} s by the clock, {cpu:.1f} CPU s")
    points = {(row["network"], row["engines.mac.rows"], row["memories.sram.size"]) for row in rows}
    print(f"{len(rows):,} rows of {len(points):,} points, {sum(row['status'] == 'built' for row in rows):,} built")
    if rough != calm or len(points) != len(rows) or new:
        sys.exit("FAILED: the tables differ, a point is there twice, or something was built again")
    print("both tables have the same bytes")


if __name__ == "__main__":
    main()
