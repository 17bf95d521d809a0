#!/usr/bin/env python3
"""Inject small faults into a copy of the tree, one at a time, and list those that the fast tests detect.

    `python bench/mutants.py                            # 8 a package and the named ones; hours on two cores`.
    `python bench/mutants.py --package ops --count 20 --seed 3 --resume ops.jsonl`.
    `python bench/mutants.py --named --match epsilon`.
    `python bench/mutants.py --fast --reach --drawn     # by the fast tier, which runs once`.

The tests nearest to the changed package run first and the first failure ends a run.
A failure counts when the same test passes without the fault.
The script prints each mutant with its killer, then the survivors as diffs and the share killed of each package.
Exit code 1 when less than --threshold of them are killed.
With --resume killed ones are not tried again, survivors only when a test has changed since.
With --reach all tests run once to note which of them evaluate a drawn mutant's expression, and it is tried on these.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import reach
from mutations import Mutant, mutants_of, sample
from named_mutants import list_named_mutants

ROOT = Path(__file__).resolve().parent.parent
# Each package, and the tests that are near it; the others follow them.
PACKAGES = {
    "frontend": (
        "toolchain/frontend",
        ("tests/semantics", "tests/frontend", "tests/report", "tests/readers/test_models_of_strangers.py"),
    ),
    "passes": (
        "toolchain/passes",
        (
            "tests/frontend/test_[cmps]*.py",
            "tests/semantics",
            "tests/golden",
            "tests/cli/test_moves_for_host.py",
            "tests/passes",
        ),
    ),
    "ops": (
        "toolchain/ops",
        (
            "tests/semantics",
            "tests/golden",
            "tests/operators",
            "tests/schedule",
            "tests/frontend/test_clamps.py",
            "tests/bench/test_node_cases.py",
        ),
    ),
    "quant": ("quant", ("tests/quant", "tests/fixed_point", "tests/semantics", "tests/golden")),
    "schedule": ("toolchain/schedule", ("tests/schedule", "tests/golden", "tests/semantics", "tests/codegen", "tests/passes")),
    "codegen": ("toolchain/codegen", ("tests/golden", "tests/codegen", "tests/cli", "tests/semantics", "tests/random_networks")),
    "machine": ("toolchain/machine", ("tests/simulator", "tests/machine", "tests/golden", "tests/isa", "tests/hw")),
    "isa": ("toolchain/isa", ("tests/simulator", "tests/golden", "tests/isa", "tests/hw")),
    "simulator": ("simulator", ("tests/simulator", "tests/golden", "tests/codegen", "tests/random_networks")),
}
NEARER = {
    "quant/fixed_point": ("tests/fixed_point",),
    "toolchain/frontend/match_norms.py": ("tests/frontend/test_normal_form.py",),
}
# What takes longest comes last: large networks and random ones, and the planner of memory, which is none of the packages.
SLOWEST = (
    "tests/memory",
    "tests/random_networks/test_random.py",
    "tests/schedule/test_levels.py",
    "tests/semantics/test_random_float.py",
    "tests/quant/test_calibrate_script.py",
    *(
        f"tests/golden/test_golden.py::test_programs_outputs_and_cycles_are_the_golden_ones[{n}"
        for n in ("mobilenet", "resnet50", "yolo")
    ),
)
ABOVE_INTEGERS = ("frontend", "passes", "ops", "quant")
# They write texts for people, which tests of their own hold.
TEXTS = ("toolchain/isa/manual/*.py", "toolchain/isa/verilog.py", "toolchain/isa/default_table.py",
         "toolchain/schedule/capacity_errors.py", "toolchain/schedule/text.py",
         "quant/fixed_point/conformance/*.py")  # fmt: skip
NOT_COPIED = (".git", ".venv", "venv", "build", "__pycache__", ".hypothesis", ".pytest_cache", ".ruff_cache", "*.egg-info")
CHEAP = "not slow and not exhaustive"
TIER = "not exhaustive"  # the tests that `scripts/check --fast` runs
OWN_TESTS = "test_mutants.py"  # they look for the texts of named faults, not for what these do
ADDRESS_BYTES = 12 << 30  # of a run of tests, several times what it needs
FIRST_TESTS = 12  # run before the others that reach a mutant: most mutants fail one of them, and few files are collected
FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """A verdict on a mutant.

    `killer`: the test that failed, or what else ended the run; "" for a survivor.
    `tests`: digest of the tests that ran.
    """

    key: str
    killer: str
    seconds: float
    tests: str


class Tree:
    """A copy of the working tree in which faults are injected, one at a time.

    `cpu_s`: CPU seconds after which a run of tests is killed. `is_fast`: only tests of the fast tier run.
    """

    def __init__(self, folder: Path, cpu_s: int, is_fast: bool):
        self.folder, self._cpu_s = folder, cpu_s
        self._choice = ("-m", TIER, "--fast") if is_fast else ("-m", CHEAP)
        self._unsound: dict[str, bool] = {}
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))

    def judge(self, mutant: Mutant, runs: Sequence[Sequence[str]]) -> str:
        """Return what killed the mutant; "" when it survived all runs."""
        path = self.folder / mutant.path
        text = path.read_text(encoding="utf-8")
        self._write(path, mutant.apply(text))
        try:
            return next((killer for tests in runs if tests and (killer := self._killer(path, text, mutant, tests))), "")
        finally:
            self._write(path, text)

    def find_reaching_runs(self, mutants: Sequence[Mutant]) -> dict[Mutant, list[list[str]]]:
        """Run all tests once and return the runs of those that reach each mutant; they are empty where no test does.

        A mutant that is evaluated as modules are imported is left out.
        """
        texts = {m.path: (self.folder / m.path).read_text(encoding="utf-8") for m in mutants}
        mutant_by_number, log = dict(enumerate(mutants)), self.folder / "probes.log"
        (self.folder / f"{reach.MODULE}.py").write_text(reach.SOURCE, encoding="utf-8")
        for path, text in texts.items():
            probed = reach.add_probes(text, {n: m for n, m in mutant_by_number.items() if m.path == path})
            self._write(self.folder / path, probed)
        self._pytest(f"--ignore-glob=*/{OWN_TESTS}", log=log)
        for path, text in texts.items():
            self._write(self.folder / path, text)
        tests_by_number = reach.read_reaching_tests(log)
        tests = {m: tests_by_number.get(n, []) for n, m in mutant_by_number.items()}
        return {m: [names[:FIRST_TESTS], names[FIRST_TESTS:]] for m, names in tests.items() if names is not None}

    def _killer(self, path: Path, text: str, mutant: Mutant, tests: Sequence[str]) -> str:
        """Return the test that fails with the mutant and passes without, or how the run ended; "" where all tests pass."""
        while True:
            code, printed = self._pytest("-x", *(f"--deselect={t}" for t, bad in self._unsound.items() if bad), *tests)
            if code in (0, 5):  # 5: nothing to run
                return ""
            failed = FAILURE.search(printed)
            if code != 1 or failed is None:
                return f"exit code {code} of pytest" if code >= 0 else f"signal {-code} after {self._cpu_s} CPU s"
            if failed[1] not in self._unsound:
                self._write(path, text)
                self._unsound[failed[1]] = self._pytest(failed[1])[0] != 0
                self._write(path, mutant.apply(text))
            if not self._unsound[failed[1]]:
                return failed[1]
            print(f"{failed[1]} fails without a fault too: left out", file=sys.stderr)

    def _pytest(self, *arguments: str, log: Path | None = None) -> tuple[int, str]:
        """Run pytest in the copy and return its exit code (minus the signal) and what it printed.

        `log`: where probes write, without the limit on CPU seconds.
        """
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *self._choice, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": ""}
        if log is not None:
            environment[reach.LOG] = str(log)
        limits = partial(_limit, self._cpu_s) if log is None else None
        done = subprocess.run(command, cwd=self.folder, env=environment, preexec_fn=limits, capture_output=True, check=False)
        return done.returncode, done.stdout.decode(errors="replace")

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """Write a source file and delete its compiled form, which Python knows by size and second alone."""
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def _limit(cpu_s: int) -> None:
    """Limit this process's CPU seconds and memory: a loop that does not end may take memory in each turn."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 10))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))


