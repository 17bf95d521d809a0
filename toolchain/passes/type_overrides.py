"""Resolve the user's `--type NAME=TYPE`: which tensors and weights have other codes than those of the machine's first type.

`decompose_for_types` runs before selection, since steps differ by the bits of their codes; `resolve_type_overrides` runs
behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from quant.fixed_point.core.codes import CodeType
from quant.suggestion import suggestion
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel
from toolchain.frontend.source_names import MOVES
from toolchain.hw.chip import Chip
from toolchain.ir.file_quantization import BITS
from toolchain.ir.graph import Node, OnnxNode
from toolchain.passes.copy_rounded_functions import copy_rounded_functions
from toolchain.passes.decompose import decompose_model
from toolchain.passes.match_nodes import match_nodes


@dataclass(frozen=True)
class TypeOverrides:
    """The types that the user sets.

    `tensors`: by activation, a tensor of the model. `weights`: by layer of the selected graph.
    """

    tensors: Mapping[str, CodeType] = field(default_factory=dict[str, CodeType])
    weights: Mapping[str, CodeType] = field(default_factory=dict[str, CodeType])


# Operators of files whose constants are weights.
_CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv")
PRODUCTS = frozenset((*_CONVOLUTIONS, "Gemm", "MatMul", "MatMulInteger", "MatMulNBits", "QGemm", "QLinearMatMul"))


@dataclass(frozen=True)
class WeightedLayer:
    """A layer with weights. `nodes`: the model's nodes that it stands for. `constants`: names of its weights."""

    nodes: frozenset[str]
    constants: frozenset[str]


def list_weighted_layers(model: NormalModel, layers: Iterable[Node]) -> dict[str, WeightedLayer]:
    """Return these layers of the selected graph by name.

    Weights have their names in the file; where they were made from constants of the file, they have that of the canonical
    form.
    """
    kinds, constants_by_source = dict(model.nodes), dict[str, set[str]]()
    read = {node.name: node.inputs[1:2] for node in model.graph.nodes}
    for node in model.graph.nodes:
        operands = {n for n in node.inputs[:2] if n in model.graph.constants and model.graph.constants[n].ndim > 1}
        for source in node.sources or (node.name,):
            constants_by_source.setdefault(source, set()).update(operands)
    layer_by_name: dict[str, WeightedLayer] = {}
    for layer in layers:
        product_sources = [s for s in layer.sources or (layer.name,) if kinds.get(s, "") in PRODUCTS] or [layer.name]
        named = {c for s in product_sources for c in model.weights.get(s, ())} or {
            c for s in product_sources for c in constants_by_source.get(s, ())
        }
        named |= {model.made_of[c] for c in read.get(layer.name, ()) if c in model.made_of}
        layer_by_name[layer.name] = WeightedLayer(frozenset(layer.sources or (layer.name,)), frozenset(named))
    return layer_by_name


def resolve_type_overrides(
    model: NormalModel,
    overrides: Sequence[str],
    chip: Chip,
    chip_tensors: Iterable[str],
    layers: Mapping[str, WeightedLayer],
    rounded: Mapping[str, str],
) -> TypeOverrides:
    """Return the types that the overrides set. An override is NAME=TYPE, and later ones count.

    NAME is a tensor by the file's name, weights among them, a node, an operator, or a pattern of * and ? of these.
    Where the file has none, it is an operator of the canonical form, such as a LayerNormalization that the file writes out.
    A node means its outputs, or its weights where only they can have the type.
    A type that weights have in two bit slices means weights only where no activation has that name.
    Raise CompileError with every fault.
    `chip_tensors`: the model's tensors that the chip holds.
    `layers`: those with weights, of `list_weighted_layers`.
    `rounded`: by tensor, another of the file's that the chip holds in the same codes, which reports name.
    """
    type_overrides, faults = _resolve_all(_OverrideNames(model, chip, tuple(chip_tensors), layers, rounded), overrides)
    if faults:
        way_out = "  help: the parameters file that scripts/calibrate.py writes lists the tensors, --explain the nodes"
        raise CompileError("\n".join([*faults, way_out]))
    return type_overrides


