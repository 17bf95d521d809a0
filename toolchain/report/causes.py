"""Which keys of the machine's YAML made a layer what it is: cut, run in a slow way, or kept apart. Read off the program.

Every sentence begins with the key and its value, so that a reader knows what to change and where; or with "chosen for
speed", where no key asked for it, or the level of the build, where that did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolchain.codegen import Container, Region
from toolchain.hw.chip import Chip, ConvolutionLimits
from toolchain.hw.engines import MacArray
from toolchain.ir.graph import Graph, Node
from toolchain.machine import (
    TABLE_FUNCTIONS,
    Convolution,
    Copy,
    Depthwise,
    Emit,
    Flow,
    MachineOp,
    MatrixProduct,
    Signal,
    Space,
    Table,
    Wait,
    rated_as,
)
from toolchain.ops.convolution.integer import IntegerConvolution
from toolchain.ops.elementwise import IntegerBinary
from toolchain.ops.kit.operator import Layer, operator_of
from toolchain.ops.pool.integer import IntegerMaxPool
from toolchain.ops.unary import Lookup

_POOLS = ("AveragePool", "GlobalAveragePool", "ReduceMean")


def causes(
    container: Container, flows: Sequence[Flow | None], operators: Mapping[str, str], resident: bool
) -> dict[str, tuple[str, ...]]:
    """flows: the operations of each segment that is a program; operators: the model's nodes -> their ONNX operators; resident:
    the build's level keeps tensors in SRAM between layers. Gives the sentences of every layer that has any, by its name."""
    chip, graph = container.machine.chip, container.graph
    nodes, producers, consumers = {n.name: n for n in graph.nodes}, graph.producers(), graph.consumers()
    found: dict[str, tuple[str, ...]] = {}
    for region, flow in zip(container.segments, flows, strict=True):
        if not isinstance(region, Region) or flow is None:
            continue
        for info, ops in zip(region.layers, _by_layer(region, flow)):
            node = nodes.get(info.name)
            if node is None:
                continue
            said = [*_of_operator(node, graph, chip, ops), *_apart(node, graph, chip, producers, consumers)]
            said += _averages([operators.get(s, "") for s in info.sources], node, graph, chip)
            said += _spilled(region, chip, ops, resident)
            if said:
                found[info.name] = tuple(dict.fromkeys(said))
    return found


def _by_layer(region: Region, flow: Flow) -> list[list[MachineOp]]:
    found: list[list[MachineOp]] = [[] for _ in region.layers]
    for index, (op, layer) in enumerate(zip(flow, region.layers_of(flow).tolist())):
        if layer >= 0 and not isinstance(op, Signal | Wait) and not any(i for i, _ in flow.iterations[index]):
            found[layer].append(op)
    return found


def _of_operator(node: Node, graph: Graph, chip: Chip, ops: Sequence[MachineOp]) -> list[str]:
    deep = [op for op in ops if isinstance(op, Depthwise)]
    dense = [op for op in ops if isinstance(op, Convolution)]
    products = [op for op in ops if isinstance(op, MatrixProduct)]
    if isinstance(node.op, IntegerConvolution) and (deep or dense):
        ended = [op for op in ops if isinstance(op, Emit) or getattr(op, "emit", 0)]
        return _convolution(node, graph, chip, deep or dense, ended)
    if products:
        return _product(node, graph, chip, products)
    if any(isinstance(op, Table) for op in ops):
        return _rates(chip, [op for op in ops if isinstance(op, Table)])
    stages = [n for n in graph.nodes if isinstance(n.op, IntegerMaxPool) and n.sources == node.sources]
    if isinstance(node.op, IntegerMaxPool) and any(
        {n.inputs[0], node.inputs[0]} & {n.outputs[0], node.outputs[0]} for n in stages
    ):
        return [f"limits.pool.max_kernel={_pair(chip.limits.pool.max_kernel)}: a chain of smaller windows"]
    return []


