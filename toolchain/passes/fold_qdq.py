"""Fold pairs of QuantizeLinear and DequantizeLinear on activations into scales of the tensors that they round.

This is the first pass on the frontend's graph; a model that is not quantized passes unchanged.
`fuse_selected_clamps` runs behind selection: clamps that keep two given scales apart are not fused.

Operators of MOVES make their codes of the input's by moving or choosing among them. Those of PERMUTATIONS keep every element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from quant.file_qparams import find_code_type
from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from toolchain.errors import CompileError, format_count
from toolchain.hw.chip import Chip
from toolchain.ir.file_quantization import BITS, FileQuant
from toolchain.ir.graph import Graph, Node, OnnxGraph, OnnxNode, OnnxOp, Quant
from toolchain.passes.fuse import fuse_clamps
from toolchain.passes.select import Selection

MOVES = frozenset(("DepthToSpace", "Expand", "MaxPool", "Pad", "Reshape", "Slice", "SpaceToDepth", "Transpose"))
PERMUTATIONS = frozenset(("DepthToSpace", "Reshape", "SpaceToDepth", "Transpose"))


@dataclass(frozen=True)
class FoldedQdq:
    """A float graph with the qparams that the file states for its tensors.

    `file_ranges`: by tensor, its scale and zero point, or a range where the machine cannot keep the file's scale.
    `types`: types of the codes of these scales, on machines of several types.
    `rounded`: by tensor, the tensor that the file has behind its rounding.
    `dynamic`: tensors that are rounded by a range of each run, which is calibrated.
    `notes`: for the user, of scales that the machine cannot keep.
    `ended`: tensors that only such rounding reads, at once or behind moves.
    Values of an ended tensor beyond its codes saturate in the file too.
    `shared`: tensors that other nodes read unrounded, although their codes are the file's.
    """

    graph: OnnxGraph
    file_ranges: Mapping[str, Quant | Range]
    types: Mapping[str, CodeType]
    rounded: Mapping[str, str]
    dynamic: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    ended: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()


def fold_qdq(graph: OnnxGraph, chip: Chip) -> FoldedQdq:
    """Return the graph with QuantizeLinear and DequantizeLinear on activations folded into qparams, which stand beside it.

    A tensor gets a Clip if it is rounded twice at different scales, or at one that the machine cannot keep.
    The Clip's output has the other scale, and ends where the codes end.
    A QuantizeLinear stays where anything but a DequantizeLinear of the same scale reads its codes.
    A DequantizeLinear of codes that come into the model stays too.
    Pairs on constants, such as weights, are not here any more: the frontend has taken them.
    Raise CompileError, with the first 20 nodes, where a QuantizeLinear rounds to wider codes than arrays take.
    `graph`: the frontend's.
    """
    pairs = [n for n in graph.nodes if find_file_quant(n, graph) is not None]
    _refuse_widths(pairs, graph, chip)
    taking = _Taking(graph, chip)
    for node in graph.nodes:
        taking.take(node)
    return taking.done()


class _Taking:
    """The walk over the nodes that folds them one by one; `done` returns the result."""

    def __init__(self, graph: OnnxGraph, chip: Chip) -> None:
        self._graph, self._chip = graph, chip
        self._producers, self._consumers = graph.producers(), graph.consumers()
        self._same: dict[str, str] = {}
        self._file_ranges: dict[str, Quant | Range] = {}
        self._types: dict[str, CodeType] = {}
        self._nodes: list[OnnxNode] = []
        self._read: set[str] = set()  # what DequantizeLinears made of codes that are no more
        self._changed = 0
        self._dynamic: set[str] = set()
        self._ended: set[str] = set()
        self._shared: set[str] = set()

    def take(self, node: OnnxNode) -> None:
        """Take the next node in graph order: keep it, or fold it into the qparams of a tensor."""
        node = replace(node, inputs=tuple(self._same.get(n, n) for n in node.inputs))
        file_quant = find_file_quant(node, self._graph)
        dynamic = self._producers.get(node.inputs[0]) if node.op.op_type == "DequantizeLinear" else None
        if dynamic is not None and dynamic.op.op_type == "DynamicQuantizeLinear" and node.inputs[1] == dynamic.outputs[1]:
            self._same[node.outputs[0]] = self._same.get(dynamic.inputs[0], dynamic.inputs[0])  # calibration finds its range
            self._dynamic.add(self._same[node.outputs[0]])
            return
        if file_quant is None:
            self._nodes.append(node)
            return
        if node.op.op_type == "DequantizeLinear":
            self._dequantize(node, file_quant)
        else:
            self._quantize(node, file_quant)

    def _dequantize(self, node: OnnxNode, file_quant: FileQuant) -> None:
        """Keep a DequantizeLinear of codes that come into the model: the host computes it, exactly."""
        if node.outputs[0] in self._read:
            return
        self._nodes.append(node)
        codes = find_code_type(file_quant, self._chip.numerics)
        if codes is not None:
            self._give(node.outputs[0], file_quant.quant(codes.low), codes)

    def _give(self, x: str, quant: Quant, codes: CodeType) -> None:
        """Give a tensor these qparams in codes of this type."""
        self._file_ranges[x], self._types[x] = quant, codes

    def _quantize(self, node: OnnxNode, file_quant: FileQuant) -> None:
        """Fold a QuantizeLinear: its DequantizeLinears of the same scale become the rounded tensor."""
        x, q = node.inputs[0], node.outputs[0]
        readers = self._consumers.get(q, [])
        reals = [n.outputs[0] for n in readers if find_file_quant(n, self._graph) == file_quant]
        needs_codes = q in self._graph.outputs or len(reals) < len(readers)
        rounded = self._get_rounded_tensor(x, file_quant, node, reals)
        self._read.update(reals)
        self._same.update((y, rounded) for y in reals if y != rounded)
        if needs_codes:
            self._nodes.append(node)  # the codes themselves, made of what the file makes them of

    def _get_rounded_tensor(self, x: str, file_quant: FileQuant, node: OnnxNode, reals: list[str]) -> str:
        """Return the tensor that holds `x` rounded: x itself with a scale that it has or takes, or the output of a new Clip."""
        codes, bounds = find_code_type(file_quant, self._chip.numerics), Range(*file_quant.ends())
        self._changed += codes is None
        otherwise = self._read_otherwise(x, file_quant)
        finer = codes is not None and codes.bits < finest_codes(self._chip).bits and otherwise
        if codes is not None and not finer and self._takes(x, file_quant.quant(codes.low), codes):
            if otherwise:
                self._shared.add(x)
            else:
                self._end(x)
            return x
        alone = x in self._graph.inputs and self._file_ranges.get(x) in (None, bounds) and not otherwise
        if codes is None and not alone and self._find_source_range(x) == bounds:
            self._file_ranges[x] = bounds
            return x
        if codes is None and alone:
            self._file_ranges[x] = bounds  # whose codes may reach further on the machine: the Clip ends them
        if not reals:
            return x
        y = reals[0]
        if codes is None:
            self._file_ranges[y] = bounds
        else:
            self._give(y, file_quant.quant(codes.low), codes)
        clip = OnnxOp("Clip", {"min": bounds.low, "max": bounds.high})
        self._nodes.append(Node(node.name, clip, (x,), (y,), node.sources))
        return y

    def _end(self, x: str) -> None:
        """Mark a tensor as ended, and what it is moved from, where nothing else reads that. Inputs of the model are not
        marked.
        """
        if x not in self._graph.inputs:
            self._ended.add(x)
        node = self._producers.get(x)
        if node is not None and is_move(node) and self._graph.read_once(node.inputs[0], self._consumers):
            self._end(self._same.get(node.inputs[0], node.inputs[0]))

    def _read_otherwise(self, x: str, file_quant: FileQuant) -> bool:
        """Return whether a node that does not round so reads the tensor, or one that it is moved from with all elements."""
        move: OnnxNode | None = None
        while x not in self._file_ranges:
            readers = [n for n in self._consumers.get(x, ()) if n is not move]
            if x in self._graph.outputs or any(find_file_quant(n, self._graph) != file_quant for n in readers):
                return True
            move = self._producers.get(x)
            if move is None or move.op.op_type not in PERMUTATIONS:
                return False
            x = self._same.get(move.inputs[0], move.inputs[0])
        return False

    def _find_source_range(self, x: str) -> Quant | Range | None:
        """Return the qparams or range given for the tensor that `x` is moved from; None where there is none."""
        while x not in self._file_ranges:
            node = self._producers.get(x)
            if node is None or not is_move(node):
                return None
            x = self._same.get(node.inputs[0], node.inputs[0])
        return self._file_ranges[x]

    def _takes(self, x: str, quant: Quant, codes: CodeType) -> bool:
        """Return whether `x` can have this scale in codes of this type; it then gets it, with what it is moved from."""
        if x in self._file_ranges:
            return self._file_ranges[x] == quant and self._types.get(x) is codes
        node = self._producers.get(x)
        if node is None or not is_move(node):
            self._give(x, quant, codes)
            return True
        before = self._same.get(node.inputs[0], node.inputs[0])
        alone = node.op.op_type in PERMUTATIONS or self._graph.read_once(node.inputs[0], self._consumers)
        if (before in self._file_ranges or alone) and self._takes(before, quant, codes):
            self._give(x, quant, codes)
            return True
        return False

    def _alive(self) -> list[OnnxNode]:
        """Return the nodes without each DynamicQuantizeLinear that nothing reads any more."""
        read = {i for n in self._nodes for i in n.inputs} | set(self._graph.outputs)
        return [n for n in self._nodes if n.op.op_type != "DynamicQuantizeLinear" or not read.isdisjoint(n.outputs)]

    def done(self) -> FoldedQdq:
        """Return the folded graph."""
        outputs = {y: x for y, x in self._same.items() if y in self._graph.outputs}
        outputs_of = {x: y for y, x in outputs.items()}
        nodes, names = _rename_outputs(self._alive(), outputs, self._graph)
        file_ranges = {names.get(n, n): q for n, q in self._file_ranges.items()}
        several = len(self._chip.code_types) > 1
        types = {names.get(n, n): codes for n, codes in self._types.items() if several}
        notes: tuple[str, ...] = ()
        if self._changed:
            what = f"scales of {format_count(self._changed, 'tensor')}"
            notes = (f"numerics of {self._chip.name} cannot keep {what}: it takes its own for the same ranges",)
        rounded = {outputs_of.get(x, x): y for y, x in reversed(self._same.items()) if x not in self._graph.inputs}
        dynamic = frozenset(names.get(n, n) for n in self._dynamic)
        ended, shared = (frozenset(names.get(n, n) for n in tensors) for tensors in (self._ended, self._shared))
        return FoldedQdq(self._graph.with_nodes(nodes), file_ranges, types, rounded, dynamic, notes, ended, shared)


def finest_codes(chip: Chip) -> CodeType:
    """Return the type of most bits that arrays take; of equal ones the machine's first."""
    return max((t for t in chip.code_types if t in chip.operand_types), key=lambda t: t.bits)