def _resolve_all(override_names: _OverrideNames, overrides: Sequence[str]) -> tuple[TypeOverrides, list[str]]:
    """Return the overrides and the faults, one sentence each, as `resolve_type_overrides` finds them."""
    chip = override_names.chip
    tensors: dict[str, CodeType] = {}
    weights: dict[str, CodeType] = {}
    faults: list[str] = []
    for one in overrides:
        name, sign, kind = one.rpartition("=")
        computed, constant, in_planes = kind in chip.code_types, kind in chip.weight_types, kind in chip.numerics.wide_weights
        if not sign or not name:
            faults.append(f"--type {one}: must be NAME=TYPE, such as conv1=int16")
            continue
        if not (computed or constant or in_planes):
            faults.append(f"--type {one}: {_types(chip)}")
            continue
        matching_tensors = override_names.tensors(name) or override_names.results(name) if computed else []
        layers_found = override_names.weights(name) if constant or (in_planes and not matching_tensors) else []
        if not matching_tensors and not layers_found and not computed:
            layers_found = override_names.layers_of(name)
        if not matching_tensors and not layers_found:
            faults.append(f"--type {one}: {override_names.nothing(name, kind, computed, constant or in_planes)}")
        tensors |= dict.fromkeys(matching_tensors, CodeType(kind))
        weights |= dict.fromkeys(layers_found, CodeType(kind))
    return TypeOverrides(tensors, weights), faults


def decompose_for_types(
    model: NormalModel, chip: Chip, host_nodes: Collection[str], overrides: Sequence[str], file_types: Mapping[str, CodeType]
) -> NormalModel:
    """Return the model decomposed for the machine, with steps for the codes that the user's types request.

    Functions that a quantized model rounds for some readers only are copied first (`copy_rounded_functions`).
    `overrides`: NAME=TYPE; faulty ones are ignored here.
    `file_types`: types of a parameters file by tensor.
    """
    model = copy_rounded_functions(model, chip)
    decomposed_model = decompose_model(model, chip, host_nodes)
    if decomposed_model.undivided is None or len(chip.code_types) == 1:
        return decomposed_model
    computed = [one for one in overrides if one.rpartition("=")[2] in chip.code_types]
    outputs = [n for node in decomposed_model.graph.nodes for n in node.outputs if n]
    override_names = _OverrideNames(decomposed_model, chip, (*decomposed_model.inputs, *outputs), {}, {})
    type_overrides, _ = _resolve_all(override_names, computed)  # faults are told where it is known what is held
    finest = max(codes.bits for codes in chip.operand_types)
    types = {**decomposed_model.in_all_shapes(file_types), **type_overrides.tensors}
    fine = {name for name, codes in types.items() if codes.bits >= finest}
    return decompose_model(model, chip, host_nodes, fine | _list_rounded_tensors(model, finest))


def decompose_again(model: NormalModel, chip: Chip, host_nodes: Collection[str], types: Mapping[str, CodeType]) -> NormalModel:
    """Return the model with the steps for codes of these types; the same object where its steps are those already.

    `types`: by tensor of the model.
    """
    finest = max(codes.bits for codes in chip.operand_types)
    fine = {name for name, codes in types.items() if codes.bits >= finest}
    if model.undivided is None or not fine:
        return model
    decomposed_model = decompose_model(model.undivided, chip, host_nodes, fine | _list_rounded_tensors(model.undivided, finest))
    if decomposed_model.types.keys() == model.types.keys():
        return model
    return replace(
        decomposed_model,
        states=model.states,
        states_asked=model.states_asked,
        states_likely=model.states_likely,
        twin_by_tensor={
            t: twin for t, twin in model.twin_by_tensor.items() if t in decomposed_model.types and twin in decomposed_model.types
        },
    )


def _list_rounded_tensors(model: NormalModel, bits: int) -> set[str]:
    """Return the tensors that a quantized model rounds to codes of at least so many bits."""
    rounding = (n for n in model.graph.nodes if n.op.op_type == "QuantizeLinear")
    return {n.inputs[0] for n in rounding if BITS.get(model.types[n.outputs[0]].dtype, 0) >= bits}


