"""Progress of long work on stderr, where it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def make_progress_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A function (stage, done, total) that moves a bar; says nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("load", total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)
