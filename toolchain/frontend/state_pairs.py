"""Which inputs and outputs of a model are one state that goes from run to run: as asked for, or found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from toolchain.errors import CompileError
from toolchain.frontend.model import NormalModel
from toolchain.frontend.state_names import pair_by_name
from toolchain.ir.graph import OnnxNode, OnnxOp, TensorType, fresh_name
from toolchain.ir.states import StatePair

NONE = "none"  # as --state says that no input is a state
_HELP = "  help: --state PAST=PRESENT names an input and the output that is its next value; --state none carries nothing"


def pair_states(model: NormalModel, asked: Sequence[str] | None) -> NormalModel:
    """The model with its states, each input calibrated as one with its output. asked: PAST=PRESENT each, or `none` alone; None:
    those that the graph or their names show. Raises CompileError with every fault."""
    if asked is None:
        found = _found(model)
        return replace(_carried(model, found), states_likely=tuple(_likely(model, found)))
    if list(asked) == [NONE]:
        return model
    faults, pairs = list[str](), list[StatePair]()
    for text in asked:
        found = _parsed(text, model)
        if isinstance(found, StatePair):
            faults += _faults(found, text, model, pairs)
            pairs.append(found)
        else:
            faults.append(found)
    faults += _nothing_left(model, pairs)
    if faults:
        raise CompileError("\n".join([*dict.fromkeys(faults), _HELP]))
    return replace(_carried(model, pairs), states_asked=tuple(pairs))


def _carried(model: NormalModel, pairs: Sequence[StatePair]) -> NormalModel:
    """An input that is handed on as it is is moved to or from a state."""
    pasts, presents = {p.past for p in pairs}, {p.present for p in pairs}
    nodes, shapes = list[OnnxNode](), dict[str, np.ndarray]()
    for node in model.graph.nodes:
        handed = node.op.op_type == "Identity" and node.inputs[0] in model.graph.inputs
        if handed and (node.inputs[0] in pasts or node.outputs[0] in presents):
            shape = fresh_name(f"{node.outputs[0]}/shape", {*model.types, *shapes})
            shapes[shape] = np.asarray(model.types[node.inputs[0]].shape, np.int64)
            node = replace(node, op=OnnxOp("Reshape", {"allowzero": 0}), inputs=(node.inputs[0], shape))
        nodes.append(node)
    types = {**model.types, **{name: TensorType(value.shape, "int64") for name, value in shapes.items()}}
    graph = model.graph.with_nodes(nodes, types, {**model.graph.constants, **shapes}) if shapes else model.graph
    cut = {y for n in graph.nodes if n.op.op_type == "Slice" and n.inputs[0] in pasts for y in n.outputs}  # states of their own
    return replace(model, graph=graph, states=tuple(pairs), first=model.first | cut)


def _found(model: NormalModel) -> list[StatePair]:
    """Caches that rows are written to, and what names say of others, in the order of the inputs."""
    written = [pair for pair in _written(model) if _misfit(pair, model) is None]
    taken = {name for pair in written for name in pair}
    inputs, outputs = ([n for n in names if n not in taken] for names in (model.graph.inputs, model.graph.outputs))
    named = [pair for pair in (StatePair(*p) for p in pair_by_name(inputs, outputs)) if _misfit(pair, model) is None]
    found = sorted([*written, *named], key=lambda pair: model.graph.inputs.index(pair.past))
    return [] if any(_nothing_left(model, found)) else found


def _likely(model: NormalModel, found: Sequence[StatePair]) -> list[StatePair]:
    """Pairs that no name tells of: an input behind the first, which models have for their data, and an output of one shape that
    no other input or output has, the one computed of the other, where a run has others to give."""
    left = [[n for n in names if all(n not in p for p in found)] for names in (model.graph.inputs, model.graph.outputs)]
    fitting = [StatePair(i, o) for i in left[0] for o in left[1] if _misfit(StatePair(i, o), model) is None]
    pasts, presents = Counter(p.past for p in fitting), Counter(p.present for p in fitting)
    single = [p for p in fitting if pasts[p.past] == presents[p.present] == 1 and p.past in model.graph.inputs[1:]]
    likely = [p for p in single if p.past in _computed_of(p.present, model)]
    return [] if any(_nothing_left(model, [*found, *likely])) else likely


def _computed_of(name: str, model: NormalModel) -> set[str]:
    """The tensors that it is made of, itself among them."""
    producers, found, waiting = model.graph.producers(), set[str](), [name]
    while waiting:
        made = waiting.pop()
        if made not in found:
            found.add(made)
            waiting += producers[made].inputs if made in producers else ()
    return found


def _written(model: NormalModel) -> Iterator[StatePair]:
    """Of each TensorScatter, and so of each GroupQueryAttention, whose cache is an input and whose result is an output. An input
    that several write to says nothing."""
    scatters = [n for n in model.graph.nodes if n.op.op_type == "TensorScatter" and n.inputs[0] in model.graph.inputs]
    caches = [n.inputs[0] for n in scatters]
    for node in scatters:
        if node.outputs[0] in model.graph.outputs and caches.count(node.inputs[0]) == 1:
            yield StatePair(node.inputs[0], node.outputs[0])


def _parsed(text: str, model: NormalModel) -> StatePair | str:
    """Names may hold '='. Else what is wrong."""
    if text == NONE:
        return f"state {NONE}: stands alone; leave it out, or the others"
    splits = [StatePair(text[:i], text[i + 1 :]) for i, c in enumerate(text) if c == "="]
    known = [p for p in splits if p.past in model.graph.inputs and p.present in model.graph.outputs]
    if known:
        return known[0]
    if not any(p.past and p.present for p in splits):
        return f"state {text}: must be PAST=PRESENT, for example state=stateN"
    turned = next((p for p in splits if p.past in model.graph.outputs and p.present in model.graph.inputs), None)
    if turned is not None:
        return f"state {text}: {turned.past!r} is an output; the input comes first: {turned.present}={turned.past}"
    past, present = next((p for p in splits if p.past in model.graph.inputs), splits[0])
    faults = []
    if past not in model.graph.inputs:
        there = ", ".join(model.graph.inputs)
        faults.append(f"there is no input {past!r}; inputs are {there}")
    if present not in model.graph.outputs:
        there = ", ".join(model.graph.outputs)
        faults.append(f"there is no output {present!r}; outputs are {there}")
    return f"state {text}: {'; '.join(faults)}"


def _faults(pair: StatePair, text: str, model: NormalModel, others: Sequence[StatePair]) -> Iterator[str]:
    misfit = _misfit(pair, model)
    if misfit is not None:
        yield f"state {text}: {misfit}"
    if any(o.past == pair.past for o in others):
        yield f"state {text}: input {pair.past!r} is given twice"
    if any(o.present == pair.present for o in others):
        yield f"state {text}: output {pair.present!r} is given twice; an output is the next value of one input"


def _misfit(pair: StatePair, model: NormalModel) -> str | None:
    past, present = (model.types[n] for n in pair)
    if past.shape != present.shape:
        shapes = f"input {pair.past!r} is {list(past.shape)}, output {pair.present!r} {list(present.shape)}"
        return f"{shapes}; a state has one shape, or its place would not hold it"
    other = next((n for n in pair if model.types[n].dtype != "float32"), None)
    if other is not None:
        return f"{other!r} is {model.types[other].dtype}; the chip keeps codes of float32"
    if 0 in past.shape:
        return f"{list(past.shape)} has no elements"
    return None


def _nothing_left(model: NormalModel, pairs: Sequence[StatePair]) -> Iterator[str]:
    for what, names, taken in (
        ("input", model.graph.inputs, {p.past for p in pairs}),
        ("output", model.graph.outputs, {p.present for p in pairs}),
    ):
        if pairs and taken.issuperset(names):
            yield f"state: no {what} is left that is none; a run would have nothing to {'take' if what == 'input' else 'give'}"
