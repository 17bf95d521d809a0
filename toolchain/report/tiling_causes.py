"""Explain which keys of the machine's YAML cut a convolution or matrix product into several instructions.

The causes are read off the program's operations of the layer. A sentence begins with the key and its value, or with "chosen
for speed" where no key required the cut. Only one on groups may begin with their number. The module report.bottlenecks adds
them to what `--explain` prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from toolchain.hw.chip import Chip
from toolchain.hw.chip_sections import ConvolutionLimits
from toolchain.hw.engines import MacArray
from toolchain.ir.graph import Graph, Node
from toolchain.machine import Depthwise, MachineOp, MatrixProduct
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import Layer


def explain_convolution_tiling(node: Node, graph: Graph, chip: Chip, ops: Sequence[Any], ended: Sequence[MachineOp]) -> list[str]:
    """Return the reasons why a convolution was cut into instructions, or how its groups run; the list may be empty.

    Tiles of the output have a reason only where a memory or the accumulators are too small for all of it. They have none
    where the stride is beyond its limit, which is a reason itself.

    `node`: a node with an IntegerConvolution.
    `ops`: operations of the array that compute it, at least one; all Depthwise or none.
    `ended`: operations that write outputs, one a tile.
    """
    op = node.op
    assert isinstance(op, IntegerConvolution)
    outputs, kh, kw, reduction = graph.constants[node.inputs[1]].shape
    section = "depthwise" if isinstance(ops[0], Depthwise) else "convolution"
    limits: ConvolutionLimits = getattr(chip.limits, section)
    _, height, width, _ = graph.types[node.outputs[0]].shape
    layer = Layer(node, graph.types, graph.constants, chip)
    mac = op.array(layer)
    reasons = [*_kernel(op, (kh, kw), f"limits.{section}", limits), *_kernel_rows(op, (kh, kw), outputs, limits, ops, layer)]
    strided = op.stride_cut(layer)
    reasons += [strided] if strided else []
    if section == "convolution":
        widest, key = max(o.input_channels for o in ops), "limits.convolution.max_input_channels"
        each_bytes = {
            "input": kh * kw * layer.input_type(0).item_bytes,
            "weights": kh * kw * min(outputs // op.groups, mac.columns),
        }
        reasons += _cut("channels of a sum", reduction, widest, key, limits.max_input_channels, each_bytes, chip)
        channels = outputs // op.groups
    else:
        channels = outputs
    together = max(1, max(o.input_channels for o in ops) // reduction) if section == "convolution" else 1
    reasons += _explain_groups(op, section, reduction, outputs, together, layer)
    for what, size, key, limit in (
        ("output channels", channels, "max_output_channels", limits.max_output_channels),
        ("output columns", width, "max_width", limits.max_width),
    ):
        if limit and size > limit:
            reasons.append(f"limits.{section}.{key}={limit}: {size} {what} in parts")
    if strided:
        return reasons
    return [*reasons, *_tiles(height * width, channels, node, graph, mac, chip, ended)]


def _kernel(op: IntegerConvolution, kernel: tuple[int, int], section: str, limits: ConvolutionLimits) -> list[str]:
    """Return the reasons why an instruction sees only a part of the kernel, by limits of dilation and of the kernel's size."""
    reasons = list[str]()
    if limits.max_dilation and any(d > m and k > 1 for d, m, k in zip(op.dilations, limits.max_dilation, kernel)):
        reasons.append(
            f"{section}.max_dilation={pair(limits.max_dilation)}: dilation {op.dilations[0]}x{op.dilations[1]}, so one row "
            "or column of the kernel an instruction"
        )
    if limits.max_kernel and (kernel[0] > limits.max_kernel[0] or kernel[1] > limits.max_kernel[1]):
        parts = math.prod(-(-k // m) for k, m in zip(kernel, limits.max_kernel))
        reasons.append(f"{section}.max_kernel={pair(limits.max_kernel)}: kernel {kernel[0]}x{kernel[1]} in {parts} parts")
    return reasons


def _kernel_rows(
    op: IntegerConvolution, kernel: tuple[int, int], outputs: int, limits: ConvolutionLimits, ops: Sequence[Any], layer: Layer
) -> list[str]:
    """Return why the rows of the kernel are in more parts than the limits require; empty where they are not."""
    high, wide = (min(k, m) for k, m in zip(kernel, limits.max_kernel or kernel))
    part_rows = max(o.kernel_height for o in ops)
    one_by_one = limits.max_dilation and op.dilations[0] > limits.max_dilation[0]
    if one_by_one or -(-kernel[0] // part_rows) <= -(-kernel[0] // high):
        return []
    columns, chip = op.array(layer).columns, layer.chip
    if isinstance(ops[0], Depthwise):
        channels = weights = min(outputs, columns)
    else:
        channels = max(o.input_channels for o in ops)
        weights = channels * min(outputs // op.groups, columns)
    # A tile has its window's whole input, whatever part of the kernel an instruction sees.
    needed_bytes = {"input": math.prod(kernel) * channels * layer.input_type(0).item_bytes, "weights": high * wide * weights}
    return [_less("rows of the kernel", kernel[0], part_rows, needed_bytes, chip)]


def _less(what: str, size: int, part_size: int, needed_bytes: Mapping[str, int], chip: Chip) -> str:
    """Return the sentence on a cut of `size` beyond the limits: the memory that is too small, or "chosen for speed".

    `needed_bytes`: bytes of the smallest tile without that cut, by the array's operands.
    """
    return f"{_outgrown(needed_bytes, chip) or 'chosen for speed'}: {size} {what}, {part_size} at a time"


def _outgrown(needed_bytes: Mapping[str, int], chip: Chip) -> str | None:
    """Return the first memory, as key and size, that is too small for operands of so many bytes; None where all have room."""
    roles = chip.workers("mac_array")[0].roles
    for space in dict.fromkeys(roles[operand] for operand in needed_bytes):
        required_bytes, size = (
            sum(n for operand, n in needed_bytes.items() if roles[operand] == space),
            chip.spaces[space].memory.size,
        )
        if required_bytes > size:
            return f"memories.{chip.spaces[space].key}.size={size}"
    return None


def _cut(
    what: str, size: int, part_size: int, key: str, limit: int | None, each_bytes: Mapping[str, int], chip: Chip
) -> list[str]:
    """Return the reasons why an instruction takes only `part_size` of `size`; empty where it takes all.

    `limit`: the value of the key; None where the file sets none.
    `each_bytes`: bytes that one of `size` takes in the smallest tile, by operand.
    """
    reasons = [f"{key}={limit}: {size} {what} in parts"] if limit and size > limit else []
    allowed_size = min(size, limit or size)
    needed_bytes = {operand: allowed_size * n for operand, n in each_bytes.items()}
    return [*reasons, _less(what, size, part_size, needed_bytes, chip)] if part_size < allowed_size else reasons


def _explain_groups(op: IntegerConvolution, section: str, reduction: int, outputs: int, together: int, layer: Layer) -> list[str]:
    """Return the reasons why groups run separately or together.

    `together`: groups of one instruction.
    """
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
    """Return the reasons why the output is made in several pieces: accumulators, SRAM. The list is empty where one operation
    makes it."""
    if len(ops) < 2:
        return []
    entries, sram = mac.accumulators.entries, chip.sram.size
    reasons = list[str]()
    if pixels * channels > entries:
        reasons.append(
            f"{chip.key('mac_array')}.accumulators.entries={entries}: {pixels} pixels x {channels} channels in {len(ops)} tiles"
        )
    operand_bytes = sum(graph.types[n].size_bytes for n in dict.fromkeys((*node.inputs, *node.outputs)) if n)
    if operand_bytes > sram:
        reasons.append(f"memories.sram.size={sram}: operands and result have {operand_bytes} bytes, in {len(ops)} tiles")
    return reasons


def explain_product_tiling(node: Node, graph: Graph, chip: Chip, ops: Sequence[MatrixProduct]) -> list[str]:
    """Return the reasons why a matrix product is cut: limits, memories or accumulators; the list may be empty.

    Memories are a reason for cut sums alone, not for rows and columns. Accumulators are one where they hold less than the
    whole result.

    `ops`: the operations that compute the node, at least one.
    """
    limits = chip.limits.matrix_product
    (*_, rows, columns), inner = graph.types[node.outputs[0]].shape, graph.types[node.inputs[0]].shape[-1]
    a, b = (graph.types[n].item_bytes for n in node.inputs)
    each_bytes = {"input": a, "weights": b * min(columns, chip.array.columns)}
    reasons = _cut(
        "terms of a sum", inner, max(o.inner for o in ops), "limits.matrix_product.max_k", limits.max_k, each_bytes, chip
    )
    if limits.max_n and columns > limits.max_n:
        reasons.append(f"limits.matrix_product.max_n={limits.max_n}: {columns} columns in parts")
    entries = chip.array.accumulators.entries
    if rows * columns > entries:
        reasons.append(
            f"{chip.key('mac_array')}.accumulators.entries={chip.array.accumulators.entries}: {rows} x {columns} in tiles"
        )
    return reasons


def pair(values: tuple[int, int] | None) -> str:
    """Return a limit [height, width] as text; `not set` for None."""
    return "not set" if values is None else f"[{values[0]}, {values[1]}]"
