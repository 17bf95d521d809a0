#!/usr/bin/env python3
"""Measure how far a network's outputs move where a few codes are one step off.

    `python bench/perturb_codes.py MODEL.onnx --data DATA [--hw edge16] [--share 1e-6 1e-5 1e-4 1e-3]`.

The result bounds every comparison of two integer networks.
The network is calibrated on the first samples and runs on others, unchanged and with changed codes.
A share of the codes that its convolutions make is one higher or lower, drawn by a seed.
There is one line for each share: how many codes those are in a sample, and the outputs' dB from the unchanged network's.
The dB are of the worst sample and of all.
Option --once adds two lines of the network as a runtime could have it that multiplies sums by float32 scales and rounds once,
to even.
One line has the machine's own scales.
The other has half a step more in the sums of layers that then come nearer to the machine's codes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.calibration_data import open_data
from quant.fidelity import sqnr_db
from quant.fit_sample import Sample
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import float32_bits
from quant.fixed_point.sums.conv import conv2d
from toolchain.cli.application import report_errors
from toolchain.cli.option_values import input_shapes
from toolchain.codegen.link import port_at
from toolchain.compiler import select_model
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.ir.graph import Graph, Node, OnnxOp
from toolchain.isa import load_machine
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import NpuOp, operator_of
from toolchain.passes.decompose import decompose_model
from toolchain.repair.calibrate_network import calibrate_network
from toolchain.repair.network import Network
from toolchain.report import check_frontend
from toolchain.runtime.ports import to_codes, to_real

Array = NDArray[Any]
CALIBRATED = 16
EQUAL_DB = 200.0


def integer_graph(network: Network, samples: Sequence[Sample]) -> Graph:
    """Return the calibrated integer network. Raise CompileError where a part of it is on the host."""
    result = calibrate_network(network, samples, None, "none", lambda *_: None)
    graph = network.integer(result.quantization)
    hosted = next((n.name for n in graph.nodes if isinstance(n.op, OnnxOp)), None)
    if hosted is not None:
        raise CompileError(f"node {hosted}: runs on the host; name a machine that runs the whole network")
    return graph


def outputs_of(graph: Graph, sample: Sample, codes_of: Callable[[Node, list[Array]], Array]) -> Mapping[str, Array]:
    """Return the real outputs for a sample.

    `codes_of`: computes a node's codes from its inputs.
    """
    computed_names = {name for node in graph.nodes for name in node.outputs}
    values = dict(graph.constants)
    for name in dict.fromkeys(
        n for node in graph.nodes for n in node.inputs if n and n not in computed_names and n not in values
    ):
        port = port_at(0, name, graph)
        values[name] = to_codes(sample[port.model], port)
    for node in graph.nodes:
        values[node.outputs[0]] = codes_of(node, [values[n] for n in node.inputs if n])
    return {name: to_real(values[name], port_at(0, name, graph)) for name in graph.outputs}


def as_it_is(node: Node, inputs: list[Array]) -> Array:
    """Return the codes that the node computes."""
    return operator_of(node, NpuOp).reference(inputs)


class Flipped:
    """A function from a node and its inputs to its codes, with a share of the codes of convolutions one step off.

    `count`: codes that were moved so far.
    """

    def __init__(self, share: float, rng: np.random.Generator) -> None:
        self._share, self._rng, self.count = share, rng, 0

    def __call__(self, node: Node, inputs: list[Array]) -> Array:
        codes = as_it_is(node, inputs)
        if not isinstance(node.op, IntegerConvolution):
            return codes
        flat = codes.astype(np.int64).ravel()
        at = self._rng.choice(flat.size, self._rng.binomial(flat.size, self._share), replace=False)
        flat[at] = np.clip(flat[at] + self._rng.choice([-1, 1], at.size), node.op.requant.low, node.op.requant.high)
        self.count += at.size
        return flat.reshape(codes.shape).astype(codes.dtype)


def round_once(op: IntegerConvolution, inputs: list[Array], half: bool) -> Array:
    """Round as a kernel that multiplies float32(sums) by the machine's scale in float32, once and to even.

    `half`: add half a step of the sums, which no int32 bias can express.
    """
    x, weights, bias = inputs[:3]
    geometry = {"strides": op.strides, "dilations": op.dilations, "pads": op.pads, "groups": op.groups}
    options = {"x_zero_point": op.x_zero_point, "bias": bias, "accumulator_bits": op.accumulator_bits}
    sums = conv2d(x, op.whole_weights(weights), **geometry, **options).astype(np.int64)
    scale = (op.requant.real_scale / (2 if half else 1)).astype(np.float32)
    form = {"kind": "float32", "rounding": Rounding.FP32_RNE, "shift": np.zeros(scale.shape, np.int64)}
    requant = replace(op.requant, multiplier=float32_bits(scale), **form)
    return requantize(2 * sums + 1 if half else sums, requant, requant.dtype)


class RoundedOnce:
    """A function from a node and its inputs to its codes, with convolutions computed by `round_once`.

    `halves`: names of those with half a step more.
    """

    def __init__(self, halves: Collection[str]) -> None:
        self._halves = halves

    def __call__(self, node: Node, inputs: list[Array]) -> Array:
        return (
            round_once(node.op, inputs, node.name in self._halves)
            if isinstance(node.op, IntegerConvolution)
            else as_it_is(node, inputs)
        )


class Differing:
    """A function from a node and its inputs to its codes, unchanged.

    `counts`: by convolution, int64[2]: codes that `round_once` would make otherwise, without and with half a step more.
    """

    def __init__(self) -> None:
        self.counts: dict[str, Array] = {}

    def __call__(self, node: Node, inputs: list[Array]) -> Array:
        codes = as_it_is(node, inputs)
        if isinstance(node.op, IntegerConvolution):
            differ = [np.count_nonzero(round_once(node.op, inputs, half) != codes) for half in (False, True)]
            self.counts[node.name] = self.counts.get(node.name, np.zeros(2, np.int64)) + differ
        return codes


def run(args: argparse.Namespace) -> None:
    """Calibrate on the first samples, run the others unchanged and changed, and print the lines. Raise CompileError."""
    machine = load_machine(args.hw)
    model = decompose_model(load_model(args.model, input_shapes(args.shape)), machine.chip)
    network = Network(model, select_model(model, machine), machine)
    samples = list(islice(open_data(args.data, {n: model.types[n] for n in model.inputs}), CALIBRATED + args.judged))
    calibration, others = samples[:CALIBRATED], samples[CALIBRATED:]
    if not others:
        raise CompileError(f"--data: holds {len(samples)} samples, and {CALIBRATED} are calibrated on; give more")
    check_frontend(model, calibration[:1])
    graph = integer_graph(network, calibration)
    differing = Differing()
    plain = [outputs_of(graph, s, differing if args.once else as_it_is) for s in others]
    for share in args.share:
        flipped = Flipped(share, np.random.default_rng(args.seed))
        level_text = levels(plain, [outputs_of(graph, s, flipped) for s in others])
        print(f"{share:g} of the codes, {flipped.count / len(others):.1f} a sample: {level_text}")
    if args.once:
        counts = differing.counts
        better = {name for name, (plainly, half) in counts.items() if half < plainly}
        for what, halves in (("rounded once", set[str]()), ("half a step more where fewer differ", better)):
            off = sum(int(c[int(name in halves)]) for name, c in counts.items()) / len(others)
            level_text = levels(plain, [outputs_of(graph, s, RoundedOnce(halves)) for s in others])
            print(f"{what}, by float32 scales: {off:.1f} codes a sample differ by themselves: {level_text}")


def levels(plain: Sequence[Mapping[str, Array]], runs: Sequence[Mapping[str, Array]]) -> str:
    """Return a text with the dB of the worst sample and of all samples together."""
    pairs = [(a[n], b[n]) for a, b in zip(plain, runs, strict=True) for n in a]
    worst = min(sqnr_db(a, b) for a, b in pairs)
    overall = sqnr_db(*(np.concatenate([np.ravel(p[i]) for p in pairs]) for i in (0, 1)))
    return f"worst {min(worst, EQUAL_DB):.1f} dB, all {min(overall, EQUAL_DB):.1f} dB"


def main() -> None:
    """Run the command. A model or data that are refused end it with one sentence."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", required=True, help="as npu-build --calib")
    parser.add_argument("--hw", default="edge16")
    parser.add_argument("--share", type=float, nargs="*", default=[1e-7, 1e-6, 1e-5, 1e-4, 1e-3])
    parser.add_argument("--once", action="store_true", help="convolutions as kernels with float32 scales round them, too")
    parser.add_argument("--judged", type=int, default=8, help=f"samples behind the first {CALIBRATED} (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,640,640", help="binds dynamic dimensions")
    with report_errors():
        run(parser.parse_args())


if __name__ == "__main__":
    main()
