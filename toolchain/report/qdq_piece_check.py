"""Whether the normal form of a quantized model says what its file says, piece by piece between the tensors that it rounds.

Rounding makes steps of float's last bits, which the next layers make more of: whole networks differ where every piece is the
same. So each piece is fed with the file's own codes, and must round to the file's own codes.
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
    """Where the normal form rounds `x` to `codes`, and what stands for them behind it. scale, zero_point: numbers, or tensors
    of the file where each run has its own. units: the scale of `real`, 1 where that is in units of `scale`. slack: steps that
    the file's codes may be off."""

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
        """The file's tensors that say what the codes stand for."""
        return (self.codes, *(n for n in (self.scale, self.zero_point, self.units) if isinstance(n, str)))

    def fed(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """values: of the file."""
        return self._whole(values) * np.float32(values[self.units] if isinstance(self.units, str) else self.units)

    def _whole(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """The codes less their zero point."""
        point = values[self.zero_point] if isinstance(self.zero_point, str) else self.zero_point
        return (values[self.codes].astype(np.int64) - np.asarray(point).astype(np.int64)).astype(np.float32)

    def error(self, x: np.ndarray, values: Mapping[str, np.ndarray]) -> float:
        """How far `x` is at most from what rounds to the file's codes, as a share of its largest magnitude."""
        codes = values[self.codes]
        if x.shape != codes.shape:
            return np.inf
        scale = float(np.asarray(values[self.scale] if isinstance(self.scale, str) else self.scale).reshape(()))
        middle = (self._whole(values) * np.float32(scale)).astype(np.float64)
        ends = np.iinfo(codes.dtype)
        low = np.where(codes == ends.min, -np.inf, middle - (0.5 + self.slack) * scale)
        high = np.where(codes == ends.max, np.inf, middle + (0.5 + self.slack) * scale)
        apart = float(np.maximum(np.maximum(low - x, x - high), 0).max(initial=0.0))
        largest = float(np.abs(x).max(initial=0.0))
        return apart / largest if largest and np.isfinite(largest) else 0.0 if apart == 0 else np.inf


def cuts(model: NormalModel) -> list[RoundingPoint]:
    """All of the normal form whose codes the file has too, in order."""
    assert model.source is not None
    own, consumers, producers = model.source.types, model.graph.consumers(), model.graph.producers()
    kinds = dict(model.nodes)
    found: list[RoundingPoint] = []
    for node in model.graph.nodes:
        if node.op.op_type not in QUANTIZERS or node.op.domain or own.get(node.outputs[0]) != model.types[node.outputs[0]]:
            continue
        q = node.outputs[0]
        back = next((n for n in consumers.get(q, ()) if n.op.op_type == "DequantizeLinear" and n.inputs[0] == q), None)
        names = node.outputs[1:] if node.op.op_type == "DynamicQuantizeLinear" else node.inputs[1:]
        constants = [model.graph.constants.get(n) for n in names]
        if back is None or any(c is None and n not in own for c, n in zip(constants, names)):
            continue
        numbers = [n if c is None else c.reshape(-1)[0].item() for c, n in zip(constants, names)]
        scale, point = (*numbers, 0)[:2]
        one = model.graph.constants.get(back.inputs[1])
        units = back.inputs[1] if one is None else one.reshape(-1)[0].item()
        maker = producers.get(node.inputs[0])
        slack = max((SLACK.get(kinds.get(s, ""), 0.0) for s in maker.sources), default=0.0) if maker is not None else 0.0
        found.append(RoundingPoint(node, node.inputs[0], q, back.outputs[0], scale, point, units, slack))
    return found


def piece_errors(model: NormalModel, sample: Mapping[str, np.ndarray], on_file: Run) -> Iterator[tuple[str, float]]:
    """Each tensor that the normal form rounds, and how far it is from the file's, made of the file's own tensors. on_file: gives
    tensors of the file."""
    found = cuts(model)
    reals = {c.real: c for c in found}
    for group in _groups(found, model):
        wanted = list(dict.fromkeys(c.x for c in group if c.x not in reals and c.x not in model.inputs))
        read = read_before(model.graph, wanted, frozenset(reals))
        fed = [reals[n] for n in dict.fromkeys((*read, *(c.x for c in group))) if n in reals]
        names = list(dict.fromkeys(n for c in (*group, *fed) for n in c.reads))
        values = dict(zip(names, on_file(names)))
        feeds = {**sample, **{c.real: c.fed(values) for c in fed}}
        made = FloatSession(_Piece(model, read), wanted, few_runs=True).run({n: feeds[n] for n in read}) if wanted else []
        feeds.update(zip(wanted, made))
        yield from ((c.x, c.error(feeds[c.x], values)) for c in group)


def fed_outputs(
    model: NormalModel, sample: Mapping[str, np.ndarray], names: Sequence[str], on_file: Run
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Outputs of the model: as the file has them, and as the normal form makes them of the last tensors that the file rounds."""
    reals = {c.real: c for c in cuts(model)}
    read = read_before(model.graph, names, frozenset(reals))
    fed = [reals[n] for n in dict.fromkeys((*read, *names)) if n in reals]
    needed = list(dict.fromkeys((*names, *(n for c in fed for n in c.reads))))
    values = dict(zip(needed, on_file(needed)))
    feeds = {**sample, **{c.real: c.fed(values) for c in fed}}
    made = [n for n in names if n not in reals]
    found = FloatSession(_Piece(model, read), made, few_runs=True).run({n: feeds[n] for n in read}) if made else []
    feeds.update(zip(made, found))
    return [(n, values[n], feeds[n]) for n in names]


@dataclass(frozen=True)
class _Piece:
    """What the normal form makes of some of its tensors."""

    model: NormalModel
    inputs: Sequence[str]

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        yield self.model.normal_part(self.inputs, names)


def _groups(found: Sequence[RoundingPoint], model: NormalModel) -> Iterator[list[RoundingPoint]]:
    group, held = list[RoundingPoint](), 0
    for cut in found:
        elements = 2 * model.types[cut.codes].elements
        if group and held + elements > HELD_ELEMENTS:
            yield group
            group, held = [], 0
        group.append(cut)
        held += elements
    if group:
        yield group
