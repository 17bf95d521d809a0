"""Judge the parts of each output: which are POOR, and which are far from float where that may not matter, with what was seen.

The module report.accuracy calls `judge_parts` on the figures of report.fidelity, and `output_lines` for the sentences to print.
A part is far from float below POOR_SQNR_DB (in all samples or the worst one) or below POOR_COSINE. Levels are in dB of SQNR.

Constants: a slice below POOR_SQNR_DB is poor only where its rms is LOST_SIZE times smaller than the largest beside it. An index
is hidden where it is below HIDDEN_DB, HIDDEN_BELOW_DB below its output, and has HIDDEN_VALUES values. Of an axis whose indices
are all low, the worst is named only UNLIKE_DB below its output. A sample below LOST_SAMPLE_DB makes a part poor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from quant.fidelity import POOR_COSINE, POOR_SQNR_DB
from toolchain.report.fidelity import LOW_DB, SCORE_LEVELS, FidelityPart
from toolchain.report.merge_steps import and_more, group_rows

# A slice of unlike size that is POOR by its level counts as poor only from this ratio on; else it is a note.
LOST_SIZE = 32.0  # docs/accuracy.md: so many times smaller an rms has 10 dB of codes of 8 bits for 4 times the larger
HIDDEN_DB, HIDDEN_BELOW_DB = 20.0, 10.0  # docs/accuracy.md: of an index, and below the figure of its output
UNLIKE_DB = 6.0  # docs/accuracy.md: of an axis whose indices are all low, the worst is named only so far below its output
HIDDEN_VALUES = 12  # docs/accuracy.md: of an index: fewer may stand so far below by chance
LOST_SAMPLE_DB = 0.0  # docs/accuracy.md: zeros would be as near to float


@dataclass(frozen=True)
class PartVerdict:
    """A verdict on a part that is far from float, or on an output with indices that are.

    `kind`: what the part is to its output: `output`, `concat operand`, or `part` (a slice of unlike size).
    `poor`: it is far from float and that matters.
    `why`: why it may not matter; empty for a poor part, and for an output that is merely low.
    `hides`: an index is far below the figure of the output.
    `low`: text that names the indices of the output that are below LOW_DB, empty without any.
    """

    part: FidelityPart
    kind: str
    poor: bool
    why: str = ""
    hides: bool = False
    low: str = ""

    @property
    def low_text(self) -> str:
        """Return the end of a sentence on the output's low indices, empty where no index is low."""
        return f"; below {LOW_DB:.0f} dB: {self.low}" if self.low else ""

    @property
    def warns(self) -> bool:
        """Return whether this is a warning: the part is poor, or an index hides. Else it is a note."""
        return self.poor or self.hides

    def describe(self, steps: int = 1) -> str:
        """Return kind, name and the figures that are low, as the beginning of a sentence.

        `steps`: number of parts in whose place it stands, itself included, as steps of one sequence.
        """
        part, figures = self.part, [f"SQNR {_level(self.part.sqnr_db)} dB"]
        figures += [f"cosine {part.cosine:.4f}"] if part.cosine < POOR_COSINE else []
        if part.judged_db < min(part.sqnr_db, LOW_DB):
            figures.append(f"{_level(part.judged_db)} dB of what varies")
        if part.worst_sample_db < min(part.sqnr_db, POOR_SQNR_DB) or part.worst_sample_db < LOW_DB <= part.judged_db:
            figures.append(f"{_level(part.worst_sample_db)} dB in the worst sample")
        return f"{self.kind} {part.name}{and_more(steps)}: {', '.join(figures)} against float"


def judge_parts(
    outputs: Sequence[FidelityPart], operands: Sequence[FidelityPart], lost: Collection[str], silent: Collection[str]
) -> list[PartVerdict]:
    """Return a verdict on each part that is far from float: outputs, then operands of their Concats, then slices of unlike
    size.

    Behind them stand verdicts on outputs that are merely low, if no verdict names them. Parts that are near float get none.

    `lost`: names of parts on whose way a single layer loses the signal. A part of low cosine and sufficient level is poor
    if it is one of these.
    `silent`: model tensors whose values 16 bits cannot hold. Nothing of them is poor or low.
    """
    slices = [s for part in outputs for s in part.list_slices()]
    kinds = (("output", outputs), ("concat operand", operands), ("part", slices))
    judged = [v for kind, parts in kinds for part in parts if (v := _judge(part, kind, lost, silent)) is not None]
    low = {part.name: _format_low(part) for part in outputs if not _find_harmless(part, silent)}
    verdicts = [replace(v, low=next((low[n] for n in v.part.outputs if n in low), "")) for v in judged]
    named = {name for v in judged for name in v.part.outputs}
    others = [part for part in outputs if part.name in low and part.name not in named]
    others = [part for part in others if is_low(part, silent)]
    return [*verdicts, *(_judge_low(part, low[part.name]) for part in others)]


def is_low(part: FidelityPart, silent: Collection[str]) -> bool:
    """Return whether an output, a sample or an index of it is below LOW_DB and nothing seen makes that harmless.

    `silent`: model tensors whose values 16 bits cannot hold.
    """
    return not _find_harmless(part, silent) and bool(min(part.judged_db, part.worst_sample_db) < LOW_DB or _format_low(part))


