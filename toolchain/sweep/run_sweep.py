"""Run a sweep: the full grid, or a search, over a store that holds the results of earlier builds.

Builds that the store lacks go to an engine (toolchain.sweep.engines). Each result is stored as soon as it is there, so an
interrupted sweep goes on where it ended.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolchain.sweep.build_job import Result
from toolchain.sweep.engines import Engine
from toolchain.sweep.extra import import_extra
from toolchain.sweep.metrics import Objective
from toolchain.sweep.points import Job, JobMaker, Point, count_grid, list_grid
from toolchain.sweep.store import Store
from toolchain.sweep.sweep_file import Sweep

Evaluate = Callable[[Sequence[Point]], Sequence[Sequence[float] | None]]  # of each point the objectives, None: it has none
Progress = Callable[[str, int, int | None], None]  # stage, done, total


@dataclass(frozen=True, slots=True)
class Row:
    """A point with the key of its build and the result. The report of a build is in the store; here it may be empty."""

    point: Point
    key: str
    result: Result

    def objectives(self, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
        """Return the values of the objectives, all to be minimized; None where the build lacks one, as a failed one does."""
        values = [objective.of(self.result.metrics) for objective in objectives]
        return None if None in values else tuple(value for value in values if value is not None)


@dataclass(frozen=True)
class SweepRun:
    """All rows of a sweep in the order of its file, or of a search.

    `new`: how many builds were not in the store; `new_cpu_seconds`: CPU seconds of these.
    """

    rows: Sequence[Row]
    new: int
    new_cpu_seconds: float

    def front(self, network: str, objectives: Sequence[Objective]) -> list[Row]:
        """Return the rows of a network's Pareto front in the order of `rows`; builds that lack an objective are left out."""
        pairs = [(row, values) for row in self.rows if row.point.network == network and (values := row.objectives(objectives))]
        return [pairs[index][0] for index in find_front([values for _, values in pairs])]


@dataclass
class Evaluator:
    """An evaluator of points: it takes results from the store, and has an engine build those that are missing.

    `progress`: called with the stage ("build"), the number of points done and `total`, the number of all.
    `done`, `new`, `new_cpu_seconds`: points evaluated, builds the store lacked and their CPU seconds; they grow with each call.
    """

    sweep: Sweep
    store: Store
    engine: Engine
    progress: Progress
    total: int
    done: int = 0
    new: int = 0
    new_cpu_seconds: float = 0.0
    _jobs: JobMaker = field(init=False)

    def __post_init__(self) -> None:
        self._jobs = JobMaker(self.sweep)

    def evaluate(self, points: Iterable[Point]) -> list[Row]:
        """Return a row for each point, in their order. Equal builds run once.

        A failed build is a row with its reason. Raise CompileError where a file cannot be read or the engine cannot go on.
        """
        keyed: list[tuple[Point, str]] = []
        results: dict[str, Result] = {}
        missing: dict[str, Point] = {}
        for point in points:
            job = self._jobs.make(point)
            keyed.append((point, job.key))
            if job.key in results or job.key in missing:
                continue
            stored = self.store.find(job)
            if stored is None:
                missing[job.key] = point
            else:
                results[job.key] = stored
        self._advance(len(keyed) - len(missing))
        for job, result in self._build(missing):
            results[job.key] = Result(result.status, result.reason, result.metrics, "", result.cpu_seconds)
            self._advance(1)
        return [Row(point, key, results[key]) for point, key in keyed]

    def _build(self, missing: dict[str, Point]) -> Iterable[tuple[Job, Result]]:
        """Build points, store each result when it is there, and yield it; the order is the engine's."""
        for job, result in self.engine(self._jobs.make(point) for point in missing.values()):
            self.store.add(job, result)
            self.new, self.new_cpu_seconds = self.new + 1, self.new_cpu_seconds + result.cpu_seconds
            yield job, result

    def _advance(self, count: int) -> None:
        """Count evaluated points and report the progress."""
        self.done += count
        self.progress("build", self.done, self.total)