@dataclass(frozen=True)
class _OverrideNames:
    """The things that NAME may be: the tensors that the chip holds and the weights of layers, by their names in the file."""

    model: NormalModel
    chip: Chip
    chip_tensors: tuple[str, ...]
    layers: Mapping[str, WeightedLayer]
    rounded: Mapping[str, str]

    @property
    def _results(self) -> list[str]:
        """The tensors, the nodes that make them, and their operators, by name."""
        nodes = [(name, op) for name, op in self.model.nodes if self._outputs({name})]
        operators = dict.fromkeys(
            (*(op for _, op in nodes), *(n.op.op_type for n in self._normal if self._list_outputs_of_form(n)))
        )
        return [*dict.fromkeys(map(self.model.name, self.chip_tensors)), *(name for name, _ in nodes), *operators]

    @property
    def _constants(self) -> list[str]:
        """The names of weights, and of nodes that have them."""
        return sorted({c for weighted_layer in self.layers.values() for c in (*weighted_layer.constants, *weighted_layer.nodes)})

    def tensors(self, name: str) -> list[str]:
        """Return the chip's tensors that the name or pattern means by their names in the file, or here, or behind the file's
        rounding.
        """
        file_names = set(_fitting(name, {self.model.name(t) for t in self.chip_tensors}))
        matches = [t for t in self.chip_tensors if self.model.name(t) in file_names] or [
            t for t in self.chip_tensors if t == name
        ]
        return matches or [t for t in self.chip_tensors if self.model.name(self.rounded.get(t, t)) == name]

    def results(self, name: str) -> list[str]:
        """Return what nodes of this name make, or operators of this name; operators that the file writes out come last."""
        return self._outputs(_match_sources(self.model.nodes, name)) or [
            t for n in self._forms(name) for t in self._list_outputs_of_form(n)
        ]

    def layers_of(self, name: str) -> list[str]:
        """Return the layers with weights that nodes or operators of this name are."""
        file_nodes = _match_sources(self.model.nodes, name)
        matches = [layer for layer, weighted_layer in self.layers.items() if weighted_layer.nodes & file_nodes]
        forms = [_sources(n) for n in self._forms(name)]
        return matches or [
            layer for layer, weighted_layer in self.layers.items() if any(form <= weighted_layer.nodes for form in forms)
        ]

    @property
    def _normal(self) -> Sequence[OnnxNode]:
        """The nodes of the canonical form before operators were decomposed."""
        return (self.model.undivided or self.model).graph.nodes

    def _forms(self, name: str) -> list[OnnxNode]:
        """Return the nodes of the canonical form whose operator fits the pattern."""
        return [n for n in self._normal if fnmatchcase(n.op.op_type, name)]

    def _list_outputs_of_form(self, form: OnnxNode) -> list[str]:
        """Return what a node of the normal form makes, its steps' outputs where there are any."""
        form_sources = _sources(form)
        return self._list_chip_outputs(n for n in self.model.graph.nodes if _sources(n) == form_sources)

    def _outputs(self, file_nodes: Collection[str]) -> list[str]:
        """Return what nodes of the file make."""
        return self._list_chip_outputs(n for n in self.model.graph.nodes if not _sources(n).isdisjoint(file_nodes))

    def _list_chip_outputs(self, nodes: Iterable[OnnxNode]) -> list[str]:
        """Return the nodes' outputs that the chip holds, without outputs that are their inputs in another shape."""
        computed = [
            n for n in nodes if n.op.op_type not in MOVES or self.model.name(n.inputs[0]) != self.model.name(n.outputs[0])
        ]
        return [t for n in computed for t in n.outputs if t in self.chip_tensors]

    def weights(self, name: str) -> list[str]:
        """Return the layers whose weights have this name, or a name of this pattern."""
        return [layer for layer, weighted_layer in self.layers.items() if _fitting(name, weighted_layer.constants)]

    def nothing(self, name: str, kind: str, computed: bool, constant: bool) -> str:
        """Return the reason why a name means nothing that can have the type `kind`, with the nearest name or another way
        out."""
        if computed and self.weights(name):
            weight_types = ", ".join(self.chip.weight_types)
            keys = "numerics.weight, numerics.more_weights"
            return f"these are weights, {self.chip.name} has {weight_types} ({keys}); take one of these"
        if not computed and (self.tensors(name) or self.results(name)):
            activation_types = ", ".join(self.chip.code_types)
            return (
                f"no layer of the chip has such weights, and for activations {self.chip.name} has {activation_types} "
                f"(numerics.activation, numerics.more_activations); take one of these, a machine that has {kind} there, "
                "or --host-node of what makes it"
            )
        near = suggestion(name, [*(self._results if computed else ()), *(self._constants if constant else ())])
        if computed:
            return (
                f"the chip holds no such tensor{' and no such weights' if constant else ''}, nor the result of such a node{near}"
            )
        return f"no layer of the chip has such weights, or is such a node{near}"


def _sources(node: OnnxNode) -> frozenset[str]:
    return frozenset(node.sources or (node.name,))


def _fitting(name: str, candidates: Collection[str]) -> list[str]:
    """Return the candidates that a name means: itself, else those that it fits as a pattern."""
    return [name] if name in candidates else [one for one in candidates if fnmatchcase(one, name)]


def _match_sources(nodes: Sequence[tuple[str, str]], name: str) -> set[str]:
    """Return the nodes that a name, operator or pattern means; none where nothing fits."""
    try:
        return set(match_nodes(nodes, (name,)))
    except CompileError:
        return set()


def _types(chip: Chip) -> str:
    """Return the sentence on the types that the machine has."""
    activations, weights = ", ".join(chip.code_types), ", ".join(chip.weight_types)
    return (
        f"{chip.name} has {activations} activations (numerics.activation, numerics.more_activations) and {weights} weights "
        "(numerics.weight, numerics.more_weights); take one of these"
    )
