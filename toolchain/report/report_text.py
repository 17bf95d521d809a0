"""Format the figures of a build (`BuildFigures` of report.figure_types) as text of the printed report, one function a section.

Only ratios and percentages are computed here. A section without content is an empty string.
report.build_text puts them together. `JUDGED_ON` says in words which samples accuracy was judged on, by the figure `judged_on`.
There RANDOM stands for a build without data, and REPEATED for an entry whose shapes the data do not fit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolchain.errors import format_count
from toolchain.report.layer_breakdown import find_top_stall
from toolchain.report.layer_types import types_text
from toolchain.report.merge_steps import merge_step_rows

OVERLAP_NOTE: Final = (
    "a layer with fewer cycles than its `at least` worked beside others, whose cycles these are (docs/bounds.md)"
)
REPEATED: Final = "repeated"
RANDOM: Final = "random inputs"
JUDGED_ON = {
    RANDOM: "of RANDOM inputs (means nothing)",
    "calibration": "of the data it was calibrated on",
    "held out": "of --calib, held out of calibration",
    "calib": "of --calib",
    REPEATED: "of another entry's data, repeated or cut to its shapes",
    "judge": "of --judge",
}


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    """Return a table as text with columns as wide as their widest cell. Its first two lines are the headers and dashes.

    `right`: indices of the columns that are aligned to the right.
    """
    widths = [max(len(str(r[i])) for r in (headers, *rows)) for i in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths))]
        return "  ".join(padded).rstrip()

    return "\n".join([line(headers), line(["-" * w for w in widths]), *(line(r) for r in rows)])


def layers_text(figures: Mapping[str, Any]) -> str:
    """Return a line for each layer of the chip, an empty text without layers.

    MAC use is that of the arrays that the program uses, in the layer's cycles. If a layer's arrays worked longer, overlapping
    other layers, MAC use is while they worked. "Most lost to" is the longest stall cause of the layer's main unit, with its share
    of the layer's cycles.
    """
    if not figures["layers"]:
        return ""
    peak, layers = figures["macs_per_cycle"], merge_step_rows(figures["layers"], "name")
    rows = [
        (
            cut(layer["name"], 56),
            layer["op"],
            layer["engine"],
            f"{layer['cycles']:,}",
            _least(layer, "cycles"),
            f"{layer['macs']:,}",
            f"{_dram_bytes(layer):,}",
            _least(layer, "dram_bytes"),
            _mac_use(layer, peak),
            layer["bound_by"],
            find_top_stall(layer),
        )
        for layer in layers
    ]
    heads = (
        "layer",
        "operator",
        "engine",
        "cycles",
        "at least",
        "MACs",
        "DRAM bytes",
        "at least",
        "MAC use",
        "bound by",
        "most lost to",
    )
    has_overlap = any(row[8].endswith("*") for row in rows)
    footnote = (
        "\n* its arrays worked beside other layers too, whose cycles these are: MAC use is while they worked for it"
        if has_overlap
        else ""
    )
    is_below = any(layer["bounds"] and layer["cycles"] < layer["bounds"]["cycles"] for layer in layers)
    note = f"\n{OVERLAP_NOTE}" if is_below else ""
    return table(heads, rows, (3, 4, 5, 6, 7, 8)) + note + footnote


def _mac_use(layer: Mapping[str, Any], peak: float) -> str:
    """Return the MAC use of a layer in percent, `-` without products.

    A `*` marks a layer whose arrays worked longer than its own cycles; its use is while they worked.

    `peak`: products a cycle that the used arrays can make.
    """
    peak_macs = layer["cycles"] * peak
    most = max(peak_macs, layer["busy_macs"])
    return f"{100 * layer['macs'] / most:.1f} %{' *' if most > peak_macs else ''}" if most and layer["macs"] else "-"


def _least(layer: Mapping[str, Any], what: str) -> str:
    """Return a bound of the layer as text, `-` where it is not known."""
    return f"{layer['bounds'][what]:,}" if layer["bounds"] else "-"


def _dram_bytes(layer: Mapping[str, Any]) -> int:
    moved = layer["traffic"].get("dram", {})
    return moved.get("read_bytes", 0) + moved.get("write_bytes", 0)


def totals_text(figures: Mapping[str, Any]) -> str:
    """Return the totals of the network, each with its bound and ratio, and notes on host, fastest plan and units.

    One sentence is returned where nothing runs on the chip.
    """
    if not figures["layers"]:
        headline = f"{figures['name']} on {figures['machine']}: nothing runs on the NPU, the host runs all of it"
        return f"{headline}, {figures['host']['macs']:,} MACs" if figures["host"]["macs"] else headline
    cycles, roofline = figures["cycles"], figures["roofline_cycles"]
    traffic = figures["dram_read_bytes"] + figures["dram_write_bytes"]
    bounds, again = figures["bounds"], figures["bounds"]["dram"]["again"]
    rows = [
        ("cycles", f"{cycles:,}", f"{roofline:,}", _ratio(cycles, roofline), "roofline: peak MACs, compulsory DRAM bytes"),
        ("", "", f"{bounds['cycles']:,}", _ratio(cycles, bounds["cycles"]), f"these units: {_busiest(bounds)}"),
        (
            "DRAM bytes",
            f"{traffic:,}",
            f"{figures['dram_bound_bytes']:,}",
            _ratio(traffic, figures["dram_bound_bytes"]),
            f"each byte once, {again:,} again for want of memory" if again else "each byte once",
        ),
        (
            "SRAM peak bytes",
            f"{figures['sram_peak_bytes']:,}",
            f"{figures['sram_bound_bytes']:,}",
            _ratio(figures["sram_peak_bytes"], figures["sram_bound_bytes"]),
            f"live bytes of this schedule; size {figures['sram_size_bytes']:,}",
        ),
        *(
            (
                f"{b['memory']} peak bytes",
                f"{b['peak_bytes']:,}",
                f"{b['bound_bytes']:,}",
                _ratio(b["peak_bytes"], b["bound_bytes"]),
                f"live bytes of this schedule; size {b['size_bytes']:,}",
            )
            for b in figures["buffers"]
        ),
    ]
    head = (
        f"{figures['name']} on {figures['machine']}: {cycles:,} cycles, {format_seconds(figures['seconds'])} at "
        f"{figures['clock_hz'] / 1e6:g} MHz, {figures['macs']:,} MACs, MAC utilization {100 * figures['mac_utilization']:.1f} %"
    )
    if figures["host"]["macs"]:
        head += f"; {100 * figures['host']['mac_share']:.1f} % of the model's MACs run on the HOST"
    totals = table(("total", "value", "bound", "ratio", "bound is"), rows, (1, 2, 3))
    return head + "\n" + totals + _fastest(figures) + _format_exclusions(figures["host"]) + _units(figures)


def _fastest(figures: Mapping[str, Any]) -> str:
    """Return a line on what the fastest plan would have cost, empty where none of less energy was taken."""
    fastest = figures.get("fastest")
    if fastest is None:
        return ""
    energy = "" if fastest["energy_pj"] is None else f", {fastest['energy_pj'] / 1e6:,.3f} uJ"
    more = 100 * (figures["cycles"] / fastest["cycles"] - 1)
    return (
        f"\nthe fastest plan (--optimize cycles) takes {fastest['cycles']:,} cycles, "
        f"{fastest['dram_bytes']:,} DRAM bytes{energy}; this one takes {more:.2f} % more cycles for less energy"
    )


def _busiest(bounds: Mapping[str, Any]) -> str:
    """Return the names of the units that bound the regions, the one with most cycles first; `none` without cycles."""
    cycles_by_name: dict[str, int] = {}
    for region in bounds["regions"]:
        if region["cycles"]:
            cycles_by_name[region["by"]] = cycles_by_name.get(region["by"], 0) + region["cycles"]
    return ", ".join(sorted(cycles_by_name, key=lambda name: -cycles_by_name[name])) or "none"


def _units(figures: Mapping[str, Any]) -> str:
    """Return lines on how arrays share their work and on engines without work, empty where there is nothing to say."""
    lines = [f"engine {unused['engine']} is not used: {unused['reason']}" for unused in figures["unused_engines"]]
    if figures["idle_arrays"] and figures["used_arrays"]:
        of, idle = ", ".join(figures["used_arrays"]), ", ".join(figures["idle_arrays"])
        lines.insert(0, f"MAC utilization is of {of}: no operation of the program runs on {idle}")
    if figures["arrays_overlap"]:
        lines.insert(0, f"two or more arrays at once in {100 * figures['arrays_overlap']:.1f} % of array time")
    return "".join(f"\n{line}" for line in lines)


def _format_exclusions(host: Mapping[str, Any]) -> str:
    """Return a line on what these totals leave out: work of the host and copies. It is empty where there is none."""
    exclusions = list[str]()
    if host["islands"]:
        contents = f"{format_count(host['nodes'], 'node')}, {format_count(host['macs'], 'MAC')}"
        exclusions.append(f"{format_count(host['islands'], 'island')} ({contents}) on the host")
    if host["crossings"]:
        crossed = f"{format_count(host['crossings'], 'copy' if host['crossings'] == 1 else 'copie')}"
        exclusions.append(f"{crossed} of {format_count(host['crossing_bytes'], 'byte')} between NPU and host")
    price = f"; about {format_seconds(host['seconds'])} by the machine's prices of the host"
    return f"\nnot in the cycles: {', and '.join(exclusions)}{price}" if exclusions else ""


def format_segment(segment: Mapping[str, Any]) -> str:
    """Return how many nodes of a segment ran where, and which of them onnxruntime ran on the CPU instead of its provider."""
    text = f"{format_count(segment['nodes'], 'node')} on {segment['where']}"
    nodes = [cut(node, 44) for node in segment["on_cpu"]]
    return f"{text} ({len(nodes)} of them on the CPU: {'; '.join(nodes)})" if nodes else text


def segments_text(figures: Mapping[str, Any], most: int) -> str:
    """Return which segments ran where: in order up to `most` of them, of more how many ran in each place, with their nodes."""
    segments: Sequence[Mapping[str, Any]] = figures["segments"]
    texts = [*map(format_segment, segments)]
    if len(texts) <= most:
        return f"ran: {', '.join(texts)}"
    counts, nodes = Counter(s["where"] for s in segments), Counter[str]()
    for segment in segments:
        nodes[segment["where"]] += segment["nodes"]
    places = (f"{format_count(nodes[where], 'node')} in {n} segments on {where}" for where, n in sorted(counts.items()))
    return f"ran: {', '.join(places)}; the first: {', '.join(texts[:most])}"


def host_segments_text(figures: Mapping[str, Any]) -> str:
    """Return where the host subgraphs ran; the text is empty without any.

    They are counted by provider. Where a node fell back to the CPU, every subgraph is listed by itself.
    """
    hosted = [s for s in figures["segments"] if not s["where"].startswith("npu (")]
    counts = Counter(s["where"] for s in hosted)
    fell_back = any(s["on_cpu"] for s in hosted)
    texts = map(format_segment, hosted) if fell_back else [f"{n} on {where}" for where, n in sorted(counts.items())]
    return f"host subgraphs ran: {', '.join(texts)}" if hosted else ""


def fallbacks_text(figures: Mapping[str, Any], most: int | None = None) -> str:
    """Return a table of the nodes that the host runs, each with its reason; the text is empty without any.

    `most`: rows to show; the others are counted. None: all.
    """
    rows = [(cut(f["node"], 44), f["op"], f["reason"]) for f in figures["fallbacks"]]
    if not rows:
        return ""
    title = f"{format_count(len(rows), 'node')} {'runs' if len(rows) == 1 else 'run'} on the host:"
    others = f"\nand {len(rows) - most} more" if most is not None and len(rows) > most else ""
    return f"{title}\n{table(('node', 'operator', 'reason'), rows[:most], ())}{others}"


def repair_text(figures: Mapping[str, Any]) -> str:
    """Return what each step of a repair gained on samples that it did not see; the text is empty without a repair."""
    repair = figures["repair"]
    if repair is None:
        return ""
    title = f"repair ({repair['effort']}), judged on {format_count(repair['held_out'], 'sample')} that no step saw:"
    rows = [
        (s["step"], _level(s["before_db"]), _level(s["after_db"]), "kept" if s["kept"] else "left out", s["why"])
        for s in repair["steps"]
    ]
    return f"{title}\n" + table(("step", "before dB", "with it dB", "", "because"), rows, (1, 2))


def _level(decibels: float | None) -> str:
    return "-" if decibels is None else f"{decibels:.2f}"


def worst_text(figures: Mapping[str, Any]) -> str:
    """Return the layers that lose most by themselves, with cause and remedy; the text is empty without any."""
    worst = figures["worst_layers"]
    rows = [(cut(w["layer"] or "-", 40), cut(w["tensor"], 40), f"{_plain(w['alone_db'])}", w["cause"]) for w in worst]
    if not rows:
        return ""
    few = figures["worst_samples"] < figures["judged_samples"]
    which = f" (of these {figures['judged_samples']}, those whose outputs lose most)" if few else ""
    title = f"layers that lose most, each fed with float's tensors of {format_count(figures['worst_samples'], 'sample')}{which}:"
    worst_table = table(("layer", "tensor", "SQNR dB", "cause"), rows, (2,))
    ways = [f"{w['layer'] or w['tensor']}: {w['why']}" + (f"; {w['remedy']}" if w["remedy"] else "") for w in worst]
    return "\n".join([title, worst_table, *ways])


def score_text(figures: Mapping[str, Any]) -> str:
    """Return the verdict of the user's own function; the text is empty without one."""
    score = figures["score"]
    return "" if score is None else f"{score['function']}: {score['value']:g}, {'passed' if score['passed'] else 'did NOT pass'}"


