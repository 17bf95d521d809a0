"""The least bytes of DRAM against all schedules there are: pebbles on single elements (Hong and Kung 1981), made again freely."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from toolchain.report.bounds.reload_bound import ChipCapacity, Edge, FlowStage, min_reload_bytes

State = tuple[int, int]  # what is held, what has been made


@dataclass
class Elements:
    """A network by its elements, a bit and a byte each.

    `operands`: the two operands of each computed element; all others lie in DRAM.
    `stages`: its layers as the bound sees them.
    """

    count: int = 0
    operands: dict[int, int] = field(default_factory=dict[int, int])
    stages: list[FlowStage] = field(default_factory=list[FlowStage])
    goal_bits: int = 0

    def allocate(self, count: int) -> list[int]:
        self.count += count
        return [1 << at for at in range(self.count - count, self.count)]

    def layer(self, tensors: Sequence[Sequence[int]], sources: Sequence[int]) -> list[int]:
        """A 1x1 convolution of one channel, or a sum of two tensors; sources: of `tensors`, the first of which is the input."""
        x, outputs = tensors[sources[0]], self.allocate(len(tensors[0]))
        second = tensors[sources[1]] if len(sources) > 1 else self.allocate(1) * len(x)
        self.operands.update({y: a | b for y, a, b in zip(outputs, x, second, strict=True)})
        edges = tuple(Edge(s - 1, mixes=len(sources) == 1) for s in sources if s)
        self.stages.append(FlowStage(int(len(sources) == 1), len(x), edges))
        return outputs

    def once(self) -> int:
        """Return the bytes that come or leave once: elements that are read but not computed, and elements of the goal."""
        read = 0
        for operands in self.operands.values():
            read |= operands
        computed = sum(self.operands)
        return (read & ~computed).bit_count() + self.goal_bits.bit_count()


def _drawn(draw: random.Random, layers: int, pixels: int) -> Elements:
    elements = Elements()
    tensors, read = [elements.allocate(pixels)], set[int]()
    for at in range(layers):
        source = at if draw.random() < 0.8 else draw.randint(0, at)
        sources = [at, draw.randrange(at)] if at and draw.random() < 0.3 else [source]
        read.update(sources)
        tensors.append(elements.layer(tensors, sources))
    elements.goal_bits = sum(sum(t) for at, t in enumerate(tensors) if at not in read)
    return elements


def _bits(some: int) -> Iterator[int]:
    while some:
        yield some & -some
        some &= some - 1


def _ways_to_hold(resident: int, bit: int, room: int) -> Iterator[int]:
    """Yield the contents of the memory after an element comes: with it, if necessary in the place of another."""
    if resident & bit or resident.bit_count() < room:
        yield resident | bit
    else:
        yield from (resident ^ other | bit for other in _bits(resident))


def least_moved(elements: Elements, room: int) -> int:
    """Return the fewest bytes from DRAM, and outputs, of all schedules of the model.
    A computed element lies in DRAM too, since that costs nothing until it comes back. An element is computed while both its
    operands are resident; it goes to a free place, to another's, or nowhere.
    """
    unmade = (1 << elements.count) - 1 & ~sum(elements.operands)
    least: dict[State, int] = {(0, 0): 0}
    waiting = deque(least)
    done = set[State]()
    while waiting:
        state = waiting.popleft()
        if state in done:
            continue
        done.add(state)
        resident, computed = state
        if computed & elements.goal_bits == elements.goal_bits:
            return least[state] + elements.goal_bits.bit_count()
        for bit, operands in elements.operands.items():
            if not resident & bit and resident & operands == operands:
                for then in (resident, *_ways_to_hold(resident, bit, room)):
                    _note((then, computed | bit), least[state], least, waiting.appendleft)
        for bit in _bits((unmade | computed) & ~resident):
            for then in _ways_to_hold(resident, bit, room):
                _note((then, computed), least[state] + 1, least, waiting.append)
    raise AssertionError("two places make everything")


def _note(state: State, cost: int, least: dict[State, int], wait: Callable[[State], None]) -> None:
    if cost < least.get(state, cost + 1):
        least[state] = cost
        wait(state)


def _bound(elements: Elements, room: int) -> int:
    return elements.once() + sum(min_reload_bytes(elements.stages, ChipCapacity(room)))


def test_no_schedule_of_single_elements_moves_less() -> None:
    draw, equal = random.Random(0), list[bool]()
    for _ in range(100):
        layers = draw.randint(1, 5)
        elements, room = _drawn(draw, layers, draw.randint(1, 3 if layers < 4 else 2)), draw.randint(2, 5)
        bound, searched = _bound(elements, room), least_moved(elements, room)
        assert bound <= searched, (elements, room)
        equal.append(bound == searched)
    assert sum(equal) == 90  # elsewhere an element's own operands take much of the memory, which the bound does not see


CHAINS: Mapping[tuple[int, int, int], tuple[int, int]] = {
    (3, 2, 2): (7, 9),
    (3, 3, 3): (9, 11),
    (3, 3, 4): (9, 9),
    (4, 2, 3): (8, 8),
    (4, 3, 2): (11, 16),
    (4, 3, 3): (10, 12),
    (5, 2, 2): (9, 13),
}


@pytest.mark.parametrize(("chain", "figures"), CHAINS.items())
def test_where_operands_fill_the_memory_more_must_move_than_is_proved(
    chain: tuple[int, int, int], figures: tuple[int, int]
) -> None:
    layers, pixels, room = chain
    elements = Elements()
    tensors = [elements.allocate(pixels)]
    for at in range(layers):
        tensors.append(elements.layer(tensors, [at]))
    elements.goal_bits = sum(tensors[-1])
    assert (_bound(elements, room), least_moved(elements, room)) == figures