def runs_for(mutant: Mutant, root: Path, near_only: bool) -> list[list[str]]:
    """Return the arguments of pytest for each run: near tests, the nearest first, then the others, then the slowest.

    `near_only`: the first run alone.
    """
    nearer_tests = [t for prefix, tests in NEARER.items() if mutant.path.startswith(prefix) for t in tests]
    near = _files(root, (*nearer_tests, *PACKAGES[package_of(mutant)][1]))
    quick = [f"--deselect={test}" for test in SLOWEST]
    if near_only:
        return [[*quick, *near]]
    rest = [f for f in _files(root, ("tests/*",)) if f not in near]
    slowest = _files(root, dict.fromkeys(test.partition("::")[0] for test in SLOWEST))
    return [[*quick, *near], [*quick, *rest], slowest]


def _files(root: Path, patterns: Iterable[str]) -> list[str]:
    """Return the test files of these patterns in order, each once."""
    test_files: dict[str, None] = {}
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
            test_files.update(
                {str(f.relative_to(root)): None for f in files if f.name.startswith("test_") and f.name != OWN_TESTS}
            )
    return list(test_files)


def package_of(mutant: Mutant) -> str:
    """Return the name of a mutant's package."""
    return next(name for name, (folder, _) in PACKAGES.items() if mutant.path.startswith(f"{folder}/"))


