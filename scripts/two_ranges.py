#!/usr/bin/env python3
"""Writes a model in which a layer reads its input in two ranges: what is below a limit in finer codes than what is above it.

    python scripts/two_ranges.py MODEL.onnx --layer NAME --limit L --largest M -o OUT.onnx

For magnitudes whose small values count beside large ones, as those of a spectrum that a convolution makes, where 16 bits at one
scale do not do. NAME is the Conv or Gemm that reads them. What makes them (convolutions or Gemms, and between: Abs, squares, sums
of these, Sqrt, and what only moves) is there a second time, M / L times as large and cut beyond L; the layer reads both side by
side, each zero where the other holds a value. In float the model is the same; OUT.onnx is in normal form. Weights of the layer
then span M / L more: `npu-build --type 'WEIGHTS, of both ranges=int16'`, WEIGHTS their name, has them in two planes.
L, M: in the unit of what the layer reads, M the largest that occurs, as a parameters file of scripts/calibrate.py says.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.cli.application import reported, require_writable
from toolchain.cli.inputs import model_inputs
from toolchain.cli.option_values import add_values, input_shapes, input_values
from toolchain.errors import CompileError
from toolchain.files import write_whole
from toolchain.frontend import load_model

MAKERS = ("Conv", "Gemm")
MOVES = ("Reshape", "Transpose", "Slice")
DEGREES = {"Abs": 1.0, "Sqrt": 0.5, **dict.fromkeys(MOVES, 1.0)}  # f(g x) = g^degree f(x)
FINE = "below the limit"


@dataclass(frozen=True)
class Graph:
    """Of a model in normal form."""

    proto: onnx.GraphProto
    constants: Mapping[str, np.ndarray]
    made_by: Mapping[str, onnx.NodeProto]


@dataclass
class Magnitude:
    """What lies between `makers` and a layer, in the order of the graph; degree: how it grows with what they make."""

    makers: list[onnx.NodeProto] = field(default_factory=list)
    between: list[onnx.NodeProto] = field(default_factory=list)
    degree: float = 1.0


def found(graph: Graph, tensor: str) -> Magnitude:
    """Raises CompileError with the first node that is none of a magnitude."""
    degrees = dict[str, float]()
    nodes = {"makers": list[str](), "between": list[str]()}

    def degree(name: str) -> float:
        node = graph.made_by.get(name)
        if node is None:
            raise CompileError(f"{name}: is an input or a constant; the layer must read what Conv or Gemm makes")
        if name not in degrees:
            is_maker = node.op_type in MAKERS
            degrees[name] = 1.0 if is_maker else grown(node)
            nodes["makers" if is_maker else "between"].append(node.name)
        return degrees[name]

    def grown(node: onnx.NodeProto) -> float:
        computed = [n for n in node.input if n and n not in graph.constants]
        if node.op_type in DEGREES:
            return DEGREES[node.op_type] * degree(computed[0])
        if node.op_type == "Mul" and len(computed) == 2 and computed[0] == computed[1]:
            return 2 * degree(computed[0])
        if node.op_type == "Add" and len(computed) == 2 and all(never_negative(graph, n) for n in computed):
            first, second = (degree(n) for n in computed)
            if first == second:
                return first
        raise CompileError(f"{node.name} ({node.op_type}): is no part of a magnitude: Abs, squares, sums of these, Sqrt, moves")

    whole = degree(tensor)
    taken = {key: [n for n in graph.proto.node if n.name in names] for key, names in nodes.items()}
    return Magnitude(taken["makers"], taken["between"], whole)


def never_negative(graph: Graph, name: str) -> bool:
    node = graph.made_by.get(name)
    if node is None:
        return False
    if node.op_type in MOVES:
        return never_negative(graph, node.input[0])
    square = node.op_type == "Mul" and node.input[0] == node.input[1]
    return (
        square or node.op_type in ("Abs", "Sqrt") or (node.op_type == "Add" and all(never_negative(graph, n) for n in node.input))
    )


def rewritten(proto: onnx.ModelProto, layer: str, limit: float, largest: float) -> onnx.ModelProto:
    """proto: in normal form. Raises CompileError: no such layer, or one that reads no magnitude."""
    graph = as_graph(proto)
    reader = next((n for n in graph.proto.node if n.name == layer and n.op_type in MAKERS), None)
    if reader is None:
        there = ", ".join(n.name for n in graph.proto.node if n.op_type in MAKERS)
        raise CompileError(f"--layer {layer}: no Conv or Gemm has this name; there are {there}")
    weights = graph.constants.get(reader.input[1])
    if weights is None or any(a.name == "group" and a.i != 1 for a in reader.attribute):
        raise CompileError(f"--layer {layer}: its weights must be constant, and in one group")
    tensor = reader.input[0]
    magnitude = found(graph, tensor)
    if not never_negative(graph, tensor):
        raise CompileError(f"--layer {layer}: {tensor} may be negative, and is no magnitude")
    gain = largest / limit
    constants = {"fine limit": np.float32(limit), "fine zero": np.float32(0)}
    fine, second = second_time(graph, magnitude, tensor, gain ** (1 / magnitude.degree), limit ** (1 / magnitude.degree))
    weights_of_both = f"{reader.input[1]}, of both ranges"
    constants |= second | {weights_of_both: np.concatenate([weights / gain, weights], axis=1).astype(np.float32)}
    nodes = [
        *fine,
        helper.make_node("Less", [tensor, "fine limit"], [f"{tensor} is below"], name=f"{tensor} is below"),
        *chosen(tensor, [f"{tensor}, {FINE}", "fine zero"], "fine"),
        *chosen(tensor, ["fine zero", tensor], "coarse"),
        helper.make_node("Concat", [f"{tensor}, fine", f"{tensor}, coarse"], [f"{tensor}, both"], name=f"{tensor}, both", axis=1),
    ]
    both = onnx.NodeProto()
    both.CopyFrom(reader)
    both.input[0], both.input[1] = f"{tensor}, both", weights_of_both
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    del made.graph.node[:]
    made.graph.node.extend(n for old in graph.proto.node for n in ([*nodes, both] if old.name == reader.name else [old]))
    read = {name for node in made.graph.node for name in node.input}
    del made.graph.initializer[:]
    made.graph.initializer.extend(i for i in graph.proto.initializer if i.name in read)
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items())
    onnx.checker.check_model(made, full_check=True)
    return made


def as_graph(proto: onnx.ModelProto) -> Graph:
    constants = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    return Graph(proto.graph, constants, {o: n for n in proto.graph.node for o in n.output})


def chosen(tensor: str, choices: Sequence[str], name: str) -> Iterator[onnx.NodeProto]:
    yield helper.make_node("Where", [f"{tensor} is below", *choices], [f"{tensor}, {name}"], name=f"{tensor}, {name}")


def second_time(
    graph: Graph, magnitude: Magnitude, tensor: str, gain: float, limit: float
) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """The magnitude again, with makers `gain` times as large whose results end at `limit` times that, and their constants."""
    end = np.float32(gain * limit)
    constants: dict[str, np.ndarray] = {"fine low": np.asarray(-end), "fine high": np.asarray(end)}
    nodes, again = list[onnx.NodeProto](), dict[str, str]()
    for node in magnitude.makers:
        copy, made = copied(node, again), node.output[0]
        for i, name in enumerate(node.input[1:], 1):
            if name:
                copy.input[i] = f"{name}, finer"
                constants[copy.input[i]] = (graph.constants[name] * gain).astype(np.float32)
        copy.output[0] = f"{made}, uncut"
        again[made] = f"{made}, {FINE}"
        nodes += [
            copy,
            helper.make_node("Clip", [copy.output[0], "fine low", "fine high"], [again[made]], name=f"{node.name}, cut"),
        ]
    for node in magnitude.between:
        nodes.append(copied(node, again))
        again[node.output[0]] = nodes[-1].output[0] = f"{node.output[0]}, {FINE}"
    return nodes, constants


def copied(node: onnx.NodeProto, again: Mapping[str, str]) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = f"{node.name}, {FINE}"
    for i, name in enumerate(node.input):
        copy.input[i] = again.get(name, name)
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--layer", required=True, metavar="NAME")
    parser.add_argument("--limit", required=True, type=float, metavar="L")
    parser.add_argument("--largest", required=True, type=float, metavar="M")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=D0,D1,...")
    add_values(parser)
    parser.add_argument("-o", "--output", required=True, type=Path)
    given = parser.parse_args()
    if not 0 < given.limit < given.largest:
        parser.error(f"--limit {given.limit:g} --largest {given.largest:g}: must be above 0 and below what is largest")
    with reported():
        require_writable({"-o": given.output}, model_inputs(given.model))
        model = load_model(given.model, input_shapes(given.shape), values=input_values(given.values))
        write_whole(given.output, rewritten(model.proto, given.layer, given.limit, given.largest).SerializeToString())
        finer = given.largest / given.limit
        print(f"{given.output}: {given.layer} reads what is below {given.limit:g} in codes {finer:.0f} times as fine")


if __name__ == "__main__":
    main()
