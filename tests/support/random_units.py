"""Random engines and memories beside those of a shipped machine: more of a kind, others of it, some that no program uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from toolchain.machine import TABLE_FUNCTIONS

_POSTS: Sequence[list[str]] = ([], ["table"], ["add"], ["table", "add"])
_FREQUENCIES = st.sampled_from([None, None, 250_000_000, 1_000_000_000])  # of memories beside a shipped machine's


def draw_units(draw: Any, data: dict[str, Any]) -> None:
    """Draw more units for a machine; every second machine has one unit of each kind.

    `data`: a chip as JSON, whose engines are mac, vector and dma.
    """
    if draw(st.booleans()):
        _more_units(draw, data)
    if draw(st.booleans()):
        _buffers(draw, data)
    # A ring of all units, and an answer to each of its signals where counts are small.
    least = 2 * sum(1 if e["kind"] == "dma" else e["count"] for e in data["engines"].values())
    data["sync"]["semaphores"] = max(data["sync"]["semaphores"], least)


def _more_units(draw: Any, data: dict[str, Any]) -> None:
    engines = data["engines"]
    engines["mac"]["count"] = draw(st.sampled_from([1, 2, 3]))
    engines["vector"]["count"] = draw(st.sampled_from([1, 2, 3, 3]))
    # One sorts before `mac`, one behind it.
    other = draw(st.sampled_from([None, "array", "array", "second", "second"]))
    if other:
        engines[other] = _array(draw, engines["mac"])
    if draw(st.booleans()):
        engines["pooler"] = _vector(draw, engines["vector"])
    if draw(st.booleans()):
        engines["mover"] = _draw_second_dma(draw, engines["dma"])
    if draw(st.integers(0, 2)):
        _draw_separate_engine(draw, data)


_SINGLE = sorted(TABLE_FUNCTIONS.keys() - {"table"})


def draw_single_functions(draw: Any) -> dict[str, Any]:
    """Rates of single functions, on every second machine; so that some have these and no `table`."""
    if draw(st.booleans()):
        return {}
    names = draw(st.sampled_from([_SINGLE, _SINGLE[::2], _SINGLE[1::2], ["exp", "sigmoid"]]))
    rate = {"lanes": draw(st.sampled_from([1, 2, 32])), "startup": draw(st.sampled_from([0, 20]))}
    return dict.fromkeys(names, rate)


def draw_timing(draw: Any) -> dict[str, Any] | str:
    """Return the timing of an array: ideal, as by default, or with some terms."""
    if draw(st.integers(0, 2)) == 0:
        return "ideal"
    rates = st.sampled_from([None, 1, 5, 64, "unlimited"])
    output = {
        "lanes": draw(rates),
        "table_lanes": draw(st.sampled_from([1, 4, "unlimited"])),
        "addend_lanes": draw(rates),
        "overlaps": draw(st.booleans()),
    }
    return {
        "reduction": draw(st.sampled_from(["per_tap", "dense", [[4, 1]], [[8, 1], [2, 4]]])),
        "depthwise_taps": draw(st.sampled_from([None, 4])),
        "fold_cycles": draw(st.sampled_from([0, 1, 3])),
        "input_edge_bytes": draw(rates),
        "weight_edge_bytes": draw(rates),
        "window_bytes": draw(st.sampled_from([0, 64, 512, "unlimited"])),
        "shared_outputs": draw(rates),
        "output": output,
    }


def draw_requests(draw: Any) -> dict[str, Any]:
    """Return how DMA channels request memories."""
    return {
        "runs": draw(st.sampled_from(["whole_beats", "packed"])),
        "request_cycles": draw(st.sampled_from([0, 2, 14])),
        "run_cycles": draw(st.sampled_from([0, 1, 4])),
        "outstanding": draw(st.sampled_from([1, 1, 2, 24])),
        "in_flight_bytes": draw(st.sampled_from(["unlimited", "unlimited", 64, 2048])),
    }


def draw_banks(draw: Any, memory: dict[str, Any]) -> dict[str, Any]:
    """Banks that give what the memory's ports take, of words that conflict or do not."""
    banks, cycles = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([0.5, 1.0, 4.0]))
    word = 1
    while banks * word < cycles * max(memory["read_bytes_per_cycle"], memory["write_bytes_per_cycle"]):
        word *= 4
    return {
        "banks": banks,
        "bank_bytes": draw(st.sampled_from(["any", word, min(4 * word, 256), max(word, 256)])),
        "bank_cycles": cycles,
        "words": draw(st.sampled_from(["whole", "packed"])),
    }


