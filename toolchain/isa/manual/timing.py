"""The manual's section on timing: the terms of which cycles are made, with the machine's own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from toolchain.hw import Chip
from toolchain.hw.engines import MacArray
from toolchain.hw.timing import DENSE, UNLIMITED, get_rate
from toolchain.hw.unit_map import Space, Unit
from toolchain.isa.machine import Machine
from toolchain.isa.manual.figures import Figure
from toolchain.machine.manual_text import formula
from toolchain.machine.timing_model import read_rate

_ARBITRATION = {
    "round_robin": "of several operations that a port could serve the units' turns come one after another, in each a burst",
    "fcfs": "of several operations that a port could serve the one that was ready first is served first, of one cycle the first "
    "of the program",
}


def timing(machine: Machine) -> Iterator[str | Figure]:
    """Yield the section on timing: queues, memories, and a part for each kind of engine."""
    chip = machine.chip
    yield "## Timing"
    yield (
        "Results do not hang on time; what follows is what the toolchain counts, and what vectors and reports call cycles. "
        f"Cycle 0 is the first in which the front end reads a word. It takes {_reading(machine)} for each word, and "
        "stops at a full queue; a queue holds operations that wait beside the one that runs. An operation begins when its "
        "engine is free and it has been dispatched. A wait and a signal take their engine's issue cycles and no more; a wait is "
        "not over before its signal is."
    )
    yield (
        "An operation lasts until its engine has computed and every memory that it touches has served it: first the engine's "
        "issue cycles, the latency of the slowest memory that it reads and that of the one that it writes, then its computing "
        "cycles and, beside them, the bytes that it moves over the bandwidth of each memory, rounded up. A memory's ports serve "
        "operations one after another, in an order that the program fixes; who needs less than the bandwidth leaves the rest to "
        "the next."
    )
    rows = ["| memory | bytes a cycle read | written | latency read | write | bursts | ports |", "|---|---|---|---|---|---|---|"]
    for space in chip.spaces:
        m = space.memory
        ports = "one for both" if m.shared_ports else "one each"
        rates = f"{m.read_bytes_per_cycle:g} | {m.write_bytes_per_cycle:g} | {m.latency_cycles} | {m.write_latency_cycles}"
        rows.append(f"| {space.name} | {rates} | {m.burst_bytes} | {ports} |")
    yield "\n".join(rows)
    yield "Each contiguous run that a DMA operation moves is charged the whole bursts of a memory that it touches."
    for code in chip.banked:
        yield _banks(chip.spaces[code])
    for space in chip.spaces:
        if space.memory.arbitration != "fixed":
            yield f"{space.name}: {_ARBITRATION[space.memory.arbitration]}."
    for unit in {u.engine: u for u in chip.units}.values():
        yield from _array(unit) if unit.kind == "mac_array" else _vector(unit) if unit.kind == "vector" else _dma(unit, chip)
    yield from _front_end(chip)


def _banks(space: Space) -> str:
    """Return the sentence on a memory's words and banks."""
    m = space.memory
    many, cycles = m.banks > 1, _cycles(m.bank_cycles)
    lie = f"its words of {m.bank_bytes} bytes lie in {m.banks} banks in turn, word w in bank w mod {m.banks}" if many else ""
    busy = f"and no fewer cycles than the busiest bank takes, {cycles} a word, for the words that it has of them" if many else ""
    runs = "in words that runs share" if m.words == "packed" else "in the whole words that each contiguous run touches"
    conflict_text = lie or f"its words have {m.bank_bytes} bytes, each of which takes {cycles}"
    charged = f"the operands of an operation, one after another, are charged their bytes {runs}"
    return (
        f"{space.name}: {conflict_text}; {', '.join(part for part in (charged, busy) if part)}, as often as they are read. "
        "Runs that "
        "continue one another are one; the rows and columns that windows reach count as neighbours, or as a stride apart where "
        "the kernel has one of them."
    )


