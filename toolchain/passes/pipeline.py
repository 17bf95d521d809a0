"""List the passes from a model in canonical form to the integer graph that is planned, in the order in which they run.

A pass is a value: its name, the form of graph that it needs and gives, and a function. To add one, write the function in a
file of its own and put a `Pass` here. It then shows in `npu-build --list-passes`, in dumps and in verification.

A graph has one of four forms. In form onnx its nodes are ONNX operators. In form composed, chains of pointwise ones are one
function each. In form chip they are operators of the chip in float, in form integer operators of the chip in integers.

`select_graph` runs the passes up to the operators of the chip in float. Between it and `quantize_selection`, which runs the
rest, the caller calibrates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar, cast

from quant.repair.choices import Quantization
from toolchain.errors import CompileError, InternalError
from toolchain.frontend import NormalModel, to_graph
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, OnnxGraph, verify
from toolchain.ir.parse_text import StageGraph
from toolchain.ir.text import GraphDump
from toolchain.ops.function_names import prefers_one_function
from toolchain.passes.annotate import annotate_selection, get_fixed_ranges
from toolchain.passes.check_start import find_host_fault, require_start
from toolchain.passes.circular_states import use_circular_states
from toolchain.passes.compose import compose
from toolchain.passes.fold_qdq import FoldedQdq, fold_qdq, fuse_selected_clamps
from toolchain.passes.fuse import fuse_residuals, fuse_scales, fuse_tables
from toolchain.passes.hoist_over_moves import hoist_sums, lift_functions
from toolchain.passes.merge_transposes import merge_transposes
from toolchain.passes.pass_options import EVERY_PASS, PassOptions
from toolchain.passes.quantize import quantize
from toolchain.passes.select import ASKED_FOR, Selection, select
from toolchain.passes.select_states import select_states, suggest_states

Form = Literal["onnx", "composed", "chip", "integer"]
Dump = Callable[[str, Callable[[], str]], None]  # a stage or pass, and what makes its text


def ignore_dump(*_: Any) -> None:
    """Do nothing: the `Dump` of a caller that wants no texts."""


@dataclass(frozen=True)
class PassContext:
    """The inputs that every pass may read and none changes.

    `host_nodes`: names of the model's nodes that stay on the host because the user requested it.
    `quantization`: the ranges and choices of calibration; None for passes on float graphs.
    `options`: passes to skip, verification, and a graph to start from.
    `dump`: gets the stage or pass and a function that makes its text, behind each pass.
    """

    chip: Chip
    host_nodes: Collection[str] = ()
    quantization: Quantization | None = None
    options: PassOptions = EVERY_PASS
    dump: Dump = ignore_dump


@dataclass(frozen=True)
class Lowering:
    """A network between two passes: its graph, and what the passes so far learned beside it.

    The fields with default None are set by passes: `folded` by fold-qdq, `composed` by compose, `selection` by select-nodes,
    `unfused` by quantize.
    `folded`: what a quantized model states of its tensors.
    `composed`: the graph that was selected from, with the model's tensors.
    `unfused`: the integer graph before anything was fused in it; its bits are the same.
    """

    model: NormalModel
    graph: Graph
    form: Form
    folded: FoldedQdq | None = None
    composed: Graph | None = None
    selection: Selection | None = None
    unfused: Graph | None = None


T = TypeVar("T")


def require(value: T | None, name: str) -> T:
    """Return the value, which an earlier pass has set. Raise InternalError, with `name`, where it is None."""
    if value is None:
        raise InternalError(f"no pass has given {name} yet")
    return value


@dataclass(frozen=True)
class Pass:
    """One step of the pipeline.

    `needs`, `gives`: the form of the graph before and behind it.
    `run`: returns the network behind the pass; it need not set the form.
    `summary`: the sentence of `--list-passes`.
    `optional`: whether `--skip-pass` may leave it out; programs are right without it, and slower.
    `stage`: the stage of `--dump-after` that ends with this pass; "" for none.
    """

    name: str
    needs: Form
    gives: Form
    run: Callable[[Lowering, PassContext], Lowering]
    summary: str
    optional: bool = False
    stage: str = ""

    @property
    def dump_name(self) -> str:
        """Return the name under which the graph behind this pass is dumped."""
        return self.stage or self.name


def run_passes(passes: Sequence[Pass], lowering: Lowering, context: PassContext) -> Lowering:
    """Run the passes in order, without those that the options skip, and return the network behind the last one.

    After each pass the graph is verified, where the options say so, and dumped, also behind a skipped one. Behind the stage
    of `options.start` the user's graph takes the place of the graph.
    Raise InternalError where a graph has the wrong form or is broken, and CompileError where the user's graph does not fit.
    """
    for one in passes:
        if lowering.form != one.needs:
            raise InternalError(f"pass {one.name} needs a graph in form {one.needs}, and it is in form {lowering.form}")
        if one.name not in context.options.skip:
            lowering = replace(one.run(lowering, context), form=one.gives)
            faults = verify(lowering.graph) if context.options.verify else []
            if faults:
                raise InternalError(f"pass {one.name} broke the graph: {'; '.join(faults)}")
        if one.stage and context.options.start is not None and context.options.start.stage == one.stage:
            lowering = begin_at(lowering, context.options.start, context.chip)
        context.dump(one.dump_name, GraphDump(one.dump_name, lowering.graph))
    return lowering


def begin_at(lowering: Lowering, start: StageGraph, chip: Chip) -> Lowering:
    """Return the network with the graph of a stage, which the user edited, in place of its own.

    Raise CompileError where it cannot take that place.
    """
    graph, model = start.graph, lowering.model
    require_start(start, lowering.graph, chip, model.opset, model.graph, {name for name, _ in model.nodes})
    selection = lowering.selection
    return replace(
        lowering,
        graph=graph,
        composed=graph if lowering.form == "composed" else lowering.composed,
        selection=replace(selection, graph=graph) if selection is not None and lowering.form == "chip" else selection,
        unfused=graph if lowering.form == "integer" else lowering.unfused,
    )


def _on_graph(transform: Callable[[Graph, PassContext], Graph]) -> Callable[[Lowering, PassContext], Lowering]:
    """Return the function of a pass that changes the graph alone."""
    return lambda lowering, context: replace(lowering, graph=transform(lowering.graph, context))


def _onnx_graph(lowering: Lowering) -> OnnxGraph:
    """Return the graph of a network in form onnx, whose nodes are all operators of ONNX."""
    return cast(OnnxGraph, lowering.graph)


def _fold_qdq(lowering: Lowering, context: PassContext) -> Lowering:
    folded = fold_qdq(_onnx_graph(lowering), context.chip)
    return replace(lowering, graph=folded.graph, folded=folded)


def _compose(lowering: Lowering, context: PassContext) -> Lowering:
    model, folded = lowering.model, require(lowering.folded, "folded scales")
    fixed_ranges = {n: r for n, r in get_fixed_ranges(model.inner).items() if n in model.finest}
    one_for_all = partial(prefers_one_function, chip=context.chip)
    composed = compose(_onnx_graph(lowering), {**fixed_ranges, **folded.file_ranges}, one_for_all)
    return replace(lowering, graph=composed, composed=composed)


# Run by `select-nodes` each time that it tried the rules of all nodes.
TIDYING_PASSES = (
    Pass(
        "lift-functions",
        "chip",
        "chip",
        _on_graph(lambda graph, context: lift_functions(graph)),
        "Functions and clamps move in front of the data movement behind the layer that makes their input.",
    ),
    Pass(
        "hoist-sums",
        "chip",
        "chip",
        _on_graph(lambda graph, context: hoist_sums(graph)),
        "Sums move in front of the Reshapes of a product, so that the array adds.",
        optional=True,
    ),
    Pass(
        "merge-transposes",
        "chip",
        "chip",
        _on_graph(lambda graph, context: merge_transposes(graph)),
        "A chain of Reshapes and Transposes becomes one Transpose at most.",
        optional=True,
    ),
)


def _select_nodes(lowering: Lowering, context: PassContext) -> Lowering:
    def tidy(graph: Graph) -> Graph:
        return run_passes(TIDYING_PASSES, replace(lowering, graph=graph, form="chip"), context).graph

    selection = select(lowering.graph, context.chip, context.host_nodes, tidy, lowering.model.plugin_nodes)
    return _select(lowering, replace(selection, pass_options=context.options))


def _annotate(lowering: Lowering, context: PassContext) -> Lowering:
    folded, composed = require(lowering.folded, "folded scales"), require(lowering.composed, "a composed graph")
    return _select(lowering, annotate_selection(_selection_of(lowering), lowering.model, folded, composed, context.chip))


def _keep_states(lowering: Lowering, context: PassContext) -> Lowering:
    model, selection = lowering.model, _selection_of(lowering)
    requested = [f.node for f in selection.fallbacks if f.reason == ASKED_FOR]
    graph, state_notes = select_states(selection.graph, model.states, model.states_asked, context.chip, requested)
    notes = (*selection.notes, *state_notes, *suggest_states(model.states_likely))
    return _select(lowering, replace(selection, graph=graph, notes=notes))


def _explain_fallbacks(lowering: Lowering, context: PassContext) -> Lowering:
    selection, reasons = _selection_of(lowering), lowering.model.reasons_undivided
    fallbacks = tuple(replace(f, reason=reasons.get(f.node, f.reason)) for f in selection.fallbacks)
    return _select(lowering, replace(selection, fallbacks=fallbacks))


def _select(lowering: Lowering, selection: Selection) -> Lowering:
    """Return the network with this selection and its graph."""
    return replace(lowering, graph=selection.graph, selection=selection)


def _selection_of(lowering: Lowering) -> Selection:
    """Return the selection. Raise InternalError where no pass has made it."""
    return require(lowering.selection, "a selection")


# From the model in canonical form to the chip's operators in float: enough to calibrate, and for --explain.
SELECTION_PASSES = (
    Pass("fold-qdq", "onnx", "onnx", _fold_qdq, "Pairs of QuantizeLinear and DequantizeLinear become scales of their tensors."),
    Pass(
        "compose",
        "onnx",
        "composed",
        _compose,
        "A chain of pointwise operators over one tensor becomes one function.",
        stage="compose",
    ),
    Pass(
        "select-nodes",
        "composed",
        "chip",
        _select_nodes,
        "Each node becomes operators of the chip in a layout, or stays with the host, with the reason.",
    ),
    Pass(
        "annotate",
        "chip",
        "chip",
        _annotate,
        "Tensors get the ranges and types that the file states or that follow from what they are.",
    ),
    Pass("keep-states", "chip", "chip", _keep_states, "States that one region reads and makes stay in the chip's memory."),
    Pass(
        "explain-fallbacks",
        "chip",
        "chip",
        _explain_fallbacks,
        "Nodes that were not decomposed get the reason of the step that the chip lacks.",
        stage="select",
    ),
)


def _fuse_clamps(lowering: Lowering, context: PassContext) -> Lowering:
    return replace(lowering, graph=fuse_selected_clamps(_selection_of(lowering), context.chip))


def _quantize(lowering: Lowering, context: PassContext) -> Lowering:
    integer = quantize(lowering.graph, context.chip, require(context.quantization, "a quantization"))
    return replace(lowering, graph=integer, unfused=integer)


FUSION_PASSES = (
    Pass(
        "fuse-scales",
        "integer",
        "integer",
        _on_graph(lambda graph, context: fuse_scales(graph)),
        "A multiple that only gives codes another scale is folded into the scale of the operation before it.",
        optional=True,
    ),
    Pass(
        "fuse-tables",
        "integer",
        "integer",
        _on_graph(lambda graph, context: fuse_tables(graph, context.chip)),
        "A lookup behind a convolution is done as the sums leave the array.",
        optional=True,
    ),
    Pass(
        "fuse-residuals",
        "integer",
        "integer",
        _on_graph(lambda graph, context: fuse_residuals(graph, context.chip)),
        "A sum of a convolution and a tensor is made as the sums leave the array.",
        optional=True,
        stage="fuse",
    ),
)
# From the selection, with the quantization that calibration gave, to the integer graph.
INTEGER_PASSES = (
    Pass("fuse-clamps", "chip", "chip", _fuse_clamps, "Relu and Clip become bounds of the operator before them.", stage="clamps"),
    Pass(
        "quantize",
        "chip",
        "integer",
        _quantize,
        "Float operators with calibrated ranges become integer operators with requantization.",
        stage="quantize",
    ),
    *FUSION_PASSES,
)


# Programs are made of the graph with and without it, and the cheaper one is taken.
STATE_PASSES = (
    Pass(
        "circular-states",
        "integer",
        "integer",
        _on_graph(lambda graph, context: use_circular_states(graph, context.chip)),
        "A state that is a window of the latest rows becomes a circular buffer; the cheaper program is taken.",
        optional=True,
    ),
)

# All passes, for lists and look-ups. Nothing runs this tuple as a whole.
PIPELINE = (*SELECTION_PASSES[:3], *TIDYING_PASSES, *SELECTION_PASSES[3:], *INTEGER_PASSES, *STATE_PASSES)


def require_optional(names: Collection[str]) -> frozenset[str]:
    """Return the names of passes to skip. Raise CompileError for one that is no pass, or that programs need."""
    optional = [one.name for one in PIPELINE if one.optional]
    for name in names:
        if name not in optional:
            is_pass = any(one.name == name for one in PIPELINE)
            fault = "every program needs it" if is_pass else "no such pass"
            raise CompileError(f"skip-pass {name}: {fault}; passes that can be skipped are {', '.join(optional)}")
    return frozenset(names)


def select_graph(
    model: NormalModel,
    chip: Chip,
    host_nodes: Collection[str] = (),
    options: PassOptions = EVERY_PASS,
    dump: Dump = ignore_dump,
) -> Selection:
    """Run SELECTION_PASSES on the model and return the selection: operators of the chip in float, and what stays on the host.

    `host_nodes`: names of nodes that stay on the host because the user requested it.
    Raise CompileError where a quantized model or a requested state does not fit the machine.
    """
    lowering = Lowering(model, to_graph(model), "onnx")
    return _selection_of(run_passes(SELECTION_PASSES, lowering, PassContext(chip, host_nodes, options=options, dump=dump)))


def quantize_selection(
    model: NormalModel, selection: Selection, chip: Chip, quantization: Quantization, fuse: bool, dump: Dump = ignore_dump
) -> Lowering:
    """Run INTEGER_PASSES and return the network; its `unfused` is the integer graph before fusion. STATE_PASSES do not run
    here.

    `selection`: of `select_graph`, whose pass options hold here too.
    `fuse`: False where the level of optimization has no fusion.
    Raise CompileError where scales do not fit the machine, or a graph given by `--start-from` does not fit the host's nodes.
    Raise InternalError for a broken graph.
    """
    options = selection.pass_options
    if not fuse:
        options = replace(options, skip=options.skip | {one.name for one in FUSION_PASSES})
    context = PassContext(chip, quantization=quantization, options=options, dump=dump)
    lowering = run_passes(INTEGER_PASSES, Lowering(model, selection.graph, "chip", selection=selection), context)
    if faults := verify(lowering.graph):
        raise InternalError(f"the integer graph is broken: {'; '.join(faults)}")
    if options.start is not None and (fault := find_host_fault(lowering.graph, to_graph(model))):
        raise CompileError(f"--start-from: {fault}")
    return lowering
