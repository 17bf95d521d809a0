#!/usr/bin/env python3
"""Build and run the node cases of the onnx package (one to a few for each operator) and compare with onnxruntime.

    `python bench/check_node_cases.py [PATTERN ...] [--hw edge16] [--list wrong] [--json OUT.json]`.

Each case runs twice: inputs as given, and with every input but the first as a constant of the model.
It is calibrated on its own inputs.
Right: integers, booleans and host-only results equal onnxruntime's on the case's own file.
Results that went through the chip are right within 25 dB. Refused: one sentence.
Wrong numbers are known where node_case_causes.yaml gives their cause.
Exit code 1 when a case is wrong without a cause or ends in a traceback, 2 when an option is refused.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from node_case import Case, Verdict, as_given, judge_case, limit_resources, with_constants

from toolchain.cli.application import report_errors, require_writable
from toolchain.cli.files import machine_inputs
from toolchain.errors import CompileError
from toolchain.foundation.atomic_files import write_atomically
from toolchain.frontend.read_onnx import newest_opset
from toolchain.isa import Machine, load_machine

VARIANTS = ("as given", "constants")
KINDS = ("right", "known", "refused", "wrong", "traceback")
PLACES = ("chip", "partly", "host")
CAUSES = Path(__file__).with_name("node_case_causes.yaml")
CPU_S, MEMORY_BYTES = 20, 6 << 30
REPORT_CASES = 100
Results = dict[tuple[str, str], Verdict]


def node_cases(patterns: Sequence[str]) -> list[Any]:
    """Return the package's cases whose name matches a pattern; all without patterns. Raise CompileError where none does."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        all_cases = collect_testcases()
    chosen = [c for c in all_cases if not patterns or any(fnmatchcase(c.name, p) for p in patterns)]
    if not chosen:
        raise CompileError(f"no name of the {len(all_cases):,} node cases matches {' or '.join(patterns)}; try 'test_conv*'")
    return chosen


def in_own_process(case: Case, machine: Machine) -> Verdict:
    """Return the verdict of a forked process with limits of its own; if something ends the process, that is a verdict too."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def report_case() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        limit_resources(CPU_S, MEMORY_BYTES)
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            sending.send(judge_case(case, machine, Path(folder)))

    process = context.Process(target=report_case)
    process.start()
    sending.close()
    try:
        return receiving.recv()
    except EOFError:
        process.join()
        return Verdict(
            "traceback", reason=f"ended by signal {-(process.exitcode or 0)}: over {CPU_S} s, out of memory or a crash"
        )
    finally:
        process.join()


def run_cases(cases: Sequence[Any], machine: Machine, jobs: int) -> Results:
    """Run the cases and return verdicts by (name, variant). A case with nothing to make constant counts the same in both.

    Prints the counts so far to stderr behind every 100 cases; wrong ones with a listed cause are known there too.
    """
    causes = read_causes()
    results: Results = {}

    def both(case: Any) -> tuple[str, Verdict, Verdict]:
        plain_case = as_given(case)
        first = in_own_process(plain_case, machine)
        fixed = with_constants(plain_case)
        return case.name, first, first if fixed is None else in_own_process(fixed, machine)

    with ThreadPoolExecutor(jobs) as pool:
        for done, (name, *verdicts) in enumerate(pool.map(both, cases), 1):
            results.update(((name, variant), name_cause(name, v, causes)) for variant, v in zip(VARIANTS, verdicts))
            if done % REPORT_CASES == 0:
                print(f"{done} of {len(cases)}: {describe_counts(results)}", file=sys.stderr, flush=True)
    return results


def describe_counts(results: Results) -> str:
    """Return the number of verdicts of each kind by variant, on one line."""
    counts = {v: Counter(verdict.kind for (_, variant), verdict in results.items() if variant == v) for v in VARIANTS}
    return "; ".join(f"{v} " + ", ".join(f"{counts[v][kind]} {kind}" for kind in KINDS if counts[v][kind]) for v in VARIANTS)


def read_causes() -> dict[str, str]:
    """Return the causes of known differences, by the pattern of the cases' names."""
    return {p: cause for cause, patterns in (yaml.safe_load(CAUSES.read_text()) or {}).items() for p in patterns}


def name_cause(name: str, verdict: Verdict, causes: Mapping[str, str]) -> Verdict:
    """Return the verdict of a case; a wrong one with a listed cause is known."""
    cause = next((c for p, c in causes.items() if fnmatchcase(name, p)), None)
    return replace(verdict, kind="known", reason=f"{verdict.reason}: {cause}") if cause and verdict.kind == "wrong" else verdict


def table(results: Results) -> Iterator[str]:
    """Yield the lines of the table: how many verdicts there are of each kind and place, by variant."""
    yield "  ".join([f"{'':12s}", *(f"{k:>9s}" for k in KINDS), *(f"{p:>9s}" for p in PLACES)])
    for variant in VARIANTS:
        verdicts = [v for (_, of), v in results.items() if of == variant]
        kinds, places = Counter(v.kind for v in verdicts), Counter(v.where for v in verdicts)
        yield "  ".join([f"{variant:12s}", *(f"{kinds[k]:9,d}" for k in KINDS), *(f"{places[p]:9,d}" for p in PLACES)])


def refusals(results: Results) -> Iterator[str]:
    """Yield each kind of refusal with its number, how many of them onnxruntime runs, and one example."""
    groups: dict[str, list[tuple[str, bool]]] = {}
    for (name, _), verdict in results.items():
        if verdict.kind == "refused":
            sentence = re.sub(r"\d+", "N", re.sub(r'"[^"]*"|\'[^\']*\'', "_", verdict.reason.splitlines()[0].split(": ", 1)[-1]))
            groups.setdefault(sentence, []).append((name, verdict.oracle))
    if groups:
        yield "refused  of these onnxruntime runs"
    for sentence, cases in sorted(groups.items(), key=lambda group: -len(group[1])):
        ran = [name for name, oracle in cases if oracle]
        yield f"{len(cases):7d}  {len(ran):5d}  {sentence:.200s}  ({(ran or [cases[0][0]])[0]})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="names of cases, for example 'test_conv*'; default all")
    parser.add_argument("--hw", default="edge16")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", nargs="*", choices=KINDS, default=["wrong", "traceback"], help="verdicts to name case by case")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def run(args: argparse.Namespace) -> int:
    """Run the cases and print verdicts, refusals and counts; return 1 where one is wrong or ends in a traceback, else 0."""
    machine = load_machine(args.hw)
    require_writable({"--json": args.json}, machine_inputs(args.hw))
    newest_opset()  # asked before the processes fork, so that they know
    results = run_cases(node_cases(args.patterns), machine, args.jobs)
    for (name, variant), verdict in results.items():
        if verdict.kind in args.list:
            print(f"{verdict.kind:9s} {verdict.where:6s} {name} ({variant}): {verdict.reason}")
    print(*refusals(results), sep="\n")
    print(*table(results), sep="\n")
    if args.json is not None:
        rows = [{"case": n, "variant": v, **vars(verdict)} for (n, v), verdict in results.items()]
        write_atomically(args.json, (json.dumps(rows, indent=1) + "\n").encode())
    return 1 if any(v.kind in ("wrong", "traceback") for v in results.values()) else 0


def main() -> int:
    """Run the command and return the exit code of `run`."""
    args = arguments()
    with report_errors():
        return run(args)


if __name__ == "__main__":
    sys.exit(main())
