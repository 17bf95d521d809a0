"""bench/mutants.py: what it plants, that tests run on the copy with the fault, that named faults are where they were."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''
def scaled(x, zero_point):
    """x - 1 is no arithmetic here."""
    if x < 0 and zero_point:
        raise ValueError(f"x is {x + 1}")
    return max(x - zero_point, 0) // 2
'''


@pytest.fixture(scope="module")
def mutants_script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "bench")
        import mutants  # type: ignore[import-not-found]

    return mutants


def test_each_mutant_is_one_other_program(mutants_script: ModuleType) -> None:
    mutants = mutants_script.mutants_of("a.py", SOURCE)
    texts = [m.apply(SOURCE) for m in mutants]
    assert len(set(texts)) == len(mutants) and SOURCE not in texts
    assert all(ast.parse(text) for text in texts)
    assert {m.kind for m in mutants} == {
        "dropped condition", "dropped term", "min for max", "off by one", "other comparison", "swapped operands",
        "wrong rounding", "wrong sign",
    }  # fmt: skip


def test_messages_and_texts_are_left_alone(mutants_script: ModuleType) -> None:
    assert not [m for m in mutants_script.mutants_of("a.py", SOURCE) if "x + 1" in m.old or "no arithmetic" in m.old]


def test_a_sample_is_drawn_alike_each_time_and_from_different_functions(mutants_script: ModuleType) -> None:
    text = (ROOT / "toolchain/ops/pool/select_pool.py").read_text()
    candidates = mutants_script.mutants_of("toolchain/ops/pool/select_pool.py", text)
    chosen = mutants_script.sample(candidates, 9, seed=1)
    assert len({m.function for m in chosen}) == 9
    assert chosen == mutants_script.sample(mutants_script.mutants_of("toolchain/ops/pool/select_pool.py", text), 9, seed=1)
    assert chosen != mutants_script.sample(candidates, 9, seed=2)


def test_named_faults_stand_where_their_texts_are(mutants_script: ModuleType) -> None:
    assert len(mutants_script.list_named_mutants(ROOT)) >= 30


def test_every_package_has_tests_near_it(mutants_script: ModuleType) -> None:
    for folder, _ in mutants_script.PACKAGES.values():
        mutant = mutants_script.Mutant(f"{folder}/a.py", "f", 1, "", 0, "", "")
        near, rest, slowest = (
            [t for t in run if not t.startswith("-")] for run in mutants_script.runs_for(mutant, ROOT, near_only=False)
        )
        assert near and rest and not set(near) & set(rest)
        assert "tests/bench/test_mutants.py" not in (*near, *rest)  # it would see every named fault by its text
        assert {test.split("::")[0] for test in mutants_script.SLOWEST} <= {*slowest, *(str(Path(t).parent) for t in slowest)}
    for patterns in (*(tests for _, tests in mutants_script.PACKAGES.values()), *mutants_script.NEARER.values()):
        assert all(list(ROOT.glob(p)) for p in patterns), patterns


def test_a_probe_logs_the_test_that_evaluates_its_expression(
    mutants_script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    reach, log = mutants_script.reach, tmp_path / "log"
    number_by_change = {("x < 0", "other comparison"): 4, ("x - zero_point", "wrong sign"): 7}
    mutant_by_number = {
        number_by_change[key]: m
        for m in mutants_script.mutants_of("a.py", SOURCE)
        if (key := (m.old, m.kind)) in number_by_change
    }
    (tmp_path / f"{reach.MODULE}.py").write_text(reach.SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(reach.LOG, str(log))
    monkeypatch.delitem(sys.modules, reach.MODULE, raising=False)
    names: dict[str, Callable[[int, int], int]] = {}
    exec(reach.add_probes(SOURCE, mutant_by_number), names)
    with pytest.raises(ValueError, match="x is 0"):
        names["scaled"](-1, 1)
    assert reach.read_reaching_tests(log) == {4: [request.node.nodeid]}
    assert names["scaled"](9, 1) == names["scaled"](9, 1) == 4
    assert reach.read_reaching_tests(log) == {4: [request.node.nodeid], 7: [request.node.nodeid]}


def test_the_first_tests_of_a_mutant_are_of_different_files(mutants_script: ModuleType, tmp_path: Path) -> None:
    calls = ["0\ta.py::t[x y] (call)", "0\ta.py::u (call)", "0\tb.py::v (call)", "1\tb.py::v (setup)", "2\t", "2\tb.py::v (call)"]
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in calls))
    tests = {0: ["a.py::t[x y]", "b.py::v", "a.py::u"], 1: ["b.py"], 2: None}
    assert mutants_script.reach.read_reaching_tests(tmp_path / "log") == tests
    assert mutants_script.reach.read_reaching_tests(tmp_path / "none") == {}


@pytest.mark.slow
def test_a_fault_is_seen_in_the_copy_and_by_tests_that_reach_it(mutants_script: ModuleType, tmp_path: Path) -> None:
    path = "quant/observe.py"
    text = (ROOT / path).read_text()
    fault = next(m for m in mutants_script.mutants_of(path, text) if m.function == "union" and m.kind == "max for min")
    tree = mutants_script.Tree(tmp_path / "tree", 60, is_fast=False)
    far, near = ["tests/quant/test_error_figures.py"], ["tests/quant/test_structure.py"]
    assert tree.judge(fault, [far, near]).startswith("tests/quant/test_structure.py::")
    assert (tree.folder / path).read_text() == (ROOT / path).read_text() == text
