"""Faults planted in correct programs are found, and correct programs are not accused; more of both in
bench/mutate_programs.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from mutate_programs import (  # type: ignore[import-not-found]
    FLOORS,
    Subject,
    accusations,
    family,
    judge_mutants,
    shares,
    subjects_of,
)
from program_mutations import KINDS, Program, mutate  # type: ignore[import-not-found]

from tests.cli.edit_programs import model
from toolchain.machine import Signal, Wait

BODY = """h2 = Conv<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(h, k)
        h3 = Conv<kernel_shape=[1,1]>(h2, v)
        s = Add(h3, h2)
        e = Sigmoid(s)
        m = Mul(s, e)
        p = AveragePool<kernel_shape=[2,2], strides=[2,2]>(m)
        y = Concat<axis=1>(p, p)"""
COUNT = 96


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    path = model(tmp_path_factory.mktemp("mutants"), "float[1,8,16,16]", BODY)
    return subjects_of([path], ["edge16", "ethos_u55_256", "ws8_pow2"], 2) + subjects_of([path], ["edge16"], 0)


def test_correct_programs_are_not_accused(subjects):
    assert [text for subject in subjects for text in accusations(subject)] == []


def test_planted_faults_are_found(subjects):
    verdicts = list(judge_mutants(subjects, COUNT, seed=1))
    assert len(verdicts) > 0.8 * COUNT
    for name, (_, verified) in FLOORS.items():
        harmful = [v for v in verdicts if v.harmful and family(v.kind) == name]
        assert len(harmful) > 5, name
        assert shares(harmful)[1] >= verified, [f"{v.kind}: {v.what}" for v in harmful if v.reference is None]
    ordered = [v for v in verdicts if v.harmful and family(v.kind) == "order"]
    assert [f"{v.kind}: {v.what}" for v in ordered if v.rules is None] == []
    share = shares([v for v in verdicts if v.harmful and family(v.kind) == "bytes"])[0]
    assert share >= 0.75, share  # of few: the script counts enough of them for its 0.85


def test_what_is_harmless_is_proved_apart_from_the_rules(subjects):
    """Check that each dropped Wait or Signal is a fault, and that the rules agree on swaps of neighbours of two engines."""
    subject = subjects[0]
    ops = subject.program.ops
    assert subject.order.same(subject.program)
    for i, op in enumerate(ops):
        if isinstance(op, Signal | Wait):
            assert not subject.order.same(subject.program.without(i)), i
    swaps = [subject.program.swap(i, i + 1) for i in range(len(ops) - 2)]
    harmless = [subject.order.same(swap) for swap in swaps]
    assert 0.1 < np.mean(harmless) < 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_every_mutation_changes_the_program(subjects, kind):
    rng = np.random.default_rng(0)
    drawn = [mutated for s in subjects for _ in range(3) if (mutated := mutate(kind, s.program, rng)) is not None]
    assert drawn and all(isinstance(mutant, Program) and len(mutant.ops) == len(mutant.layers) for _, mutant in drawn)
    assert all(mutant.ops not in [s.program.ops for s in subjects] for _, mutant in drawn)
