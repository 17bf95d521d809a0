#!/usr/bin/env python3
"""How far a network ends up from itself where a few codes are one step off: what bounds every comparison of two integer networks.

    python scripts/flip_codes.py MODEL.onnx --data DATA [--hw edge16] [--share 1e-6 1e-5 1e-4 1e-3]

The network is calibrated on the first samples and runs on others, as it is, and with a share of the codes that its convolutions
make one higher or lower, drawn by a seed. A line a share: how many codes those are in a sample, and the outputs' dB from those
of the network as it is, worst sample and all.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.data import open_data
from quant.error import sqnr_db
from quant.sample import Sample
from toolchain.cli.application import reported
from toolchain.cli.option_values import input_shapes
from toolchain.codegen.link import port_at
from toolchain.compiling import select_model
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.ir.graph import Graph, OnnxOp
from toolchain.isa import load_machine
from toolchain.ops.convolution.integer import IntegerConvolution
from toolchain.ops.kit.operator import NpuOp, operator_of
from toolchain.passes.decompose import decomposed
from toolchain.repair.network import Network
from toolchain.repair.prepare import prepared
from toolchain.report import agreed
from toolchain.runtime.ports import to_codes, to_real

Array = NDArray[Any]
CALIBRATED = 16
EQUAL_DB = 200.0


def integer_graph(network: Network, samples: Sequence[Sample]) -> Graph:
    """Raises CompileError: a part of the network is on the host."""
    found = prepared(network, samples, None, "none", lambda *_: None)
    graph = network.integer(found.quantization)
    hosted = next((n.name for n in graph.nodes if isinstance(n.op, OnnxOp)), None)
    if hosted is not None:
        raise CompileError(f"node {hosted}: runs on the host; name a machine that runs the whole network")
    return graph


def flipped_run(graph: Graph, sample: Sample, share: float, rng: np.random.Generator) -> tuple[Mapping[str, Array], int]:
    """The outputs, real, and how many codes were moved."""
    made = {name for node in graph.nodes for name in node.outputs}
    values, count = dict(graph.constants), 0
    for name in dict.fromkeys(n for node in graph.nodes for n in node.inputs if n and n not in made and n not in values):
        port = port_at(0, name, graph)
        values[name] = to_codes(sample[port.model], port)
    for node in graph.nodes:
        codes = operator_of(node, NpuOp).reference([values[n] for n in node.inputs if n])
        if isinstance(node.op, IntegerConvolution):
            codes, moved = _moved(codes, (node.op.requant.low, node.op.requant.high), share, rng)
            count += moved
        values[node.outputs[0]] = codes
    return {name: to_real(values[name], port_at(0, name, graph)) for name in graph.outputs}, count


def _moved(codes: Array, ends: tuple[int, int], share: float, rng: np.random.Generator) -> tuple[Array, int]:
    flat = codes.astype(np.int64).ravel()
    at = rng.choice(flat.size, rng.binomial(flat.size, share), replace=False)
    flat[at] = np.clip(flat[at] + rng.choice([-1, 1], at.size), *ends)
    return flat.reshape(codes.shape).astype(codes.dtype), at.size


def run(given: argparse.Namespace) -> None:
    machine = load_machine(given.hw)
    model = decomposed(load_model(given.model, input_shapes(given.shape)), machine.chip)
    network = Network(model, select_model(model, machine), machine)
    samples = list(islice(open_data(given.data, {n: model.types[n] for n in model.inputs}), CALIBRATED + given.judged))
    seen, others = samples[:CALIBRATED], samples[CALIBRATED:]
    if not others:
        raise CompileError(f"--data: holds {len(samples)} samples, and {CALIBRATED} are calibrated on; give more")
    agreed(model, seen[:1])
    graph = integer_graph(network, seen)
    plain = [flipped_run(graph, s, 0.0, np.random.default_rng(0))[0] for s in others]
    for share in given.share:
        rng = np.random.default_rng(given.seed)
        runs = [flipped_run(graph, s, share, rng) for s in others]
        pairs = [(a[n], b[n]) for a, (b, _) in zip(plain, runs, strict=True) for n in a]
        levels = [min(sqnr_db(a, b), EQUAL_DB) for a, b in pairs]
        whole = sqnr_db(*(np.concatenate([np.ravel(p[i]) for p in pairs]) for i in (0, 1)))
        count = np.mean([moved for _, moved in runs])
        print(f"{share:g} of the codes, {count:.1f} a sample: worst {min(levels):.1f} dB, all {min(whole, EQUAL_DB):.1f} dB")


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", required=True, help="as npu-build --calib")
    parser.add_argument("--hw", default="edge16")
    parser.add_argument("--share", type=float, nargs="+", default=[1e-7, 1e-6, 1e-5, 1e-4, 1e-3])
    parser.add_argument("--judged", type=int, default=8, help=f"samples behind the first {CALIBRATED} (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,640,640", help="binds dynamic dimensions")
    with reported():
        run(parser.parse_args())


if __name__ == "__main__":
    main()
