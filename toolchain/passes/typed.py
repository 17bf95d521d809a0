"""Which tensors shall have other codes than those of the machine's first type: --type NAME=TYPE."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from quant.fixed_point.core.codes import CodeType
from quant.suggestion import suggestion
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.passes.decompose import decomposed
from toolchain.passes.named import named_nodes


@dataclass(frozen=True)
class AskedTypes:
    """tensors: of the model, its activations; weights: by layer of the selected graph."""

    tensors: Mapping[str, CodeType] = field(default_factory=dict[str, CodeType])
    weights: Mapping[str, CodeType] = field(default_factory=dict[str, CodeType])


# Operators of files whose constants are weights.
_CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv")
_PRODUCTS = frozenset((*_CONVOLUTIONS, "Gemm", "MatMul", "MatMulInteger", "MatMulNBits", "QGemm", "QLinearMatMul"))


@dataclass(frozen=True)
class Weighted:
    """A layer with weights: the model's nodes that it is, and the constants that they read."""

    nodes: frozenset[str]
    constants: frozenset[str]


def weighted(model: NormalModel, layers: Iterable[Node]) -> dict[str, Weighted]:
    """By name, these layers of the selected graph. Weights have the name of the file, else, where they were made of constants of
    the file, that of the normal form."""
    kinds, made = dict(model.nodes), dict[str, set[str]]()
    for node in model.graph.nodes:
        operands = {n for n in node.inputs[:2] if n in model.graph.constants and model.graph.constants[n].ndim > 1}
        for source in node.sources or (node.name,):
            made.setdefault(source, set()).update(operands)
    found: dict[str, Weighted] = {}
    for layer in layers:
        own = [s for s in layer.sources or (layer.name,) if kinds.get(s, "") in _PRODUCTS] or [layer.name]
        named = {c for s in own for c in model.weights.get(s, ())} or {c for s in own for c in made.get(s, ())}
        found[layer.name] = Weighted(frozenset(layer.sources or (layer.name,)), frozenset(named))
    return found


def asked_types(
    graph: Graph,
    nodes: Sequence[tuple[str, str]],
    asked: Sequence[str],
    chip: Chip,
    held: Collection[str],
    layers: Mapping[str, Weighted],
) -> AskedTypes:
    """graph: the model's normal form; nodes: (name, operator) of its own; held: the model's tensors that the chip holds; layers:
    those with weights. asked: NAME=TYPE, the later ones counting, where NAME is a tensor, weights among them, a node, an
    operator, or a pattern of * and ? of these. A node is its outputs, and its weights where only they can have the type.
    Raises CompileError with every fault."""
    tensors: dict[str, CodeType] = {}
    weights: dict[str, CodeType] = {}
    faults: list[str] = []
    for one in asked:
        name, sign, kind = one.rpartition("=")
        computed, constant = kind in chip.code_types, kind in chip.weight_types
        if not sign or not name:
            faults.append(f"--type {one}: must be NAME=TYPE, such as conv1=int16")
            continue
        if not (computed or constant):
            faults.append(f"--type {one}: {_known(chip)}")
            continue
        meant = _meant(nodes, name)
        found = _named(name, held) or [t for t in _outputs(graph, meant) if t in held] if computed else []
        layers_found = _weights_of(name, layers) if constant else []
        if not found and not layers_found and not computed:
            layers_found = [layer for layer, own in layers.items() if own.nodes & meant]
        if not found and not layers_found:
            faults.append(f"--type {one}: {_nothing(name, computed, chip, held, layers)}")
        tensors |= dict.fromkeys(found, CodeType(kind))
        weights |= dict.fromkeys(layers_found, CodeType(kind))
    if faults:
        way_out = "  help: the parameters file that scripts/calibrate.py writes lists the tensors, --explain the nodes"
        raise CompileError("\n".join([*faults, way_out]))
    return AskedTypes(tensors, weights)


def decomposed_as_asked(
    model: NormalModel, chip: Chip, host_nodes: Collection[str], asked: Sequence[str], said: Mapping[str, CodeType]
) -> NormalModel:
    """With steps in the place of the operators that the machine wants so, for the codes that are asked for. asked: NAME=TYPE;
    said: by tensor, those of a parameters file."""
    divided = decomposed(model, chip, host_nodes)
    if divided.undivided is None or len(chip.code_types) == 1:
        return divided
    computed = [one for one in asked if one.rpartition("=")[2] in chip.code_types]
    found = asked_types(divided.graph, divided.nodes, computed, chip, divided.types, weighted(divided, divided.graph.nodes))
    finest = max(codes.bits for codes in chip.code_types)
    fine = {name for name, codes in {**said, **found.tensors}.items() if codes.bits == finest}
    return decomposed(model, chip, host_nodes, fine)


def _named(name: str, known: Collection[str]) -> list[str]:
    return [name] if name in known else [tensor for tensor in known if fnmatchcase(tensor, name)]


def _weights_of(name: str, layers: Mapping[str, Weighted]) -> list[str]:
    """Layers whose weights have this name, or a name of this pattern."""
    return [layer for layer, own in layers.items() if _named(name, own.constants)]


def _meant(nodes: Sequence[tuple[str, str]], name: str) -> set[str]:
    try:
        return set(named_nodes(nodes, (name,)))
    except CompileError:
        return set()


def _outputs(graph: Graph, meant: Collection[str]) -> list[str]:
    return [n for node in graph.nodes if not set(meant).isdisjoint(node.sources or (node.name,)) for n in node.outputs]


def _known(chip: Chip) -> str:
    activations, weights = ", ".join(chip.code_types), ", ".join(chip.weight_types)
    return (
        f"{chip.name} has {activations} activations (numerics.activation, numerics.more_activations) and {weights} weights "
        "(numerics.weight, numerics.more_weights)"
    )


def _nothing(name: str, computed: bool, chip: Chip, held: Collection[str], layers: Mapping[str, Weighted]) -> str:
    if computed and _weights_of(name, layers):
        known = ", ".join(chip.weight_types)
        return f"these are weights, {chip.name} has {known} (numerics.weight, numerics.more_weights)"
    if computed:
        return f"the chip holds no such tensor, and the result of no such node{suggestion(name, held)}"
    known = sorted({c for own in layers.values() for c in own.constants})
    return f"no layer of the chip has such weights, or is such a node{suggestion(name, known)}"
