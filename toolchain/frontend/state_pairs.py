"""Pair inputs and outputs of a model that are one state, which goes from run to run: as the user requests, or as detected.

Detected are caches that TensorScatter writes to, and pairs whose names show it, as past_x and present_x.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from toolchain.errors import CompileError
from toolchain.frontend.model import NormalModel
from toolchain.ir.graph import OnnxNode, OnnxOp, TensorType, fresh_name
from toolchain.ir.states import StatePair

_WORDS = r"(?:h|c|hidden|cell|state|states|cache|caches|memory|mem|rnn|lstm|gru|hx|cx)"
_NUMBER = r"(?:_?[0-9]+)?"

# How models name the input and the output that are one state: a pattern of the input's name, with the names of outputs that may
# go with it; `{0}` and `{1}` are its groups. Inputs of many models end in _in and outputs in _out without being a state, so the
# patterns have only words for something that is remembered.
_TABLE = (
    (r"past_key_values\.([0-9]+)\.(key|value)", ("present.{0}.{1}", "present_key_values.{0}.{1}")),
    (r"past_(.+)", ("present_{0}",)),
    (r"past\.(.+)", ("present.{0}",)),
    (rf"({_WORDS}{_NUMBER})", ("{0}n", "{0}N", "{0}_n", "{0}_out", "{0}_next", "new_{0}", "next_{0}", "out_{0}")),
    (r"(h|c)0", ("{0}n", "{0}1")),
    (rf"(.*{_WORDS}{_NUMBER})_in", ("{0}_out", "{0}")),
    (rf"(.*_{_WORDS}{_NUMBER})", ("{0}_out", "{0}_n", "{0}_next")),
    (rf"(?:in|prev|previous|old|last)_({_WORDS}{_NUMBER})", ("out_{0}", "next_{0}", "new_{0}", "{0}")),
)
NONE = "none"  # as --state says that no input is a state
_HELP = "  help: --state PAST=PRESENT names an input and the output that is its next value; --state none carries nothing"


def pair_states(model: NormalModel, pair_texts: Sequence[str] | None) -> NormalModel:
    """Return the model with its states; calibration later measures the input and the output of each as one.

    `pair_texts`: the user's, PAST=PRESENT each, or `none` alone; None detects them.
    Then pairs that only look like states are noted in `states_likely`.
    Raise CompileError with every fault of the user's pairs.
    """
    if pair_texts is None:
        result = _find_pairs(model)
        return replace(_add_states(model, result), states_likely=tuple(_likely(model, result)))
    if list(pair_texts) == [NONE]:
        return model
    faults, pairs = list[str](), list[StatePair]()
    for text in pair_texts:
        result = _parse_pair(text, model)
        if isinstance(result, StatePair):
            faults += _faults(result, text, model, pairs)
            pairs.append(result)
        else:
            faults.append(result)
    faults += _nothing_left(model, pairs)
    if faults:
        raise CompileError("\n".join([*dict.fromkeys(faults), _HELP]))
    return replace(_add_states(model, pairs), states_asked=tuple(pairs))


def _add_states(model: NormalModel, pairs: Sequence[StatePair]) -> NormalModel:
    """Return the model with these states. An Identity from an input to an output of a state becomes a Reshape, which moves
    codes.
    """
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


def _find_pairs(model: NormalModel) -> list[StatePair]:
    """Return the detected pairs, in the order of their inputs: caches that rows are written to, and pairs that names show.

    The list is empty where no input or no output would remain that is no state.
    """
    written = [pair for pair in _written(model) if _misfit(pair, model) is None]
    paired_names = {name for pair in written for name in pair}
    inputs, outputs = ([n for n in names if n not in paired_names] for names in (model.graph.inputs, model.graph.outputs))
    named = [pair for pair in (StatePair(*p) for p in pair_by_name(inputs, outputs)) if _misfit(pair, model) is None]
    all_pairs = sorted([*written, *named], key=lambda pair: model.graph.inputs.index(pair.past))
    return [] if any(_nothing_left(model, all_pairs)) else all_pairs


def _likely(model: NormalModel, certain_pairs: Sequence[StatePair]) -> list[StatePair]:
    """Return the likely state pairs that no name shows.

    Such an input is not the first, which models have for their data.
    The pair's shape matches no other input or output, and the output is computed from the input.
    The answer is empty where a run would have no other input or output left.
    """
    unpaired_names = [
        [n for n in names if all(n not in p for p in certain_pairs)] for names in (model.graph.inputs, model.graph.outputs)
    ]
    fitting = [StatePair(i, o) for i in unpaired_names[0] for o in unpaired_names[1] if _misfit(StatePair(i, o), model) is None]
    pasts, presents = Counter(p.past for p in fitting), Counter(p.present for p in fitting)
    single = [p for p in fitting if pasts[p.past] == presents[p.present] == 1 and p.past in model.graph.inputs[1:]]
    likely = [p for p in single if p.past in _get_ancestors(p.present, model)]
    return [] if any(_nothing_left(model, [*certain_pairs, *likely])) else likely


def _get_ancestors(name: str, model: NormalModel) -> set[str]:
    """Return the tensors from which a tensor is computed, itself among them."""
    producers, ancestors, waiting = model.graph.producers(), set[str](), [name]
    while waiting:
        tensor = waiting.pop()
        if tensor not in ancestors:
            ancestors.add(tensor)
            waiting += producers[tensor].inputs if tensor in producers else ()
    return ancestors


def _written(model: NormalModel) -> Iterator[StatePair]:
    """Yield the input and output of each TensorScatter whose cache is an input and whose result is an output.

    GroupQueryAttention has become TensorScatters by now. An input that several nodes write to is left out.
    """
    scatters = [n for n in model.graph.nodes if n.op.op_type == "TensorScatter" and n.inputs[0] in model.graph.inputs]
    caches = [n.inputs[0] for n in scatters]
    for node in scatters:
        if node.outputs[0] in model.graph.outputs and caches.count(node.inputs[0]) == 1:
            yield StatePair(node.inputs[0], node.outputs[0])


def _parse_pair(text: str, model: NormalModel) -> StatePair | str:
    """Return the pair that a text PAST=PRESENT names, or the sentence on what is wrong. Names may hold '='."""
    if text == NONE:
        return f"state {NONE}: stands alone; leave it out, or the others"
    splits = [StatePair(text[:i], text[i + 1 :]) for i, c in enumerate(text) if c == "="]
    valid_pairs = [p for p in splits if p.past in model.graph.inputs and p.present in model.graph.outputs]
    if valid_pairs:
        return valid_pairs[0]
    if not any(p.past and p.present for p in splits):
        return f"state {text}: must be PAST=PRESENT, for example state=stateN"
    swapped_pair = next((p for p in splits if p.past in model.graph.outputs and p.present in model.graph.inputs), None)
    if swapped_pair is not None:
        return (
            f"state {text}: {swapped_pair.past!r} is an output; the input comes first: {swapped_pair.present}={swapped_pair.past}"
        )
    past, present = next((p for p in splits if p.past in model.graph.inputs), splits[0])
    faults = list[str]()
    if past not in model.graph.inputs:
        available_names = ", ".join(model.graph.inputs)
        faults.append(f"there is no input {past!r}; inputs are {available_names}")
    if present not in model.graph.outputs:
        available_names = ", ".join(model.graph.outputs)
        faults.append(f"there is no output {present!r}; outputs are {available_names}")
    return f"state {text}: {'; '.join(faults)}"


def _faults(pair: StatePair, text: str, model: NormalModel, others: Sequence[StatePair]) -> Iterator[str]:
    """Yield a sentence for each reason why a requested pair is no state, or clashes with the pairs before it."""
    misfit = _misfit(pair, model)
    if misfit is not None:
        yield f"state {text}: {misfit}"
    if any(o.past == pair.past for o in others):
        yield f"state {text}: input {pair.past!r} is given twice"
    if any(o.present == pair.present for o in others):
        yield f"state {text}: output {pair.present!r} is given twice; an output is the next value of one input"


def _misfit(pair: StatePair, model: NormalModel) -> str | None:
    """Return why a pair cannot be a state, or None: shapes differ, a type is not float32, or there are no elements."""
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
    """Yield a fault where all inputs, or all outputs, would be states."""
    for what, names, paired_names in (
        ("input", model.graph.inputs, {p.past for p in pairs}),
        ("output", model.graph.outputs, {p.present for p in pairs}),
    ):
        if pairs and paired_names.issuperset(names):
            yield f"state: no {what} is left that is none; a run would have nothing to {'take' if what == 'input' else 'give'}"


def names_of_present(past: str) -> Iterator[str]:
    """Yield names of an output that may be the state `past` of the next run, the likeliest first."""
    for pattern, presents in _TABLE:
        match = re.fullmatch(pattern, past, re.ASCII)
        if match is not None:
            yield from (present.format(*match.groups()) for present in presents)


def pair_by_name(inputs: Iterable[str], outputs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (input, output) of each input whose name shows a state, with the likeliest output of a matching name."""
    remaining_outputs = dict.fromkeys(outputs)
    for past in inputs:
        present = next((name for name in names_of_present(past) if name in remaining_outputs), None)
        if present is not None:
            del remaining_outputs[present]
            yield past, present
