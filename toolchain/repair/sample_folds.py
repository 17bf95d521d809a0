"""Calibration samples dealt into those that steps may see and those that judge them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from quant.fit_sample import Sample

HELD_OUT = 16  # samples that judge, at most
EVERY = 4  # one of so many judges...
LEAST_JUDGES = 8  # ...or more of them, so that so many do: of fewer the spread says too little
STRETCH = 8  # of a sequence that judge together, where a network keeps states from sample to sample
KEPT_BYTES = 64 << 20  # of samples that stay in memory instead of being read again


@dataclass(frozen=True, eq=False)
class Fold:
    """Some of a stream's samples, the same each time it is iterated. `count`: how many, where that is known.

    Read again each time, but where all of them take at most KEPT_BYTES.
    """

    start: Callable[[], Iterator[Sample]]
    count: int | None
    random: bool = False
    _kept: list[Sample] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many there are, counted where that is not known."""
        return sum(1 for _ in self) if self.count is None else self.count

    def __iter__(self) -> Iterator[Sample]:
        if self._kept:
            yield from self._kept
            return
        found: list[Sample] | None = []
        room = KEPT_BYTES
        for sample in self.start():
            room -= sum(x.nbytes for x in sample.values())
            found = None if found is None or room < 0 else [*found, sample]
            yield sample
        self._kept.extend(found or ())


NONE = Fold(lambda: iter(()), 0)


def folds(samples: Iterable[Sample], *, stretch: int = 1) -> tuple[Fold, Fold]:
    """(seen, held out): every fourth sample is held out, the first of each four seen, until HELD_OUT are; of few samples every
    second or third. stretch: so many neighbours are dealt together.

    The samples that judge are spread over the whole where their number is known: data often lies in the order of its kinds.
    """
    count = getattr(samples, "count", None)
    known = sum(1 for _ in islice(samples, EVERY * LEAST_JUDGES)) if count is None else count
    every = max(2, min(EVERY, known // LEAST_JUDGES), known // HELD_OUT)

    def held(index: int) -> bool:
        return index // stretch % every == every - 1 and index < every * HELD_OUT

    def those(wanted: bool) -> Callable[[], Iterator[Sample]]:
        return lambda: (sample for index, sample in enumerate(samples) if held(index) is wanted)

    judging = None if count is None else sum(map(held, range(count)))
    seen = None if count is None or judging is None else count - judging
    random = bool(getattr(samples, "random", False))
    return Fold(those(False), seen, random), Fold(those(True), judging, random)


def join_folds(seen: Iterable[Sample], held_out: Iterable[Sample]) -> Fold:
    """What was dealt, together again: what is chosen by one fold and judged on the other is measured on both."""
    counts = [s.count if isinstance(s, Fold) else None for s in (seen, held_out)]
    known = [n for n in counts if n is not None]
    random = isinstance(seen, Fold) and seen.random
    return Fold(lambda: chain(seen, held_out), sum(known) if len(known) == len(counts) else None, random)


def spread_over(samples: Iterable[Sample], most: int) -> Fold:
    """At most so many, at equal distances; the first where it is not known how many there are. Sequences begin in silence, and
    data often lies in the order of its kinds."""
    count = samples.count if isinstance(samples, Fold) else len(samples) if isinstance(samples, list) else None
    if count is None:
        return Fold(lambda: islice(samples, most), None)
    return pick_samples(samples, [is_spread(index, count, most) for index in range(count)])


def pick_samples(samples: Iterable[Sample], wanted: Sequence[bool]) -> Fold:
    """Those of them that are wanted."""
    return Fold(lambda: (sample for sample, one in zip(samples, wanted) if one), sum(wanted))


def is_spread(index: int, count: int, most: int) -> bool:
    """Whether this one of `count` is among `most` at equal distances."""
    return index == 0 or index * most // count > (index - 1) * most // count
