"""Hold a float network with its machine, and make the integer network of a quantization from it.

Calibration, the steps of repair and the placement of nodes at ports work on a `Network`. It is frozen: each change returns a
new one, selected anew where nodes go to the host. A `Step` of repair is called with a network, a quantization, samples that
start afresh each time they are iterated, and a progress function. A `Progress` gets the step, how much of it is done, and of how
much; None where that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from quant.fixed_point.core.codes import CodeType
from quant.masks import find_masked_tensors
from quant.observe import Range
from quant.parameters import quant_range
from quant.repair.choices import Quantization, StepOutcome
from toolchain.codegen import reference_container
from toolchain.foundation.inference import get_float_host
from toolchain.frontend import NormalModel
from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, Origin, Quant
from toolchain.isa import Machine
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.exact_integers import TRUTH
from toolchain.passes.assign import assign_types
from toolchain.passes.fold_qdq import fuse_selected_clamps
from toolchain.passes.match_nodes import match_nodes
from toolchain.passes.pipeline import select_graph
from toolchain.passes.quantize import quantize
from toolchain.passes.quantized_graph import QuantizedGraph
from toolchain.passes.select import Selection
from toolchain.passes.type_overrides import PRODUCTS, decompose_again, list_weighted_layers, resolve_type_overrides
from toolchain.repair.channel_scaling import scale_model
from toolchain.report.host_metrics import MACS
from toolchain.runtime import Session

BY_REPAIR = "left to the host by repair: its integers would cost more than they save"
Progress = Callable[[str, int, int | None], None]  # step, done, total


CycleCounter = Callable[["Network", Quantization], int]


@dataclass(frozen=True)
class Network:
    """A float network on its machine, and what the user asked of it.

    `model`: the model in float.
    `selection`: the chip's operators of the model, as `select` made them, with what stays on the host.
    `host_nodes`: nodes of the model that are to stay on the host.
    `types`: types that the user or repair set for tensors of the model.
    `weight_types`: types that the user set for weights of layers.
    `not_finite`: by tensor that a sample fills with NaN or infinity, a text; nodes at them are on the host.
    `raw_ports`: inputs and outputs, by their names in the file, that keep one affine scale.
    `max_slowdown`: factor of the cycles that wider codes may take.
    `count_cycles`: returns the expected cycles of a network with a quantization. None: repair chooses no wider codes.
    `scaled_from`: the network before its factors and host nodes of repair, and the quantization that holds them. None: it has
    none.
    """

    model: NormalModel
    selection: Selection
    machine: Machine
    host_nodes: tuple[str, ...] = ()
    types: Mapping[str, CodeType] = field(default_factory=dict[str, CodeType])
    weight_types: Mapping[str, CodeType] = field(default_factory=dict[str, CodeType])
    not_finite: Mapping[str, str] = field(default_factory=dict[str, str])
    raw_ports: frozenset[str] = frozenset()
    max_slowdown: float = 1.1
    count_cycles: CycleCounter | None = None
    scaled_from: tuple[Network, Quantization] | None = None

    @cached_property
    def graph(self) -> Graph:
        """Return the chip operators as selected, clamps fused, in float."""
        return fuse_selected_clamps(self.selection, self.chip)

    @property
    def weighted(self) -> list[Node]:
        """Return the layers of `graph` that have weights."""
        return [n for n in self.graph.nodes if isinstance(n.op, Convolution)]

    @property
    def origins(self) -> Mapping[str, Origin]:
        """Return the model's tensor and its layout by tensor of `graph`."""
        return self.selection.origins

    @property
    def chip_tensors(self) -> list[str]:
        """Return the model's tensors that the chip holds, sorted."""
        return sorted({tensor for tensor, _ in self.origins.values()})

    @property
    def tensors(self) -> list[str]:
        """Return the model's tensors whose ranges are to be calibrated: those on the chip that a quantized model says no scale
        of."""
        return sorted({*self.chip_tensors} - self.selection.file_ranges.keys())

    @property
    def requested_types(self) -> dict[str, CodeType]:
        """Return the types that are given for the model's tensors: first those of the model, then the type overrides."""
        return {**self.selection.types, **self.types}

    @property
    def code_types(self) -> dict[str, CodeType]:
        """Return the type of codes of each model tensor that the chip holds, whichever source decides it; of several the
        widest."""
        types = assign_types(self.graph, self.chip, self.requested_types)
        tensor_by_name = {name: origin.tensor for name, origin in self.graph.origins.items() if origin.layout != INNER}
        type_by_tensor: dict[str, CodeType] = {}
        for name, tensor in tensor_by_name.items():
            if name in types:
                type_by_tensor[tensor] = max(types[name], type_by_tensor.get(tensor, types[name]), key=lambda t: t.bits)
        return type_by_tensor

    def get_model_ranges(self, types: Mapping[str, CodeType]) -> dict[str, Range | Quant]:
        """Return the qparams that the model states, by tensor.

        A tensor whose type in `types` differs from the model's has their range instead.
        """
        numerics, ranges = self.chip.numerics, dict(self.selection.file_ranges)
        for name, codes in self.selection.types.items():
            quant = ranges.get(name)
            if types.get(name, codes) is not codes and isinstance(quant, Quant):
                ranges[name] = quant_range(quant, numerics.of(codes))
        return ranges

    @property
    def chip(self) -> Chip:
        """Return the machine's chip."""
        return self.machine.chip

    def override_types(self, overrides: Sequence[str]) -> Network:
        """Return the network with the types that each --type NAME=TYPE asks for.

        Numbers that make addresses keep their type, since they are exact. Raise CompileError with every fault of the arguments.
        """
        if not overrides:
            return self
        resolved_types = resolve_type_overrides(
            self.model,
            overrides,
            self.chip,
            self.chip_tensors,
            list_weighted_layers(self.model, self.weighted),
            self.selection.rounded,
        )
        numbers = {n for n in self.selection.types if self.selection.file_ranges.get(n) == TRUTH}
        tensors = {n: codes for n, codes in resolved_types.tensors.items() if n not in numbers}
        return replace(self, types=self.on_chip(tensors), weight_types=resolved_types.weights)

    @cached_property
    def compiler_weights(self) -> frozenset[str]:
        """Return the layers whose weights the compiler makes, as those of a Resize.

        Weights of a product in the file are the file's own, computed from constants or not.
        """
        products = {name for name, kind in self.model.nodes if kind in PRODUCTS or self.model.weights.get(name)}
        return frozenset(node.name for node in self.weighted if not products & {*node.sources, node.name})

    def on_chip(self, types: Mapping[str, CodeType]) -> dict[str, CodeType]:
        """Return the types, with those of tensors that a fused clamp took away also for the clamp's output, unless that has its
        own.

        `types`: types by tensor of the model.
        """
        if not types:
            return {}
        chip_tensors = {
            self.graph.origins[n].tensor for node in self.graph.nodes for n in node.outputs if n in self.graph.origins
        }
        tensor_by_source: dict[str, str] = {}
        for node in self.graph.nodes:
            if node.outputs[0] in self.graph.origins:
                tensor_by_source.update(dict.fromkeys(node.sources, self.graph.origins[node.outputs[0]].tensor))
        sources = {t: node.sources or (node.name,) for node in self.model.graph.nodes for t in node.outputs}
        moved = {
            t: [tensor_by_source[s] for s in sources.get(t, ()) if s in tensor_by_source] for t in types if t not in chip_tensors
        }
        return {**{to[0]: types[t] for t, to in moved.items() if to}, **types}

    def through(self, quantization: Quantization) -> Network:
        """Return the network with the factors, types and host nodes of a quantization. The network must be as it comes from the
        model.

        Raise CompileError where factors or nodes do not fit the model.
        """
        network = self.with_types(quantization.types)
        if not quantization.factors and not quantization.hosted:
            return network
        model, put_in = scale_model(network.model, quantization.factors)
        repaired = {*match_nodes(model.nodes, quantization.hosted, option="repair.hosted"), *put_in}
        return replace(network, model=model, scaled_from=(network, quantization)).host(repaired, BY_REPAIR)

    def with_types(self, types: Mapping[str, CodeType]) -> Network:
        """Return the network with these types of the model's tensors. Types that the network has already win.

        Operators that are computed in steps get the steps that codes of this type take. Tensors that the model lacks are passed
        over.
        """
        type_by_tensor = self.requested_types
        more = {n: codes for n, codes in types.items() if n in self.model.types and type_by_tensor.get(n) is not codes}
        if not more:
            return self
        all_types = {**more, **self.types}
        model = decompose_again(self.model, self.chip, self.host_nodes, {**self.selection.types, **all_types})
        if model is self.model:
            return replace(self, types=all_types)
        if self.scaled_from is not None:  # steps come from the operators in one piece, which have no factors
            unscaled, factors = self.scaled_from
            return unscaled.with_types(all_types).through(factors)
        return replace(self, model=model, types=all_types).host((), "")

    def host(self, nodes: Collection[str], reason: str) -> Network:
        """Return the network with these nodes of the model on the host too, selected anew. Nodes that were there keep their
        reasons.

        `reason`: why the new ones are there.
        """
        hosted = tuple(dict.fromkeys((*self.host_nodes, *sorted(nodes))))
        selection = select_graph(self.model, self.chip, hosted, self.selection.pass_options)
        reason_by_node = {f.node: f.reason for f in self.selection.fallbacks}
        ours = frozenset(nodes).difference(self.host_nodes)
        sources = {n.name: ours.intersection((n.name, *n.sources)) for n in selection.graph.nodes}
        fallbacks = (
            replace(f, reason=reason if sources.get(f.node) else reason_by_node.get(f.node, f.reason))
            for f in selection.fallbacks
        )
        graph = selection.graph.with_constants_of(self.selection.graph)
        return replace(self, selection=replace(selection, graph=graph, fallbacks=tuple(fallbacks)), host_nodes=hosted)

    def without_range(self, tensor: str, what: str) -> Network | None:
        """Return the network with the producers and consumers of a tensor on the host, since codes cannot hold it.

        Nodes that make masks which these read go there too. Return None where that was done already, or would move products to
        the host; then the user must mend the data.
        `what`: a phrase such as `NaN in 2 of 6 elements`.
        """
        adjacent_nodes = {s for n in self.model.graph.nodes if tensor in (*n.inputs, *n.outputs) for s in n.sources or (n.name,)}
        adjacent_nodes |= self._makers_of_masks(adjacent_nodes)
        if tensor in self.not_finite or any(
            n.op.op_type in MACS and not adjacent_nodes.isdisjoint(n.sources or (n.name,)) for n in self.model.graph.nodes
        ):
            return None
        hosting_network = self.host(adjacent_nodes, f"{tensor!r} holds {what} in a sample, which codes cannot hold")
        return replace(hosting_network, not_finite={**self.not_finite, tensor: what})

    def _makers_of_masks(self, nodes: Collection[str]) -> set[str]:
        """Return the nodes that make masks which `nodes` read, at once or through sums.

        Codes saturate at minus infinity, so that what a mask makes NaN would be a number behind them.
        """
        undivided_model = self.model.undivided or self.model
        masks = find_masked_tensors(undivided_model.structure)
        makers = {output: node for node in undivided_model.graph.nodes for output in node.outputs}
        pending, mask_nodes = (
            [n for n in undivided_model.graph.nodes if not set(nodes).isdisjoint(n.sources or (n.name,))],
            set[str](),
        )
        while pending:
            mask_producers = [makers[name] for name in pending.pop().inputs if name in masks and name in makers]
            summing = [
                n for n in mask_producers if n.op.op_type not in MACS and not mask_nodes.issuperset(n.sources or (n.name,))
            ]
            mask_nodes.update(s for n in summing for s in n.sources or (n.name,))
            pending += summing
        return mask_nodes

    def integer(self, quantization: Quantization, earlier: QuantizedGraph | None = None) -> Graph:
        """Return the integer graph of a quantization without fused epilogues; it computes the bits of the program.

        `earlier`: as in `quantize`. Raise CompileError where the machine cannot express the quantization.
        """
        return quantize(self.graph, self.chip, quantization, earlier)

    def session(self, quantization: Quantization, earlier: QuantizedGraph | None = None) -> Session:
        """Return a session of the integer reference, host subgraphs included; `run_detailed` gives every chip tensor's codes.

        `earlier`: as in `quantize`. Raise CompileError where the machine cannot express the quantization.
        """
        container = reference_container(self.model, self.selection, self.machine, self.integer(quantization, earlier))
        return Session(container, backend="reference", host=get_float_host())  # type: ignore[arg-type]


# Of (network, quantization, samples, progress). samples start afresh each time they are iterated, and are what this step may see.
Step = Callable[..., StepOutcome]