def draw_pairs(draw: Any, data: dict[str, Any]) -> None:
    """Arrays that take some pairs of types only, and functions at rates of their own for a type."""
    for engine in data["engines"].values():
        if engine["kind"] == "mac_array":
            engine["types"] = [pair for pair in engine["types"] if draw(st.integers(0, 2))] or engine["types"]
        elif engine["kind"] == "vector":
            rates = {"int16": draw(st.sampled_from([1, 2, 8])), "int32": draw(st.sampled_from([1, 4]))}
            engine["functions"] = {f: {**rate, "type_lanes": rates} for f, rate in engine["functions"].items()}


def draw_mappings(draw: Any) -> dict[str, Any]:
    """Return the mappings of an array: dataflows and depthwise modes, at times several."""
    dataflow, depthwise = draw(st.sampled_from(["os", "ws", "is"])), draw(st.sampled_from(["diagonal", "column", "none"]))
    more = draw(st.sampled_from([(), (), ("ws",), ("is", "os")]))
    return {
        "dataflow": dataflow,
        "more_dataflows": [flow for flow in more if flow != dataflow],
        "depthwise": depthwise,
        "more_depthwise": ["column"] if depthwise == "diagonal" and draw(st.booleans()) else [],
    }


def _array(draw: Any, mac: dict[str, Any]) -> dict[str, Any]:
    rows, columns = draw(st.sampled_from([1, 4, 8, 16])), draw(st.sampled_from([1, 3, 8, 16]))
    entries = max(rows * columns, draw(st.sampled_from([64, 256, 1024, 8192])))
    return {
        **mac,
        "count": draw(st.sampled_from([1, 1, 2])),
        "rows": rows,
        "columns": columns,
        **draw_mappings(draw),
        "timing": draw_timing(draw),
        "accumulators": {**mac["accumulators"], "entries": entries},
        "post": draw(st.sampled_from(_POSTS)),
        "queue_depth": draw(st.sampled_from([1, 4])),
    }


def _vector(draw: Any, vector: dict[str, Any]) -> dict[str, Any]:
    """Some of the functions of the other one, at another rate."""
    lanes = draw(st.sampled_from([1, 4, 16]))
    functions = {
        f: {"lanes": lanes, "startup": 2, "passes": draw(st.integers(1, 3))} for f in vector["functions"] if draw(st.booleans())
    }
    return {**vector, "count": draw(st.sampled_from([1, 2])), "functions": functions}


def _draw_second_dma(draw: Any, dma: dict[str, Any]) -> dict[str, Any]:
    return {
        **dma,
        "channels": draw(st.sampled_from([1, 2, 2])),
        "dimensions": draw(st.integers(1, 4)),
        "transpose_block": draw(st.sampled_from([0, 8])),
        **draw_requests(draw),
        "bytes_per_cycle": draw(st.sampled_from([0.5, 8.0, 64.0])),
        "memories": draw(st.sampled_from([None, ["dram", "sram"], ["sram"]])),
    }


