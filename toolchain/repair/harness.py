"""The steps of a repair in their fixed order, each kept only where samples that no step saw gain by it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from quant.repair.step import Gain, Outcome, Quantization
from quant.sample import Sample
from toolchain.errors import CompileError
from toolchain.repair.equalize import equalize, free_ends
from toolchain.repair.judge import Judge, Verdict
from toolchain.repair.network import Network, Progress, Step
from toolchain.repair.observers import choose_observers
from toolchain.repair.offsets import offset_sums
from toolchain.repair.rounding import answering_weights, corrected_biases, rounded_weights

Effort = Literal["none", "fast", "full"]
SWEEPS = 16  # of codes in turn, by the full effort; few layers take more than ten until none changes
EFFORTS: tuple[Effort, ...] = ("none", "fast", "full")


@dataclass(frozen=True)
class NamedStep:
    """verdicts: about how many judgings of the held-out samples it takes as long as; efforts: those that run it; instead_of: a
    step that makes the same choices in another way: of the two the better is kept, if its gain over neither is no chance."""

    name: str
    run: Step
    verdicts: int = 10
    efforts: tuple[Effort, ...] = ("fast", "full")
    instead_of: str | None = None


OBSERVERS_STEP = NamedStep("observers", choose_observers, 10)
STEPS: tuple[NamedStep, ...] = (
    NamedStep("region ends", free_ends, 2),
    NamedStep("equalization", equalize, 6),
    OBSERVERS_STEP,
    NamedStep("offsets", offset_sums, 4),
    NamedStep("rounding", rounded_weights, 40, ("fast",)),
    NamedStep("rounding", partial(rounded_weights, sweeps=SWEEPS), 45, ("full",)),
    NamedStep("answering", answering_weights, 40, ("fast",), "rounding"),
    NamedStep("answering", partial(answering_weights, sweeps=SWEEPS), 45, ("full",), "rounding"),
    NamedStep("bias", corrected_biases, 15),
)


@dataclass(frozen=True)
class Tried:
    """One step: SQNR of the held-out samples' outputs (mean over the parts, dB) before it and with it; `why` it was kept or
    not; `gains` of the layers it chose for, on the samples it saw."""

    step: str
    before_db: float
    after_db: float | None
    kept: bool
    why: str
    gains: tuple[Gain, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        gains = [{"layer": g.layer, "before": g.before, "after": g.after} for g in self.gains]
        levels = {"before_db": round(self.before_db, 3), "after_db": None if self.after_db is None else round(self.after_db, 3)}
        return {"step": self.step, "kept": self.kept, "why": self.why, **levels, "notes": list(self.notes), "layers": gains}


@dataclass(frozen=True)
class Repaired:
    """network: gone through what `quantization` changes in it."""

    network: Network
    quantization: Quantization
    tried: tuple[Tried, ...]
    held_out: int


def repaired(
    network: Network,
    quantization: Quantization,
    seen: Iterable[Sample],
    held_out: Sequence[Sample] | Iterable[Sample],
    steps: Sequence[NamedStep],
    progress: Progress,
) -> Repaired:
    """quantization: plain, of ranges that `held_out` had no part in. Same samples, same result."""
    base, judge, tried, without = network, Judge(held_out), list[Tried](), dict[str, Verdict]()
    clock = _Clock(steps, progress)
    best = judge.verdict(network, quantization)
    clock.start()
    for at, step in enumerate(steps):
        outcome, found, reason = _attempt(base, network, quantization, step, seen, judge, clock.within(at))
        objection = reason if found is None else _objection(found, best, without.get(step.instead_of or ""))
        after = None if found is None else found.decibels
        notes, gains = ((), ()) if outcome is None else (outcome.notes, outcome.gains)
        kept = objection is None and outcome is not None and found is not None
        why = objection or f"the outputs gain {(after or 0.0) - best.decibels:.2f} dB"
        tried.append(Tried(step.name, best.decibels, after, kept, why, gains if kept else (), notes))
        if outcome is not None and found is not None and kept:
            without[step.name] = best
            quantization, best = outcome.quantization, found
            network = base.through(quantization)
    return Repaired(network, quantization, tuple(tried), sum(1 for _ in held_out))


def _objection(found: Verdict, best: Verdict, without: Verdict | None) -> str | None:
    """without: before the step that this one stands in the place of, where that was kept."""
    if without is None:
        return found.objection(best)
    return found.objection(best, tested=False) or found.objection(without)


class _Clock:
    """Tells a progress which step runs and about how long all that is left takes: by the first verdict before anything has run,
    then by what the steps took."""

    def __init__(self, steps: Sequence[NamedStep], progress: Progress) -> None:
        self._steps, self._progress = steps, progress
        self._began = time.monotonic()
        self._verdict_s = 0.0

    def start(self) -> None:
        self._verdict_s, self._began = time.monotonic() - self._began, time.monotonic()
        left_s = self._verdict_s * sum(s.verdicts for s in self._steps)
        self._progress(f"repair: {len(self._steps)} steps, about {left_s:.0f} s", 0, None)

    def within(self, at: int) -> Progress:
        done, left = (sum(s.verdicts for s in part) for part in (self._steps[:at], self._steps[at:]))
        taken_s = time.monotonic() - self._began
        each_s = taken_s / done if taken_s > self._verdict_s else self._verdict_s  # steps with nothing to do tell nothing
        label = f"repair {at + 1} of {len(self._steps)}, {self._steps[at].name}, about {each_s * left:.0f} s left"
        self._progress(label, 0, None)
        return lambda stage, count, total: self._progress(f"{label}: {stage}", count, total)


def _attempt(
    base: Network,
    network: Network,
    before: Quantization,
    step: NamedStep,
    seen: Iterable[Sample],
    judge: Judge,
    progress: Progress,
) -> tuple[Outcome | None, Verdict | None, str | None]:
    """What a step gives, how it is judged, and why it cannot be where the machine refuses it."""
    try:
        outcome = step.run(network, before, seen, progress)
        if outcome.quantization is before:
            return outcome, None, "it finds nothing to change"
        progress(f"judge {step.name}", 0, None)
        return outcome, judge.verdict(base.through(outcome.quantization), outcome.quantization), None
    except CompileError as fault:
        return None, None, f"the machine cannot express it: {fault}"
