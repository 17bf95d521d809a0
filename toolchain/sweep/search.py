"""Search the space of a network for points that are good in several objectives, by optuna."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from toolchain.sweep.extra import import_extra
from toolchain.sweep.metrics import Objective
from toolchain.sweep.points import Point
from toolchain.sweep.sweep_file import Sweep

Evaluate = Callable[[Sequence[Point]], Sequence[Sequence[float] | None]]  # of each point the objectives, None: it has none


def search_network(
    sweep: Sweep, network: str, objectives: Sequence[Objective], evaluate: Evaluate, *, trials: int, batch: int, seed: int
) -> None:
    """Evaluate as many points of a network as `trials` says.

    Points are asked for and told of in batches of one size, so the same seed gives the same points on any number of workers.
    Raises CompileError: optuna is missing.
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
    names = list(sweep.machines)
    machine = names[trial.suggest_categorical("machine", range(len(names)))] if len(names) > 1 else names[0]
    keys = [(key, _suggest(trial, f"{machine}: {key}", values)) for key, values in sweep.machines[machine].keys.items()]
    options = [(name, _suggest(trial, name, values)) for name, values in sweep.axes.items()]
    return Point(network, machine, tuple(keys), tuple(options))


def _suggest(trial: Any, name: str, values: Sequence[Any]) -> Any:
    """Return one of the values. Numbers have an order, which the search uses: they are suggested by their place."""
    if len(values) == 1:
        return values[0]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return values[trial.suggest_int(name, 0, len(values) - 1)]
    return values[trial.suggest_categorical(name, range(len(values)))]
