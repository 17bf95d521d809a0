#!/usr/bin/env python3
r"""Compare repair on a network: float, a machine's integers plain and repaired, and onnxruntime's own quantizer.

    `python bench/compare_repair.py zoo/models/efficientnet_lite0.onnx --judge stamps --data zoo/data/stamps \
        --hw edge16 ws8_pow2 edge16,weights_per_channel=false edge16,rounding=floor [--repair fast] [--images 64] [--limit 100]`.
    `python bench/compare_repair.py zoo/models/ppocrv4_rec.onnx --judge strings --hw edge16 wide32_w4a16`.
    `python bench/compare_repair.py zoo/models/ppocrv4_det.onnx --judge pages --limit 12`.
    `python bench/compare_repair.py zoo/models/ddddocr_det_yolox.onnx --judge letters --data zoo/data`.
    `python bench/compare_repair.py zoo/models/minilm_l6_seq64.onnx --judge sentences --data zoo/models/minilm_tokenizer.json`.
    `python bench/compare_repair.py examples/classifier/classifier.onnx --judge labelled --data examples/classifier`.

Judges are in bench/repair_datasets.py.
`stamps`: photographs and their ImageNet classes.
`labelled`: a folder with calib.npz and test.npz.
`strings`: rendered text and a recognizer.
`pages`: rendered pages and a detector of lines.
`letters`: on photographs of a folder, and a YOLOX.
`sentences`: docstrings and an embedding, with a tokenizer.json.
The judged samples are dealt into two folds, each judged by a network that was calibrated on the other.
No photograph, word or sentence is ever on both sides. The lines are over both folds.

A machine may be followed by keys of its `numerics` to change (`scale.kind=pow2` for those of a section).
Option --every-arithmetic tries each machine with every form of scales and every rounding of it.
`points` are against float; `error` is their standard error, from the samples that only one of the two is right on.
The integers are the reference's.
With --exact N a program is built as well, and its simulator must give the same bits on the first N of each fold.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))

import numpy as np
import onnx
from evaluate import count
from make_quantized import quantize_form
from repair_datasets import FOLDS, JUDGES, Array, LabelledDataset, LabelledSample
from varied_machines import every_arithmetic, vary_machine

from quant.calibration_data import open_data
from quant.float_session import open_session
from toolchain.api import BuildOptions, build
from toolchain.cli.application import report_errors
from toolchain.cli.files import model_inputs
from toolchain.compiler import select_model
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.isa import Machine
from toolchain.judging.evaluation_data import inputs_of
from toolchain.passes.type_overrides import decompose_for_types
from toolchain.repair.calibrate_network import calibrate_network, effort_of
from toolchain.repair.network import Network
from toolchain.repair.repair_pipeline import EFFORTS, Effort
from toolchain.report.report_text import table
from toolchain.runtime import Session

Run = Callable[[LabelledSample], Sequence[Array]]


@dataclass
class RepairScore:
    """A score of one network.

    `all_answers`: answer for every sample judged.
    `cpu_s`: of calibration, repair and build, both folds.
    `peak_gib`: of this process until then.
    """

    what: str
    all_answers: list[Any]
    cpu_s: float = 0.0
    peak_gib: float = 0.0
    refused: str = ""


def reference(path: Path, options: BuildOptions) -> Session:
    """Calibrated and repaired as a build is, without its programs."""
    machine = options.hardware
    assert isinstance(machine, Machine) and options.calibration is not None
    model = load_model(path, options.shapes)
    model = decompose_for_types(model, machine.chip, (), (), {})
    network = Network(model, select_model(model, machine), machine)
    samples = open_data(options.calibration, inputs_of(model))
    effort = effort_of(options.repair, network, samples, real=True)
    result = calibrate_network(network, samples, None, effort, _report_progress)
    for tried in result.tried:
        print(f"  {tried.step}: {'kept' if tried.is_kept else 'left out'}, {tried.why}", file=sys.stderr)
    return result.network.session(result.quantization)


def _report_progress(step: str, done: int, total: int | None) -> None:
    if not done and total is None:
        print(f"  {step}", file=sys.stderr)


def integers(
    args: argparse.Namespace, machine: Machine, effort: Effort, judge: LabelledDataset, data: Path
) -> tuple[Run, Run | None]:
    """(the reference, the simulator where it is to be compared)."""
    options = BuildOptions(machine, str(data), shapes=judge.shapes, repair=effort)
    if not args.exact:
        session = reference(args.model, options)
        return lambda sample: session.run(None, sample.feed), None
    built = build(args.model, options)
    sessions = [Session(built.container, backend="reference"), Session(built.data)]
    first, second = (lambda sample, s=s: s.run(None, sample.feed) for s in sessions)
    return first, second


def by_onnxruntime(judge: LabelledDataset, data: Path, form: str, folder: Path) -> tuple[Run, None]:
    """Return the run of onnxruntime's own quantizer.

    `form`: of make_quantized.py.
    """
    with np.load(data) as arrays:
        read = {name: arrays[name] for name in arrays.files}
        calibration = [{name: x[i : i + 1] for name, x in read.items()} for i in range(len(next(iter(read.values()))))]
    onnx.save(quantize_form(judge.model, calibration, form), folder / "quantized.onnx")
    session = open_session(folder / "quantized.onnx")
    return lambda sample: session.run(None, dict(sample.feed)), None


def answers(
    judge: LabelledDataset, run: Run, samples: Sequence[LabelledSample], check: Run | None = None, exact: int = 0
) -> list[Any]:
    """Raises SystemExit: `check` gives other bits on one of the first `exact`."""
    kept_outputs = []
    for index, one in enumerate(samples):
        outputs = run(one)
        if check is not None and index < exact and not all(map(np.array_equal, outputs, check(one))):
            raise SystemExit("the simulator's bits differ from the reference's")
        kept_outputs.append(judge.get_answer(outputs))
    return kept_outputs


def compare_machines(
    args: argparse.Namespace, judge: LabelledDataset, machines: Mapping[str, Machine], folder: Path
) -> tuple[list[Any], list[RepairScore]]:
    """Return the truths, and the answers of float and every machine, over all folds.

    `machines`: by their names in the table.
    """
    truths: list[Any] = []
    score_by_name: dict[str, RepairScore] = {}
    in_float = open_session(args.model)

    def add(
        fold: int, what: str, samples: Sequence[LabelledSample], make: Callable[..., tuple[Run, Run | None]], *of: Any
    ) -> None:
        line = score_by_name.setdefault(what, RepairScore(what, []))
        started = time.process_time()
        try:
            run, check = make(*of)
            line.cpu_s += time.process_time() - started
            line.all_answers += answers(judge, run, samples, check, args.exact)
        except (CompileError, NotImplementedError) as fault:
            line.refused = str(fault).splitlines()[0]
        line.peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        message = f"fold {fold + 1} of {args.folds}: {what}, {time.process_time() - started:.0f} CPU s"
        if len(line.all_answers) == len(truths):  # a run that is broken off has told what it found
            message += "".join(
                f"; {h} {v}"
                for h, v in zip(judge.heads, judge.format_scores(truths, score_by_name["float"].all_answers, line.all_answers))
            )
        print(message, file=sys.stderr, flush=True)

    for fold in range(args.folds):
        samples = list(islice(judge.iterate_judged(fold), args.limit))
        calibration = list(judge.iterate_calibration(fold, args.images))
        data = folder / f"{fold}.npz"
        arrays: dict[str, Any] = {name: np.concatenate([s[name] for s in calibration]) for name in calibration[0]}
        np.savez(data, **arrays)
        truths += [a.truth for a in samples]
        add(fold, "float", samples, lambda: (lambda one: in_float.run(None, dict(one.feed)), None))
        for scales in args.onnxruntime:
            form = f"qdq_s8_{scales}"
            add(fold, f"onnxruntime's int8, a scale a {scales}", samples, by_onnxruntime, judge, data, form, folder)
        for name, machine in machines.items():
            for effort in ("none", *args.repair):
                what = f"{name}{'' if effort == 'none' else f', {effort}'}"
                add(fold, what, samples, integers, args, machine, effort, judge, data)
    return truths, list(score_by_name.values())


def text_of(judge: LabelledDataset, truths: Sequence[Any], scores: Sequence[RepairScore], *, markdown: bool = False) -> str:
    real = scores[0].all_answers
    rows = []
    for line in scores:
        if line.refused or len(line.all_answers) != len(truths):
            print(f"{line.what}: {line.refused}", file=sys.stderr)
            rows.append((line.what, "refused", *[""] * (len(judge.heads) + 1)))
            continue
        rows.append(
            (line.what, *judge.format_scores(truths, real, line.all_answers), f"{line.cpu_s:.0f}", f"{line.peak_gib:.2f}")
        )
    heads = (f"n {len(truths)}", *judge.heads, "CPU s", "GiB")
    if not markdown:
        return table(heads, rows, range(1, len(heads)))
    lines = (heads, ("---",) * len(heads), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--judge", choices=tuple(JUDGES), required=True, help="what is judged on")
    parser.add_argument("--data", type=Path, help="the judge's, where it takes any")
    parser.add_argument("--hw", nargs="+", default=["edge16"], help="machines, each perhaps with ,KEY=VALUE of numerics")
    efforts: tuple[Effort, ...] = EFFORTS[1:]
    parser.add_argument("--every-arithmetic", action="store_true", help="each machine with all forms of scales and roundings")
    parser.add_argument("--repair", nargs="*", choices=efforts, default=["fast"], help="beside none (default fast)")
    parser.add_argument("--images", type=count, default=64, help="to calibrate on (default 64)")
    parser.add_argument("--limit", type=count, default=624, help="judge at most so many of each fold (default 624)")
    parser.add_argument("--folds", type=int, choices=range(1, FOLDS + 1), default=FOLDS, help="1: the first alone (default 2)")
    parser.add_argument("--exact", type=int, default=16, help="samples of each fold that the simulator runs too (default 16)")
    scales = ("channel", "tensor")
    parser.add_argument("--onnxruntime", nargs="*", choices=scales, default=scales, help="scales of its quantizer's weights")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown has it")
    return parser.parse_args()


def main() -> None:
    """Calibrate, repair and judge the network on each machine, and print the table."""
    args = arguments()
    with report_errors():
        model_inputs(args.model)
        judge = JUDGES[args.judge](onnx.load(args.model), args.data)
        texts = [text for name in args.hw for text in (every_arithmetic(name) if args.every_arithmetic else (name,))]
        machines = {text: vary_machine(text) for text in texts}
        with tempfile.TemporaryDirectory() as folder:
            print(text_of(judge, *compare_machines(args, judge, machines, Path(folder)), markdown=args.markdown))


if __name__ == "__main__":
    main()
