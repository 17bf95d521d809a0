"""Compute the warnings of a build: sentences on what a reader of its figures must not overlook.

Each function looks for one kind of trouble and returns a list of sentences, empty without it. They cover the host's share,
calibration data, ranges, clipped values, dead channels, strides that the machine cuts, and options without effect. The caller
prints the sentences and adds them to the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.float_session import FloatSession
from quant.observe import Range
from quant.parameters import quant_range
from toolchain.codegen import Container
from toolchain.errors import format_count, percent
from toolchain.frontend import NormalModel
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Quant, TensorType
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.kit.operator import Layer
from toolchain.passes.select import ASKED_FOR
from toolchain.report.layer_errors import LayerMeasurements

_WORTH_SAYING = 0.05  # of all cycles
MUCH = 0.05  # of a model's products; more of them on the host is worth a warning
MUCH_WIDER = 4.0  # times a block's own range: two bits of its codes
FEW_SAMPLES = 16
FEW_VALUES = 200  # of a tensor: one in a hundred of others lies beyond them
MOST_CLIPPED = 0.5  # of a tensor's values
SATURATED = 0.001  # of a tensor's values
FEWEST_CLIPPED = 3
NEGLIGIBLE_LOSS = 1e-5  # of a tensor's energy: what lies outside its codes by less is a step or two of fine ones
_ONCE_IN_A_HUNDRED = 2.33  # standard deviations of a count, one-sided
NAMED = 4  # in one warning
DYNAMIC = "DynamicQuantizeLinear"


_SAMPLES = 4


def host_warnings(host: Mapping[str, Any], nodes: Sequence[tuple[str, str]], reasons: Collection[str] = ()) -> list[str]:
    """Return a warning where the host computes more than the share MUCH of the products, or any under DynamicQuantizeLinear.
    There is none where the user asked for all of it.

    `host`: host part of the figures.
    `nodes`: (name, operator) of the model's own nodes.
    `reasons`: why each node on the host is there.
    """
    if reasons and all(reason == ASKED_FOR for reason in reasons):
        return []
    share = f"{100 * host['mac_share']:.1f} % of the model's MACs run on the HOST"
    dynamic = sum(op == DYNAMIC for _, op in nodes)
    if dynamic and host["macs"]:
        nodes_have = f"{format_count(dynamic, f'{DYNAMIC} node')} of the model {'has' if dynamic == 1 else 'have'}"
        what = f"{nodes_have} a range that each run finds"
        return [f"{what}: {share}, and the cycles leave them out; --static-ranges calibrates them"]
    if host["mac_share"] > MUCH:
        return [f"{share}, and the cycles leave them out; --explain says why"]
    return []


def not_finite_warnings(tensors: Mapping[str, str]) -> list[str]:
    """Return a warning for each tensor in which a sample has NaN or infinity, so that its nodes run on the host.

    `tensors`: by name, a text such as `NaN in 2 of 6 elements`.
    """
    return [
        f"{name!r} holds {what} in a sample, which codes cannot hold: the nodes that make or read it run on the HOST; "
        "where the sample is none of the model's kind, remove it"
        for name, what in tensors.items()
    ]


def calibration_warnings(samples: int | None) -> list[str]:
    """Return a warning where calibration had fewer than FEW_SAMPLES samples.

    `samples`: number of samples of the user's own data. None, calibration without data, gives no warning here.
    """
    if samples is None or samples >= FEW_SAMPLES:
        return []
    return [f"calibrated on {format_count(samples, 'sample')}; ranges of fewer than {FEW_SAMPLES} may not hold for other data"]


def few_values_warnings(outputs: Mapping[str, Range | Quant]) -> list[str]:
    """Return a warning for each output whose calibrated range rests on fewer than FEW_VALUES values and has room beyond them.

    `outputs`: range or qparams of the model's outputs, by the name that users know. Qparams, which were not calibrated, give
    none.
    """
    tails = {n: r.tails for n, r in outputs.items() if isinstance(r, Range) and r.tails is not None}
    few = {n: t.values for n, t in tails.items() if (t.below or t.above) and t.values < FEW_VALUES}
    return [
        f"output {name!r}: its range rests on {format_count(values, 'value')}, so about one in {(values + 1) // 2} of other "
        "data lies "
        "beyond it; its codes have room for what these make likely. Give --calib more samples, or low and high in --quant FILE"
        for name, values in few.items()
    ]


def unseen_warnings(names: Sequence[str]) -> list[str]:
    """Return at most one warning, which names tensors without a calibrated range.

    `names`: tensors that were zero in all calibration data.
    """
    if not names:
        return []
    shown = _first(", ".join(names[:NAMED]), len(names))
    return [f"ranges never seen: zero (to 1e-10) throughout the calibration data is {shown}; give data in which they are not"]


def make_joined_range_warnings(
    ranges: Mapping[str, Range | Quant], joined: Mapping[str, Range], name: Callable[[str], str]
) -> list[str]:
    """Return at most one warning: the joint range of repeated blocks is more than MUCH_WIDER times that of one block.

    `ranges`: range of each tensor alone.
    `joined`: joint range of tensors of blocks that share one.
    `name`: function that gives a tensor's name as users know it.
    """
    spans = {n: (r.with_zero().span, ranges[n]) for n, r in joined.items()}
    wider = {
        n: span / max(block_range.with_zero().span, 1e-30)
        for n, (span, block_range) in spans.items()
        if isinstance(block_range, Range)
    }
    ranked = sorted(((ratio, n) for n, ratio in wider.items() if ratio > MUCH_WIDER), key=lambda one: (-one[0], one[1]))
    if not ranked:
        return []
    named = ", ".join(f"{name(n)} {ratio:.3g} times" for ratio, n in ranked[:NAMED])
    what = f"--blocks-alike: the range of all blocks is more than {MUCH_WIDER:g} times a block's own"
    return [f"{what}, whose codes are so much coarser: {_first(named, len(ranked))}; leave it out where accuracy counts"]


def idle_warnings(static_ranges: bool, nodes: Sequence[tuple[str, str]]) -> list[str]:
    """Return a warning where `--static-ranges` was given and has no effect, as the model has no operator with a range of each
    run.

    `static_ranges`: whether the option was given.
    `nodes`: (name, operator) of the model's own nodes.
    """
    dynamic = any(op in (DYNAMIC, "DynamicQuantizeMatMul") for _, op in nodes)
    if dynamic or not static_ranges:
        return []
    return ["--static-ranges: left out, the model quantizes nothing by a range of each run"]


def make_skipped_warnings(repair: Mapping[str, Any] | None, observer: str | None, calibrated: bool) -> list[str]:
    """Return warnings on requested steps that were left out: the observer without anything to calibrate, and steps of repair.

    `repair`: repair part of the figures; None: there was no repair.
    `observer`: the observer of `--observer`; None: none was asked for.
    `calibrated`: whether any range was calibrated.
    """
    warnings = list[str]()
    if observer is not None and not calibrated:
        warnings.append(f"--observer {observer}: left out, the model gives every range itself")
    skipped_steps = [] if repair is None else [step for step in repair["steps"] if not step["kept"]]
    if repair is not None and skipped_steps:
        reasons = "; ".join(f"{step['step']}: {step['why']}" for step in skipped_steps)
        warnings.append(
            f"--repair {repair['effort']}: {len(skipped_steps)} of {format_count(len(repair['steps']), 'step')} left out: "
            f"{reasons}"
        )
    return warnings


def layer_warnings(measurements: LayerMeasurements, file: str | None) -> list[str]:
    """Return warnings on values outside the codes and on channels of convolutions that never change.

    `file`: the file of `--quant`, whose own ranges are then looked at as well; None without one.
    """
    lost = {} if file is None else _lost(measurements)
    return [
        *(f"{file}: tensor {name!r}: {fault}" for name, fault in lost.items()),
        *_warn_of_saturation(measurements, lost),
        *_dead(measurements),
    ]


def _lost(measurements: LayerMeasurements) -> dict[str, str]:
    """Return what is wrong with a tensor's range, by the user's name: most values are clipped, or all become one code."""
    fault_by_tensor = dict[str, str]()
    for block in measurements.network.blocks:
        rounding_error, name = measurements.sums[block.tensor].rounding_error, measurements.network.name(block)
        span = f"[{rounding_error.low:.4g}, {rounding_error.high:.4g}]"
        if rounding_error.clipped > MOST_CLIPPED * rounding_error.count:
            fault_by_tensor[name] = (
                f"{rounding_error.clipped / rounding_error.count:.0%} of its values, in {span}, are clipped; widen its range"
            )
        elif rounding_error.one_code:
            fault_by_tensor[name] = f"its values, in {span}, all become one code; narrow its range"
    return fault_by_tensor


def is_saturated(clipped: int, count: int) -> bool:
    """Return whether so many clipped values show that more than the share SATURATED of a tensor lies outside its codes.
    At exactly that share, as many would occur once in a hundred times, and one or two values do not count.
    """
    expected = SATURATED * count
    return clipped >= FEWEST_CLIPPED and clipped > expected + _ONCE_IN_A_HUNDRED * math.sqrt(expected)


def _warn_of_saturation(measurements: LayerMeasurements, reported: Collection[str]) -> list[str]:
    """Return a warning with the tensors of which too many values lie outside their codes. reported: names to leave out."""
    counts: dict[str, tuple[int, int]] = {}
    for block in measurements.network.blocks:
        rounding_error, name = measurements.sums[block.tensor].rounding_error, measurements.network.name(block)
        clipped, count = counts.get(name, (0, 0))
        lost = rounding_error.clipped if rounding_error.clipped_noise > NEGLIGIBLE_LOSS * rounding_error.signal else 0
        counts[name] = clipped + lost, count + rounding_error.count
    shares = {name: k / n for name, (k, n) in counts.items() if is_saturated(k, n) and name not in reported}
    ranked = sorted(shares.items(), key=lambda s: -s[1])
    named = ", ".join(f"{name} {percent(share)}" for name, share in ranked[:NAMED])
    return (
        [f"more than {100 * SATURATED:g} % of the values lie outside the codes of: {_first(named, len(ranked))}"]
        if ranked
        else []
    )


def _dead(measurements: LayerMeasurements) -> list[str]:
    """Return a warning with the convolutions that have dead channels.

    From FEW_SAMPLES samples on, a channel is dead whose codes never changed; else one whose integer weights are all zero. A
    channel whose weights are zero in the file already is not counted.
    """
    dead = dict[str, tuple[int, int]]()
    weights_by_node = {n.name: n.inputs[1] for n in measurements.network.chosen.nodes if isinstance(n.op, Convolution)}
    for block in measurements.network.blocks:
        channels, node = measurements.sums[block.tensor].channels, block.layer
        if channels is None or node is None:
            continue
        if measurements.samples >= FEW_SAMPLES:
            still = channels[0] == channels[1]
        else:
            still = ~_has_weights(measurements.network.integer.constants[node.inputs[1]])
        if node.name in weights_by_node:
            still = still & _has_weights(measurements.network.chosen.constants[weights_by_node[node.name]])
        count = int(np.count_nonzero(still))
        if count:
            dead[node.name] = (count, len(channels[0]))
    ranked = sorted(dead.items(), key=lambda d: -d[1][0] / d[1][1])
    named = ", ".join(f"{name} {count} of {of}" for name, (count, of) in ranked[:NAMED])
    return [f"dead channels, which give one value whatever comes: {_first(named, len(ranked))}"] if ranked else []


def _has_weights(weights: np.ndarray) -> np.ndarray:
    """Return bool[o], True where an output channel has a weight that is not zero. weights: [o, ...]."""
    return np.any(weights.reshape(len(weights), -1) != 0, axis=1)


def _first(named: str, count: int) -> str:
    """Return the names with the number of those that are not named."""
    return named if count <= NAMED else f"{named} and {count - NAMED} more"


def stride_warnings(container: Container, layers: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a sentence for each limit of the machine by which strides of convolutions cost much, with layers and cycles.

    Only reasons are told whose layers take at least a twentieth of all cycles.

    `layers`: layers of the figures.
    """
    chip, graph = container.machine.chip, container.graph
    cycles = {layer["name"]: layer["cycles"] for layer in layers}
    layers_by_reason: dict[str, list[str]] = {}
    for node in graph.nodes:
        if isinstance(node.op, IntegerConvolution):
            reason = node.op.stride_cut(Layer(node, graph.types, graph.constants, chip))
            if reason:
                layers_by_reason.setdefault(reason, []).append(node.name)
    total = sum(cycles.values())
    costs = {reason: sum(cycles.get(n, 0) for n in names) for reason, names in layers_by_reason.items()}
    return tuple(
        f"{reason}: {format_count(len(names), 'layer')}, {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}, "
        f"{costs[reason]:,} of {total:,} cycles"
        for reason, names in layers_by_reason.items()
        if costs[reason] >= _WORTH_SAYING * total
    )


