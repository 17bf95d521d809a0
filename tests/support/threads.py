"""Sessions that several threads use at once: each run must give what it gives alone."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from toolchain.api import Build
from toolchain.runtime import Session, random_feeds

Outputs = Sequence[np.ndarray]
INTERVAL_S = 1e-5  # at Python's own, 5 ms, most runs of a small program end before another thread's turn


def run_in_threads(task: Callable[[int], object], threads: int = 8) -> None:
    """Call `work` with the number of each thread, all at once; raises what the first of them raised."""
    faults: list[BaseException] = []
    begin = threading.Barrier(threads)

    def guarded(number: int) -> None:
        try:
            begin.wait()
            task(number)
        except BaseException as fault:  # a thread that ends is a test that passes
            faults.append(fault)

    with switch_interval(INTERVAL_S):
        started = [threading.Thread(target=guarded, args=(number,)) for number in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    if faults:
        raise faults[0]


@contextmanager
def switch_interval(seconds: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def count_wrong_runs(run: Callable[[Any], Outputs], inputs: Sequence[Any], runs: int, threads: int = 8) -> int:
    """Return how many of `runs` runs in each thread differ from what the same input gave alone."""
    expected = [run(feeds) for feeds in inputs]
    wrong: list[int] = []

    def run_task(number: int) -> None:
        for turn in range(runs):
            place = (number + turn) % len(inputs)
            if not all(map(equal, run(inputs[place]), expected[place])):
                wrong.append(place)

    run_in_threads(run_task, threads)
    return len(wrong)


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def require_runs_in_turn(run: Callable[[int], Outputs], reset: Callable[[], None], runs: int, threads: int = 8) -> None:
    """Require that concurrent runs which share states give the outputs of as many runs in a row, each once.

    `run`: gets the number of its turn in its thread.
    """
    reset()
    expected = Counter(_as_bytes(run(turn % runs)) for turn in range(threads * runs))
    reset()
    output_bytes: list[bytes] = []
    run_in_threads(lambda _: [output_bytes.append(_as_bytes(run(turn))) for turn in range(runs)], threads)
    assert Counter(output_bytes) == expected


def _as_bytes(outputs: Outputs) -> bytes:
    return b"".join(value.tobytes() for value in outputs)


def require_concurrent(built: Build) -> None:
    """Two threads and few runs: cheap enough for networks that are drawn."""
    for backend in ("simulator", "reference"):
        _require_concurrent(Session(built.data, backend=backend))


def _require_concurrent(session: Session) -> None:
    inputs = [random_feeds(session.get_inputs(), seed) for seed in range(2)]
    names = [*(t.name for t in session.get_outputs()), *(state.output for _, state in session.container.states)]
    if session.get_states():
        require_runs_in_turn(lambda _: session.run(names, inputs[0]), session.reset, 3, threads=2)
    else:
        assert not count_wrong_runs(lambda feeds: session.run(names, feeds), inputs, 3, threads=2)
