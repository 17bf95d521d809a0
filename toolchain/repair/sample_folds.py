"""Deal calibration samples into those that steps may see and those that judge: by magnitude and content, not by position.

Near-copies of one sample go to one side, so that nothing is judged on what it was fitted to. Repair (`deal_folds`) and the
judging of a build deal in this way. A `Fold` is a part of the samples that can be read again.

Where a network keeps states from sample to sample, STRETCH neighbours of a sequence are dealt together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from quant.fit_sample import Sample, get_sample_count
from quant.near_copies import group_near_copies
from quant.sample_traits import SampleTraits, describe_sample, order_by_magnitude

HELD_OUT = 16  # samples that judge steps, at most
EVERY = 4  # one of so many judges...
LEAST_JUDGES = 8  # ...or more of them, so that so many do: of fewer the spread says too little
STRETCH = 8  # of a sequence that judge together, where a network keeps states from sample to sample
KEPT_BYTES = 64 << 20  # of samples that stay in memory instead of being read again
_LEAST_GROUPS = 4  # of near-copies: fewer cannot be dealt, so that all is judged on what is like what was seen


@dataclass(frozen=True, eq=False)
class Fold:
    """Some samples of a stream, the same each time that it is iterated.

    They are read again each time, unless all of them take at most KEPT_BYTES and were read once.

    `start`: begins a new pass over them.
    `count`: how many there are; None where that is not known.
    `random`: they are drawn and no data of the user's.
    `places`: index of each in the data that they were picked from; empty for all of the data.
    """

    start: Callable[[], Iterator[Sample]]
    count: int | None
    random: bool = False
    places: tuple[int, ...] = ()
    _sample_cache: list[Sample] = field(default_factory=list[Sample])
    _traits: list[SampleTraits] = field(default_factory=list[SampleTraits])

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Fold:
        """Return all of these samples as a fold; a fold itself comes back as it is. They must be iterable again: no generator."""
        if isinstance(samples, Fold):
            return samples
        return cls(lambda: iter(samples), get_sample_count(samples), bool(getattr(samples, "random", False)))

    @property
    def size(self) -> int:
        """Return the number of samples; they are counted where it is not known."""
        return sum(1 for _ in self) if self.count is None else self.count

    @property
    def traits(self) -> Sequence[SampleTraits]:
        """Return the traits of each sample, in order. The first call reads all samples."""
        if not self._traits:
            self._traits.extend([describe_sample(sample) for sample in self])
        return self._traits

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples, from memory where all were stored, else from a new pass. A complete pass stores them if they are
        small."""
        if self._sample_cache:
            yield from self._sample_cache
            return
        cache: list[Sample] | None = []
        room = KEPT_BYTES
        for sample in self.start():
            room -= sum(x.nbytes for x in sample.values())
            cache = None if cache is None or room < 0 else [*cache, sample]
            yield sample
        self._sample_cache.extend(cache or ())

    def pick(self, indices: Sequence[int]) -> Fold:
        """Return the samples with these indices: in this order where all samples are in memory, else in the order of the
        data."""
        if self._sample_cache:
            order, start = list(indices), lambda: (self._sample_cache[i] for i in order)
        else:
            order, wanted = sorted(indices), frozenset(indices)
            start = lambda: (sample for index, sample in enumerate(self) if index in wanted)  # noqa: E731
        places = tuple(self.places[i] if self.places else i for i in order)
        return Fold(start, len(order), self.random, places, _traits=[self._traits[i] for i in order] if self._traits else [])


NONE = Fold(lambda: iter(()), 0)


@dataclass(frozen=True, eq=False)
class HoldOut:
    """A part of the samples to fit on and a part to judge on.

    `every`: all samples; `seen`, `held`: those to fit on and those held out, which together are `every`.
    `indices`: indices of the held ones, in the order in which the samples were given.
    `copies`: so many of the held ones are near-copies of samples that are seen.
    `similar_lag`: samples so many places apart, in the order in which they were given, are alike; None: it was not found, or
    not looked for.
    """

    every: Fold
    seen: Fold
    held: Fold
    indices: frozenset[int] = frozenset()
    copies: int = 0
    similar_lag: int | None = None

    def held_of(self, others: Iterable[Sample]) -> Fold:
        """Return the held-out ones of the same samples in other shapes, in the same order."""
        return self.held if others is self.every else Fold.of(others).pick(sorted(self.indices))

    def seen_of(self, others: Iterable[Sample]) -> Fold:
        """Return the samples of these that are not held out; `others` are the same samples in other shapes."""
        if others is self.every:
            return self.seen
        fold = Fold.of(others)
        return fold.pick([i for i in range(fold.size) if i not in self.indices])


