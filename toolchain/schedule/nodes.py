"""The nodes of a region's schedule: what is done in which loops, and where what it touches lies meanwhile.

A region is tensors (`Alloc`), and behind them layers and cascades, one after the other. A cascade is `Loop`s around layers that
take turns: over rows of the last one, or over blocks and rows. A layer is `Ring`s and `Fetch`es, inside them `Loop`s from the
outermost, inside those one `Call`; what is moved is a `Call` alone.

What nodes do not say (addresses, live ranges, which of equal units takes a tile) follows from them; plans have it beside them.
`note` is what a person is told beside a node, `line` where it stands in a file; nodes that differ in nothing else are equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from toolchain.ops.kit.tile import ConstantBlock

ALL: Literal["all"] = "all"  # slots of a ring: one for each thing that passes through it
TENSOR_MEMORIES = ("sram", "dram")  # in which whole tensors lie
ROWS, CHANNELS, COLUMNS = "rows", "channels", "columns"
BLOCKS = (CHANNELS, COLUMNS)  # axes of a loop around that over rows

Role = Literal["input", "constant", "output"]
ROLES: Mapping[str, Role] = {"r": "input", "b": "constant", "w": "output"}  # by the first letter of `OperandBuffer.key`
_LETTERS = {role: letter for letter, role in ROLES.items()}


@dataclass(frozen=True)
class Tensor:
    """A tensor that owns its storage. `rows`: of a feature map, so many of the latest are kept; 0: all of it."""

    name: str
    rows: int = 0


@dataclass(frozen=True)
class OperandBuffer:
    """Tiles of one operand pass through it: the input or constant of this number, in the order in which tile tasks name them."""

    role: Role
    number: int = 0

    @property
    def key(self) -> str:
        """The name that timing and placement have for it: r0, r1, ... of inputs, b0, ... of constants, w of the output."""
        return "w" if self.role == "output" else f"{_LETTERS[self.role]}{self.number}"

    @classmethod
    def of_key(cls, key: str) -> OperandBuffer:
        """The buffer of that name."""
        return cls(ROLES[key[0]], int(key[1:] or 0))


@dataclass(frozen=True)
class Prefetch:
    """The next constants of a layer, so many in the order of their first use. They are fetched behind the loads of another layer,
    or of the same, each to a place of its own."""

    constants: int
    after_layer: str


@dataclass(frozen=True)
class Call:
    """A layer's tiles, one after the other, each on the unit of these that is free first.

    `units`: () for data movement, or any that can. `dataflow`, `mode`: of the array, "" for its first. `inline`: of data
    movement: units read and write the data where it lies.
    """

    layer: str
    units: tuple[str, ...] = ()
    dataflow: str = ""
    mode: str = ""
    inline: bool = False
    note: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Loop:
    """A loop over an axis by `step`. A plan adds `size`, the number of items."""

    axis: str
    step: int
    note: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    size: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Alloc:
    """A buffer lies in a memory while the layer runs that has it; a tensor from the first layer that touches it to the last.
    `memory` is "" for prefetched constants, which lie where units read them."""

    buffer: Tensor | OperandBuffer | Prefetch
    memory: str
    slots: int | Literal["all"] = 1
    note: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Ring(Alloc):
    """An operand's slots. A plan adds the bytes of each slot and the memory as a code of `chip.spaces`."""

    buffer: OperandBuffer
    sizes: tuple[int, ...] = field(default=(), compare=False)
    space: int = field(default=-1, compare=False)

    @property
    def key(self) -> str:
        return self.buffer.key

    @property
    def copies(self) -> int:
        return len(self.sizes)

    @property
    def of_constants(self) -> bool:
        return self.buffer.role == "constant"


@dataclass(frozen=True)
class Fetch(Alloc):
    """A prefetch. A plan adds the constants, which lie one behind the other in DRAM and in a slot of their own.

    `number`: its place among the layer's fetches. `since`: index of the layer behind whose loads pieces are brought. `offsets`:
    bytes from the slot's start, by key of the block. `bytes_by_tile`: by tile of the layer, bytes that it and those before it
    read.
    """

    buffer: Prefetch
    number: int = field(default=0, compare=False)
    blocks: tuple[ConstantBlock, ...] = field(default=(), compare=False, repr=False)
    offsets: Mapping[Hashable, int] = field(default_factory=dict[Hashable, int], compare=False, repr=False)
    bytes_by_tile: Mapping[int, int] = field(default_factory=dict[int, int], compare=False, repr=False)
    size_bytes: int = field(default=0, compare=False)
    since: int = field(default=-1, compare=False)
    space: int = field(default=-1, compare=False)

    @property
    def key(self) -> str:
        """The name that placement has for its slot: c0, c1, ..."""
        return f"c{self.number}"


@dataclass(frozen=True)
class TensorAlloc(Alloc):
    """A tensor that owns its storage lies in SRAM or DRAM."""

    buffer: Tensor


@dataclass(frozen=True)
class LayerTree:
    """A layer: its loops from the outermost around one call, its rings and fetches around them."""

    call: Call
    loops: tuple[Loop, ...] = ()
    rings: tuple[Ring, ...] = ()
    fetches: tuple[Fetch, ...] = ()

    @property
    def name(self) -> str:
        return self.call.layer

    @property
    def steps(self) -> dict[str, int]:
        return {loop.axis: loop.step for loop in self.loops}


@dataclass(frozen=True)
class CascadeTree:
    """Layers that take turns. `loops`: over rows of the last one; in front of it there may be one over blocks of channels or
    columns."""

    loops: tuple[Loop, ...]
    layers: tuple[LayerTree, ...]


@dataclass(frozen=True)
class RegionTree:
    """The schedule of a region, by its place in the model. `level`: whose way of laying out tensors and moving loads it has
    (`schedule.options`), -1: that of the build. `within`: bytes of SRAM that it has, 0: all. `sample`: of the program of one
    sample, which is repeated. `file`: that it is of."""

    region: int
    tensors: tuple[TensorAlloc, ...]
    parts: tuple[LayerTree | CascadeTree, ...]
    level: int = -1
    sample: bool = False
    entry: str = ""
    within: int = 0
    note: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    file: str = field(default="", compare=False)

    @cached_property
    def layers(self) -> tuple[LayerTree, ...]:
        """All layers in order, those of cascades too."""
        return tuple(layer for part in self.parts for layer in layers_of(part))


def layers_of(part: LayerTree | CascadeTree) -> tuple[LayerTree, ...]:
    """The layers of a cascade, or the layer itself."""
    return part.layers if isinstance(part, CascadeTree) else (part,)