def _buffers(draw: Any, data: dict[str, Any]) -> None:
    """Add memories apart from the SRAM that programs fill with constants.
    They belong to all units or to one, and are filled by any DMA engine or by their own.
    """
    engines, memories = data["engines"], data["memories"]
    arrays = sorted(name for name, e in engines.items() if e["kind"] == "mac_array" and name != "apart")
    owner = draw(st.sampled_from([*arrays, *(name for name in arrays if name != "mac")]))
    private = draw(st.booleans())
    memories["wbuf"] = _buffer(draw, memories["sram"], owner if private else None)
    for name in [owner] if private else [n for n in arrays if n == owner or draw(st.booleans())]:
        roles = draw(st.sampled_from([["weights"], ["weights", "parameters"], ["weights", "parameters"], ["parameters"]]))
        engines[name]["memories"] = {**engines[name]["memories"], **dict.fromkeys(roles, "wbuf")}
    if draw(st.booleans()):
        memories["tables"] = _buffer(draw, memories["sram"], draw(st.sampled_from([None, "vector"])))
        engines["vector"]["memories"] = {**engines["vector"]["memories"], "tables": "tables"}
    if draw(st.integers(0, 2)):
        engines["filler"] = {**engines["dma"], "channels": 1, "memories": ["dram", "wbuf"]}
        if draw(st.booleans()):
            engines["dma"]["memories"] = [name for name in memories if name != "wbuf"]


def _buffer(draw: Any, sram: dict[str, Any], private_to: str | None) -> dict[str, Any]:
    rates = {
        "read_bytes_per_cycle": draw(st.sampled_from([1.0, 16.0])),
        "write_bytes_per_cycle": draw(st.sampled_from([2.0, 16.0])),
    }
    return {
        **sram,
        "size": draw(st.sampled_from([2, 4, 16, 64])) * 1024,
        **rates,
        **draw_banks(draw, rates),
        "latency_cycles": draw(st.sampled_from([0, 3])),
        "alignment_bytes": max(4, draw(st.sampled_from([1, 4, 64]))),
        "frequency": draw(_FREQUENCIES),
        "private_to": private_to,
    }


def _draw_separate_engine(draw: Any, data: dict[str, Any]) -> None:
    """An engine that works on a memory of its own, which compiled programs leave alone."""
    kind = draw(st.sampled_from(["mac", "vector"]))
    role = draw(st.sampled_from(["input", "output"]))
    engines, private = data["engines"], draw(st.booleans())
    memory = {**data["memories"]["sram"], "size": 4096, "frequency": draw(_FREQUENCIES), "bank_bytes": "any"}
    engines["apart"] = {**engines[kind], "memories": {**engines[kind]["memories"], role: "buffer"}, "count": 1}
    data["memories"]["buffer"] = {**memory, "private_to": "apart" if private else None}


def draw_accumulators(draw: Any, data: dict[str, Any]) -> None:
    """The accumulators of every third machine are a memory, those of all its arrays or some, and vector engines emit from it."""
    if draw(st.integers(0, 2)):
        return
    engines = data["engines"]
    vector = engines["vector"]["memories"]
    candidates = [e for e in engines.values() if e["kind"] == "mac_array" and _lies_as(e["memories"], vector)]
    arrays = candidates[:1] + [e for e in candidates[1:] if draw(st.booleans())]
    if not arrays:
        return
    for array in arrays:
        array["accumulators"] = {**array["accumulators"], "memory": "acc"}
    data["limits"]["matrix_product"]["max_batches"] = 1  # a memory of sums holds those of one product
    emitting = [e for name, e in engines.items() if name == "vector" or (name == "pooler" and draw(st.booleans()))]
    for engine in emitting:
        engine["memories"] = {**engine["memories"], "sums": "acc"}
        rate = {"lanes": draw(st.sampled_from([1, 4, 16])), "startup": draw(st.sampled_from([0, 8]))}
        engine["functions"] = {**engine["functions"], "emit": rate}
    word = 4 if arrays[0]["accumulators"]["bits"] <= 32 else 8
    # Of an array's share: all that one instruction may fill, some more, or twice that.
    entries = max(array["accumulators"]["entries"] for array in arrays) * sum(array["count"] for array in arrays)
    size = entries * word + draw(st.sampled_from([0, 24 * len(arrays), entries * word]))
    latency = draw(st.sampled_from([0, 3]))
    data["memories"]["acc"] = {
        "size": size,
        "read_bytes_per_cycle": draw(st.sampled_from([4.0, 64.0])),
        "write_bytes_per_cycle": draw(st.sampled_from([4.0, 64.0])),
        "latency_cycles": latency,
        "write_latency_cycles": latency,
        "alignment_bytes": word,
        "bank_bytes": draw(st.sampled_from(["any", word])),
        "bank_cycles": word / 64,
        "words": draw(st.sampled_from(["whole", "packed"])),
        "shared_ports": draw(st.booleans()),
        "arbitration": draw(st.sampled_from(["fixed", "round_robin", "fcfs"])),
        "frequency": draw(st.sampled_from([None, 250_000_000])),
    }