def run_grid(sweep: Sweep, store: Store, engine: Engine, progress: Progress) -> SweepRun:
    """Build every point of the grid that the store lacks, and return the rows of all.

    Raise CompileError where a file cannot be read or the engine cannot go on.
    """
    evaluator = Evaluator(sweep, store, engine, progress, count_grid(sweep))
    rows = evaluator.evaluate(list_grid(sweep))
    return SweepRun(rows, evaluator.new, evaluator.new_cpu_seconds)


def run_search(
    sweep: Sweep,
    store: Store,
    engine: Engine,
    progress: Progress,
    objectives: Sequence[Objective],
    *,
    trials: int,
    batch: int,
    seed: int,
) -> SweepRun:
    """Search each network by itself with optuna and return the rows. A point that is drawn again is one row.

    `objectives`: to be minimized together.
    `trials`: points to evaluate for each network; `batch`: how many at a time, at least 1; `seed`: of the drawing.
    Raise CompileError where optuna is missing, a file cannot be read or the engine cannot go on.
    """
    evaluator = Evaluator(sweep, store, engine, progress, trials * len(sweep.networks))
    rows: dict[str, Row] = {}

    def evaluate(points: Sequence[Point]) -> list[tuple[float, ...] | None]:
        batch_rows = evaluator.evaluate(points)
        rows.update((repr(row.point), row) for row in batch_rows)
        return [row.objectives(objectives) for row in batch_rows]

    for network in sweep.networks:
        search_network(sweep, network, objectives, evaluate, trials=trials, batch=batch, seed=seed)
    return SweepRun(list(rows.values()), evaluator.new, evaluator.new_cpu_seconds)


def search_network(
    sweep: Sweep, network: str, objectives: Sequence[Objective], evaluate: Evaluate, *, trials: int, batch: int, seed: int
) -> None:
    """Draw `trials` points of a network, in batches, and have them evaluated; later batches follow the results of earlier ones.

    The batch size, at least 1, is fixed, so the same seed gives the same points on any number of workers.

    `evaluate`: returns the objectives of each point, None for a point that lacks one; such a trial counts as failed.
    Raise CompileError where optuna is missing.
    """
    optuna = import_extra("optuna", "--trials")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(batch, 10), group=True, multivariate=True)
    study = optuna.create_study(directions=["minimize"] * len(objectives), sampler=sampler)
    remaining = trials
    while remaining > 0:
        trials_of_batch = [study.ask() for _ in range(min(batch, remaining))]
        points = [_suggest_point(trial, sweep, network) for trial in trials_of_batch]
        for trial, values in zip(trials_of_batch, evaluate(points)):
            if values is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, list(values))
        remaining -= len(trials_of_batch)


def _suggest_point(trial: Any, sweep: Sweep, network: str) -> Point:
    """Return the point that a trial of optuna draws for a network."""
    names = list(sweep.machines)
    index = int(trial.suggest_categorical("machine", range(len(names)))) if len(names) > 1 else 0
    machine = names[index]
    keys = [(key, _suggest(trial, f"{machine}: {key}", values)) for key, values in sweep.machines[machine].keys.items()]
    options = [(name, _suggest(trial, name, values)) for name, values in sweep.axes.items()]
    return Point(network, machine, tuple(keys), tuple(options))


def _suggest(trial: Any, name: str, values: Sequence[Any]) -> Any:
    """Return one of the values, as the trial draws it. Numbers are drawn by their place, so that the search uses their
    order."""
    if len(values) == 1:
        return values[0]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return values[trial.suggest_int(name, 0, len(values) - 1)]
    return values[trial.suggest_categorical(name, range(len(values)))]


def find_front(values: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of the points that no other dominates, rising.

    A point dominates another where it is at most as large in every objective and smaller in one. Of equal points all stay.

    `values`: the objectives of each point, all to be minimized.
    """
    order = sorted(range(len(values)), key=lambda index: tuple(values[index]))
    front: list[Sequence[float]] = []
    indices: list[int] = []
    for index in order:  # whatever dominates a point stands in front of it
        point = values[index]
        if not any(_dominates(other, point) for other in front):
            front.append(point)
            indices.append(index)
    return sorted(indices)


def _dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether `a` is at most as large as `b` in every objective and smaller in one."""
    return all(x <= y for x, y in zip(a, b)) and any(x < y for x, y in zip(a, b))