def _array(unit: Unit) -> Iterator[str]:
    """Yield the manual's text on the cycles of an array."""
    mac = unit.array
    yield (
        f"**{unit.engine}**: {mac.rows} rows, {mac.columns} columns, depth {mac.depth}; issue {mac.issue_cycles}. With P "
        "output pixels, K products a pixel and channel, M output channels, a product takes F (steps + E) cycles:"
    )
    depth = "K" if mac.depth == 1 else f"ceil(K / {mac.depth})"
    r, c = mac.rows, mac.columns
    formula_by_flow = {
        "os": f"F = ceil(P / {r}) ceil(M / {c}),  steps = {depth},  E = {r + c - 2}",
        "ws": f"F = ceil({depth} / {r}) ceil(M / {c}),  steps = P,  E = {2 * r + c - 2}",
        "is": f"F = ceil({depth} / {r}) ceil(P / {c}),  steps = M,  E = {2 * r + c - 2}",
    }
    yield formula(*(f"{number} {flow}:  {formula_by_flow[flow]}" for number, flow in enumerate(mac.dataflows)))
    if mac.folds_overlap:
        yield f"Folds overlap: E is paid once; a fold of ws or is takes at least {r} cycles but for the last."
    rates = ", ".join(f"{t.activation} by {t.weight} {t.rate:g}" for t in mac.types)
    yield f"Steps are over the rate of the operands' types: {rates}. {_depthwise(mac)}"
    yield (
        "Bytes that an operation moves: inputs that its windows reach once for each ceil(M / S) (os, ws) or once (is), S = "
        f"{_number(mac.timing.shared_outputs, mac.columns)}; weights once (ws), once for each ceil(P / C) (is), C its columns, "
        f"or once for each ceil(P / {mac.rows * _sums(mac)}) (os); "
        "parameters, a table, an addend and results once each."
    )
    yield from _terms(mac)
    if mac.groups is not None:
        yield (
            "Weights in groups of G are ceil(K / G) products of G one behind the other, whose folds take "
            f"{mac.groups.fold_cycles} more each."
        )


def _terms(mac: MacArray) -> Iterator[str]:
    """Yield the table of what is charged beside the folds."""
    terms, (inputs, weights) = mac.timing, mac.edge_bytes
    rows = ["| term | |", "|---|---|"]
    if terms.reduction not in (DENSE, ()):
        sizes = " or ".join(f"{c} ceil(channels / {c}) {t} ceil(taps / {t})" for c, t in terms.reduction)
        few = ", whichever is fewest" if len(terms.reduction) > 1 else ""
        rows.append(f"| steps and row folds | as of K = {sizes}{few} |")
    elif not terms.reduction:
        each = "channels" if mac.depth == 1 else f"ceil(channels / {mac.depth})"
        rows.append(f"| steps and row folds | of each tap of a kernel for itself: taps {each} in the place of ceil(K / depth) |")
    if terms.depthwise_taps is not None:
        rows.append(
            f"| taps of a depthwise operation | as if there were {terms.depthwise_taps} ceil(taps / {terms.depthwise_taps}) |"
        )
    if terms.fold_cycles:
        rows.append(f"| a fold | {_cycles(terms.fold_cycles)} more, before it begins |")
    for name, edge_bytes, entering in zip(("activations", "weights"), (inputs, weights), _entering(mac)):
        if edge_bytes < UNLIMITED:
            rate_text = f"a cycle enter, {entering}; steps of a fold, or a load, that take more last longer"
            rows.append(f"| {name} | {edge_bytes} {'byte' if edge_bytes == 1 else 'bytes'} {rate_text} |")
    if terms.window_bytes == 0:
        rows.append("| windows | are not kept: inputs are read once for each tap |")
    elif terms.window_bytes < UNLIMITED:
        buffer_text = (
            f"a buffer of {terms.window_bytes} bytes, X columns that windows reach, I channels: inputs are read once where it"
        )
        rows.append(
            f"| windows | {buffer_text} holds ((kernel_height - 1) dilation_height + 1) X I codes, once for each row of the "
            "kernel "
            "where it holds ((kernel_width - 1) dilation_width + 1) I, else once for each tap |"
        )
    out = terms.output
    lanes = {"": out.lanes or mac.columns, " through a table": out.table_lanes, " with an addend": out.addend_lanes or out.lanes}
    rate_text = [f"{_channels(_number(n, mac.columns))} of a pixel a cycle{what}" for what, n in lanes.items() if n != UNLIMITED]
    if rate_text:
        timing_text = "beside the folds" if out.overlaps else "behind the folds of the operation"
        rows.append(f"| what is emitted | {', '.join(rate_text)} (the fewest that apply), {timing_text} |")
    if len(rows) > 2:
        yield "\n".join(rows)


def _entering(mac: MacArray) -> tuple[str, str]:
    """Return which activations and which weights enter, for the rows and columns in use, by dataflow."""
    depth = "" if mac.depth == 1 else f" and each of the depth of {mac.depth}"
    step = {line: f"one for each {line}{depth} a step" for line in ("row", "column")}
    load = f"one for each row and column{depth} before a fold"
    entering_by_flow = {"os": (step["row"], step["column"]), "ws": (step["row"], load), "is": (load, step["row"])}
    entering_pairs = [entering_by_flow[flow] for flow in mac.dataflows]
    if len(entering_pairs) > 1:
        entering_pairs = [(f"{flow} {a}", f"{flow} {w}") for flow, (a, w) in zip(mac.dataflows, entering_pairs)]
    activations, weights = (", ".join(each) for each in zip(*entering_pairs))
    if "diagonal" in mac.depthwise_modes:
        activations += ", of a depthwise operation also for each column"
    return activations, weights