def make_shared_warnings(
    model: NormalModel,
    integer: Graph,
    origins: Mapping[str, tuple[str, str]],
    shared: Collection[str],
    chip: Chip,
    samples: Iterable[Sample],
) -> list[str]:
    """Return a warning for each tensor with shared qparams of which too many values lie outside the codes.

    A quantized file may round a tensor for some consumers and leave it in float for others; the chip has it once, in codes. At
    most four samples are run in float.

    `integer`: the integer graph, whose types hold the qparams.
    `shared`: model tensors of that kind, as in `passes.fold_qdq.FoldedQdq`.
    `origins`: (model tensor, layout) by chip tensor.
    """
    type_by_tensor = {
        origins[name][0]: kind for name, kind in integer.types.items() if name in origins and kind.quant is not None
    }
    names = sorted(type_by_tensor.keys() & set(shared))
    if not names:
        return []
    session, sums = FloatSession(model, names, few_runs=True), np.zeros((len(names), 4))
    for sample in islice(samples, _SAMPLES):
        for total, name, x in zip(sums, names, session.run(sample), strict=True):
            total += _beyond(x, type_by_tensor[name], chip)
    many = (
        (name, clipped / count)
        for name, (clipped, count, lost, signal) in zip(names, sums.tolist(), strict=True)
        if is_saturated(int(clipped), int(count)) and lost > NEGLIGIBLE_LOSS * signal
    )
    return [
        f"{model.name(name)} is rounded to codes for some of what reads it and left in float for others, and {chip.name} has it "
        f"once, in these codes: {percent(share)} of its values lie outside them; quantize it so that they hold all of it"
        for name, share in many
    ]


def _beyond(x: np.ndarray, kind: TensorType, chip: Chip) -> tuple[int, int, float, float]:
    """Return counts and energies of a tensor: values outside the codes by over half a step, all values, the loss's energy, the
    total."""
    assert kind.quant is not None
    ends = quant_range(kind.quant, chip.numerics.of(CodeType(kind.dtype)))
    beyond = np.maximum(np.maximum(ends.low - x, x - ends.high) - kind.quant.scale / 2, 0)
    lost, signal = (float(np.sum(np.square(v, dtype=np.float64))) for v in (beyond, x))
    return int(np.count_nonzero(beyond)), x.size, lost, signal