def fuse_selected_clamps(selection: Selection, chip: Chip) -> Graph:
    """Return the selected graph with its clamps fused, except for those whose input and output have two given scales.

    A machine without tables fuses these as well, since nothing could rescale; that loses one rounding.
    """

    def has_two_scales(x: str, y: str) -> bool:
        tensors = (selection.origins[n][0] for n in (x, y))
        before, after = ((selection.file_ranges.get(t), selection.types.get(t)) for t in tensors)
        return isinstance(before[0], Quant) and before != after and "table" in chip.functions

    return fuse_clamps(selection.graph, has_two_scales)


def is_move(node: OnnxNode) -> bool:
    """Return whether a node moves elements of its first input or chooses among them, so that their codes stay."""
    nearest = node.op.op_type == "Resize" and node.op.attributes.get("mode") == "nearest"
    return not node.op.domain and (nearest or node.op.op_type in MOVES)


def find_file_quant(node: OnnxNode, graph: OnnxGraph) -> FileQuant | None:
    """Return the qparams of a QuantizeLinear or DequantizeLinear of one constant scale; None for any other node."""
    # A composed graph has other operators.
    if not isinstance(node.op, OnnxOp):  # pyright: ignore[reportUnnecessaryIsInstance]
        return None
    if node.op.domain or node.op.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return None
    numbers = [graph.constants.get(n) for n in node.inputs[1:]]
    scale, point = (*numbers, None)[:2]
    codes = node.outputs if node.op.op_type == "QuantizeLinear" else node.inputs
    dtype = graph.types[codes[0]].dtype
    if scale is None or scale.size != 1 or (len(numbers) > 1 and point is None) or dtype not in BITS:
        return None
    return FileQuant(float(scale.reshape(-1)[0]), 0 if point is None else int(point.reshape(-1)[0]), dtype)


