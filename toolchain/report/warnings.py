"""What a reader of a build's figures must not overlook."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from quant.observe import Range
from toolchain.errors import format_count, percent
from toolchain.ir.graph import Quant
from toolchain.ops.convolution.rules import Convolution
from toolchain.report.layer_errors import LayerMeasurements

MUCH = 0.05  # of a model's products; more of them on the host is worth a warning
MUCH_WIDER = 4.0  # times a block's own range: two bits of its codes
FEW_SAMPLES = 16
FEW_VALUES = 200  # of a tensor: one in a hundred of others lies beyond them
MOST_CLIPPED = 0.5  # of a tensor's values
SATURATED = 0.001  # of a tensor's values
FEWEST_CLIPPED = 3
HEARD = 1e-5  # of a tensor's energy: what lies outside its codes by less is a step or two of fine ones
_ONCE_IN_A_HUNDRED = 2.33  # standard deviations of a count, one-sided
NAMED = 4  # in one warning
DYNAMIC = "DynamicQuantizeLinear"


def host_warnings(host: Mapping[str, Any], nodes: Sequence[tuple[str, str]]) -> list[str]:
    """host: of the figures; nodes: (name, operator) of the model's own."""
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
    """tensors: beside which nodes were left to the host, with what a sample holds: `NaN in 2 of 6 elements`."""
    return [
        f"{name!r} holds {what} in a sample, which codes cannot hold: the nodes that make or read it run on the HOST; "
        "where the sample is none of the model's kind, remove it"
        for name, what in tensors.items()
    ]


def calibration_warnings(samples: int | None) -> list[str]:
    """samples: of the user's own data, None where there were none."""
    if samples is None or samples >= FEW_SAMPLES:
        return []
    return [f"calibrated on {format_count(samples, 'sample')}; ranges of fewer than {FEW_SAMPLES} may not hold for other data"]


def few_values_warnings(outputs: Mapping[str, Range | Quant]) -> list[str]:
    """outputs: of the model, by what they are called, with what their codes are to hold."""
    tails = {n: r.tails for n, r in outputs.items() if isinstance(r, Range) and r.tails is not None}
    few = {n: t.values for n, t in tails.items() if (t.below or t.above) and t.values < FEW_VALUES}
    return [
        f"output {name!r}: its range rests on {format_count(values, 'value')}, so about one in {(values + 1) // 2} of other "
        "data lies "
        "beyond it; its codes have room for what these make likely. Give --calib more samples, or low and high in --quant FILE"
        for name, values in few.items()
    ]


def unseen_warnings(names: Sequence[str]) -> list[str]:
    """names: of tensors that were zero in all that was calibrated on."""
    if not names:
        return []
    shown = _first(", ".join(names[:NAMED]), len(names))
    return [f"ranges never seen: zero (to 1e-10) throughout the calibration data is {shown}; give data in which they are not"]


def joined_warnings(ranges: Mapping[str, Range | Quant], joined: Mapping[str, Range], name: Callable[[str], str]) -> list[str]:
    """ranges: of each tensor alone; joined: of those of blocks that share one; name: what people call a tensor."""
    spans = {n: (r.with_zero().span, ranges[n]) for n, r in joined.items()}
    wider = {n: span / max(own.with_zero().span, 1e-30) for n, (span, own) in spans.items() if isinstance(own, Range)}
    ranked = sorted(((ratio, n) for n, ratio in wider.items() if ratio > MUCH_WIDER), key=lambda one: (-one[0], one[1]))
    if not ranked:
        return []
    named = ", ".join(f"{name(n)} {ratio:.3g} times" for ratio, n in ranked[:NAMED])
    what = f"--blocks-alike: the range of all blocks is more than {MUCH_WIDER:g} times a block's own"
    return [f"{what}, whose codes are so much coarser: {_first(named, len(ranked))}; leave it out where accuracy counts"]


def idle_warnings(static_ranges: bool, nodes: Sequence[tuple[str, str]]) -> list[str]:
    """nodes: (name, operator) of the model's own."""
    dynamic = any(op in (DYNAMIC, "DynamicQuantizeMatMul") for _, op in nodes)
    if dynamic or not static_ranges:
        return []
    return ["--static-ranges: left out, the model quantizes nothing by a range of each run"]


