"""Compare a run with the integer reference on the same file, and name the first operation whose bytes are wrong.

It is `npu-sim --verify`. The file says where each layer leaves its tensor. The bytes that the layer's operations write there
are compared as they are written, because tensors take turns in one memory. Results that pass through a staging buffer are
compared when they are stored.
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
    """Run a sample on both sessions, and return the run and a sentence that says where it first differs; None: it differs
    nowhere.

    `simulator`: the session to verify, of the simulator or another backend. If its backend does not observe operations, only
    outputs are compared.
    `reference`: a session of the reference on the same file.
    """
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
    difference = next((text for text in (r.first_difference() for r in regions) if text is not None), None)
    return run, difference or _differing_output(
        expected, run, "no operation of a known layer does: the program was edited, or built by an older version"
    )


def _differing_output(expected: Run, run: Run, but: str) -> str | None:
    """Return a sentence on the first output that differs, None without any. but: why no operation is named."""
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
    """The span of memory that a layer's tensor lies in: the bytes that it should hold, and those that the layer's operations
    wrote.

    `base`: address of its first byte in the memory `space`; all arrays are over the bytes from there on.
    `want`: uint8, the reference's bytes.
    `compare_mask`: bool, bytes of the tensor that the layer itself writes.
    `written`, `wrong`: bool, bytes that were written, and that differed when they were.
    `writes`: operations that wrote there, each with its access.
    `rows`: writes to a place in it that only the run decides.
    """

    space: int
    base: int
    want: np.ndarray  # uint8
    compare_mask: np.ndarray  # bool: bytes of the tensor that the layer itself writes
    written: np.ndarray
    wrong: np.ndarray
    writes: list[tuple[int, Access]]
    rows: list[tuple[int, Access]]  # writes somewhere in it, where a number of the run says


_Owner = tuple[int, int | None]  # layer, and sample of a batch where these take turns


@dataclass(frozen=True)
class _Difference:
    """A difference between the run and the reference.

    `position`: place of the operation in the order in which values were computed.
    `index`: its index in the program's flow.
    """

    position: int
    index: int
    layer: LayerInfo
    text: str


class _RegionWatch:
    """An observer of one region's run that compares each layer's tensor as it is written.

    `codes`: the reference's codes by tensor.
    `segment`: prefix of an operation's index in messages.
    """

    def __init__(
        self, container: Container, region: Region, ops: InstructionStream, codes: Mapping[str, np.ndarray], segment: str
    ):
        self._chip, self._graph = container.machine.chip, container.graph
        self._region, self._ops, self._codes, self._segment = region, ops, codes, segment
        self._owners = [self._owner(i) for i in range(len(ops))]
        self._remaining_ops = Counter(owner for op, owner in zip(ops, self._owners) if not isinstance(op, Signal | Wait))
        self._targets: dict[_Owner, _Target] = {}
        self._ran: list[int] = []
        self._differences: list[_Difference] = []

    def _owner(self, index: int) -> _Owner:
        """Return the layer of an operation (-1: none) and the sample of a batch that it makes. The sample is None unless
        samples take turns in one place."""
        layer = self._region.layer_of(self._ops, index)
        result = self._region.layers[layer].result if layer >= 0 else None
        if result is None or result.turns == 1:
            return layer, None
        return layer, min(self._ops.round(index), result.turns - 1)

    def observe(self, index: int, memory: Sequence[np.ndarray]) -> None:
        """Compare the bytes that an operation has just written with those of its layer's tensor.

        `index`: the operation in the flow; `memory`: all memories, by code.
        """
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
        self._remaining_ops[owner] -= 1
        if not self._remaining_ops[owner]:
            self._finish(owner, result, self._targets.pop(owner), memory)

    def first_difference(self) -> str | None:
        """Return a sentence on the difference that was computed first, None without any."""
        if not self._differences:
            return None
        first = min(self._differences, key=lambda d: d.position)
        return f"{self._segment}{self._name(first.index)} of layer {self._layer(first.layer)}: {first.text}"

    def _layer(self, info: LayerInfo) -> str:
        """Return the layer's name, operator, and the nodes of the model that it implements or serves."""
        served = self._graph.find_model_node(info.result.tensor) if info.result is not None else None
        of = f" of {', '.join(info.sources)}" if info.sources else f" for {served}" if served else ""
        return f"{info.name} ({info.op}{of})"

    def _target(self, owner: _Owner, result: LayerResult) -> _Target:
        """Return the target of a layer's tensor with the bytes that the reference has for it."""
        layer, sample = owner
        space, result_access = self._chip.space_code(result.space), self._place(result)
        size = result_access.end - result_access.address
        compare_mask, written, wrong = (np.zeros(size, np.bool_) for _ in range(3))
        target = _Target(space, result_access.address, np.zeros(size, np.uint8), compare_mask, written, wrong, [], [])
        codes = np.ascontiguousarray(self._codes[result.tensor])
        if sample is not None:  # each is a run of its own
            codes = codes.reshape(result.turns, *sample_shape(codes.shape, result.turns))[sample]
        here = rebase_access(result_access, result_access.address)
        every = codes | ~codes  # what fills last granules is held to nothing
        for array, value in ((target.want, _raw(codes, result)), (target.compare_mask, _raw(every, result) != 0)):
            view = byte_view(array, here)
            view[...] = value.reshape(view.shape)
        for part in self._list_part_accesses(layer):
            low, high = max(part.address, result_access.address), min(part.end, result_access.end)
            if part.space == space and low < high:
                target.compare_mask &= ~_cover(part, result_access.address, size)
        return target

    def _list_part_accesses(self, layer: int) -> list[Access]:
        """Return the accesses of a Concat's parts, which may lie inside it: their own layers write them."""
        node = next(n for n in self._graph.nodes if n.name == self._region.layers[layer].name)
        results = [info.result for info in self._region.layers if info.result and info.result.tensor in node.inputs]
        return [self._place(r) for r in results]

    def _place(self, result: LayerResult) -> Access:
        return result.place(self._graph.types[result.tensor], self._chip.space_code(result.space))

    def _finish(self, owner: _Owner, result: LayerResult, target: _Target, memory: Sequence[np.ndarray]) -> None:
        """Note the differences of a layer all of whose operations have run.

        A wrong byte counts for the last operation that wrote it; bytes that were not written count too.
        """
        info = self._region.layers[owner[0]]
        wrong = target.wrong
        for index, access in target.rows:  # what else lies there is as it was
            _compare(index, access, target, memory[target.space])
        for index, access in reversed(target.writes):  # the last that wrote a byte answers for it
            op_mask = wrong & _cover(access, target.base, wrong.size)
            if op_mask.any():
                text = self._wrong_text(index, access, result, target, op_mask, memory)
                self._differences.append(_Difference(self._ran.index(index), index, info, text))
                wrong = wrong & ~op_mask
        missing = target.compare_mask & ~target.written
        if missing.any():
            last, position = self._ran[-1], len(self._ran) - 1
            first = target.base + int(missing.argmax())
            missing_bytes, name = format_count(int(missing.sum()), "byte"), self._graph.shown(result.tensor)
            text = (
                f"was its last operation, and {missing_bytes} of its tensor {name} were not written, the first at "
                f"{result.space}[{first:#x}]"
            )
            self._differences.append(_Difference(position, last, info, text))

    def _wrong_text(
        self,
        index: int,
        access: Access,
        result: LayerResult,
        target: _Target,
        wrong: np.ndarray,
        memory: Sequence[np.ndarray],
    ) -> str:
        """Return a sentence on the first wrong byte that an operation wrote. wrong: bool, its wrong bytes in the target."""
        at = int(wrong.argmax())
        address = target.base + at
        name, element = self._graph.shown(result.tensor), self._element(index, result, address)
        order = f" ({name.layout})" if name.layout == "nhwc" else ""
        place = f"{result.space}[{address:#x}], element {element}{order} of {name}"
        message = (
            f"writes {memory[access.space][address]:#04x} to {place}; the integer reference has {target.want[at]:#04x} "
            f"({int(wrong.sum()):,} of its {access.bytes:,} bytes differ)"
        )
        maker = self._maker(index, access, address)
        return message if maker is None else f"{message}; it copies what {self._name(maker)} made"

    def _element(self, index: int, result: LayerResult, address: int) -> list[int]:
        """Return the indices of the element of the layer's tensor that lies at an address."""
        shape, offset = self._graph.types[result.tensor].shape, address - result.address
        element, (_, sample) = [0] * len(shape), self._owners[index]
        granule = result.granule or shape[-1] if shape else 1
        steps = [(stride, k, 1) for k, (n, stride) in enumerate(zip(shape, result.strides)) if n > 1]
        for stride, k, elements in sorted([*steps, (result.surface_bytes, len(shape) - 1, granule)], reverse=True):
            if stride:
                count, offset = divmod(offset, stride)
                element[k] += count * elements
        axis = sample_axis(shape)
        if sample is not None and axis is not None:
            element[axis] += sample * (shape[axis] // result.turns)
        return element

    def _maker(self, index: int, access: Access, address: int) -> int | None:
        """Return the operation that wrote the byte which a Copy put at `address`; None for another operation, or where none is
        known."""
        op = self._ops[index]
        if not isinstance(op, Copy):
            return None
        source, target = accesses_at(self._ops, index, self._chip)
        if not (source.exact and target.exact):  # addresses of one run
            return None
        places = np.ndarray((*target.counts, target.inner_bytes), np.int64)
        places[...] = sum(
            np.arange(int(n)).reshape([-1 if i == k else 1 for i in range(places.ndim)]) * stride
            for k, (n, stride) in enumerate(zip(places.shape, (*target.strides, 1)))
        )
        where = np.unravel_index(int((places == address - target.address).argmax()), places.shape)
        byte = source.address + int(sum(i * s for i, s in zip(where, (*source.strides, 1))))
        before = self._ran[: self._ran.index(index)]
        for other in reversed(before):
            for candidate in accesses_at(self._ops, other, self._chip):
                if candidate.write and candidate.exact and candidate.space == source.space and _cover(candidate, byte, 1)[0]:
                    return other
        return None

    def _name(self, index: int) -> str:
        return describe(index, self._ops, self._chip)


def _raw(codes: np.ndarray, result: LayerResult) -> np.ndarray:
    """Return the bytes of codes in their order, with zeros that fill the last granules of channels."""
    stored = in_granules(codes, result.granule) if result.granule else codes
    return np.ascontiguousarray(stored).astype(memory_type(codes.dtype)).view(np.uint8).reshape(-1)


def _compare(index: int, access: Access, target: _Target, memory: np.ndarray) -> None:
    """Note in the target which of the bytes just written are not those of the layer's tensor."""
    low, high = max(access.address, target.base), min(access.end, target.base + target.want.size)
    if low >= high:
        return
    cover, here = _cover(access, low, high - low), slice(low - target.base, high - target.base)
    differs = (memory[low:high] != target.want[here]) & target.compare_mask[here]
    target.wrong[here] = np.where(cover, differs, target.wrong[here])
    target.written[here] |= cover
    target.writes.append((index, access))


def _cover(access: Access, base: int, size: int) -> np.ndarray:
    """Return bool[size], True where the access touches a byte from `base` on."""
    if access.end <= base or base + size <= access.address:
        return np.zeros(size, np.bool_)
    low, high = min(base, access.address), max(base + size, access.end)
    touched = np.zeros(high - low, np.bool_)
    byte_view(touched, rebase_access(access, low))[...] = True
    return touched[base - low : base - low + size]
