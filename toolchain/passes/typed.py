"""Which tensors shall have other codes than the machine's first type: --type NAME=TYPE."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from quant.fixed_point.core.codes import CodeType
from quant.suggestion import suggestion
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph
from toolchain.passes.named import named_nodes


def asked_types(
    graph: Graph, nodes: Sequence[tuple[str, str]], asked: Sequence[str], chip: Chip, held: Collection[str]
) -> dict[str, CodeType]:
    """By tensor of the model. graph: its normal form; nodes: (name, operator) of its own; asked: NAME=TYPE, where NAME is a
    tensor, a node (its outputs), an operator, or a pattern of * and ? of these, the later ones counting; held: the model's
    tensors that the chip holds. Raises CompileError with every fault."""
    found: dict[str, CodeType] = {}
    faults: list[str] = []
    for one in asked:
        name, sign, kind = one.rpartition("=")
        if not sign or not name:
            faults.append(f"--type {one}: must be NAME=TYPE, such as conv1=int16")
        elif kind not in chip.code_types:
            known = ", ".join(chip.code_types)
            faults.append(f"--type {one}: {chip.name} has {known} activations (numerics.activation, numerics.more_activations)")
        else:
            tensors = _tensors(graph, nodes, name, held)
            found |= dict.fromkeys(tensors, CodeType(kind))
            if not tensors:
                faults.append(
                    f"--type {one}: the chip holds no such tensor, and the result of no such node{suggestion(name, held)}"
                )
    if faults:
        raise CompileError("\n".join([*faults, "  help: the parameters file that scripts/calibrate.py writes lists the tensors"]))
    return found


def _tensors(graph: Graph, nodes: Sequence[tuple[str, str]], name: str, held: Collection[str]) -> list[str]:
    if name in held:
        return [name]
    matching = [tensor for tensor in held if fnmatchcase(tensor, name)]
    if matching:
        return matching
    try:
        meant = set(named_nodes(nodes, (name,)))
    except CompileError:
        return []
    made = [n for node in graph.nodes if meant.intersection(node.sources or (node.name,)) for n in node.outputs]
    return [tensor for tensor in made if tensor in held]
