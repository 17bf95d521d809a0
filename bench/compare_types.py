#!/usr/bin/env python3
"""Compare the types that repair solves for with random assignments of at most the same cycles, by the worst part.

    `python bench/compare_types.py [--hw transformer64] [--draws 50] [--slowdown 1.4]`.

It makes networks and data itself. A line has the network and the cycles of the solution, over those without wider codes.
Then comes the worst part in dB: without wider codes, with the solution, with the best draw.
All are judged on samples that none of them saw.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import onnx
from onnx import numpy_helper

from quant.calibrate import calibrate
from quant.repair.choices import Quantization
from quant.structural_ranges import adjust_ranges
from toolchain.compiler import make_cycle_counter, select_model
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.isa import load_machine
from toolchain.passes.type_overrides import decompose_for_types
from toolchain.repair.evaluate_outputs import OutputEvaluator
from toolchain.repair.network import Network
from toolchain.repair.solve_types import find_wider_type, list_groups, solve_types
from toolchain.repair.type_trials import TypeTrials

ROWS, CHANNELS, SAMPLES = 16, 32, 24
CASES = {
    "a sum taken off again": "a = MatMul(x, w) b = Mul(x, large) s = Add(a, b) r = Relu(s) q = Sub(r, b) y = MatMul(q, v)",
    "norms": "a = MatMul(x, w) b = Mul(a, rows) n = LayerNormalization(b, one) c = Add(n, x) e = MatMul(c, w) h = Relu(e) "
    "f = Add(h, b) m = LayerNormalization(f, one) y = MatMul(m, v)",
    "a square": "a = MatMul(x, w) s = Sigmoid(a) p = Mul(s, a) b = Mul(p, rows) d = Mul(b, b) e = MatMul(d, w) y = MatMul(e, v)",
}


def make_network(nodes: str, hardware: str, slowdown: float) -> Network:
    """Return a network of float32[1, rows, channels] with drawn weights, on its machine."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[1,{ROWS},{CHANNELS}] x) => (float[1,{ROWS},8] y) {{ {nodes} }}'
    )
    rng = np.random.default_rng(0)
    values = {
        "w": rng.standard_normal((CHANNELS, CHANNELS)) / 6,
        "v": rng.standard_normal((CHANNELS, 8)) / 6,
        "large": np.array(200.0),
        "rows": np.where(np.arange(ROWS) % 8 == 0, 8.0, 1.0).reshape(1, ROWS, 1),
        "one": np.ones(CHANNELS),
    }
    for name, value in values.items():
        if any(name in node.input for node in proto.graph.node):
            proto.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    machine = load_machine(hardware)
    model = decompose_for_types(load_model(proto), machine.chip, (), (), {})
    selection = select_model(model, machine)
    return Network(model, selection, machine, max_slowdown=slowdown, count_cycles=make_cycle_counter(1))


def draw_samples(seed: int) -> list[dict[str, np.ndarray]]:
    """Return samples of normal values."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((1, ROWS, CHANNELS)).astype(np.float32)} for _ in range(SAMPLES)]


def compare(name: str, network: Network, draws: int) -> str:
    """Return a line of the table."""
    samples, judge = draw_samples(1), OutputEvaluator(draw_samples(2))
    model, counter, wide = network.model, network.count_cycles, find_wider_type(network)
    assert counter is not None and wide is not None
    observed = calibrate(model.proto, samples, network.tensors, computed_by=model, decomposition=model.decomposition)
    ranges = adjust_ranges(model.proto, observed, model.decomposition).ranges
    before = Quantization({**ranges, **network.get_model_ranges({})})
    solution = solve_types(network, before, samples, lambda *_: None).quantization
    solved = network.with_types(solution.types)
    plain, most = counter(network, before), counter(solved, solution)
    levels = [judge.verdict(n, q).weakest_db for n, q in ((network, before), (solved, solution))]
    rng, groups, best = np.random.default_rng(3), list_groups(network), -math.inf
    for _ in range(draws):
        names = [str(g) for g in rng.permutation(list(groups))[: rng.integers(1, len(groups) + 1)]]
        order = [(name, groups[name]) for name in names]
        trials = TypeTrials(network, before, wide, order, (judge, counter))
        trials.measure_ranges(samples)
        try:
            if trials.count_cycles(len(order)) <= most:
                best = max(best, min(trials.measure_levels(len(order)).values()))
        except CompileError:  # the machine cannot express it
            continue
    return f"| {name} | {most / plain:.2f} | {levels[0]:.1f} | {levels[1]:.1f} | {best:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", default="transformer64", help="machine with wider codes (default transformer64)")
    parser.add_argument("--draws", type=int, default=50, help="random assignments (default 50)")
    parser.add_argument("--slowdown", type=float, default=1.4, help="times the cycles that the solution may take (default 1.4)")
    args = parser.parse_args()
    print("| network | cycles | dB before | solved | best draw |\n|" + "---|" * 5)
    for name, nodes in CASES.items():
        print(compare(name, make_network(nodes, args.hw, args.slowdown), args.draws), flush=True)


if __name__ == "__main__":
    main()
