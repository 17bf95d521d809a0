#!/usr/bin/env python3
"""Demonstrate the complete flow on the shipped classifier: build it, judge its int8 on test images, attribute its cycles.

    `python scripts/demo.py                      # edge16, all 2,000 test images`.
    `python scripts/demo.py --hw mine.yaml --images 200 --simulate 20 -o classifier.npu`.

Every image runs through the integer reference.
`--simulate` of them also run through the simulator, which decodes and runs the program's bytes, and must give the same bits.
Exit code 1 when a bit differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from evaluate import Array, Scores, count, evaluate, from_arrays, read_labelled, show_progress

from toolchain.api import Build, BuildOptions, build
from toolchain.cli.application import report_errors, require_writable
from toolchain.cli.files import machine_inputs
from toolchain.foundation.atomic_files import write_files
from toolchain.report import report_text
from toolchain.runtime import Session

CLASSIFIER = Path(__file__).resolve().parent.parent / "examples" / "classifier"
SHAPE = (1, 1, 28, 28)
PIXEL_RANGE = 255.0
TOP_LAYERS = 8


@dataclass(frozen=True)
class Demo:
    """A result of the demo.

    `differing`: indices of simulated images whose output codes are not the reference's.
    """

    built: Build
    scores: Scores
    simulated: int
    differing: tuple[int, ...]


def run(machine: str, images: int | None, simulate: int) -> Demo:
    """Build the shipped classifier for a machine and judge it; return the result.

    `images`: at most so many of the test images (None: all), the first `simulate` of them on the simulator too.
    """
    model = CLASSIFIER / "classifier.onnx"
    built = build(model, BuildOptions(machine, str(CLASSIFIER / "calib.npz"), shapes={"x": SHAPE}, repair="none"))
    samples = list(islice(from_arrays(read_labelled(CLASSIFIER / "test.npz"), SHAPE, 0.0, PIXEL_RANGE), images))
    result = evaluate(model, {machine: built}, iter(samples), show_progress)[0]
    differing = differences(built, [s.x for s in samples[:simulate]])
    return Demo(built, result, min(simulate, len(samples)), differing)


def differences(built: Build, inputs: Sequence[Array]) -> tuple[int, ...]:
    """Return the indices of inputs that give other output bits on the simulator, from the file's bytes, than in the reference."""
    simulator, reference = Session(built.data), Session(built.container, backend="reference")
    name = built.container.inputs[0].name
    pairs = ((simulator.run(None, {name: x}), reference.run(None, {name: x})) for x in inputs)
    return tuple(i for i, (got, expected) in enumerate(pairs) if not all(map(np.array_equal, got, expected)))


def accuracy_text(demo: Demo) -> str:
    """Return a table of float and integer accuracy, and lines on agreement and on the simulated images."""
    result = demo.scores
    rows = [
        ("float32, onnxruntime", f"{100 * result.top1_float:.2f} %", ""),
        (
            f"integers of {demo.built.container.machine.chip.name}",
            f"{100 * result.top1_int:.2f} %",
            f"{result.points:+.2f} points",
        ),
    ]
    same = "the same bits" if not demo.differing else f"OTHER BITS for images {list(demo.differing)}"
    return "\n".join(
        [
            report_text.table((f"top-1 on {result.images:,} test images", "accuracy", "difference"), rows, (1, 2)),
            f"both name the same class for {100 * result.agreement:.2f} % of the images; logits SQNR {result.sqnr_db:.1f} dB",
            f"{demo.simulated} images on the simulator: {same} as the integer reference",
        ]
    )


def cycles_text(figures: Mapping[str, Any]) -> str:
    """Return a table of the longest layers, then which engine bounds how many cycles, then how busy each engine was.

    `figures`: figures of the build.
    """
    cycles = figures["cycles"]
    longest = sorted(figures["layers"], key=lambda layer: -layer["cycles"])
    shown = [
        (layer["name"], layer["op"], f"{layer['cycles']:,}", _share(layer["cycles"], cycles), layer["bound_by"])
        for layer in longest[:TOP_LAYERS]
    ]
    rest = sum(layer["cycles"] for layer in longest[TOP_LAYERS:])
    shown.append((f"{len(longest[TOP_LAYERS:])} more", "", f"{rest:,}", _share(rest, cycles), ""))
    bounds = sorted({layer["bound_by"] for layer in longest})
    bound = [(b, sum(layer["cycles"] for layer in longest if layer["bound_by"] == b)) for b in bounds]
    return "\n".join(
        [
            report_text.table(("layer", "operator", "cycles", "share", "bound by"), shown, (2, 3)),
            "cycles by the engine that bounds the layer: " + ", ".join(f"{b} {_share(n, cycles)}" for b, n in bound),
            "busy (they overlap): " + ", ".join(f"{e} {_share(n, cycles)}" for e, n in figures["busy_cycles"].items()),
        ]
    )


def _share(part: int, total: int) -> str:
    """Return a percentage as text; `-` where the total is 0."""
    return f"{100 * part / total:.1f} %" if total else "-"


def demo_json(demo: Demo) -> str:
    """Return the result as JSON text: scores, simulated images, differing images, figures of the build."""
    report = {
        "scores": {**asdict(demo.scores), "points": demo.scores.points},
        "simulated": demo.simulated,
        "differing": demo.differing,
        "build": dict(demo.built.figures),
    }
    return json.dumps(report, indent=1) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hw", default="edge16", help="machine: a shipped name or a YAML file (default edge16)")
    parser.add_argument("--images", type=count, help="test images for the accuracy (default all 2,000)")
    parser.add_argument("--simulate", type=int, default=100, help="of these, on the simulator too (default 100)")
    parser.add_argument("-o", "--output", type=Path, help="keep the compiled file")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run the demo and print its report; return 1 where a bit differs, else 0."""
    args = arguments()
    start_s = time.process_time()
    with report_errors():
        inputs = {"a file of examples/classifier": sorted(CLASSIFIER.iterdir()), **machine_inputs(args.hw)}
        require_writable({"-o": args.output, "--json": args.json}, inputs)
        demo = run(args.hw, args.images, args.simulate)
        outputs = {args.json: demo_json(demo).encode(), args.output: demo.built.data}
        write_files({path: data for path, data in outputs.items() if path is not None})
    figures = demo.built.figures
    sections = [accuracy_text(demo), report_text.totals_text(figures), cycles_text(figures), report_text.fallbacks_text(figures)]
    print("\n\n".join(s for s in sections if s))
    print(f"\n{time.process_time() - start_s:.0f} CPU s")
    return 1 if demo.differing else 0


if __name__ == "__main__":
    sys.exit(main())
