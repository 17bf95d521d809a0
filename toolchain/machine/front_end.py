"""Model the state of a front end: where it reads, its base registers, and the repeats and blocks that are open.

`machine.dispatch` steps it through a program, each control operation calls one method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolchain.hw.chip_sections import Control


@dataclass(frozen=True)
class MemoryIndex:
    """A number that is read from memory when the program runs and added to a base register: scale * min(max(word, 0),
    limit).

    `load`: index of the dispatched operation that reads the word.
    """

    load: int
    scale: int
    limit: int


@dataclass
class OpenBlock:
    """A repeat, block or call that is open.

    `first`: index of its first operation. `opened_by`: repeat, block or call. `resume`: operation at which a call goes
    on; None: no call. `iteration`: counted from 0, of `count`. `words`: instruction words of a repeat's body, known
    when it has run once (-1 before).
    """

    first: int
    opened_by: str
    count: int = 1
    iteration: int = 0
    resume: int | None = None
    words: int = -1

    @property
    def repeats(self) -> bool:
        return self.opened_by == "repeat"


@dataclass
class FrontEnd:
    """The state of a front end. Methods change it, and raise ValueError where the machine cannot do what they should.

    They set `next` where they jump; the caller moves `at` and `next` on from operation to operation.
    `at`: index of the operation that it carries out. `next`: index of the one that it reads next. `words_before`:
    instruction words before each operation of the program, and before its end. `bases`: values of base registers.
    `indices`: numbers from memory that are added to each, unknown before a run. `open`: repeats and blocks that are
    open, the innermost last. `blocks`: first operation of each block met, by number. `set_by_host`: values of base
    registers at the start, by number; others begin at 0. No operation sets register 0.
    """

    control: Control
    words_before: list[int]  # instruction words in front of each operation of the program, and of its end
    at: int = 0
    next: int = 0
    set_by_host: Mapping[int, int] = field(default_factory=dict[int, int])
    bases: list[int] = field(init=False)
    indices: list[tuple[MemoryIndex, ...]] = field(init=False)  # of each base: what is added that no one knows before a run
    open: list[OpenBlock] = field(default_factory=list[OpenBlock])
    blocks: dict[int, int] = field(default_factory=dict[int, int])  # number -> first operation

    def __post_init__(self) -> None:
        self.bases = [self.set_by_host.get(number, 0) for number in range(self.control.bases + 1)]
        self.indices = [()] * len(self.bases)

    def set_base(self, base: int, source: int, offset: int) -> None:
        """Set register `base` to register `source` plus `offset`. Raise ValueError where there is no such register.

        What memory adds to `source` is added to `base` too. Register 0 can be read only.
        """
        for name, value, least in (("base", base, 1), ("source", source, 0)):
            if not least <= value <= self.control.bases:
                raise ValueError(f"{name}={value}, must be {least} to {self.control.bases} (control.bases)")
        self.bases[base], self.indices[base] = self.bases[source] + offset, self.indices[source]

    def load_base(self, base: int, source: int, offset: int, load: int, scale: int, limit: int) -> None:
        """Set register `base` to register `source` plus `offset` plus `scale` times a number that is read from memory
        later.

        `load`: index of the dispatched operation that reads the number. `limit`: to which it is clamped. Raise
        ValueError where the machine cannot do so.
        """
        if self.control.indirect is None:
            raise ValueError("the machine has no control.indirect")
        self.set_base(base, source, offset)
        self.indices[base] = (*self.indices[base], MemoryIndex(load, scale, limit))

    def repeat(self, count: int) -> None:
        """Open a repeat of `count` iterations at the next operation. Raise ValueError where the machine cannot do so."""
        allowed = self.control.repeat
        if allowed is None:
            raise ValueError("the machine has no control.repeat")
        if not 1 <= count <= allowed.max_count:
            raise ValueError(f"count={count}, must be 1 to {allowed.max_count} (control.repeat.max_count)")
        if sum(o.repeats for o in self.open) == allowed.depth:
            raise ValueError(f"more than control.repeat.depth={allowed.depth} repeats inside one another")
        self.open.append(OpenBlock(self.next, "repeat", count))

    def again(self) -> None:
        """End an iteration of the innermost repeat: go back to its beginning, or close it. Raise ValueError where no
        repeat is innermost.
        """
        frame = self.open[-1] if self.open else None
        if frame is None or not frame.repeats:
            raise ValueError("ends no repeat" + ("" if frame is None else f"; the innermost is a {frame.opened_by}"))
        frame.words = self.words_before[self.at + 1] - self.words_before[frame.first]
        frame.iteration += 1
        if frame.iteration < frame.count:
            self.next = frame.first
        else:
            self.open.pop()

    def open_block(self, number: int) -> None:
        """Open the block of this number and run it once. Raise ValueError where the machine cannot do so."""
        self._enter(number, "block")
        self.blocks[number] = self.next
        self.open.append(OpenBlock(self.next, "block"))

    def call(self, number: int) -> None:
        """Go to the beginning of a block that was met before. Raise ValueError where it was not, or the machine cannot."""
        self._enter(number, "call")
        if number not in self.blocks:
            raise ValueError(f"block {number} was not met before")
        self.open.append(OpenBlock(self.blocks[number], "call", resume=self.next))
        self.next = self.blocks[number]

    def leave(self) -> None:
        """End the innermost block; after a call go on behind the call. Raise ValueError where no block is innermost."""
        frame = self.open[-1] if self.open else None
        if frame is None or frame.repeats:
            raise ValueError("ends no block" + ("" if frame is None else "; a repeat is open"))
        self.open.pop()
        if frame.resume is not None:
            self.next = frame.resume

    def _enter(self, number: int, what: str) -> None:
        """Raise ValueError where the machine has no such block, or blocks would nest too deep. `what`: block or call."""
        allowed = self.control.call
        if allowed is None:
            raise ValueError("the machine has no control.call")
        if not 0 <= number < allowed.blocks:
            raise ValueError(f"block={number}, must be 0 to {allowed.blocks - 1} (control.call.blocks)")
        if sum(not o.repeats for o in self.open) == allowed.depth:
            raise ValueError(f"more than control.call.depth={allowed.depth} blocks inside one another")

    @property
    def buffered(self) -> bool:
        """True where the words being read lie in the loop buffer, so that reading them takes no time.

        That is so in later iterations of a repeat that fits the buffer completely, unless a block is being called
        inside it.
        """
        buffer_words = self.control.repeat.buffer_words if self.control.repeat else 0
        for frame in reversed(self.open):
            if frame.opened_by == "call":
                return False
            if frame.repeats and frame.iteration > 0 and frame.words <= buffer_words:
                return True
        return False

    def calls(self) -> tuple[tuple[int, int], ...]:
        """Return (call, begin of its block) of each open call, as indices in the program."""
        return tuple((o.resume - 1, o.first - 1) for o in self.open if o.resume is not None)

    def iterations(self) -> tuple[tuple[int, int], ...]:
        """Return (iteration, count) of each open repeat, the outermost first."""
        return tuple((o.iteration, o.count) for o in self.open if o.repeats)
