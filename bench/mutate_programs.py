#!/usr/bin/env python3
"""Change correct programs, one thing at a time, and count what the simulator finds: by its rules alone, and with --verify.

    `python bench/mutate_programs.py dscnn.onnx resnet8.onnx ... [--hw edge16 ws8_pow2 ...] [--count 600] [--seed 0]`.

Every mutant is encoded again with the machine's instruction table; one that the table cannot express is drawn again.
Found by the rules: an error, or a warning of unread bytes.
Found with --verify: that, or a byte that is not the reference's.

Whether a mutant is harmless is decided independently of the measured checks.

`order`: a separate graph shows that the mutant gives the same values on every run; otherwise it is harmful.
The graph has the program order of each engine, k-th Signal to k-th Wait, and all ways through it.
Every two operations that touch a common byte, one writing, must be ordered as in the original.
Semaphores must end at 0 and can never pass their limit.
`others`: no rule complains, and no byte of an output differs on four more inputs.
That is no proof: the mutant may have an effect on others.
A mutant that breaks a rule is a fault whether the outputs show it on these inputs or not.

The unchanged programs are checked too, each on every input: an error, a warning or a difference there is a false alarm.
Exit code 1 where there is one, or where less is found than docs/simulator.md states.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from program_mutations import KINDS, ORDER_KINDS, Program, mutate
from program_order import Ordered

from toolchain.api import BuildOptions, build
from toolchain.cli.application import report_errors
from toolchain.codegen import Container, Region, container_to_bytes
from toolchain.errors import CompileError, ToolchainError
from toolchain.hw import list_shipped_names
from toolchain.isa import decode, encode
from toolchain.runtime import Session, random_feeds, verify

JUDGES = range(101, 105)  # seeds of the inputs that tell whether a mutant does anything
FLOORS = {"order": (0.99, 0.99), "bytes": (0.85, 0.99), "values": (0.0, 0.9)}  # found by the rules, with --verify


@dataclass(frozen=True)
class Verdict:
    """A verdict on a mutant.

    `rules`, `reference`: text of each check, None where it found nothing.
    `harmful`: whether there was anything to find.
    """

    kind: str
    what: str
    harmful: bool
    rules: str | None
    reference: str | None


class Subject:
    """A correct program: one region of a compiled network, and the outputs that it should give."""

    def __init__(self, container: Container, segment: int):
        self.container, self.segment = container, segment
        region = container.segments[segment]
        assert isinstance(region, Region)
        self.region = region
        ops = decode(region.program, container.machine.isa).ops
        self.program = Program(tuple(ops), region.op_layers)
        self.order = Ordered(container.machine.chip, self.program)
        self.inputs = {seed: random_feeds(container.inputs, seed) for seed in (0, *JUDGES)}
        # Beyond what was calibrated: only there do codes reach the ends at which clamps are seen.
        self.inputs[0] = {n: 2 * x if x.dtype.kind == "f" else x for n, x in self.inputs[0].items()}
        reference = Session(container, backend="reference")
        self.expected = {seed: reference.run_detailed(feeds).outputs for seed, feeds in self.inputs.items()}

    def file(self, program: Program) -> bytes:
        """Return the compiled file with this program. Raise CompileError where the instruction table cannot encode it."""
        code = encode(program.ops, self.container.machine.isa)
        changed = replace(self.region, program=code, op_layers=program.layers)
        segments = list(self.container.segments)
        segments[self.segment] = changed
        return container_to_bytes(replace(self.container, segments=tuple(segments)))

    def same_outputs(self, data: bytes) -> bool:
        """Return whether the outputs are the same on the judges' inputs. Rules are not checked: they are what is measured."""
        session = Session(data, check=False)
        for seed in JUDGES:
            try:
                outputs = session.run_detailed(self.inputs[seed]).outputs
            except (ToolchainError, ValueError, TypeError):
                return False
            if any(not np.array_equal(v, outputs[n], equal_nan=True) for n, v in self.expected[seed].items()):
                return False
        return True


def rules_say(session: Session, feeds: dict[str, np.ndarray]) -> str | None:
    """Return the error or the first warning of a run, None where there is none."""
    try:
        run = session.run_detailed(feeds)
    except ToolchainError as fault:
        return f"error: {fault}"
    return next((f"warning: {w}" for ran in run.segments for w in ran.warnings), None)


def judge(subject: Subject, kind: str, what: str, mutant: Program) -> Verdict:
    """Return the verdict on a mutant. Raise CompileError where the machine's instruction table cannot encode it.

    `kind`, `what`: kind of the change, and what was changed, in words.
    """
    data = subject.file(mutant)
    session = Session(data)
    rules = rules_say(session, subject.inputs[0])
    reference = rules
    if rules is None:
        difference = verify(session, Session(data, backend="reference"), subject.inputs[0])[1]
        reference = None if difference is None else f"differs: {difference}"
    if kind in ORDER_KINDS:
        harmful = not subject.order.same(mutant)
    else:
        harmful = reference is not None or not subject.same_outputs(data)
    return Verdict(kind, what, harmful, rules, reference)


