"""Which tensors shall have other codes than those of the machine's first type: --type NAME=TYPE."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from quant.fixed_point.core.codes import CodeType
from quant.suggestion import suggestion
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel
from toolchain.frontend.source_names import MOVES
from toolchain.hw.chip import Chip
from toolchain.ir.file_quantization import BITS
from toolchain.ir.graph import Node, OnnxNode
from toolchain.passes.decompose import decompose_model
from toolchain.passes.match_nodes import match_nodes


@dataclass(frozen=True)
class TypeOverrides:
    """tensors: of the model, its activations; weights: by layer of the selected graph."""

    tensors: Mapping[str, CodeType] = field(default_factory=dict[str, CodeType])
    weights: Mapping[str, CodeType] = field(default_factory=dict[str, CodeType])


# Operators of files whose constants are weights.
_CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv")
PRODUCTS = frozenset((*_CONVOLUTIONS, "Gemm", "MatMul", "MatMulInteger", "MatMulNBits", "QGemm", "QLinearMatMul"))


@dataclass(frozen=True)
class WeightedLayer:
    """A layer with weights: the model's nodes that it is, and the constants that they read."""

    nodes: frozenset[str]
    constants: frozenset[str]


def list_weighted_layers(model: NormalModel, layers: Iterable[Node]) -> dict[str, WeightedLayer]:
    """By name, these layers of the selected graph. Weights have the name of the file, else, where they were made of constants of
    the file, that of the normal form."""
    kinds, made = dict(model.nodes), dict[str, set[str]]()
    read = {node.name: node.inputs[1:2] for node in model.graph.nodes}
    for node in model.graph.nodes:
        operands = {n for n in node.inputs[:2] if n in model.graph.constants and model.graph.constants[n].ndim > 1}
        for source in node.sources or (node.name,):
            made.setdefault(source, set()).update(operands)
    found: dict[str, WeightedLayer] = {}
    for layer in layers:
        own = [s for s in layer.sources or (layer.name,) if kinds.get(s, "") in PRODUCTS] or [layer.name]
        named = {c for s in own for c in model.weights.get(s, ())} or {c for s in own for c in made.get(s, ())}
        named |= {model.made_of[c] for c in read.get(layer.name, ()) if c in model.made_of}
        found[layer.name] = WeightedLayer(frozenset(layer.sources or (layer.name,)), frozenset(named))
    return found


def resolve_type_overrides(
    model: NormalModel,
    asked: Sequence[str],
    chip: Chip,
    held: Iterable[str],
    layers: Mapping[str, WeightedLayer],
    rounded: Mapping[str, str],
) -> TypeOverrides:
    """held: the model's tensors that the chip holds; layers: those with weights; rounded: by tensor, another of the file's that
    the chip holds in the same codes, which reports name. asked: NAME=TYPE, the later ones counting, where
    NAME is a tensor by the file's name, weights among them, a node, an operator, or a pattern of * and ? of these; an operator of
    the normal form, such as a LayerNormalization that the file writes out, where the file has none so called. A node is its
    outputs, and its weights where only they can have the type; weights in two planes are meant by their own names where
    activations can have the type. Raises CompileError with every fault."""
    found, faults = _found(_Known(model, chip, tuple(held), layers, rounded), asked)
    if faults:
        way_out = "  help: the parameters file that scripts/calibrate.py writes lists the tensors, --explain the nodes"
        raise CompileError("\n".join([*faults, way_out]))
    return found


def _found(known: _Known, asked: Sequence[str]) -> tuple[TypeOverrides, list[str]]:
    """As `resolve_type_overrides`, with the faults."""
    chip = known.chip
    tensors: dict[str, CodeType] = {}
    weights: dict[str, CodeType] = {}
    faults: list[str] = []
    for one in asked:
        name, sign, kind = one.rpartition("=")
        computed, constant, in_planes = kind in chip.code_types, kind in chip.weight_types, kind in chip.numerics.wide_weights
        if not sign or not name:
            faults.append(f"--type {one}: must be NAME=TYPE, such as conv1=int16")
            continue
        if not (computed or constant or in_planes):
            faults.append(f"--type {one}: {_types(chip)}")
            continue
        found = known.tensors(name) or known.results(name) if computed else []
        layers_found = known.weights(name) if constant or (in_planes and not found) else []
        if not found and not layers_found and not computed:
            layers_found = known.layers_of(name)
        if not found and not layers_found:
            faults.append(f"--type {one}: {known.nothing(name, computed, constant or in_planes)}")
        tensors |= dict.fromkeys(found, CodeType(kind))
        weights |= dict.fromkeys(layers_found, CodeType(kind))
    return TypeOverrides(tensors, weights), faults


def decompose_for_types(
    model: NormalModel, chip: Chip, host_nodes: Collection[str], asked: Sequence[str], said: Mapping[str, CodeType]
) -> NormalModel:
    """With steps in the place of the operators that the machine wants so, for the codes that are asked for. asked: NAME=TYPE;
    said: by tensor, those of a parameters file."""
    divided = decompose_model(model, chip, host_nodes)
    if divided.undivided is None or len(chip.code_types) == 1:
        return divided
    computed = [one for one in asked if one.rpartition("=")[2] in chip.code_types]
    made = [n for node in divided.graph.nodes for n in node.outputs if n]
    known = _Known(divided, chip, (*divided.inputs, *made), {}, {})
    found, _ = _found(known, computed)  # faults are told where it is known what is held
    finest = max(codes.bits for codes in chip.operand_types)
    types = {**divided.in_all_shapes(said), **found.tensors}
    fine = {name for name, codes in types.items() if codes.bits >= finest}
    return decompose_model(model, chip, host_nodes, fine | _rounded_to(model, finest))


