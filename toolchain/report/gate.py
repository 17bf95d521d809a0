"""Define the accuracy gate: what a build must reach before it is written (`--min-cosine`, `--min-sqnr`, `--eval`).

The options make a `Gate`. At the end of a build report.accuracy asks it for shortfalls, runs the user's function, and turns
both into sentences. A build with any such sentence is not written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quant.users_python import call_user, load_function
from toolchain.errors import CompileError
from toolchain.foundation.type_guards import is_sequence
from toolchain.report.error_page import finding_text
from toolchain.report.fidelity import FidelityPart
from toolchain.report.findings import LayerError

FAR_BELOW_DB = 10.0  # docs/accuracy.md: a sample so far below the gate is told where the gate passes
Outputs = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Gate:
    """The accuracy that a build must reach. A gate without any requirement is false.

    `min_cosine`, `min_sqnr`: least cosine and least SQNR (dB) of every part, None for any.
    `evaluation`: FILE.py:FUNCTION, None without one. The function is called with three lists of one mapping {name: array} for
    each sample: float's outputs, the integers' outputs, the samples. It returns (number, whether it passes).
    Raise CompileError for a cosine beyond -1 to 1, a level that is not finite, or an evaluation that names no Python file.
    """

    min_cosine: float | None = None
    min_sqnr: float | None = None
    evaluation: str | None = None

    def __post_init__(self) -> None:
        """Raise CompileError where a field is out of its range."""
        if self.min_cosine is not None and not -1 <= self.min_cosine <= 1:
            raise CompileError(f"min-cosine {self.min_cosine:g}: must be from -1 to 1, for example 0.99")
        if self.min_sqnr is not None and not math.isfinite(self.min_sqnr):
            raise CompileError(f"min-sqnr {self.min_sqnr:g}: must be a number of decibels, for example 20")
        if self.evaluation is not None and not _file_and_function(self.evaluation)[0].endswith(".py"):
            raise CompileError(f"eval {self.evaluation}: must be FILE.py:FUNCTION")

    def __bool__(self) -> bool:
        return self != OPEN

    @property
    def options(self) -> tuple[str, ...]:
        """Return the names of the options that are given, without their dashes."""
        thresholds = {"min-cosine": self.min_cosine, "min-sqnr": self.min_sqnr, "eval": self.evaluation}
        return tuple(name for name, value in thresholds.items() if value is not None)

    @property
    def file(self) -> Path | None:
        """Return the file of the evaluation; None without one."""
        return None if self.evaluation is None else Path(_file_and_function(self.evaluation)[0])

    def shortfalls(self, parts: Mapping[str, Sequence[FidelityPart]]) -> list[tuple[str, FidelityPart]]:
        """Return (sentence, part) for each part that is below a requirement, in their order. The function of `--eval` is not
        asked here.

        A level is missed by the part over all samples, or by more than half of its samples: loud samples decide the former.

        `parts`: parts by the word for their kind, which begins the sentence.
        """
        missed_parts = list[tuple[str, FidelityPart]]()
        for kind, of_kind in parts.items():
            for part in of_kind:
                missed = list[str]()
                if self.min_sqnr is not None and part.judged_db < self.min_sqnr:
                    varying = "" if part.sqnr_db < self.min_sqnr else f", of what varies {part.judged_db:.1f}"
                    missed.append(f"SQNR {part.sqnr_db:.1f} dB{varying}, --min-sqnr asks for {self.min_sqnr:g}")
                elif self.min_sqnr is not None and 2 * len(low := self._list_low_samples(part)) > len(part.sample_levels):
                    missed.append(
                        f"SQNR {part.sqnr_db:.1f} dB, but {_describe_low(part, low)}; --min-sqnr asks for {self.min_sqnr:g}"
                    )
                if self.min_cosine is not None and part.cosine < self.min_cosine:
                    missed.append(f"cosine {part.cosine:.6f}, --min-cosine asks for {self.min_cosine:g}")
                if missed:
                    missed_parts.append((f"{kind} {part.name}: {'; '.join(missed)}", part))
        return missed_parts

    def list_low_parts(self, parts: Mapping[str, Sequence[FidelityPart]]) -> list[str]:
        """Return a sentence for each part that reaches the least SQNR while some samples are FAR_BELOW_DB below it.

        Those of which more than half of the samples are below it are shortfalls, and not among these.

        `parts`: as in `shortfalls`.
        """
        sentences = list[str]()
        for kind, part in ((kind, part) for kind, of_kind in parts.items() for part in of_kind):
            if self.min_sqnr is None or part.judged_db < self.min_sqnr:
                continue
            low = self._list_low_samples(part)
            if 2 * len(low) <= len(part.sample_levels) and any(part.sample_levels[i] < self.min_sqnr - FAR_BELOW_DB for i in low):
                sentences.append(f"{kind} {part.name} passes --min-sqnr {self.min_sqnr:g}, but {_describe_low(part, low)}")
        return sentences

    def _list_low_samples(self, part: FidelityPart) -> list[int]:
        """Return the indices of the samples that are below the least SQNR; none where nothing is asked for."""
        least = -math.inf if self.min_sqnr is None else self.min_sqnr
        return [i for i, db in enumerate(part.sample_levels) if db < least]


def _describe_low(part: FidelityPart, low: Sequence[int]) -> str:
    """Return how many samples of a part are low, and the worst of them, as a clause.

    `low`: their indices, at least one.
    """
    worst_db = min(part.sample_levels[i] for i in low)
    return f"{len(low)} of {len(part.sample_levels)} samples are lower, the worst at {worst_db:.1f} dB"


OPEN = Gate()


@dataclass(frozen=True)
class Score:
    """The answer of the user's function.

    `function`: FILE.py:FUNCTION, as it was given.
    `value`: its number; `passed`: whether that is enough.
    """

    function: str
    value: float
    passed: bool


def _file_and_function(spec: str) -> tuple[str, str]:
    """Return the file and the function of FILE.py:FUNCTION."""
    file, _, function = spec.rpartition(":")
    return file, function


@dataclass(frozen=True)
class Evaluation:
    """A user's function that is loaded, so that a missing one is known before the build. spec: FILE.py:FUNCTION, as it was
    given."""

    spec: str
    function: Callable[..., Any]


def load_evaluation(gate: Gate) -> Evaluation | None:
    """Load the user's function of `--eval` and return it; None without one. The user's file is run.

    Raise CompileError where the file or the function does not exist, or the file cannot be run.
    """
    if gate.evaluation is None:
        return None
    file, name = _file_and_function(gate.evaluation)
    return Evaluation(gate.evaluation, load_function(Path(file), name))


def run_evaluation(evaluation: Evaluation, float_outputs: Outputs, integer_outputs: Outputs, samples: Outputs) -> Score:
    """Return the score that the user's function gives to the outputs of float and of the integer network on the samples.

    Raise CompileError where the function raises, or returns something else than (number, bool).
    """
    spec, way_out = evaluation.spec, "mend the function"
    file, outputs = Path(_file_and_function(spec)[0]), map(list, (float_outputs, integer_outputs, samples))
    answer = call_user(file, spec, way_out, evaluation.function, *outputs)
    return call_user(file, spec, way_out, _score, spec, answer)


def _is_bool(value: object) -> bool:
    """Return whether a value is a bool of Python or of numpy."""
    return isinstance(value, bool | np.bool_)


def _score(spec: str, answer: Any) -> Score:
    """Return the answer as a score. Raise CompileError where it is not (number, bool)."""
    if not is_sequence(answer) or len(answer) != 2 or not _is_bool(answer[1]):
        raise CompileError(f"{spec}: gave {answer!r:.80}; it must give (number, True or False)")
    try:
        return Score(spec, float(answer[0]), bool(answer[1]))
    except (TypeError, ValueError):
        raise CompileError(f"{spec}: gave {answer[0]!r:.80} for a number; it must give (number, True or False)") from None


def failures(shortfalls: Sequence[tuple[str, LayerError | None]], score: Score | None, worst: LayerError | None) -> list[str]:
    """Return a sentence for each part that falls short and for a score that did not pass. The layer to blame stands in a line
    below.

    `shortfalls`: sentences, each with the layer to blame or None.
    `score`: answer of the user's function, None without one; `worst`: the layer to blame for it.
    """
    sentences = [f"{sentence}{_format_blame(finding)}" for sentence, finding in shortfalls]
    if score is not None and not score.passed:
        sentences.append(f"--eval {score.function}: {score.value:g} did not pass{_format_blame(worst)}")
    return sentences


def _format_blame(finding: LayerError | None) -> str:
    return "" if finding is None else f"\n  {finding_text(finding)}"