def select_mutants(args: argparse.Namespace) -> list[Mutant]:
    """Return the mutants that the options name, drawn and named ones."""
    chosen: list[Mutant] = []
    texts = {path for pattern in TEXTS for path in ROOT.glob(pattern)}
    for name in () if args.named else args.package or PACKAGES:
        files = [path for path in sorted((ROOT / PACKAGES[name][0]).rglob("*.py")) if path not in texts]
        candidates = [m for path in files for m in mutants_of(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))]
        chosen += sample(candidates, args.count, args.seed)
    if not args.drawn:
        chosen += [m for m in list_named_mutants(ROOT) if not args.package or package_of(m) in args.package]
    return [m for m in chosen if re.search(args.match, m.key)]


def read_verdicts(path: Path | None) -> dict[str, Verdict]:
    """Return the verdicts of a file by mutant; empty without one."""
    if path is None or not path.exists():
        return {}
    return {v.key: v for v in (Verdict(**json.loads(line)) for line in path.read_text().splitlines())}


def digest(root: Path, runs: Sequence[Sequence[str]], is_fast: bool) -> str:
    """Return the digest of the tests' text and the files beside it: a survivor is tried again when one of them has changed.

    `is_fast`: of the runs, only the tests of the fast tier.
    """
    hasher = hashlib.sha256(repr((runs, is_fast)).encode())
    for path in sorted((root / "tests").rglob("*")):
        if path.is_file() and path.suffix in (".py", ".txt", ".yaml"):
            hasher.update(path.read_bytes())
    return hasher.hexdigest()[:16]


