"""Compute a function again for the readers for which a quantized model rounds it, where other readers need more of its range.

On a machine whose tensors have 8 bits alone, the file's codes would saturate for all readers.
The copy has the file's codes, and the function itself a range of its own.
It runs on the model in canonical form, before decomposition.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np

from quant.observe import Range
from toolchain.frontend import NormalModel, to_graph
from toolchain.frontend.rewrite import eliminate_dead_code
from toolchain.hw.chip import Chip
from toolchain.ir.graph import OnnxGraph, OnnxNode, TensorType, fresh_name
from toolchain.ops.scalar_functions import affine_bounds, evaluate
from toolchain.passes.compose import Chain, find_chains
from toolchain.passes.fold_qdq import find_file_quant, finest_codes, is_move

_EXACT_BITS = 8  # up to which a table has an entry for each code; wider ones bend where the file's codes end
# Where functions are looked at for what they reach: those that end do so before 40.
_READ = np.concatenate((np.linspace(-40, 40, 8001), (-1e6, 1e6)))


def copy_rounded_functions(model: NormalModel, chip: Chip) -> NormalModel:
    """Return the model with copies of functions for quantizers whose codes end before the function does, if others read
    beyond.

    A function is a chain of pointwise nodes over one tensor. Moves between function and quantizer are copied too. A model
    without such functions is returned as it is, and so it is on machines with codes of more than 8 bits.
    A copy has the name of its tensor in the file, whose values it has, so that a parameters file serves every machine.
    """
    quantized = any(node.op.op_type == "QuantizeLinear" for node in model.graph.nodes)
    if not quantized or finest_codes(chip).bits > _EXACT_BITS:
        return model
    graph = to_graph(model)
    finder = _Finder(graph)
    nodes_by_name = {node.name: node for node in model.graph.nodes}
    types: dict[str, TensorType] = {}
    file_names = dict(model.source_name_by_tensor)
    nodes: list[OnnxNode] = []
    for node in graph.nodes:
        unpromoted = nodes_by_name[node.name]
        path = finder.find_path(node)
        if path:
            copies, names = _copy([nodes_by_name[n.name] for n in path], {*model.types, *types})
            nodes += copies
            types |= {copy: model.types[name] for name, copy in names.items()}
            file_names |= {copy: model.name(name) for name, copy in names.items()}
            unpromoted = replace(unpromoted, inputs=tuple(names.get(n, n) for n in unpromoted.inputs))
        nodes.append(unpromoted)
    if not types:
        return model
    graph = eliminate_dead_code(model.graph.with_nodes(nodes, types))
    return replace(model, graph=graph, source_name_by_tensor=file_names)


def _copy(path: Sequence[OnnxNode], used_names: Container[str]) -> tuple[list[OnnxNode], dict[str, str]]:
    """Return copies of the nodes, and by tensor that they make the name of its copy."""
    names = {n: fresh_name(f"{n}/rounded", used_names) for node in path for n in node.outputs if n}
    copies = [
        replace(node, inputs=tuple(names.get(n, n) for n in node.inputs), outputs=tuple(names.get(n, n) for n in node.outputs))
        for node in path
    ]
    return copies, names


class _Finder:
    """Finds the functions that a quantizer of this graph needs copied."""

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph = graph
        self._producers, self._consumers = graph.producers(), graph.consumers()
        self._chains = find_chains(graph)

    def find_path(self, node: OnnxNode) -> list[OnnxNode]:
        """Return the nodes of a function and of the moves behind it, in order; none where `node` needs no copy of them."""
        file_quant = find_file_quant(node, self._graph)
        if file_quant is None or node.op.op_type != "QuantizeLinear":
            return []
        x = node.inputs[0]
        moves: list[OnnxNode] = []
        while (producer := self._producers.get(x)) is not None and is_move(producer):
            moves.append(producer)
            x = producer.inputs[0]
        chain = self._chains.get(x)
        step = file_quant.scale  # quantizers leave out as much
        low, high = file_quant.ends()
        within = Range(low - step, high + step)
        if chain is None or not self._reads_beyond(x, within) or not self._costs_nothing_twice(chain):
            return []
        return [*chain.nodes, *reversed(moves)] if self._reaches_beyond(chain, within) else []

    def _reads_beyond(self, x: str, within: Range) -> bool:
        """Return whether a reader, at once or behind moves, needs values outside the range: unrounded, or in codes that reach
        further.
        """
        return x in self._graph.outputs or any(self._is_read_beyond_by(n, within) for n in self._consumers.get(x, ()))

    def _is_read_beyond_by(self, node: OnnxNode, within: Range) -> bool:
        """Return whether this reader, or what it moves the tensor to, needs values outside the range."""
        file_quant = find_file_quant(node, self._graph)
        if file_quant is None:
            return self._reads_beyond(node.outputs[0], within) if is_move(node) else True
        low, high = file_quant.ends()
        return low < within.low or high > within.high

    def _costs_nothing_twice(self, chain: Chain) -> bool:
        """Return whether the chain reads a tensor that the chip has in codes anyway.

        A clamp or scale of a sum is otherwise a part of what makes the sum, which has more bits.
        """
        if affine_bounds(chain.function) is None:
            return True
        readers = {n.name for n in self._consumers.get(chain.root, ())}
        is_read_by_others = chain.root in self._graph.outputs or not readers <= {n.name for n in chain.nodes}
        return chain.root in self._graph.inputs or is_read_by_others or self._find_ends(chain.root) is not None

    def _find_ends(self, x: str) -> tuple[float, float] | None:
        """Return the real ends of the codes that `x` is moved from; None where the file does not round it."""
        while (node := self._producers.get(x)) is not None and is_move(node):
            x = node.inputs[0]
        file_quant = None if node is None else find_file_quant(node, self._graph)
        return None if file_quant is None else file_quant.ends()

    def _reaches_beyond(self, chain: Chain, within: Range) -> bool:
        """Return whether the chain has values outside the range, over its input's codes or, where it has none, over all
        numbers.
        """
        ends = self._find_ends(chain.root)
        with np.errstate(all="ignore"):
            values = evaluate(chain.function, _READ if ends is None else np.linspace(*ends, 256))
        return bool(((values < within.low) | (values > within.high)).any())
