"""Show the progress of long work on stderr: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from toolchain.cli.application import say


class Progress(Protocol):
    """A function that shows a stage, how much of it is done, of how much, and the seconds left; None where one is not known."""

    def __call__(self, stage: str, done: int, total: int | None, left_s: float | None = None, /) -> None:
        """Show the progress."""
        ...


@contextmanager
def make_progress_bar(interval_s: float = 10.0) -> Generator[Progress]:
    """Yield a function (stage, done, total, left_s) that shows the progress while the block runs.

    `interval_s`: seconds between lines where stderr is no terminal, as in a log.
    """
    if not sys.stderr.isatty():
        with _log_progress(interval_s) as write_line:
            yield write_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("load", total=None)

        def update(stage: str, done: int, total: int | None, left_s: float | None = None) -> None:
            bar.update(task, description=_describe(stage, done, total, left_s), completed=done, total=total)

        yield update


@contextmanager
def _log_progress(interval_s: float) -> Generator[Progress]:
    """Yield a function that takes the progress; a thread writes it at each interval, since one step may take longer than
    that."""
    latest: list[tuple[str, int, int | None, float | None, float]] = [("load", 0, None, None, time.monotonic())]
    began_s, ended = time.monotonic(), threading.Event()

    def update(stage: str, done: int, total: int | None, left_s: float | None = None) -> None:
        latest[0] = stage, done, total, left_s, time.monotonic()

    def write_lines() -> None:
        while not ended.wait(interval_s):
            try:
                stage, done, total, left_s, shown_s = latest[0]
                now_s = time.monotonic()
                left_s = None if left_s is None or left_s <= now_s - shown_s else left_s - (now_s - shown_s)
                say(format_progress(stage, done, total, now_s - began_s, left_s), is_fault=True)
            except (OSError, ValueError):  # nobody reads stderr; the result does not need it
                return

    writer = threading.Thread(target=write_lines, daemon=True)
    writer.start()
    try:
        yield update
    finally:
        ended.set()
        writer.join()


def format_progress(stage: str, done: int, total: int | None, elapsed_s: float, left_s: float | None = None) -> str:
    """Return the line of a log: the time since the beginning, the stage, how much of it is done, and the time left."""
    return f"progress: {elapsed_s:.0f} s, {_describe(stage, done, total, left_s)}"


def _describe(stage: str, done: int, total: int | None, left_s: float | None) -> str:
    """Return the stage with how much of it is done and the time left, each where it is known. Stages of planning count
    layers."""
    of_total = "" if total is None else f", layer {done} of {total}" if stage.startswith("plan ") else f", {done} of {total} done"
    return f"{stage}{of_total}" + ("" if left_s is None else f", about {left_s:.0f} s left")