def campaign(mutants: Sequence[Mutant], args: argparse.Namespace) -> list[Verdict]:
    """Return the verdicts on the mutants in order; each is printed, and appended to --resume."""
    verdict_by_key = read_verdicts(args.resume)

    def judged(mutant: Mutant) -> Verdict:
        tree, start = trees.get(), time.monotonic()
        try:
            runs = runs_by_mutant[mutant]
            old, state = verdict_by_key.get(mutant.key), digest(tree.folder, runs, args.fast)
            if old is not None and (old.killer or old.tests == state):
                return old
            verdict = Verdict(mutant.key, tree.judge(mutant, runs), round(time.monotonic() - start, 1), state)
        finally:
            trees.put(tree)
        if args.resume is not None:
            with args.resume.open("a") as file:
                file.write(json.dumps(vars(verdict)) + "\n")
        return verdict

    with TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for i in range(args.jobs):
            trees.put(tree := Tree(Path(folder) / str(i), args.cpu_s, args.fast))
        runs_by_mutant = {m: runs_for(m, tree.folder, args.near) for m in mutants}
        if args.reach:
            alive = [m for m in mutants if m.function and not (m.key in verdict_by_key and verdict_by_key[m.key].killer)]
            runs_by_mutant |= tree.find_reaching_runs(alive)
        verdicts = []
        for mutant, verdict in zip(mutants, pool.map(judged, mutants)):
            by = f"killed by {verdict.killer}" if verdict.killer else "SURVIVED"
            print(f"{verdict.seconds:6.1f} s  {mutant.path}:{mutant.line}: {mutant.kind}: {by}", flush=True)
            verdicts.append(verdict)
    return verdicts


def diff(mutant: Mutant) -> str:
    """Return the mutant as a unified diff."""
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    lines = difflib.unified_diff(text.splitlines(), mutant.apply(text).splitlines(), mutant.path, mutant.kind, n=1, lineterm="")
    return "\n".join(lines)


def report(mutants: Sequence[Mutant], verdicts: Sequence[Verdict]) -> float:
    """Print the survivors and the share killed of each package, and return the share killed of all."""
    for mutant, verdict in zip(mutants, verdicts):
        if not verdict.killer:
            print(f"\n{diff(mutant)}")
    killed: dict[str, list[bool]] = {}
    for mutant, verdict in zip(mutants, verdicts):
        package = package_of(mutant)
        half = "above the integer graph" if package in ABOVE_INTEGERS else "below it"
        for name in (package, half, "all"):
            killed.setdefault(name, []).append(bool(verdict.killer))
    print()
    for name in (*PACKAGES, "above the integer graph", "below it", "all"):
        if name in killed:
            print(f"{name:24s} {sum(killed[name]):4d} of {len(killed[name]):4d} killed")
    return sum(killed["all"]) / len(killed["all"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="append", choices=PACKAGES, help="only these; may be given again")
    parser.add_argument("--count", type=int, default=8, help="drawn of each package")
    parser.add_argument("--seed", type=int, default=0)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--named", action="store_true", help="only the named ones")
    kinds.add_argument("--drawn", action="store_true", help="only the drawn ones")
    parser.add_argument("--match", default="", help="regular expression of what to try: path, function, kind or text")
    parser.add_argument(
        "--near", action="store_true", help="only the tests near each package: quick; survivors may be seen by others"
    )
    parser.add_argument("--fast", action="store_true", help="only tests of the fast tier: with --near of the near ones")
    parser.add_argument("--reach", action="store_true", help="run the tests once to find those that reach each drawn mutant")
    parser.add_argument("--resume", type=Path, help="file of verdicts, read and added to")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried side by side")
    parser.add_argument("--cpu-s", type=int, default=900, help="a run that needs more is killed, and its mutant with it")
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--list", action="store_true", help="only show the diffs")
    return parser.parse_args()


def main() -> int:
    """Run the tests against each mutant and print the result.

    Return 0 where the share killed reaches the threshold, 1 where it does not, 2 where no mutant matches.
    """
    args = arguments()
    mutants = select_mutants(args)
    if not mutants:
        print("no mutants of this kind", file=sys.stderr)
        return 2
    if args.list:
        print("\n\n".join(map(diff, mutants)))
        return 0
    return 0 if report(mutants, campaign(mutants, args)) >= args.threshold else 1


if __name__ == "__main__":
    sys.exit(main())