def judge_mutants(subjects: Sequence[Subject], count: int, seed: int, kinds: Sequence[str] = KINDS) -> Iterator[Verdict]:
    """Yield verdicts on about `count` mutants, the kinds and the programs in turn. A mutant that cannot be encoded is drawn
    again."""
    rng = np.random.default_rng(seed)
    mutant_count = 0
    while mutant_count < count:
        subject, kind = subjects[mutant_count % len(subjects)], kinds[mutant_count // len(subjects) % len(kinds)]
        for _ in range(50):
            drawn = mutate(kind, subject.program, rng)
            if drawn is None:
                break
            what, mutant = drawn
            try:
                yield judge(subject, kind, what, mutant)
            except CompileError:
                continue
            break
        mutant_count += 1


def accusations(subject: Subject) -> Iterator[str]:
    """Yield a sentence for each input on which the unchanged program is found faulty."""
    data = subject.file(subject.program)
    for seed, feeds in subject.inputs.items():
        session = Session(data)
        complaint = rules_say(session, feeds) or verify(session, Session(data, backend="reference"), feeds)[1]
        if complaint is not None:
            yield f"{subject.container.name} on {subject.container.machine.chip.name}, input {seed}: {complaint}"


def family(kind: str) -> str:
    """Return the family of a kind: order, bytes or values."""
    return "order" if kind in ORDER_KINDS else "values" if kind.startswith("value") else "bytes"


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the table of mutants, harmless and harmful ones, and shares found, by kind and family."""
    lines = [f"{'kind':28} {'mutants':>8} {'harmless':>9} {'harmful':>8} {'rules':>7} {'--verify':>9}"]
    groups: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        groups[verdict.kind].append(verdict)
    rows = [(kind, groups[kind]) for kind in KINDS if kind in groups]
    rows += [(f"all of {name}", [v for v in verdicts if family(v.kind) == name]) for name in FLOORS]
    for name, row_verdicts in rows:
        harmful = [v for v in row_verdicts if v.harmful]
        rules, reference = shares(harmful)
        lines.append(
            f"{name:28} {len(row_verdicts):8} {len(row_verdicts) - len(harmful):9} {len(harmful):8} {100 * rules:6.1f}% "
            f"{100 * reference:8.1f}%"
        )
    return "\n".join(lines)


def shares(harmful: Sequence[Verdict]) -> tuple[float, float]:
    """Return the shares of harmful mutants found by the rules, and found with --verify; 0 for none."""
    count = max(1, len(harmful))
    return sum(v.rules is not None for v in harmful) / count, sum(v.reference is not None for v in harmful) / count


def subjects_of(paths: Sequence[Path], machines: Sequence[str], level: int) -> list[Subject]:
    """Build each model for each machine and return its region of most instructions as a subject."""
    subjects = []
    for path in paths:
        for machine in machines:
            container = build(path, BuildOptions(machine, level=level)).container
            regions = [i for i, s in enumerate(container.segments) if isinstance(s, Region)]
            sizes = {i: len(container.segments[i].program) for i in regions}  # type: ignore[union-attr]
            subjects.append(Subject(container, max(regions, key=lambda i: sizes[i])))
    return subjects


def arguments(argv: Sequence[str] | None = None) -> Any:
    """Return the options of the command line, or of `argv`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--hw", nargs="*", default=None, help="machines; default all shipped")
    parser.add_argument("-O", dest="level", type=int, default=2)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--misses", action="store_true", help="list what was not found")
    return parser.parse_args(argv)


def main() -> int:
    """Judge the mutants and print the table; return 1 for a false alarm or a share below what the page states, else 0."""
    options = arguments()
    with report_errors():
        subjects = subjects_of(options.models, options.hw or list_shipped_names(), options.level)
    accused = [text for subject in subjects for text in accusations(subject)]
    verdicts = list(judge_mutants(subjects, options.count, options.seed))
    print(table(verdicts))
    print(f"{len(subjects)} correct programs on {len(JUDGES) + 1} inputs each: {len(accused)} accused")
    for text in accused:
        print(f"ACCUSED {text}")
    missed = [v for v in verdicts if v.harmful and v.reference is None]
    count_by_kind = Counter(v.rules.split(":")[0] for v in verdicts if v.rules)
    print(f"of what the rules said {count_by_kind['error']} are errors, {count_by_kind['warning']} warnings")
    for verdict in missed if not options.misses else [v for v in verdicts if v.harmful and v.rules is None]:
        print(f"MISSED {verdict.kind}: {verdict.what}")
    low = False
    for name, floors in FLOORS.items():
        found_shares = shares([v for v in verdicts if v.harmful and family(v.kind) == name])
        low |= any(share < floor for share, floor in zip(found_shares, floors))
    return 1 if accused or low else 0


if __name__ == "__main__":
    sys.exit(main())
