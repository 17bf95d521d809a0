"""The nodes of a region's schedule: loops over tiles, and where tensors and buffers lie meanwhile. A region is a part
for the chip.

A `RegionTree` is tensors (`TensorAlloc`), then layers and cascades in the order in which they run. A cascade is layers
that take turns, stripe by stripe: `Loop`s over rows of the last layer's output, or over blocks and rows. A layer is its
tile buffers (`Ring`) and prefetches (`Fetch`), around `Loop`s from the outermost, around one `Call`. Data movement is a
`Call` alone.

`schedule.parser` makes these nodes of text, `schedule.text` writes them. Plans (`schedule.plan`) are subclasses that
add tilings, cycles and addresses, which follow from the nodes. Such additions, notes and lines have `compare=False`:
nodes that differ in nothing else are equal. `note` is a comment for people, `line` the line in the schedule's file (0:
none).
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
    """A tensor that owns its storage. `rows`: the buffer holds so many of the latest rows of this feature map; 0: all
    of it.
    """

    name: str
    rows: int = 0


@dataclass(frozen=True)
class OperandBuffer:
    """The buffer through which tiles of one operand pass.

    `number`: which of the inputs or constants it is, in the order in which tile tasks name them. It is 0 for the
    output.
    """

    role: Role
    number: int = 0

    @property
    def key(self) -> str:
        """The short name of the buffer in plans: r0, r1, ... of inputs, b0, b1, ... of constants, w of the output."""
        return "w" if self.role == "output" else f"{_LETTERS[self.role]}{self.number}"

    @classmethod
    def of_key(cls, key: str) -> OperandBuffer:
        """Return the buffer of such a short name."""
        return cls(ROLES[key[0]], int(key[1:] or 0))


@dataclass(frozen=True)
class Prefetch:
    """The prefetch of the next `constants` constants of a layer, in the order of their first use.

    They are loaded after the loads of the layer `after_layer`, which may be the same one, each to a place of its own.
    """

    constants: int
    after_layer: str


@dataclass(frozen=True)
class Call:
    """The tiles of a layer, one after the other, each on the unit of `units` that ends it first.

    `units`: names of units; (): any that can, or data movement. `dataflow`, `mode`: of the array, "": its first.
    `inline`: for data movement, no data moves: units read and write them where they lie.
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
    """A loop over an axis, `step` items at a time. `size`, the number of items, is added by a plan."""

    axis: str
    step: int
    note: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    size: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Alloc:
    """A buffer in a memory. A tensor's is live from the first to the last layer that touches it, any other while its
    layer runs.

    `memory`: name of the memory, "" for prefetched constants, which lie where units read them. `slots`: number of slots
    of a tile buffer; "all": one for each tile that passes through.
    """

    buffer: Tensor | OperandBuffer | Prefetch
    memory: str
    slots: int | Literal["all"] = 1
    note: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Ring(Alloc):
    """The tile buffer of an operand: one or several slots through which its tiles pass.

    A plan adds `sizes`, the bytes of each slot, and `space`, the number of the memory in `chip.spaces`.
    """

    buffer: OperandBuffer
    sizes: tuple[int, ...] = field(default=(), compare=False)
    space: int = field(default=-1, compare=False)

    @property
    def key(self) -> str:
        return self.buffer.key

    @property
    def copies(self) -> int:
        """The number of slots, once a plan has set their sizes."""
        return len(self.sizes)

    @property
    def of_constants(self) -> bool:
        return self.buffer.role == "constant"


@dataclass(frozen=True)
class Fetch(Alloc):
    """A prefetch of constants. They lie one after the other in DRAM and in a slot of their own. All fields but `buffer`
    are of plans.

    `number`: its place among the layer's fetches. `blocks`: the constant blocks. `offsets`: bytes from the slot's
    start, by key of the block. `bytes_by_tile`: by index of a tile of the layer, the bytes that this tile and those
    before it read. `since`: index of the layer after whose loads it is fetched. `space`: number of the memory of the
    slot.
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
    """A tensor that owns its storage, in SRAM or DRAM."""

    buffer: Tensor


@dataclass(frozen=True)
class LayerTree:
    """A layer: its loops from the outermost around one call, with its tile buffers and prefetches."""

    call: Call
    loops: tuple[Loop, ...] = ()
    rings: tuple[Ring, ...] = ()
    fetches: tuple[Fetch, ...] = ()

    @property
    def name(self) -> str:
        return self.call.layer

    @property
    def steps(self) -> dict[str, int]:
        """The step of each loop by its axis."""
        return {loop.axis: loop.step for loop in self.loops}


@dataclass(frozen=True)
class CascadeTree:
    """Layers that take turns, stripe by stripe.

    `loops`: one over rows of the last layer, and around it perhaps one over blocks of channels or columns.
    """

    loops: tuple[Loop, ...]
    layers: tuple[LayerTree, ...]


@dataclass(frozen=True)
class RegionTree:
    """The schedule of one region. `region`: index of its segment in the model.

    `level`: the optimization level whose switches decide what the nodes leave open. -1: that of the build. `sample`: it
    is the schedule of one sample of a batch, whose program is repeated. `entry`: the entry of the file that it is for
    (one set of input shapes). `within`: bytes of SRAM that it may use, 0: all. `file`: name of the schedule's file, for
    messages.
    """

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
    """Return the layers of a cascade, or the layer itself."""
    return part.layers if isinstance(part, CascadeTree) else (part,)