def _rounded_to(model: NormalModel, bits: int) -> set[str]:
    """Tensors that a quantized model rounds to codes of so many bits, or more."""
    rounding = (n for n in model.graph.nodes if n.op.op_type == "QuantizeLinear")
    return {n.inputs[0] for n in rounding if BITS.get(model.types[n.outputs[0]].dtype, 0) >= bits}


@dataclass(frozen=True)
class _Known:
    """What NAME may be: the tensors that the chip holds and the weights of layers, by their names in the file."""

    model: NormalModel
    chip: Chip
    held: tuple[str, ...]
    layers: Mapping[str, WeightedLayer]
    rounded: Mapping[str, str]

    @property
    def _results(self) -> list[str]:
        """Tensors, the nodes that make them, and operators."""
        nodes = [(name, op) for name, op in self.model.nodes if self._outputs({name})]
        operators = dict.fromkeys((*(op for _, op in nodes), *(n.op.op_type for n in self._normal if self._made_by(n))))
        return [*dict.fromkeys(map(self.model.name, self.held)), *(name for name, _ in nodes), *operators]

    @property
    def _constants(self) -> list[str]:
        """Weights, and the nodes that have them."""
        return sorted({c for own in self.layers.values() for c in (*own.constants, *own.nodes)})

    def tensors(self, name: str) -> list[str]:
        meant = set(_fitting(name, {self.model.name(t) for t in self.held}))
        found = [t for t in self.held if self.model.name(t) in meant] or [t for t in self.held if t == name]
        return found or [t for t in self.held if self.model.name(self.rounded.get(t, t)) == name]

    def results(self, name: str) -> list[str]:
        """What nodes of this name make, or operators; those that the file writes out last."""
        return self._outputs(_meant(self.model.nodes, name)) or [t for n in self._forms(name) for t in self._made_by(n)]

    def layers_of(self, name: str) -> list[str]:
        """Layers with weights that these are."""
        meant = _meant(self.model.nodes, name)
        found = [layer for layer, own in self.layers.items() if own.nodes & meant]
        forms = [_sources(n) for n in self._forms(name)]
        return found or [layer for layer, own in self.layers.items() if any(form <= own.nodes for form in forms)]

    @property
    def _normal(self) -> Sequence[OnnxNode]:
        """Before operators were taken apart into steps."""
        return (self.model.undivided or self.model).graph.nodes

    def _forms(self, name: str) -> list[OnnxNode]:
        """Nodes of the normal form by their operator."""
        return [n for n in self._normal if fnmatchcase(n.op.op_type, name)]

    def _made_by(self, form: OnnxNode) -> list[str]:
        """What a node of the normal form makes, its steps where there are any."""
        own = _sources(form)
        return self._held_of(n for n in self.model.graph.nodes if _sources(n) == own)

    def _outputs(self, meant: Collection[str]) -> list[str]:
        """What nodes of the file make."""
        return self._held_of(n for n in self.model.graph.nodes if not _sources(n).isdisjoint(meant))

    def _held_of(self, nodes: Iterable[OnnxNode]) -> list[str]:
        """Which is not what they only bring into another shape."""
        computed = [
            n for n in nodes if n.op.op_type not in MOVES or self.model.name(n.inputs[0]) != self.model.name(n.outputs[0])
        ]
        return [t for n in computed for t in n.outputs if t in self.held]

    def weights(self, name: str) -> list[str]:
        """Layers whose weights have this name, or a name of this pattern."""
        return [layer for layer, own in self.layers.items() if _fitting(name, own.constants)]

    def nothing(self, name: str, computed: bool, constant: bool) -> str:
        if computed and self.weights(name):
            known = ", ".join(self.chip.weight_types)
            return f"these are weights, {self.chip.name} has {known} (numerics.weight, numerics.more_weights)"
        near = suggestion(name, [*(self._results if computed else ()), *(self._constants if constant else ())])
        if computed:
            return (
                f"the chip holds no such tensor{' and no such weights' if constant else ''}, nor the result of such a node{near}"
            )
        return f"no layer of the chip has such weights, or is such a node{near}"


def _sources(node: OnnxNode) -> frozenset[str]:
    return frozenset(node.sources or (node.name,))


def _fitting(name: str, known: Collection[str]) -> list[str]:
    return [name] if name in known else [one for one in known if fnmatchcase(one, name)]


def _meant(nodes: Sequence[tuple[str, str]], name: str) -> set[str]:
    try:
        return set(match_nodes(nodes, (name,)))
    except CompileError:
        return set()


def _types(chip: Chip) -> str:
    activations, weights = ", ".join(chip.code_types), ", ".join(chip.weight_types)
    return (
        f"{chip.name} has {activations} activations (numerics.activation, numerics.more_activations) and {weights} weights "
        "(numerics.weight, numerics.more_weights)"
    )