def hold_out(
    samples: Iterable[Sample], count: Callable[[int], int], *, stretch: int = 1, least_seen: int | None = None
) -> HoldOut:
    """Deal the samples into those to fit on and those held out to judge, and return both.

    All are ordered by magnitude and cut into as many strata as are to be held out. The middle of each is held out, never the
    largest of all. Near-copies go together where there are at least four groups of them. The order of the samples changes
    nothing, but for stretches, and for data beyond KEPT_BYTES, whose folds are in the order of the data. With stretches, all
    folds are in the order given. `held` is NONE or empty where nothing can be held out, as of a single sample.

    `count`: returns how many of so many samples to hold out; half of all at most, but whole groups may make it somewhat more.
    `stretch`: so many neighbours are dealt together, as steps of a sequence are.
    `least_seen`: samples that are left to fit on however near-copies are dealt; None: half.
    """
    given = Fold.of(samples)
    traits = given.traits
    wanted = min(count(len(traits)), len(traits) // 2)
    order = order_by_magnitude(traits)
    line = range(len(traits)) if stretch > 1 else order
    every = given.pick(line)
    if wanted <= 0:
        return HoldOut(every, every, NONE)
    groups = [i // stretch for i in range(len(traits))] if stretch > 1 else _groups_of_copies(order, traits)
    held = _held_groups(order, groups, wanted)
    most = len(traits) // 2 if least_seen is None else len(traits) - least_seen
    if stretch == 1 and (len(set(groups)) < _LEAST_GROUPS or not wanted <= len(held) <= min(2 * wanted, most)):
        held = _held_groups(order, range(len(traits)), wanted)
    others = {groups[i] for i in order if i not in held}
    copies = 0 if stretch > 1 else sum(groups[i] in others for i in held)
    seen = [i for i in line if i not in held]
    return HoldOut(every, given.pick(seen), given.pick([i for i in line if i in held]), frozenset(held), copies)


def _groups_of_copies(order: Sequence[int], traits: Sequence[SampleTraits]) -> list[int]:
    """Return the group of near-copies of each sample, by the sample's index. order: the samples in the order to compare them
    in."""
    found = dict(zip(order, group_near_copies([traits[i] for i in order])))
    return [found[i] for i in range(len(order))]


def _held_groups(order: Sequence[int], groups: Sequence[int], wanted: int) -> set[int]:
    """Return the indices of `wanted` samples or somewhat more, in whole groups, one group of each stratum of `order`.

    The first group is never among them.
    """
    members, held = dict[int, list[int]](), set[int]()
    for index in order:
        members.setdefault(groups[index], []).append(index)
    line, strata = [*members], max(1, round(wanted * len(members) / len(order)))
    while len(held) < wanted and strata <= len(line) // 2:
        chosen = (line[(2 * stratum + 1) * len(line) // (2 * strata)] for stratum in range(strata))
        held, strata = {index for group in chosen for index in members[group]}, strata + 1
    return held


def deal_folds(samples: Iterable[Sample], *, stretch: int = 1) -> HoldOut:
    """Deal the samples for a repair: a quarter judges, but at least LEAST_JUDGES and at most HELD_OUT, and never more than
    half."""
    return hold_out(samples, lambda count: min(HELD_OUT, max(LEAST_JUDGES, count // EVERY)), stretch=stretch)


def join_folds(fit_samples: Iterable[Sample], held_out: Iterable[Sample]) -> Fold:
    """Return the samples of both folds, one after the other. A choice that is made on one and judged on the other is measured
    on both."""
    counts = [s.count if isinstance(s, Fold) else None for s in (fit_samples, held_out)]
    known_counts = [n for n in counts if n is not None]
    random = isinstance(fit_samples, Fold) and fit_samples.random
    return Fold(lambda: chain(fit_samples, held_out), sum(known_counts) if len(known_counts) == len(counts) else None, random)


def spread_over(samples: Iterable[Sample], most: int) -> Fold:
    """Return at most `most` samples (1 or more) at equal distances, or the first ones where their number is not known."""
    count = samples.count if isinstance(samples, Fold) else len(samples) if isinstance(samples, list) else None
    if count is None:
        return Fold(lambda: islice(samples, most), None)
    return pick_samples(samples, [is_spread(index, count, most) for index in range(count)])


def pick_samples(samples: Iterable[Sample], selected: Sequence[bool]) -> Fold:
    """Return the samples whose flag in `selected` is true."""
    return Fold(lambda: (sample for sample, one in zip(samples, selected) if one), sum(selected))


def is_spread(index: int, count: int, most: int) -> bool:
    """Return whether the sample of this index is among `most` of `count` samples at equal distances."""
    return index == 0 or index * most // count > (index - 1) * most // count
