"""What the steps of a repair work on: a network in float, on its machine, and the integers that a quantization makes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.masks import masked_tensors
from quant.observe import Range
from quant.parameters import quant_range, weight_quant
from quant.repair.choices import Quantization, StepOutcome
from toolchain.codegen import reference_container
from toolchain.frontend import NormalModel
from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, Origin, Quant
from toolchain.isa import Machine
from toolchain.ops.convolution.rules import Convolution
from toolchain.ops.exact_integers import TRUTH
from toolchain.passes.assign import assign_types
from toolchain.passes.fold_qdq import finest_codes, fuse_selected_clamps, select_graph
from toolchain.passes.match_nodes import match_nodes
from toolchain.passes.quantize import quantize
from toolchain.passes.select import Selection
from toolchain.passes.type_overrides import PRODUCTS, list_weighted_layers, resolve_type_overrides
from toolchain.repair.channel_scaling import scaled_model
from toolchain.report.host_metrics import MACS
from toolchain.runtime import Session

BY_REPAIR = "left to the host by repair: its integers would cost more than they save"
Progress = Callable[[str, int, int | None], None]  # step, done, total


@dataclass(frozen=True)
class Network:
    """model: in float; selection: what of it the machine's chip runs; host_nodes: of the model's, that were asked to stay;
    types, weight_types: of the model's tensors, and of layers' weights, that were asked for; not_finite: tensors whose values
    in a sample have no range, and with what reason nodes beside them stay on the host."""

    model: NormalModel
    selection: Selection
    machine: Machine
    host_nodes: tuple[str, ...] = ()
    types: Mapping[str, CodeType] = field(default_factory=dict)
    weight_types: Mapping[str, CodeType] = field(default_factory=dict)
    not_finite: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def graph(self) -> Graph:
        """The chip operators as selected, clamps fused, in float."""
        return fuse_selected_clamps(self.selection, self.chip)

    @property
    def weighted(self) -> list[Node]:
        """Layers of `graph` that have weights."""
        return [n for n in self.graph.nodes if isinstance(n.op, Convolution)]

    @property
    def origins(self) -> Mapping[str, Origin]:
        """As Selection has them."""
        return self.selection.origins

    @property
    def held(self) -> list[str]:
        """The model's tensors that the chip holds."""
        return sorted({tensor for tensor, _ in self.origins.values()})

    @property
    def tensors(self) -> list[str]:
        """The model's tensors whose ranges are to be found: those on the chip that a quantized model says no scale of."""
        return sorted({*self.held} - self.selection.given.keys())

    @property
    def said_types(self) -> dict[str, CodeType]:
        """Of the model's tensors: by the model, then by who asked for others."""
        return {**self.selection.types, **self.types}

    @property
    def code_types(self) -> dict[str, CodeType]:
        """Of the model's tensors that the chip holds: those of their codes, whoever decides them."""
        types = assign_types(self.graph, self.chip, self.said_types)
        own = {name: origin.tensor for name, origin in self.graph.origins.items() if origin.layout != INNER}
        found: dict[str, CodeType] = {}
        for name, tensor in own.items():
            if name in types:
                found[tensor] = max(types[name], found.get(tensor, types[name]), key=lambda t: t.bits)
        return found

    def given(self, types: Mapping[str, CodeType]) -> dict[str, Range | Quant]:
        """What the model says of its tensors: their ranges where they have codes of another type in `types` than in the model."""
        numerics, found = self.chip.numerics, dict(self.selection.given)
        for name, codes in self.selection.types.items():
            quant = found.get(name)
            if types.get(name, codes) is not codes and isinstance(quant, Quant):
                found[name] = quant_range(quant, numerics.of(codes))
        return found

    @property
    def chip(self) -> Chip:
        return self.machine.chip

    def typed(self, asked: Sequence[str]) -> Network:
        """With the types that NAME=TYPE of each --type ask for, but of numbers that addresses are made of, which are exact as
        they are. Raises CompileError with every fault of them."""
        if not asked:
            return self
        found = resolve_type_overrides(
            self.model, asked, self.chip, self.held, list_weighted_layers(self.model, self.weighted), self.selection.rounded
        )
        numbers = {n for n in self.selection.types if self.selection.given.get(n) == TRUTH}
        tensors = {n: codes for n, codes in found.tensors.items() if n not in numbers}
        return replace(self, types=self.on_chip(tensors), weight_types=found.weights)

    @cached_property
    def made_weight_types(self) -> dict[str, CodeType]:
        """Of layers whose weights the compiler made, as those of a Resize: two planes where one is coarser than the codes that
        they multiply. Weights of a product of the file are the file's, computed from constants or not."""
        types = assign_types(self.graph, self.chip, self.said_types) if "add" in self.chip.functions else {}
        products = {name for name, kind in self.model.nodes if kind in PRODUCTS or self.model.weights.get(name)}
        found: dict[str, CodeType] = {}
        for node in self.weighted:
            x = types.get(node.inputs[0])
            if x is not None and not products & {*node.sources, node.name}:
                wide = self._plane_pair(node, finest_codes(self.chip) if x.is_wide else x)
                found |= {} if wide is None else {node.name: wide}
        return found

    def _plane_pair(self, node: Node, x: CodeType) -> CodeType | None:
        """The type whose weights are two planes of the narrowest that multiplies codes of x, where that does not hold them to the
        bits of x."""
        narrow = next(iter(self.chip.weights_for(x)), None)
        wide = next((t for t, plane in self.chip.numerics.wide_weights.items() if plane is narrow), None)
        if narrow is None or wide is None or x.bits <= narrow.bits:
            return None
        weights = self.graph.constants[node.inputs[1]]
        rounded = weight_quant(weights, 0, self.chip.numerics.of(x).with_weights(narrow), name=node.name)
        error = np.abs(rounded.dequantized() - weights).max(initial=0)
        return wide if error > np.abs(weights).max(initial=0) / 2**x.bits else None

    def on_chip(self, types: Mapping[str, CodeType]) -> dict[str, CodeType]:
        """types: by tensor of the model. Of a tensor that the chip does not hold since a clamp behind it is fused, what that
        makes has the type, unless it has one of its own."""
        if not types:
            return {}
        held = {self.graph.origins[n].tensor for node in self.graph.nodes for n in node.outputs if n in self.graph.origins}
        made: dict[str, str] = {}
        for node in self.graph.nodes:
            if node.outputs[0] in self.graph.origins:
                made.update(dict.fromkeys(node.sources, self.graph.origins[node.outputs[0]].tensor))
        sources = {t: node.sources or (node.name,) for node in self.model.graph.nodes for t in node.outputs}
        moved = {t: [made[s] for s in sources.get(t, ()) if s in made] for t in types if t not in held}
        return {**{to[0]: types[t] for t, to in moved.items() if to}, **types}

    def through(self, quantization: Quantization) -> Network:
        """This network, as it comes from the model, with the factors of a quantization in it and its hosted nodes on the host.

        Raises CompileError: factors that do not fit the model.
        """
        if not quantization.factors and not quantization.hosted:
            return self
        model, put_in = scaled_model(self.model, quantization.factors)
        repaired = {*match_nodes(model.nodes, quantization.hosted, option="repair.hosted"), *put_in}
        return replace(self, model=model)._hosting(repaired, BY_REPAIR)

    def _hosting(self, nodes: Collection[str], reason: str) -> Network:
        """With these nodes of the model on the host too, for this reason."""
        hosted = tuple(dict.fromkeys((*self.host_nodes, *sorted(nodes))))
        selection = select_graph(self.model, self.chip, hosted)
        known = {f.node: f.reason for f in self.selection.fallbacks}
        ours = frozenset(nodes).difference(self.host_nodes)
        sources = {n.name: ours.intersection((n.name, *n.sources)) for n in selection.graph.nodes}
        told = (replace(f, reason=reason if sources.get(f.node) else known.get(f.node, f.reason)) for f in selection.fallbacks)
        return replace(self, selection=replace(selection, fallbacks=tuple(told)), host_nodes=hosted)

    def without_range(self, tensor: str, what: str) -> Network | None:
        """With the nodes that make or read a tensor on the host, since codes cannot hold it. None where that mends nothing, or
        would move products: then it is the data that are to be mended. what: `NaN in 2 of 6 elements`."""
        beside = {s for n in self.model.graph.nodes if tensor in (*n.inputs, *n.outputs) for s in n.sources or (n.name,)}
        beside |= self._makers_of_masks(beside)
        if tensor in self.not_finite or any(
            n.op.op_type in MACS and not beside.isdisjoint(n.sources or (n.name,)) for n in self.model.graph.nodes
        ):
            return None
        found = self._hosting(beside, f"{tensor!r} holds {what} in a sample, which codes cannot hold")
        return replace(found, not_finite={**self.not_finite, tensor: what})

    def _makers_of_masks(self, nodes: Collection[str]) -> set[str]:
        """The nodes that make masks which `nodes` read, at once or through sums. Codes saturate at minus infinity, so that what a
        mask makes NaN would be a number behind them."""
        whole = self.model.undivided or self.model
        masks, makers = masked_tensors(whole.proto), {o: n for n in whole.graph.nodes for o in n.outputs}
        pending, found = [n for n in whole.graph.nodes if not set(nodes).isdisjoint(n.sources or (n.name,))], set[str]()
        while pending:
            made = [makers[name] for name in pending.pop().inputs if name in masks and name in makers]
            summing = [n for n in made if n.op.op_type not in MACS and not found.issuperset(n.sources or (n.name,))]
            found.update(s for n in summing for s in n.sources or (n.name,))
            pending += summing
        return found

    def integer(self, quantization: Quantization) -> Graph:
        """The integer graph, nothing fused behind its layers: its bits are those of the program."""
        return quantize(self.graph, self.chip, quantization)

    def session(self, quantization: Quantization, host: str = "cpu") -> Session:
        """The integer reference of the whole network, islands on the host among it; `run_detailed` gives every chip tensor's
        codes."""
        graph = self.integer(quantization)
        return Session(reference_container(self.model, self.selection, self.machine, graph), backend="reference", host=host)  # type: ignore[arg-type]


# Of (network, quantization, samples, progress). samples start afresh each time they are iterated, and are what this step may see.
Step = Callable[..., StepOutcome]