def _lies_as(array: dict[str, Any], vector: dict[str, Any]) -> bool:
    """Return whether an array has its parameters, inputs and outputs in the memories of the vector engine that emits."""
    return all(array[role] == vector[its] for role, its in (("parameters", "tables"), ("input", "input"), ("output", "output")))


def draw_groups(draw: Any, data: dict[str, Any], always: bool) -> None:
    """Let arrays take weights in groups on every third machine, or always, where their rows are long enough.
    The groups have the least size, and the first array always has them.
    """
    most = data["limits"]["convolution"]["max_input_channels"]
    if (draw(st.integers(0, 2)) and not always) or (most is not None and most < 16):
        return
    form = {
        "sizes": [16],
        "scale_bits": draw(st.sampled_from([4, 8, 12])),
        "minimum_bits": draw(st.sampled_from([0, 8, 16])),
        "layout": draw(st.sampled_from(["blocks", "rows", "planes"])),
    }
    for name, engine in data["engines"].items():
        if engine["kind"] == "mac_array" and (name == "mac" or draw(st.booleans())):
            engine["groups"] = {**form, "fold_cycles": draw(st.sampled_from([0, 1, 5]))}
    data["numerics"]["weight_group"] = 16


def draw_layout(draw: Any, data: dict[str, Any]) -> dict[str, Any]:
    """Return a layout: entries as narrow as the machine's numbers, or the default.
    Weights are in tiles on every third machine without groups. Feature maps are in granules on every third one, where
    instructions take so many channels.
    """
    scale = data["numerics"]["scale"]
    bits = max(e["accumulators"]["bits"] for e in data["engines"].values() if e["kind"] == "mac_array")
    kind, shift_bits = scale["kind"], 7 if scale["shift_min"] < 0 else 6
    narrow = {"bias_bits": bits, "multiplier_bits": 0 if kind == "pow2" else 31, "shift_bits": shift_bits}
    parameters = draw(st.sampled_from([{}, {"bias_bits": 64, "multiplier_bits": 32, "shift_bits": 8}, narrow]))
    grouped = any(e.get("groups") for e in data["engines"].values())
    tile = None if grouped or draw(st.integers(0, 2)) else draw(st.sampled_from([(4, 4), (16, 16), (8, 3)]))
    limits = data["limits"]["convolution"]
    most = min(limits[key] or 32 for key in ("max_input_channels", "max_output_channels"))
    granules = [
        g for g in (4, 8, 16, 32, 32, 32) if g <= most and not (grouped and max(g, 16) > (limits["max_input_channels"] or 32))
    ]
    order = draw(st.sampled_from(["surface", "line"]))
    maps = {"order": order, "ports": draw(st.sampled_from(["granules", "dense"]))}
    maps = {"granule": draw(st.sampled_from(granules)), **maps} if granules and not draw(st.integers(0, 2)) else None
    return {"parameters": parameters, "weight_tile": tile, "feature_maps": maps}