def _plain(value: float | None) -> str:
    """Return a level in dB as text; None, a layer that loses all, is `-inf`."""
    return "-inf" if value is None else f"{value:.1f}"


def format_seconds(seconds: float) -> str:
    """Return the seconds as a text in milliseconds, or in microseconds below 0.01 ms."""
    return f"{1e3 * seconds:.3f} ms" if seconds >= 1e-5 else f"{1e6 * seconds:.3f} us"


def _ratio(value: float, bound: float) -> str:
    return f"{value / bound:.3f}" if bound else "-"


def cut(name: str, width: int) -> str:
    """Return the name in at most `width` characters (above 3). A longer one begins with "...", since its end tells it apart."""
    return name if len(name) <= width else "..." + name[-(width - 3) :]


def key_trials_text(figures: Mapping[str, Any]) -> str:
    """Return which key of the machine's file helps most when changed alone, and how much; an empty text where none was tried.

    `key_trials` of the figures stand in the order of cycles, the fewest first.
    """
    trials = figures.get("key_trials") or ()
    if not trials:
        return ""
    best, count = trials[0], format_count(len(trials), "key")
    if best["cycles"] >= figures["cycles"]:
        return f"of {count} of the machine, each changed alone, none makes this program faster"
    before, after = (value if isinstance(value, str) else json.dumps(value) for value in (best["before"], best["after"]))
    return (
        f"key of the machine that helps most: {best['key']} {before} -> {after}, {figures['cycles']:,} -> {best['cycles']:,} "
        f"cycles (of {count} tried, each alone, with this program timed again)"
    )


def explain_text(figures: Mapping[str, Any]) -> str:
    """Return a table with a line for every node of the model and of the compiler, as `--explain` prints it.

    It names the engine that runs the node, the cycles of its layer, its operations and types. The last column says what the
    node became part of or why the chip does not run it. Further reasons follow, a line each.
    """
    rows: list[tuple[str, ...]] = []
    for n in merge_step_rows(figures["nodes"], "node"):
        first, *more = n["reason"].split("; ")
        cycles = "-" if n["cycles"] is None else f"{n['cycles']:,}"
        rows.append((cut(n["node"], 56), n["op"], n["engine"], cycles, _operations(n), types_text(n), first))
        rows += [("", "", "", "", "", "", sentence) for sentence in more]
    return table(("node", "operator", "engine", "cycles of its layer", "ops", "types", "why"), rows, (3, 4))


def _operations(row: Mapping[str, Any]) -> str:
    """Return a text such as `0:15-40`: segment, first and last operation of the layer, as npu-dis counts them."""
    return "" if row["operations"] is None else f"{row['segment']}:{row['operations'][0]}-{row['operations'][1]}"
