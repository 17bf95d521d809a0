"""The terms of a machine's timing by name, each of which can be made ideal, and those that a file leaves at their
defaults.

`npu-sim --without TERM` times a copy of the machine on which that term is ideal, so no formula needs to know of it. A
fold is one pass of an array over as much work as it holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.hw.engines import Dma, MacArray, Vector
from toolchain.hw.timing import IDEAL, UNLIMITED
from toolchain.hw.validation import suggest

_UNNOTICED = 1e-9  # cycles of an instruction word: keys of rates are above 0


class Term(NamedTuple):
    """A term of the timing. `doc`: what is not charged without the term.

    `ideal`: makes the term ideal in a chip as JSON data, which it changes.
    """

    doc: str
    ideal: Callable[[dict[str, Any]], None]


def _of_arrays(*keys: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that makes these keys of `timing` ideal in a chip as data."""
    ideal = IDEAL.model_dump(mode="json")

    def change(data: dict[str, Any]) -> None:
        for engine in _kind(data, "mac_array"):
            engine["timing"] |= {key: ideal[key] for key in keys}

    return change


def _kind(data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the engines of one kind in a chip as data."""
    return [engine for engine in data["engines"].values() if engine["kind"] == kind]


def _no_fill(data: dict[str, Any]) -> None:
    """Let folds of arrays overlap."""
    for engine in _kind(data, "mac_array"):
        engine["folds_overlap"] = True


def _no_startup(data: dict[str, Any]) -> None:
    for engine in _kind(data, "vector"):
        engine["functions"] = {name: {**rate, "startup": 0} for name, rate in engine["functions"].items()}


def _no_issue(data: dict[str, Any]) -> None:
    for engine in data["engines"].values():
        engine["issue_cycles"] = 0


def _no_latency(data: dict[str, Any]) -> None:
    for memory in data["memories"].values():
        memory |= {"latency_cycles": 0, "write_latency_cycles": 0}


def _no_bursts(data: dict[str, Any]) -> None:
    for memory in data["memories"].values():
        memory["burst_bytes"] = 1


def _no_alignment(data: dict[str, Any]) -> None:
    """Let operands in banked memories be packed, so that no word is touched in part."""
    for memory in data["memories"].values():
        memory["words"] = "packed"


def _no_conflicts(data: dict[str, Any]) -> None:
    """Give memories so many banks that none is waited for."""
    for memory in data["memories"].values():
        memory["banks"] = UNLIMITED


def _no_beats(data: dict[str, Any]) -> None:
    """Let runs of DMA be packed, so that no beat of the bus is used in part."""
    for engine in _kind(data, "dma"):
        engine["runs"] = "packed"


def _no_requests(data: dict[str, Any]) -> None:
    for engine in _kind(data, "dma"):
        engine |= {"request_cycles": 0, "run_cycles": 0}


def _all_outstanding(data: dict[str, Any]) -> None:
    """Let any number of DMA requests and bytes be in flight."""
    for engine in _kind(data, "dma"):
        engine |= {"outstanding": UNLIMITED, "in_flight_bytes": UNLIMITED}


def _no_words(data: dict[str, Any]) -> None:
    """Set the cycles of an instruction word to nearly 0, since 0 is refused."""
    data["isa"]["word_cycles"] = _UNNOTICED


def _own_program(data: dict[str, Any]) -> None:
    """Give the program a memory of its own."""
    data["isa"]["program_memory"] = "own"


TERMS: Mapping[str, Term] = {
    "reduction": Term(
        "padding of channels and taps to the array's depth (and rows), or to blocks", _of_arrays("reduction", "depthwise_taps")
    ),
    "fold_cycles": Term("cycles before each fold", _of_arrays("fold_cycles")),
    "edges": Term(
        "operands that enter the array more slowly than it multiplies", _of_arrays("input_edge_bytes", "weight_edge_bytes")
    ),
    "window": Term("inputs that are read again for other taps", _of_arrays("window_bytes")),
    "output": Term("cycles of requantization, table and addend on the way out", _of_arrays("output")),
    "fill": Term("fill and drain between folds of an operation", _no_fill),
    "startup": Term("startup of vector functions", _no_startup),
    "issue": Term("issue_cycles of all engines", _no_issue),
    "latency": Term("latencies of all memories", _no_latency),
    "bursts": Term("bytes of bursts beyond those that are moved", _no_bursts),
    "alignment": Term("bytes of a memory's words beyond those of the runs that touch them", _no_alignment),
    "banks": Term("words that wait for others of their bank", _no_conflicts),
    "beats": Term("beats of a DMA channel that runs fill in part", _no_beats),
    "requests": Term("requests of DMA channels, and addresses of their runs", _no_requests),
    "outstanding": Term("copies that wait for others of their channel, or for room, before they ask a memory", _all_outstanding),
    "program": Term("instructions on the port of the memory that they are read from", _own_program),
    "words": Term("the front end's reading of instructions", _no_words),
}


def idealize_terms(chip: Chip, terms: Sequence[str]) -> Chip:
    """Return a copy of the chip with these terms ideal; what it computes stays the same. Raise CompileError for an
    unknown term. Without terms it is the chip itself.
    """
    for name in terms:
        if name not in TERMS:
            raise CompileError(f"without {name}: no such term{suggest(name, TERMS)}")
    data = chip.model_dump(mode="json")
    for name in terms:
        TERMS[name].ideal(data)
    return Chip.model_validate_json(json.dumps(data)) if terms else chip


def list_defaulted_terms(chip: Chip) -> Iterator[tuple[str, str]]:
    """Yield (key, value) of each term of time that the machine's file does not give.

    Vector functions whose `startup` is not given share one key.
    """
    for name, engine in chip.engines.items():
        path = f"engines.{name}"
        if isinstance(engine, MacArray):
            yield from _unsaid(engine.timing, f"{path}.timing")
            if "folds_overlap" not in engine.model_fields_set:
                yield f"{path}.folds_overlap", str(engine.folds_overlap).lower()
        if isinstance(engine, Vector):
            unsaid = [name for name, rate in engine.functions.items() if "startup" not in rate.model_fields_set]
            if unsaid:
                yield f"{path}.functions.{{{', '.join(unsaid)}}}.startup", str(engine.functions[unsaid[0]].startup)
        if isinstance(engine, Dma):
            for key in ("runs", "request_cycles", "run_cycles", "outstanding", "in_flight_bytes"):
                if key not in engine.model_fields_set:
                    yield f"{path}.{key}", str(engine.model_dump(mode="json")[key])
        if "issue_cycles" not in engine.model_fields_set:
            yield f"{path}.issue_cycles", str(engine.issue_cycles)
    for name, memory in chip.memories.items():
        banked = () if memory.bank_bytes is None else ("banks", "bank_cycles", "words")
        keys = ("latency_cycles", "write_latency_cycles", "burst_bytes")
        for key in keys if name == "dram" else (*keys, "bank_bytes", *banked):
            if key not in memory.model_fields_set:
                yield f"memories.{name}.{key}", str(memory.model_dump()[key])
    if "word_cycles" not in chip.isa.model_fields_set:
        yield "isa.word_cycles", f"{chip.isa.word_cycles:g}"
    if "program_memory" not in chip.isa.model_fields_set:
        yield "isa.program_memory", chip.isa.program_memory


_DERIVED = {
    "input_edge_bytes": "an element for each row or column",
    "weight_edge_bytes": "an element for each row or column",
    "depthwise_taps": "depth",
    "shared_outputs": "columns",
    "lanes": "columns",
    "addend_lanes": "lanes",
}


def _unsaid(section: BaseModel, path: str) -> Iterator[tuple[str, str]]:
    """Yield (key, value) of the keys of a section that the file does not give."""
    written = section.model_dump(mode="json")
    for key in type(section).model_fields:
        value = getattr(section, key)
        if isinstance(value, BaseModel):
            yield from _unsaid(value, f"{path}.{key}")
        elif key not in section.model_fields_set:
            text = _DERIVED[key] if value is None else str(written[key]).lower()
            yield f"{path}.{key}", text
