"""The schedule of a region as a tree: what is done in which loops, and where what it touches lies meanwhile.

    Tree = Seq | Loop | Alloc | Call

A region is `Alloc`s of tensors around a `Seq` of layers. A layer is `Alloc`s of its rings around `Loop`s, outermost first, around
one `Call`. Layers that run in turns are a `Loop` over rows of the last one around a `Seq` of them. A mover is a `Call` alone.
What a tree does not say (addresses, live ranges, which of equal units takes a tile) follows from it.

`note` is what a person is told beside a node, `line` where it stands in a file; trees that differ in nothing else are equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

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
    behind: str


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
    """The body for every `step` of an axis."""

    axis: str
    step: int
    body: Tree
    note: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Alloc:
    """The body runs while a buffer lies in a memory. `memory` is "" for prefetched constants, which lie where units read them."""

    buffer: Tensor | OperandBuffer | Prefetch
    memory: str
    body: Tree
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
    bytes from the slot's start, by key of the block. `needed`: by tile of the layer, bytes that it and those before it read.
    """

    buffer: Prefetch
    number: int = field(default=0, compare=False)
    blocks: tuple[ConstantBlock, ...] = field(default=(), compare=False, repr=False)
    offsets: Mapping[Hashable, int] = field(default_factory=dict[Hashable, int], compare=False, repr=False)
    needed: Mapping[int, int] = field(default_factory=dict[int, int], compare=False, repr=False)
    size_bytes: int = field(default=0, compare=False)
    since: int = field(default=-1, compare=False)
    space: int = field(default=-1, compare=False)

    @property
    def key(self) -> str:
        """The name that placement has for its slot: c0, c1, ..."""
        return f"c{self.number}"


@dataclass(frozen=True)
class Seq:
    """The parts run one after the other."""

    parts: tuple[Tree, ...] = ()
    note: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


Tree: TypeAlias = Seq | Loop | Alloc | Call


@dataclass(frozen=True)
class RegionTree:
    """The schedule of a region, by its place in the model. `level`: whose way of laying out tensors and moving loads it has
    (`schedule.options`), -1: that of the build. `within`: bytes of SRAM that it has, 0: all. `sample`: of the program of one
    sample, which is repeated. `file`: that it is of."""

    region: int
    body: Tree
    level: int = -1
    sample: bool = False
    entry: str = ""
    within: int = 0
    note: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    file: str = field(default="", compare=False)


@dataclass(frozen=True)
class LayerTree:
    """A layer taken apart: its rings, its loops from the outermost, and what is called."""

    rings: tuple[Ring, ...]
    loops: tuple[Loop, ...]
    call: Call
    fetches: tuple[Fetch, ...] = ()

    @property
    def note(self) -> str:
        return self.call.note

    @property
    def steps(self) -> dict[str, int]:
        return {loop.axis: loop.step for loop in self.loops}

    def tree(self) -> Tree:
        """Together again."""
        body: Tree = self.call
        for loop in reversed(self.loops):
            body = replace(loop, body=body)
        for alloc in reversed((*self.rings, *self.fetches)):
            body = replace(alloc, body=body)
        return body


def layer_of(tree: Tree) -> LayerTree | None:
    """The parts of a layer; None of what holds a Seq."""
    nodes: list[Ring | Fetch | Loop] = []
    while isinstance(tree, Ring | Fetch | Loop):
        nodes.append(tree)
        tree = tree.body
    if not isinstance(tree, Call):
        return None
    rings, fetches = (tuple(n for n in nodes if isinstance(n, Ring)), tuple(n for n in nodes if isinstance(n, Fetch)))
    return LayerTree(rings, tuple(n for n in nodes if isinstance(n, Loop)), tree, fetches)


def tensors_of(tree: Tree) -> tuple[tuple[Alloc, ...], tuple[Tree, ...]]:
    """The tensor allocations of a region's body, and its statements in order."""
    allocs: list[Alloc] = []
    while isinstance(tree, Alloc) and isinstance(tree.buffer, Tensor):
        allocs.append(tree)
        tree = tree.body
    return tuple(allocs), tree.parts if isinstance(tree, Seq) else (tree,)


def region_body(tensors: tuple[Alloc, ...], parts: tuple[Tree, ...]) -> Tree:
    """The other way round."""
    body: Tree = Seq(parts)
    for alloc in reversed(tensors):
        body = replace(alloc, body=body)
    return body


def split_cascade(tree: Tree) -> tuple[Loop, tuple[LayerTree, ...]] | None:
    """The outer loop of a cascade and its layers; None of any other tree. The loop over rows may stand in one over blocks of
    channels or columns."""
    if isinstance(tree, Loop) and isinstance(tree.body, Loop) and tree.axis in BLOCKS:
        inner = split_cascade(tree.body)
        return None if inner is None else (tree, inner[1])
    if not isinstance(tree, Loop) or not isinstance(tree.body, Seq):
        return None
    layers = [layer_of(part) for part in tree.body.parts]
    inner = tuple(layer for layer in layers if layer is not None)
    return (tree, inner) if len(inner) == len(layers) else None


def layers_of(parts: tuple[Tree, ...]) -> Iterator[LayerTree]:
    """The layers of these statements in order, those of cascades too."""
    for part in parts:
        cascade, layer = split_cascade(part), layer_of(part)
        yield from cascade[1] if cascade is not None else (() if layer is None else (layer,))
