"""A run compared with the integer reference inside the file: the first operation whose bytes are not what they should be.

The file says where each layer leaves its tensor. What an operation of the layer writes there is compared as it is written,
for tensors take turns in the same memory; results that pass through a staging buffer are compared when they are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator import Observe
from simulator.program_order import describe
from toolchain.codegen import Container, LayerInfo, LayerResult, Region
from toolchain.errors import format_count
from toolchain.machine import (
    Access,
    Copy,
    InstructionStream,
    Signal,
    Wait,
    accesses_at,
    byte_view,
    in_granules,
    memory_type,
    rebase_access,
)
from toolchain.ops.kit.operator import sample_axis, sample_shape
from toolchain.runtime.backend import Progress
from toolchain.runtime.session import Run, Session


def verify(
    simulator: Session, reference: Session, feeds: Mapping[str, np.ndarray], progress: Progress | None = None
) -> tuple[Run, str | None]:
    """Both sessions hold one file. The run on the simulator (or another backend), and where it first differs, in a sentence
    (None: nowhere). Of a backend that does not tell what its operations write only the outputs are compared."""
    container, expected = simulator.container, reference.run_detailed(feeds)
    if not simulator.observes:
        run = simulator.run_detailed(feeds, progress)
        return run, _differing_output(
            expected, run, f"backend {simulator.backend_name} does not tell what its operations write; npu-sim --dump-memory does"
        )
    regions: list[_RegionWatch] = []

    def watch(region: Region, ops: InstructionStream) -> Observe:
        place = simulator.place(next(i for i, s in enumerate(container.segments) if s is region))
        regions.append(_RegionWatch(container, region, ops, expected.codes, place))
        return regions[-1].observe

    run = simulator.run_detailed(feeds, progress, watch)
    found = next((text for text in (r.first_difference() for r in regions) if text is not None), None)
    return run, found or _differing_output(
        expected, run, "no operation of a known layer does: the program was edited, or built by an older version"
    )


def _differing_output(expected: Run, run: Run, but: str) -> str | None:
    for name, value in expected.outputs.items():
        if not np.array_equal(value, run.outputs[name], equal_nan=True):
            wrong = int((value != run.outputs[name]).sum())
            return (
                f"output {name!r} differs from the integer reference in {format_count(wrong, 'value')} of {value.size:,}, but "
                f"{but}"
            )
    return None


@dataclass
class _Target:
    """The span of memory that a layer's tensor lies in: what it should hold, and what the layer's operations wrote."""

    space: int
    base: int
    want: np.ndarray  # uint8
    held: np.ndarray  # bool: bytes of the tensor that the layer itself writes
    written: np.ndarray
    wrong: np.ndarray
    writes: list[tuple[int, Access]]
    rows: list[tuple[int, Access]]  # writes somewhere in it, where a number of the run says


_Owner = tuple[int, int | None]  # layer, and sample of a batch where these take turns


@dataclass(frozen=True)
class _Difference:
    """position: in the order in which values were computed."""

    position: int
    index: int
    layer: LayerInfo
    text: str


class _RegionWatch:
    """segment: what stands in front of an operation's index."""

    def __init__(
        self, container: Container, region: Region, ops: InstructionStream, codes: Mapping[str, np.ndarray], segment: str
    ):
        self._chip, self._graph = container.machine.chip, container.graph
        self._region, self._ops, self._codes, self._segment = region, ops, codes, segment
        self._owners = [self._owner(i) for i in range(len(ops))]
        self._left = Counter(owner for op, owner in zip(ops, self._owners) if not isinstance(op, Signal | Wait))
        self._targets: dict[_Owner, _Target] = {}
        self._ran: list[int] = []
        self._found: list[_Difference] = []

    def _owner(self, index: int) -> _Owner:
        """The layer of an operation, and the sample of a batch whose tensor it makes where samples take turns in one place."""
        layer = self._region.layer_of(self._ops, index)
        result = self._region.layers[layer].result if layer >= 0 else None
        if result is None or result.turns == 1:
            return layer, None
        return layer, min(self._ops.round(index), result.turns - 1)

    def observe(self, index: int, memory: Sequence[np.ndarray]) -> None:
        op, owner = self._ops[index], self._owners[index]
        layer = owner[0]
        if isinstance(op, Signal | Wait):
            return
        self._ran.append(index)
        if layer < 0:
            return
        result = self._region.layers[layer].result
        if result is None:
            return
        if owner not in self._targets:
            self._targets[owner] = self._target(owner, result)
        target = self._targets[owner]
        for access in accesses_at(self._ops, index, self._chip):
            if access.write and access.space == target.space and access.exact:
                _compare(index, access, target, memory[access.space])
            elif access.write and access.space == target.space:
                target.rows.append((index, access))
        self._left[owner] -= 1
        if not self._left[owner]:
            self._finish(owner, result, self._targets.pop(owner), memory)

    def first_difference(self) -> str | None:
        if not self._found:
            return None
        first = min(self._found, key=lambda d: d.position)
        return f"{self._segment}{self._name(first.index)} of layer {self._layer(first.layer)}: {first.text}"

    def _layer(self, info: LayerInfo) -> str:
        """Its name, and of which nodes of the model it is, or for which."""
        served = self._graph.served(info.result.tensor) if info.result is not None else None
        of = f" of {', '.join(info.sources)}" if info.sources else f" for {served}" if served else ""
        return f"{info.name} ({info.op}{of})"

    def _target(self, owner: _Owner, result: LayerResult) -> _Target:
        layer, sample = owner
        space, whole = self._chip.space_code(result.space), self._place(result)
        size = whole.end - whole.address
        held, written, wrong = (np.zeros(size, np.bool_) for _ in range(3))
        target = _Target(space, whole.address, np.zeros(size, np.uint8), held, written, wrong, [], [])
        codes = np.ascontiguousarray(self._codes[result.tensor])
        if sample is not None:  # each is a run of its own
            codes = codes.reshape(result.turns, *sample_shape(codes.shape, result.turns))[sample]
        here = rebase_access(whole, whole.address)
        every = codes | ~codes  # what fills last granules is held to nothing
        for array, value in ((target.want, _raw(codes, result)), (target.held, _raw(every, result) != 0)):
            view = byte_view(array, here)
            view[...] = value.reshape(view.shape)
        for part in self._made_in_place(layer):
            low, high = max(part.address, whole.address), min(part.end, whole.end)
            if part.space == space and low < high:
                target.held &= ~_cover(part, whole.address, size)
        return target

    def _made_in_place(self, layer: int) -> list[Access]:
        """Where the parts of a Concat lie, which may be inside it: their own layers write them."""
        node = next(n for n in self._graph.nodes if n.name == self._region.layers[layer].name)
        results = [info.result for info in self._region.layers if info.result and info.result.tensor in node.inputs]
        return [self._place(r) for r in results]

    def _place(self, result: LayerResult) -> Access:
        return result.place(self._graph.types[result.tensor], self._chip.space_code(result.space))

    def _finish(self, owner: _Owner, result: LayerResult, target: _Target, memory: Sequence[np.ndarray]) -> None:
        """Every operation of the layer has run."""
        info = self._region.layers[owner[0]]
        wrong = target.wrong
        for index, access in target.rows:  # what else lies there is as it was
            _compare(index, access, target, memory[target.space])
        for index, access in reversed(target.writes):  # the last that wrote a byte answers for it
            own = wrong & _cover(access, target.base, wrong.size)
            if own.any():
                text = self._wrong_text(index, access, result, target, own, memory)
                self._found.append(_Difference(self._ran.index(index), index, info, text))
                wrong = wrong & ~own
        missing = target.held & ~target.written
        if missing.any():
            last, position = self._ran[-1], len(self._ran) - 1
            first = target.base + int(missing.argmax())
            lacking, name = format_count(int(missing.sum()), "byte"), self._graph.shown(result.tensor)
            text = (
                f"was its last operation, and {lacking} of its tensor {name} were not written, the first at "
                f"{result.space}[{first:#x}]"
            )
            self._found.append(_Difference(position, last, info, text))

    def _wrong_text(
        self,
        index: int,
        access: Access,
        result: LayerResult,
        target: _Target,
        wrong: np.ndarray,
        memory: Sequence[np.ndarray],
    ) -> str:
        at = int(wrong.argmax())
        address = target.base + at
        name, element = self._graph.shown(result.tensor), self._element(index, result, address)
        order = f" ({name.layout})" if name.layout == "nhwc" else ""
        place = f"{result.space}[{address:#x}], element {element}{order} of {name}"
        said = (
            f"writes {memory[access.space][address]:#04x} to {place}; the integer reference has {target.want[at]:#04x} "
            f"({int(wrong.sum()):,} of its {access.bytes:,} bytes differ)"
        )
        maker = self._maker(index, access, address)
        return said if maker is None else f"{said}; it copies what {self._name(maker)} made"

    def _element(self, index: int, result: LayerResult, address: int) -> list[int]:
        shape, left = self._graph.types[result.tensor].shape, address - result.address
        element, (_, sample) = [0] * len(shape), self._owners[index]
        granule = result.granule or shape[-1] if shape else 1
        steps = [(stride, k, 1) for k, (n, stride) in enumerate(zip(shape, result.strides)) if n > 1]
        for stride, k, elements in sorted([*steps, (result.surface_bytes, len(shape) - 1, granule)], reverse=True):
            if stride:
                count, left = divmod(left, stride)
                element[k] += count * elements
        axis = sample_axis(shape)
        if sample is not None and axis is not None:
            element[axis] += sample * (shape[axis] // result.turns)
        return element

    def _maker(self, index: int, access: Access, address: int) -> int | None:
        """The operation that wrote the byte which a Copy put at `address`."""
        op = self._ops[index]
        if not isinstance(op, Copy):
            return None
        source, target = accesses_at(self._ops, index, self._chip)
        if not (source.exact and target.exact):  # addresses of one run
            return None
        places = np.ndarray((*target.counts, target.inner_bytes), np.int64)
        places[...] = sum(
            np.arange(n).reshape([-1 if i == k else 1 for i in range(places.ndim)]) * stride
            for k, (n, stride) in enumerate(zip(places.shape, (*target.strides, 1)))
        )
        where = np.unravel_index(int((places == address - target.address).argmax()), places.shape)
        byte = source.address + int(sum(i * s for i, s in zip(where, (*source.strides, 1))))
        before = self._ran[: self._ran.index(index)]
        for other in reversed(before):
            for found in accesses_at(self._ops, other, self._chip):
                if found.write and found.exact and found.space == source.space and _cover(found, byte, 1)[0]:
                    return other
        return None

    def _name(self, index: int) -> str:
        return describe(index, self._ops, self._chip)


def _raw(codes: np.ndarray, result: LayerResult) -> np.ndarray:
    """Bytes of codes in their order, with zeros that fill the last granules of channels."""
    held = in_granules(codes, result.granule) if result.granule else codes
    return np.ascontiguousarray(held).astype(memory_type(codes.dtype)).view(np.uint8).reshape(-1)


def _compare(index: int, access: Access, target: _Target, memory: np.ndarray) -> None:
    """Notes which of the bytes just written are not those of the layer's tensor."""
    low, high = max(access.address, target.base), min(access.end, target.base + target.want.size)
    if low >= high:
        return
    cover, here = _cover(access, low, high - low), slice(low - target.base, high - target.base)
    differs = (memory[low:high] != target.want[here]) & target.held[here]
    target.wrong[here] = np.where(cover, differs, target.wrong[here])
    target.written[here] |= cover
    target.writes.append((index, access))


def _cover(access: Access, base: int, size: int) -> np.ndarray:
    """bool for bytes base .. base + size of the memory: whether the access touches them."""
    if access.end <= base or base + size <= access.address:
        return np.zeros(size, np.bool_)
    low, high = min(base, access.address), max(base + size, access.end)
    touched = np.zeros(high - low, np.bool_)
    byte_view(touched, rebase_access(access, low))[...] = True
    return touched[base - low : base - low + size]