def _channels(number: str) -> str:
    """Return a number with the word channel or channels."""
    return "1 channel" if number == "1" else f"{number} channels"


def _number(rate: int | None, otherwise: int) -> str:
    """Return the rate as text, "all" for an unlimited one; None means `otherwise`."""
    return "all" if rate == UNLIMITED else str(get_rate(rate, otherwise))


def _sums(mac: MacArray) -> int:
    """Return the number of accumulators for each element of the array."""
    return max(1, mac.accumulators.entries // (mac.rows * mac.columns))


def _depthwise(mac: MacArray) -> str:
    """Return the sentence on how depthwise operations run."""
    text_by_mode = {
        "column": "as one product of M = 1 and K = taps for each channel, one behind the other",
        "diagonal": (
            f"{mac.columns} channels at once: os as a product of K = taps and M = channels; ws and is with F = ceil(taps / "
            f"depth) ceil(channels / {mac.columns}), steps P"
        ),
        "none": "not at all",
    }
    return "A depthwise operation runs " + "; or ".join(text_by_mode[mode] for mode in mac.depthwise_modes) + "."


def _vector(unit: Unit) -> Iterator[str]:
    """Yield the manual's text on the cycles of a vector engine."""
    engine = unit.vector
    yield (
        f"**{unit.engine}**: startup + passes ceil(elements / lanes) cycles, a pool a pass for each element of its window where "
        f"those are more, a softmax at least three; issue {engine.issue_cycles}. Of several types of operands the one of fewest "
        "lanes counts."
    )
    rows = ["| function | lanes | startup | passes |", "|---|---|---|---|"]
    for name, rate in engine.functions.items():
        more = "".join(f", {codes} {lanes}" for codes, lanes in (rate.type_lanes or {}).items())
        rows.append(f"| {name} | {rate.lanes}{more} | {rate.startup} | {rate.passes} |")
    yield "\n".join(rows)


def _dma(unit: Unit, chip: Chip) -> Iterator[str]:
    """Yield the manual's text on the cycles of a DMA engine."""
    channels, dma = len([u for u in chip.units if u.engine == unit.engine]), unit.dma
    beats = (
        f"; bytes are those of the beats of {ceil(dma.bytes_per_cycle)} that each contiguous run touches, of the end with more"
    )
    yield (
        f"**{unit.engine}**: {channels} channel{'s' if channels > 1 else ''}, each with a queue; ceil(bytes / "
        f"{dma.bytes_per_cycle:g}) cycles, issue {dma.issue_cycles}{beats if dma.runs == 'whole_beats' else ''}."
    )
    if dma.run_cycles:
        yield (
            f"Each contiguous run, of the end with more of them, takes {_cycles(dma.run_cycles)} more, in which nothing is moved."
        )
    if dma.request_cycles:
        yield f"Behind issue and in front of the latencies come {_cycles(dma.request_cycles)} until a request is on its way."
    if dma.in_flight_bytes < UNLIMITED:
        yield (
            f"A channel has {dma.in_flight_bytes} bytes asked for and not received at most: an operation takes at least "
            f"ceil(bytes L / {dma.in_flight_bytes}) cycles, L the read latency of the memory that it reads."
        )
    if dma.outstanding > 1:
        yield (
            f"{dma.outstanding} operations of a channel may be in flight. The next one is issued when the one before has been "
            "and every signal that it waits for is there; then request and latency of both go by at once. Bytes are moved and "
            "operations are over in order; one that reads what another in flight writes asks when that is over."
        )


def _cycles(number: float) -> str:
    return "1 cycle" if number == 1 else f"{number:g} cycles"


def _reading(machine: Machine) -> str:
    """Return the time in which the front end reads one word, in words."""
    chip, space = machine.chip, machine.chip.program_space
    if space is None:
        return _cycles(chip.isa.word_cycles)
    return _cycles(max(chip.isa.word_cycles, machine.isa.word_bytes / read_rate(chip.spaces[space].memory)))


def _front_end(chip: Chip) -> Iterator[str]:
    """Yield the manual's text on how instruction words are read."""
    if chip.program_space is not None:
        name = chip.spaces[chip.program_space].name
        yield (
            f"Words are read from {name}: those of an operation, and of the ones before it that this memory's port does not "
            "serve, take the port with its bytes."
        )
    if chip.control.repeat:
        buffer_words = chip.control.repeat.buffer_words
        yield "The words of a repeat are read again for each iteration" + (
            f", but once where its body has at most {buffer_words}." if buffer_words else "."
        )
    if chip.control.call:
        yield "The words of a block are read again at each call. What the front end carries out takes the time of its words."
    yield "A program's cycles are those at which its last operation ends."
