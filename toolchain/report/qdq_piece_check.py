"""Check the canonical form of a quantized model against its file, piece by piece between the tensors that it rounds.

It serves report.frontend_check, which decides what error is a fault. Rounding turns float's last bits into steps, which the
next layers amplify, so whole networks differ where every piece is equal. Therefore each piece is fed with the file's own codes,
and must round to the file's own codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quant.float_session import FloatSession
from toolchain.frontend import NormalModel
from toolchain.frontend.source import read_before
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.ir.graph import Node

Run = Callable[[Sequence[str]], Sequence[np.ndarray]]
HELD_ELEMENTS = 32 << 20  # of tensors that are compared at once
QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
# Steps of its codes that a kernel of onnxruntime's may be off, at scales other than those that its quantizer writes.
SLACK = {"QLinearSoftmax": 1.0}


@dataclass(frozen=True)
class RoundingPoint:
    """A point where the canonical form rounds `x` to `codes` (QuantizeLinear or DynamicQuantizeLinear).

    `node`: the quantizing node.
    `real`: the tensor that stands for the codes after the point.
    `scale`, `zero_point`: numbers, or names of the file's tensors where each run has its own.
    `units`: scale of `real`, 1 where that is in units of `scale`.
    `slack`: steps by which the file's codes may be off beyond half a step.
    """

    node: Node
    x: str
    codes: str
    real: str
    scale: float | str
    zero_point: int | str
    units: float | str
    slack: float

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of the file's tensors that say what the codes stand for."""
        return (self.codes, *(n for n in (self.scale, self.zero_point, self.units) if isinstance(n, str)))

    def fed(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the real values that the file's codes feed to the consumers, in float32.

        `values`: tensors of the file by name, those of `reads`.
        """
        return self._get_offset_codes(values) * np.float32(values[self.units] if isinstance(self.units, str) else self.units)

    def _get_offset_codes(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the file's codes less their zero point, as float32."""
        point = values[self.zero_point] if isinstance(self.zero_point, str) else self.zero_point
        return (values[self.codes].astype(np.int64) - np.asarray(point).astype(np.int64)).astype(np.float32)

    def error(self, x: np.ndarray, values: Mapping[str, np.ndarray]) -> float:
        """Return the largest distance of `x` from the values that round to the file's codes, as a share of the largest
        magnitude of `x`.

        Return infinity where shapes differ. The first and the last code allow any value beyond them.
        """
        codes = values[self.codes]
        if x.shape != codes.shape:
            return np.inf
        scale = float(np.asarray(values[self.scale] if isinstance(self.scale, str) else self.scale).reshape(()))
        middle = (self._get_offset_codes(values) * np.float32(scale)).astype(np.float64)
        ends = np.iinfo(codes.dtype)
        low = np.where(codes == ends.min, -np.inf, middle - (0.5 + self.slack) * scale)
        high = np.where(codes == ends.max, np.inf, middle + (0.5 + self.slack) * scale)
        deviation = float(np.maximum(np.maximum(low - x, x - high), 0).max(initial=0.0))
        largest = float(np.abs(x).max(initial=0.0))
        return deviation / largest if largest and np.isfinite(largest) else 0.0 if deviation == 0 else np.inf


def list_rounding_points(model: NormalModel) -> list[RoundingPoint]:
    """Return the rounding points of the canonical form whose codes the file has too, in order.

    The model must still have its file (`source`). Points that no DequantizeLinear reads are left out, and those of several
    scales.
    """
    assert model.source is not None
    file_types, consumers, producers = model.source.types, model.graph.consumers(), model.graph.producers()
    kinds = dict(model.nodes)
    points: list[RoundingPoint] = []
    for node in model.graph.nodes:
        if node.op.op_type not in QUANTIZERS or node.op.domain or file_types.get(node.outputs[0]) != model.types[node.outputs[0]]:
            continue
        q = node.outputs[0]
        back = next((n for n in consumers.get(q, ()) if n.op.op_type == "DequantizeLinear" and n.inputs[0] == q), None)
        names = node.outputs[1:] if node.op.op_type == "DynamicQuantizeLinear" else node.inputs[1:]
        constants = [model.graph.constants.get(n) for n in names]
        if back is None or any(c is None and n not in file_types for c, n in zip(constants, names)):
            continue
        if any(model.types[n].elements > 1 for n in (*names, back.inputs[1])):
            continue
        numbers = [n if c is None else c.reshape(-1)[0].item() for c, n in zip(constants, names)]
        scale, point = (*numbers, 0)[:2]
        one = model.graph.constants.get(back.inputs[1])
        units = back.inputs[1] if one is None else one.reshape(-1)[0].item()
        maker = producers.get(node.inputs[0])
        slack = max((SLACK.get(kinds.get(s, ""), 0.0) for s in maker.sources), default=0.0) if maker is not None else 0.0
        points.append(RoundingPoint(node, node.inputs[0], q, back.outputs[0], scale, point, units, slack))
    return points


def piece_errors(model: NormalModel, sample: Mapping[str, np.ndarray], on_file: Run) -> Iterator[tuple[str, float]]:
    """Yield each tensor that the canonical form rounds, computed from the file's own codes, with its error
    (`RoundingPoint.error`).

    They come in the order of the network.

    `on_file`: runs the file on the sample and returns the named tensors in order.
    """
    points = list_rounding_points(model)
    reals = {c.real: c for c in points}
    for group in _groups(points, model):
        computed_names = list(dict.fromkeys(c.x for c in group if c.x not in reals and c.x not in model.inputs))
        read = read_before(model.graph, computed_names, frozenset(reals))
        fed = [reals[n] for n in dict.fromkeys((*read, *(c.x for c in group))) if n in reals]
        names = list(dict.fromkeys(n for c in (*group, *fed) for n in c.reads))
        values = dict(zip(names, on_file(names)))
        feeds = {**sample, **{c.real: c.fed(values) for c in fed}}
        arrays = (
            FloatSession(_Piece(model, read), computed_names, few_runs=True).run({n: feeds[n] for n in read})
            if computed_names
            else []
        )
        feeds.update(zip(computed_names, arrays))
        yield from ((c.x, c.error(feeds[c.x], values)) for c in group)


def fed_outputs(
    model: NormalModel, sample: Mapping[str, np.ndarray], names: Sequence[str], on_file: Run
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return (name, the file's value, the canonical form's value) of these outputs, where the file's own codes feed the last
    piece.

    `on_file`: runs the file on the sample and returns the named tensors in order.
    """
    reals = {c.real: c for c in list_rounding_points(model)}
    read = read_before(model.graph, names, frozenset(reals))
    fed = [reals[n] for n in dict.fromkeys((*read, *names)) if n in reals]
    file_names = list(dict.fromkeys((*names, *(n for c in fed for n in c.reads))))
    values = dict(zip(file_names, on_file(file_names)))
    feeds = {**sample, **{c.real: c.fed(values) for c in fed}}
    computed_names = [n for n in names if n not in reals]
    arrays = (
        FloatSession(_Piece(model, read), computed_names, few_runs=True).run({n: feeds[n] for n in read})
        if computed_names
        else []
    )
    feeds.update(zip(computed_names, arrays))
    return [(n, values[n], feeds[n]) for n in names]


@dataclass(frozen=True)
class _Piece:
    """A part of the canonical form that computes some of its tensors."""

    model: NormalModel
    inputs: Sequence[str]

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        yield self.model.normal_part(self.inputs, names)


def _groups(points: Sequence[RoundingPoint], model: NormalModel) -> Iterator[list[RoundingPoint]]:
    """Yield the points in order, in groups of at most HELD_ELEMENTS elements (a larger one is a group alone)."""
    group, group_elements = list[RoundingPoint](), 0
    for cut in points:
        elements = 2 * model.types[cut.codes].elements
        if group and group_elements + elements > HELD_ELEMENTS:
            yield group
            group, group_elements = [], 0
        group.append(cut)
        group_elements += elements
    if group:
        yield group
