"""Show the progress of long work on stderr: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toolchain.cli.application import say

Progress = Callable[[str, int, int | None], None]


@contextmanager
def make_progress_bar(interval_s: float = 10.0) -> Iterator[Progress]:
    """Yield a function (stage, done, total) that shows the progress.

    `interval_s`: seconds between lines where stderr is no terminal, as in a log.
    """
    if not sys.stderr.isatty():
        with _log_progress(interval_s) as update:
            yield update
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("load", total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)


@contextmanager
def _log_progress(interval_s: float) -> Iterator[Progress]:
    """Write a line at each interval, by a thread, since one step may take longer than that."""
    latest: list[tuple[str, int, int | None]] = [("load", 0, None)]
    began_s, ended = time.monotonic(), threading.Event()

    def update(stage: str, done: int, total: int | None) -> None:
        latest[0] = stage, done, total

    def write_lines() -> None:
        while not ended.wait(interval_s):
            try:
                say(format_progress(*latest[0], time.monotonic() - began_s), is_fault=True)
            except (OSError, ValueError):  # nobody reads stderr; the result does not need it
                return

    writer = threading.Thread(target=write_lines, daemon=True)
    writer.start()
    try:
        yield update
    finally:
        ended.set()
        writer.join()


def format_progress(stage: str, done: int, total: int | None, elapsed_s: float) -> str:
    """Return the line of a log: the time since the beginning, the stage, and how much of it is done."""
    of_total = "" if total is None else f", {done} of {total} done"
    return f"progress: {elapsed_s:.0f} s, {stage}{of_total}"
