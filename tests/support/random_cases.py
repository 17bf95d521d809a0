"""Random small networks and random machines, drawn by hypothesis."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any, get_args

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from quant.fixed_point.core.codes import CodeType
from tests.support.random_exports import EXPORTS, return_twice, rows
from tests.support.random_layers import LAYERS, convolution
from tests.support.random_network import DrawnModel, Network, Shape
from tests.support.random_units import (
    draw_accumulators,
    draw_banks,
    draw_groups,
    draw_layout,
    draw_mappings,
    draw_pairs,
    draw_requests,
    draw_single_functions,
    draw_timing,
    draw_units,
)
from toolchain.frontend.read_onnx import newest_opset
from toolchain.hw import read_source
from toolchain.hw.chip import Chip
from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.hw.numerics import ActivationName, WeightName
from toolchain.isa import Machine, load_machine
from toolchain.isa.default_table import make_default_table
from toolchain.isa.encoding import Isa
from toolchain.isa.encoding_needs import find_encoding_gaps
from toolchain.isa.machine import read_table

DRAWN = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)

_machine = cache(load_machine)  # reading YAML would take longer than a case


class DrawnMachine:
    """Shown in short when a case fails."""

    def __init__(self, machine: Machine):
        self.machine = machine

    def __repr__(self) -> str:
        return self.machine.chip.model_dump_json(exclude={"description", "clock", "isa", "energy"}, exclude_none=True)


OPSETS = (7, 8, 9, 10, 11, 12, 13, 15, 17, 18, 20, 21, newest_opset())


@st.composite
def networks(draw: Any) -> DrawnModel:
    """1 to 7 layers over a small feature map; everything nothing else reads is an output."""
    net = Network(draw)
    _input(net, "x", (net.number(1, 2), net.number(1, 20), net.number(1, 12), net.number(1, 12)))
    convolution(net)
    for _ in range(net.number(0, 6)):
        draw(st.sampled_from(LAYERS))(net)
    if not net.nodes:
        net.add("Relu", ["x"], net.shapes["x"])
    return net.model()


@st.composite
def draw_exported_network(draw: Any) -> DrawnModel:
    """2 to 8 layers over one to three inputs of any rank, as exporters of all times write them."""
    net = Network(draw, draw(st.sampled_from(OPSETS)), draw(st.booleans()))
    for name in ("x", "y", "z")[: draw(st.sampled_from([1, 1, 2, 3]))]:
        _input(net, name, tuple(net.number(1, 6) for _ in range(draw(st.sampled_from([4, 4, 4, 3, 2, 5, 1, 0])))))
    for _ in range(net.number(2, 8)):
        draw(st.sampled_from(LAYERS + EXPORTS + EXPORTS))(net)
    used = {n for node in net.nodes for n in node.input}
    for name in sorted(net.inputs.keys() - used):
        net.add("Sigmoid", [name], net.shapes[name])
    rows(net)
    if len(net.nodes) % 4 == 0:
        return_twice(net)
    return net.model()


def _input(net: Network, name: str, shape: Shape) -> None:
    net.inputs[name] = net.shapes[name] = shape


_MULTIPLIER = ("single_half_up", "double_round", "half_away", "half_even", "truncate", "floor")
_POW2 = ("single_half_up", "half_away", "half_even", "truncate", "floor", "pow2")


@st.composite
def machines(draw: Any, grouped: bool = False) -> DrawnMachine:
    """A shipped machine with its array, memories, DMA, numerics and limits drawn anew. grouped: with weights in groups."""
    base = _machine(draw(st.sampled_from(["edge16", "wide32_w4a16", "ws8_pow2", "ethos_u55_256"])))
    data = json.loads(base.chip.model_dump_json())
    mac, vector, dma = (data["engines"][k] for k in ("mac", "vector", "dma"))
    activation = _types(draw, data["numerics"], mac)
    mac["rows"], mac["columns"] = draw(st.sampled_from([1, 4, 8, 16])), draw(st.sampled_from([1, 3, 8, 16]))
    mac["depth"] = draw(st.sampled_from([1, 1, 4]))
    mac |= draw_mappings(draw) | {"timing": draw_timing(draw)}
    mac["folds_overlap"] = draw(st.booleans())
    mac["accumulators"]["entries"] = max(mac["rows"] * mac["columns"], draw(st.sampled_from([64, 256, 1024, 8192])))
    mac["post"] = draw(st.sampled_from([[], ["table"], ["add"], ["table", "add"]]))
    lanes, startup = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([0, 4, 12]))
    chosen_functions = (
        [f for f in vector["functions"] if draw(st.booleans())] if draw(st.integers(0, 3)) == 0 else vector["functions"]
    )
    vector["functions"] = {f: {"lanes": lanes, "startup": startup} for f in chosen_functions} | draw_single_functions(draw)
    if draw(st.booleans()):
        vector["functions"]["softmax"] = {"lanes": lanes, "startup": startup}
    dma["dimensions"], dma["channels"] = draw(st.sampled_from([1, 2, 3, 4, 4])), draw(st.sampled_from([1, 1, 2, 3, 4, 4]))
    dma |= draw_requests(draw)
    dma["transpose_block"] = draw(st.sampled_from([0, 0, 0, 4, 64]))
    data["sync"]["semaphores"] = draw(st.sampled_from([6, 9, 32]))
    data["sync"]["max_count"] = draw(st.sampled_from([1, 2, 15]))
    for memory in data["memories"].values():
        memory["alignment_bytes"] = max(activation.size_bytes, draw(st.sampled_from([1, 1, 1, 4, 16, 64])))
        memory["read_bytes_per_cycle"] = draw(st.sampled_from([1.0, 3.75, 16.0]))
        memory["shared_ports"] = draw(st.booleans())
        memory["frequency"] = draw(st.sampled_from([None, None, *(data["clock"]["frequency"] * n // 4 for n in (1, 3, 8))]))
        memory["arbitration"] = draw(st.sampled_from(["fixed", "fixed", "round_robin", "fcfs"]))
        memory |= draw_banks(draw, memory)
    data["memories"]["sram"]["size"] = draw(st.sampled_from([8, 16, 64])) * 1024
    _numerics(draw, data["numerics"])
    more = [CodeType(name) for name in data["numerics"]["more_activations"]]
    if data["numerics"]["symmetric_activations"] and CodeType.INT16 not in (data["numerics"]["activation"], *more):
        vector["functions"].pop("softmax", None)  # no program could use it
    _limits(draw, data["limits"])
    if any(codes.is_wide for codes in more):
        vector["functions"]["rescale"] = {"lanes": lanes, "startup": startup}
    draw_units(draw, data)
    draw_accumulators(draw, data)
    draw_groups(draw, data, grouped)
    data["layout"] = draw_layout(draw, data)
    data["control"] = draw(st.sampled_from(_CONTROLS))
    data["isa"]["program_memory"] = draw(st.sampled_from(["own", "dram", "sram"]))
    chip = Chip.model_validate_json(json.dumps(data))
    assert not find_broken_rules(chip), find_broken_rules(chip)
    if len(chip.code_types) * len(chip.weight_types) > 1 and draw(st.booleans()):
        draw_pairs(draw, data)
        fewer = Chip.model_validate_json(json.dumps(data))
        chip = (
            chip if find_broken_rules(fewer) else fewer
        )  # types that no array takes, or such that only arrays without depthwise do
    # An instruction table that cannot hold what the drawn chip needs gives way to one that can.
    tables = (isa for isa in (base.isa, _machine("edge16").isa) if not find_encoding_gaps(chip, isa))
    isa = next(tables, None) or first_table(chip, draw(st.sampled_from(["descriptors", "registers"])))
    return DrawnMachine(replace(base, chip=chip, isa=isa))


def first_table(chip: Chip, kind: str) -> Isa:
    table, faults = read_table(read_source(make_default_table(chip, kind), "starter.yaml"))
    assert table is not None, faults
    return Isa(table)


_CONTROLS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"bases": 4, "repeat": {}},
    {"bases": 1, "host_bases": 1},
    {"bases": 6, "host_bases": 4, "repeat": {}, "indirect": {}},
    {"bases": 5, "repeat": {"depth": 2, "max_count": 9, "buffer_words": 40}, "call": {"blocks": 3, "depth": 2}},
    {"bases": 9, "host_bases": 2, "operand_bases": True, "repeat": {}, "call": {"blocks": 8}},
)


def _types(draw: Any, numerics: dict[str, Any], mac: dict[str, Any]) -> CodeType:
    """Draw types of activations and of weights, and what sums and tables of 16 bits need; return the widest type of
    activations."""
    activation = CodeType(draw(st.sampled_from(get_args(ActivationName))))
    weight = draw(st.sampled_from(get_args(WeightName)))
    others = [name for name in get_args(ActivationName) if name != activation]
    more = draw(st.sampled_from([[], [], others[:1], others[1:], others, others[::-1]]))
    more = draw(st.sampled_from([more, more, [*more, "int32"], ["int32", *more]]))
    types = [activation, *(CodeType(name) for name in more)]
    operands = [codes for codes in types if not codes.is_wide]
    weights = [weight, *draw(st.sampled_from([[], [], [n for n in get_args(WeightName) if n != weight]]))]
    default_pairs = [(rate["activation"], rate["weight"]) for rate in mac["types"]]
    rates = st.sampled_from([1.0, 0.5])
    pairs = [{"activation": name, "weight": w, "rate": draw(rates)} for name in operands for w in weights]
    mac["types"] = [*pairs, *(r for r, (a, w) in zip(mac["types"], default_pairs) if w not in weights or a not in types)]
    interpolation = draw(st.sampled_from(["tosa", "tflite"])) if any(t.interpolates for t in types) else "none"
    table = {"entries": activation.table_entries, "interpolation": interpolation}
    numerics |= {
        "activation": activation,
        "more_activations": more,
        "weight": weight,
        "more_weights": weights[1:],
        "table": table,
    }
    numerics["add_left_shift"] = min(numerics["add_left_shift"], 31 - activation.bits)
    widest = max(types, key=lambda codes: codes.bits)
    if widest.bits > 8:
        mac["accumulators"]["bits"] = max(mac["accumulators"]["bits"], 40)
    return widest


def _numerics(draw: Any, numerics: dict[str, Any]) -> None:
    types = [CodeType(n) for n in (numerics["activation"], *numerics["more_activations"])]
    wide = any(codes.is_wide for codes in types)
    kinds = ["multiplier", "multiplier", "pow2"]
    kind = draw(st.sampled_from(kinds if wide else [*kinds, "float32", "scale16"]))
    signed = all(codes.low < 0 for codes in types)
    numerics["symmetric_activations"] = signed and draw(st.booleans())
    numerics["weights_per_channel"] = draw(st.booleans())
    numerics["per_op"] = {}
    numerics["overflow"] = draw(st.sampled_from(["saturate", "saturate", "wrap"]))
    if kind == "multiplier":
        mixed = len({codes.bits for codes in types}) > 1  # 8 bits do not take codes of 8 bits to 16
        bits = draw(st.sampled_from([25, 31] if wide else [15, 24, 31] if mixed else [8, 15, 24, 31]))
        numerics["scale"] = {"kind": "multiplier", "multiplier_bits": bits, "shift_min": 0, "shift_max": 62}
        numerics["rounding"] = draw(st.sampled_from(_MULTIPLIER))
        for operation in ("add", "average_pool", "mul"):
            if draw(st.booleans()):
                numerics["per_op"][operation] = draw(st.sampled_from(_MULTIPLIER))
    elif kind == "pow2":
        numerics["scale"] = {"kind": "pow2", "multiplier_bits": 1, "shift_min": -31, "shift_max": 62}
        numerics["rounding"] = draw(st.sampled_from(_POW2))
    elif kind == "float32":
        numerics["scale"] = {"kind": "float32", "multiplier_bits": 24, "shift_min": 0, "shift_max": 62}
        numerics["rounding"] = "fp32_rne"
    else:
        numerics["scale"] = {"kind": "multiplier", "multiplier_bits": 15, "shift_min": 0, "shift_max": 62}
        numerics["rounding"] = "scale16"


def _limits(draw: Any, limits: dict[str, Any]) -> None:
    def maybe(values: list[Any]) -> Any:
        return draw(st.sampled_from([None, None, *values]))

    for key in ("convolution", "depthwise"):
        limits[key]["max_kernel"] = maybe([[1, 1], [3, 3], [2, 3]])
        limits[key]["max_stride"] = maybe([[1, 1], [2, 2]])
        limits[key]["max_dilation"] = maybe([[1, 1]])
        limits[key]["max_pad"] = maybe([[0, 0], [1, 1]])
        limits[key]["max_width"] = maybe([4, 7])
    limits["convolution"]["max_input_channels"] = maybe([8, 5])
    limits["convolution"]["max_output_channels"] = maybe([8, 3])
    limits["matrix_product"]["max_k"] = maybe([8])
    limits["matrix_product"]["max_n"] = maybe([8])
    limits["matrix_product"]["max_batches"] = draw(st.sampled_from([1, 1, 3, 16]))
    limits["pool"]["max_kernel"] = maybe([[2, 2], [3, 3]])
    limits["pool"]["max_stride"] = maybe([[2, 2]])
    limits["elementwise"]["broadcast"] = draw(st.booleans())