def skipped_warnings(repair: Mapping[str, Any] | None, observer: str | None, calibrated: bool) -> list[str]:
    """What was asked for and left out. repair: of the figures; observer: that was asked for."""
    said = []
    if observer is not None and not calibrated:
        said.append(f"--observer {observer}: left out, the model gives every range itself")
    left = [] if repair is None else [step for step in repair["steps"] if not step["kept"]]
    if repair is not None and left:
        reasons = "; ".join(f"{step['step']}: {step['why']}" for step in left)
        said.append(
            f"--repair {repair['effort']}: {len(left)} of {format_count(len(repair['steps']), 'step')} left out: {reasons}"
        )
    return said


def layer_warnings(found: LayerMeasurements, file: str | None) -> list[str]:
    """What the figures of layers do not show: values beyond the codes, channels that say nothing. file: of --quant."""
    lost = {} if file is None else _lost(found)
    return [*(f"{file}: tensor {name!r}: {fault}" for name, fault in lost.items()), *_saturated(found, lost), *_dead(found)]


def _lost(found: LayerMeasurements) -> dict[str, str]:
    """What becomes of tensors whose ranges people wrote: most of it clipped, or all of it one code."""
    said = {}
    for block in found.network.blocks:
        own, name = found.sums[block.tensor].own, found.network.name(block)
        span = f"[{own.low:.4g}, {own.high:.4g}]"
        if own.clipped > MOST_CLIPPED * own.count:
            said[name] = f"{own.clipped / own.count:.0%} of its values, in {span}, are clipped; widen its range"
        elif own.one_code:
            said[name] = f"its values, in {span}, all become one code; narrow its range"
    return said


def is_saturated(clipped: int, count: int) -> bool:
    """Whether so many values show that more than SATURATED of a tensor's lie outside its codes: of that share alone as many would
    come once in a hundred times, and one or two are none."""
    expected = SATURATED * count
    return clipped >= FEWEST_CLIPPED and clipped > expected + _ONCE_IN_A_HUNDRED * math.sqrt(expected)


def _saturated(found: LayerMeasurements, told: Collection[str]) -> list[str]:
    counts: dict[str, tuple[int, int]] = {}
    for block in found.network.blocks:
        own, name = found.sums[block.tensor].own, found.network.name(block)
        clipped, count = counts.get(name, (0, 0))
        lost = own.clipped if own.clipped_noise > HEARD * own.signal else 0
        counts[name] = clipped + lost, count + own.count
    shares = {name: k / n for name, (k, n) in counts.items() if is_saturated(k, n) and name not in told}
    ranked = sorted(shares.items(), key=lambda s: -s[1])
    named = ", ".join(f"{name} {percent(share)}" for name, share in ranked[:NAMED])
    return (
        [f"more than {100 * SATURATED:g} % of the values lie outside the codes of {_first(named, len(ranked))}"] if ranked else []
    )


def _dead(found: LayerMeasurements) -> list[str]:
    """Channels of convolutions that never change, where enough was seen to say so; else those whose weights are all the code
    zero. What has no weights in the file is meant so."""
    dead = {}
    given = {n.name: n.inputs[1] for n in found.network.chosen.nodes if isinstance(n.op, Convolution)}
    for block in found.network.blocks:
        channels, node = found.sums[block.tensor].channels, block.layer
        if channels is None or node is None:
            continue
        if found.samples >= FEW_SAMPLES:
            still = channels[0] == channels[1]
        else:
            still = ~_has_weights(found.network.integer.constants[node.inputs[1]])
        if node.name in given:
            still = still & _has_weights(found.network.chosen.constants[given[node.name]])
        count = int(np.count_nonzero(still))
        if count:
            dead[node.name] = (count, len(channels[0]))
    ranked = sorted(dead.items(), key=lambda d: -d[1][0] / d[1][1])
    named = ", ".join(f"{name} {count} of {of}" for name, (count, of) in ranked[:NAMED])
    return [f"dead channels, which give one value whatever comes: {_first(named, len(ranked))}"] if ranked else []


def _has_weights(weights: np.ndarray) -> np.ndarray:
    """bool[o]: which output channels have any that is not zero. weights: [o, ...]."""
    return np.any(weights.reshape(len(weights), -1) != 0, axis=1)


def _first(named: str, count: int) -> str:
    return named if count <= NAMED else f"{named} and {count - NAMED} more"