def _refuse_widths(pairs: list[OnnxNode], graph: OnnxGraph, chip: Chip) -> None:
    """Raise CompileError where a QuantizeLinear rounds to wider codes than the machine's arrays take."""
    wide = max(t.bits for t in chip.operand_types)
    rounding_types = [(n.name, graph.types[n.outputs[0]].dtype) for n in pairs if n.op.op_type == "QuantizeLinear"]
    wider = [f"node {name} (QuantizeLinear): rounds to {dtype}" for name, dtype in rounding_types if BITS[dtype] > wide]
    if not wider:
        return
    shown = [*wider[:20], *([f"and {len(wider) - 20} more"] if len(wider) > 20 else [])]
    reason = f"{chip.name} computes with {', '.join(chip.code_types)} (numerics.activation)"
    way_out = f"  help: {reason}: quantize to 8 bits, or build for a machine with int16 activations"
    raise CompileError("\n".join([*shown, way_out]))


def _rename_outputs(nodes: list[OnnxNode], outputs: Mapping[str, str], graph: OnnxGraph) -> tuple[list[OnnxNode], dict[str, str]]:
    """Return the nodes and the new names by which outputs of the model get back the names that folding took.

    An output that is another tensor rounded gives that its name; where it cannot, it becomes a copy.
    """
    names: dict[str, str] = {}
    copies: list[OnnxNode] = []
    use_counts = Counter(outputs.values())
    for y, x in outputs.items():
        if x in graph.inputs or x in graph.outputs or use_counts[x] > 1 or any(x in n.inputs for n in nodes):
            copies.append(Node(f"{y}/copy", OnnxOp("Identity"), (x,), (y,), ()))
        else:
            names[x] = y
    moved = [
        replace(n, inputs=tuple(names.get(i, i) for i in n.inputs), outputs=tuple(names.get(o, o) for o in n.outputs))
        for n in nodes
    ]
    return [*moved, *copies], names