def _convolution(node: Node, graph: Graph, chip: Chip, ops: Sequence[Any], ended: Sequence[MachineOp]) -> list[str]:
    """ops: of the array; ended: those that write outputs."""
    op = node.op
    assert isinstance(op, IntegerConvolution)
    outputs, kh, kw, reduction = graph.constants[node.inputs[1]].shape
    section = "depthwise" if isinstance(ops[0], Depthwise) else "convolution"
    limits: ConvolutionLimits = getattr(chip.limits, section)
    _, height, width, _ = graph.types[node.outputs[0]].shape
    layer = Layer(node, graph.types, graph.constants, chip)
    mac = op.array(layer)
    said = [*_kernel(op, (kh, kw), f"limits.{section}", limits), *_kernel_rows(op, (kh, kw), outputs, limits, ops, layer)]
    strided = op.stride_cut(layer)
    said += [strided] if strided else []
    if section == "convolution":
        widest, key = max(o.input_channels for o in ops), "limits.convolution.max_input_channels"
        each_bytes = {
            "input": kh * kw * layer.input_type(0).item_bytes,
            "weights": kh * kw * min(outputs // op.groups, mac.columns),
        }
        said += _cut("channels of a sum", reduction, widest, key, limits.max_input_channels, each_bytes, chip)
        channels = outputs // op.groups
    else:
        channels = outputs
    together = max(1, max(o.input_channels for o in ops) // reduction) if section == "convolution" else 1
    said += _grouped(op, section, reduction, outputs, together, layer)
    for what, size, key, limit in (
        ("output channels", channels, "max_output_channels", limits.max_output_channels),
        ("output columns", width, "max_width", limits.max_width),
    ):
        if limit and size > limit:
            said.append(f"limits.{section}.{key}={limit}: {size} {what} in parts")
    if strided:
        return said
    return [*said, *_tiles(height * width, channels, node, graph, mac, chip, ended)]


def _kernel(op: IntegerConvolution, kernel: tuple[int, int], section: str, limits: ConvolutionLimits) -> list[str]:
    """Which limits show an instruction only part of the kernel."""
    said = []
    if limits.max_dilation and any(d > m and k > 1 for d, m, k in zip(op.dilations, limits.max_dilation, kernel)):
        said.append(
            f"{section}.max_dilation={_pair(limits.max_dilation)}: dilation {op.dilations[0]}x{op.dilations[1]}, so one row "
            "or column of the kernel an instruction"
        )
    if limits.max_kernel and (kernel[0] > limits.max_kernel[0] or kernel[1] > limits.max_kernel[1]):
        parts = math.prod(-(-k // m) for k, m in zip(kernel, limits.max_kernel))
        said.append(f"{section}.max_kernel={_pair(limits.max_kernel)}: kernel {kernel[0]}x{kernel[1]} in {parts} parts")
    return said


def _kernel_rows(
    op: IntegerConvolution, kernel: tuple[int, int], outputs: int, limits: ConvolutionLimits, ops: Sequence[Any], layer: Layer
) -> list[str]:
    """Why the rows of the kernel are in more parts than the limits ask for."""
    high, wide = (min(k, m) for k, m in zip(kernel, limits.max_kernel or kernel))
    taken = max(o.kernel_height for o in ops)
    one_by_one = limits.max_dilation and op.dilations[0] > limits.max_dilation[0]
    if one_by_one or -(-kernel[0] // taken) <= -(-kernel[0] // high):
        return []
    columns, chip = op.array(layer).columns, layer.chip
    if isinstance(ops[0], Depthwise):
        channels = weights = min(outputs, columns)
    else:
        channels = max(o.input_channels for o in ops)
        weights = channels * min(outputs // op.groups, columns)
    # A tile has its window's whole input, whatever part of the kernel an instruction sees.
    needed_bytes = {"input": math.prod(kernel) * channels * layer.input_type(0).item_bytes, "weights": high * wide * weights}
    return [_less("rows of the kernel", kernel[0], taken, needed_bytes, chip)]


def _less(what: str, size: int, taken: int, needed_bytes: Mapping[str, int], chip: Chip) -> str:
    """What cut `size` beyond the limits. needed_bytes: of the smallest tile without that, by the array's operands."""
    return f"{_outgrown(needed_bytes, chip) or 'chosen for speed'}: {size} {what}, {taken} at a time"


def _outgrown(needed_bytes: Mapping[str, int], chip: Chip) -> str | None:
    """The memory in which operands of so many bytes have no room: key and size."""
    roles = chip.workers("mac_array")[0].roles
    for space in dict.fromkeys(roles[operand] for operand in needed_bytes):
        held, size = sum(n for operand, n in needed_bytes.items() if roles[operand] == space), chip.spaces[space].memory.size
        if held > size:
            return f"memories.{chip.spaces[space].key}.size={size}"
    return None


def _cut(what: str, size: int, taken: int, key: str, limit: int | None, each_bytes: Mapping[str, int], chip: Chip) -> list[str]:
    """Why an instruction takes only part of `size`. each_bytes: what one of `size` takes in the smallest tile, by operands."""
    said = [f"{key}={limit}: {size} {what} in parts"] if limit and size > limit else []
    whole = min(size, limit or size)
    needed_bytes = {operand: whole * n for operand, n in each_bytes.items()}
    return [*said, _less(what, size, taken, needed_bytes, chip)] if taken < whole else said


def _grouped(op: IntegerConvolution, section: str, reduction: int, outputs: int, together: int, layer: Layer) -> list[str]:
    """together: groups of one instruction."""
    chip, mode = layer.chip, op.array(layer).depthwise
    if section == "depthwise":
        return [f"{chip.key('mac_array')}.depthwise=column: the array works on one channel at a time"] if mode == "column" else []
    if op.groups == 1:
        return []
    at_once = f"{together} at a time with weights of 0 between them"
    if mode == "none" and reduction == 1 and outputs == op.groups:
        order = " one after the other" if together == 1 else f", {at_once}"
        return [f"{chip.key('mac_array')}.depthwise=none: {op.groups} channels{order}"]
    if together > 1:
        return [f"{op.groups} groups, {at_once}"]
    return [f"{op.groups} groups one after the other, each with {outputs // op.groups} columns of the array"]


def _tiles(
    pixels: int, channels: int, node: Node, graph: Graph, mac: MacArray, chip: Chip, ops: Sequence[MachineOp]
) -> list[str]:
    """Why the output is made in several pieces."""
    if len(ops) < 2:
        return []
    entries, sram = mac.accumulators.entries, chip.sram.size
    said = []
    if pixels * channels > entries:
        said.append(
            f"{chip.key('mac_array')}.accumulators.entries={entries}: {pixels} pixels x {channels} channels in {len(ops)} tiles"
        )
    whole = sum(graph.types[n].size_bytes for n in dict.fromkeys((*node.inputs, *node.outputs)) if n)
    if whole > sram:
        said.append(f"memories.sram.size={sram}: operands and result have {whole} bytes, in {len(ops)} tiles")
    return said


def _product(node: Node, graph: Graph, chip: Chip, ops: Sequence[MatrixProduct]) -> list[str]:
    limits = chip.limits.matrix_product
    (*_, rows, columns), inner = graph.types[node.outputs[0]].shape, graph.types[node.inputs[0]].shape[-1]
    a, b = (graph.types[n].item_bytes for n in node.inputs)
    each_bytes = {"input": a, "weights": b * min(columns, chip.array.columns)}
    said = _cut("terms of a sum", inner, max(o.inner for o in ops), "limits.matrix_product.max_k", limits.max_k, each_bytes, chip)
    if limits.max_n and columns > limits.max_n:
        said.append(f"limits.matrix_product.max_n={limits.max_n}: {columns} columns in parts")
    entries = chip.array.accumulators.entries
    if rows * columns > entries:
        said.append(
            f"{chip.key('mac_array')}.accumulators.entries={chip.array.accumulators.entries}: {rows} x {columns} in tiles"
        )
    return said


def _rates(chip: Chip, ops: Sequence[Table]) -> list[str]:
    """At which of several rates tables run."""
    if chip.functions.isdisjoint(TABLE_FUNCTIONS.keys() - {"table"}):
        return []
    said = []
    for op in ops:
        unit = op.unit_in(chip)
        name = rated_as(op.function.name.lower(), unit.vector.functions)
        if name is None:
            continue  # the program's check refuses it
        rate = unit.vector.functions[name]
        what = "no single function with a rate of its own" if name == "table" else "the rate of this function"
        passes = f", passes: {rate.passes}" if rate.passes > 1 else ""
        said.append(f"{unit.key}.functions.{name}={{lanes: {rate.lanes}, startup: {rate.startup}{passes}}}: {what}")
    return said


def _apart(
    node: Node, graph: Graph, chip: Chip, producers: Mapping[str, Node], consumers: Mapping[str, Sequence[Node]]
) -> list[str]:
    """Why a function or sum behind a convolution does not ride on its way out."""
    if isinstance(node.op, Lookup):
        kind = "table"
    elif isinstance(node.op, IntegerBinary) and node.op.kind == "add":
        kind = "add"
    else:
        return []
    behind = [n for n in node.inputs if n in producers and isinstance(producers[n].op, IntegerConvolution)]
    behind = [n for n in behind if graph.read_once(n, consumers)]
    layers = [Layer(producers[n], graph.types, graph.constants, chip) for n in behind]
    able = [n for n, layer in zip(behind, layers) if operator_of(layer.node, IntegerConvolution).can_have(kind, layer)]
    if kind == "add" and able == [node.inputs[1]] and chip.numerics.sums_in_float32(kind):
        rounding = "numerics.per_op.add" if kind in chip.numerics.per_op else "numerics.rounding"
        return [f"{rounding} is fp32_rne: an array adds to its own result, and of this sum the other operand is added last"]
    if not layers or able:
        return []
    what = "function" if kind == "table" else "sum"
    lacking = f"{chip.key('mac_array')}.post has no {kind}"
    if any(kind in unit.array.post for unit in chip.workers("mac_array")):
        lacking += " on an array that can do the rest"
    return [f"{lacking}: the {what} is a pass of its own over the convolution's output"]


def _averages(kinds: Sequence[str], node: Node, graph: Graph, chip: Chip) -> list[str]:
    if not isinstance(node.op, IntegerConvolution) or not any(kind in _POOLS for kind in kinds):
        return []
    if not np.all(graph.constants[node.inputs[1]] == 1):
        return []
    if "average_pool" not in chip.functions:
        return [f"{chip.key('vector')}.functions has no average_pool: a depthwise convolution with ones"]
    return [f"limits.pool (max_kernel={_pair(chip.limits.pool.max_kernel)}): a depthwise convolution with ones"]


def _spilled(region: Region, chip: Chip, ops: Sequence[MachineOp], resident: bool) -> list[str]:
    """Copies between SRAM and what is in DRAM beside constants and the region's own inputs and outputs."""
    kept = [(address, address + len(data)) for address, data in region.constants]
    for port in (*region.inputs, *region.outputs):
        kept.append((port.address, port.address + port.size_bytes))
    starts, ends = np.array([k[0] for k in kept]), np.array([k[1] for k in kept])

    def elsewhere(address: int) -> bool:
        return not bool(((starts <= address) & (address < ends)).any())

    copies = [op for op in ops if isinstance(op, Copy)]
    into = any(c.source_space == Space.DRAM and elsewhere(c.source_address) for c in copies)
    out_of = any(c.destination_space == Space.DRAM and elsewhere(c.destination_address) for c in copies)
    ways = [*(["an input waits in DRAM"] if into else []), *(["its output goes to DRAM"] if out_of else [])]
    if not ways:
        return []
    if not resident:
        return [f"below -O2: {', '.join(ways)}, for nothing stays in SRAM between layers"]
    return [f"memories.sram.size={chip.sram.size}: {', '.join(ways)}, no room to keep it"]


def _pair(values: tuple[int, int] | None) -> str:
    return "not set" if values is None else f"[{values[0]}, {values[1]}]"