def _judge_low(part: FidelityPart, low: str) -> PartVerdict:
    """Return the verdict on an output whose level or indices are low but not poor; `hides` where an index is far below its
    level."""
    least = min(HIDDEN_DB, part.judged_db - HIDDEN_BELOW_DB)
    hides = any(weak.worst_db < least and weak.values >= HIDDEN_VALUES for weak in part.list_weak_slices())
    return PartVerdict(part, "output", False, hides=hides, low=low)


def _format_low(part: FidelityPart) -> str:
    """Return the indices below LOW_DB of the two axes that have the worst, as text; empty without any.

    An axis of which all indices are low is left out unless one is far below the output's figure.
    """
    named, slices = list[str](), part.list_weak_slices()
    for weak in [s for s in slices if not s.is_all or s.worst_db < part.judged_db - UNLIKE_DB][:2]:
        least = (
            f"at least {_level(weak.worst_db)} dB, at {weak.worst}" if len(weak.indices) > 1 else f"{_level(weak.worst_db)} dB"
        )
        named.append(f"{weak.label(part.name)} ({least})")
    return ", ".join(named)


def _judge(part: FidelityPart, kind: str, lost: Collection[str], silent: Collection[str]) -> PartVerdict | None:
    """Return the verdict on one part; None where its level, its cosine and its worst sample are all above the limits of
    POOR."""
    level, worst_sample = part.judged_db, part.worst_sample_db
    if level >= POOR_SQNR_DB and part.cosine >= POOR_COSINE and worst_sample >= POOR_SQNR_DB:
        return None
    harmless = _find_harmless(part, silent)
    if harmless:
        return PartVerdict(part, kind, False, harmless)
    if level < POOR_SQNR_DB:
        if kind == "part" and part.size_ratio < LOST_SIZE:
            return PartVerdict(part, kind, False, f"it is {part.size_ratio:.0f} times smaller than the largest values beside it")
        return PartVerdict(part, kind, True)
    if worst_sample < LOST_SAMPLE_DB or (part.cosine < POOR_COSINE and part.name in lost):
        return PartVerdict(part, kind, True)
    if part.cosine < POOR_COSINE:
        return PartVerdict(part, kind, False, "many layers wear it down: none loses it alone")
    return PartVerdict(part, kind, False, "other samples are nearer")


def _find_harmless(part: FidelityPart, silent: Collection[str]) -> str:
    """Return why a part's figure says little of it: zero in float, no detections, silent, or scores that agree. Else it is
    empty."""
    if part.sqnr_db == -math.inf and part.peak == 0:
        return "float's values are all zero in these samples"
    if part.holds_nothing:
        return f"no score in it passes {SCORE_LEVELS[0]}: what these samples hold is none of it; judge on others with --judge"
    if part.tensor in silent:
        return "its values are below half a step of 16 bits"
    if part.scores is not None and part.keeps_scores:
        return f"{100 * part.scores.f1:.1f} % (F1) of its scores above {' and '.join(map(str, SCORE_LEVELS))} are float's"
    return ""


def list_quiet_notes(
    outputs: Sequence[FidelityPart], operands: Sequence[FidelityPart], silent: Collection[str], name_sample: Callable[[int], str]
) -> list[str]:
    """Return a note for each output that loses a quiet sample: the part, the sample, its level, and how quiet it is.

    Louder samples are in the verdicts. An operand of a Concat is named where its output is not.
    `silent`: model tensors whose values 16 bits cannot hold.
    `name_sample`: returns the user's name of a sample by its index among those that judge.
    """
    notes, named = list[str](), set[str]()
    for part in (*outputs, *operands):
        quiet = part.quiet
        if quiet is None or quiet.sqnr_db > LOST_SAMPLE_DB or not named.isdisjoint(part.outputs) or _find_harmless(part, silent):
            continue
        named.update(part.outputs)
        notes.append(
            f"{part.name}: {name_sample(quiet.index)} has {_level(quiet.sqnr_db)} dB, where zeros would have 0; "
            f"its values are {quiet.times_smaller:.3g} times smaller than those of all samples"
        )
    return notes


def output_lines(verdicts: Sequence[PartVerdict]) -> Iterator[tuple[PartVerdict, str]]:
    """Yield the worst verdict for each output with a sentence that names the others of its kind.

    Notes on an output that has a warning are dropped, and so are verdicts of a kind other than that of the worst. A verdict
    that an earlier sentence covers is not repeated.
    """
    visited = set[str]()
    outputs = dict.fromkeys(name for v in verdicts for name in v.part.outputs)
    for output in outputs:
        mine = [v for v in verdicts if output in v.part.outputs and v.part.name not in visited]
        level = [v for v in mine if v.warns] or mine
        if not level or (not level[0].warns and any(v.warns for v in verdicts if output in v.part.outputs)):
            continue
        visited.update(v.part.name for v in mine)
        worst = min(level, key=lambda v: (v.kind == "part", v.part.judged_db))
        yield worst, _sentence(worst, [v for v in level if v.kind == worst.kind])


def _sentence(worst: PartVerdict, verdicts: Sequence[PartVerdict]) -> str:
    groups = group_rows(verdicts, lambda v: v.part.steps_of)
    mine = next(group for group in groups if worst in group)
    others = [min(group, key=lambda v: v.part.judged_db).part for group in groups if group is not mine]
    more = "; so are " + ", ".join(f"{p.name} ({_level(p.judged_db)} dB)" for p in others[:3]) if others else ""
    more += f" and {len(others) - 3} more" if len(others) > 3 else ""
    return worst.describe(len(mine)) + (f": {worst.why}" if worst.why else "") + more


def _level(decibels: float) -> str:
    return f"{decibels:.1f}"
