"""Tests of scripts/lint_words.py: each rule refuses what it is for, and the numbers allowed only bound what stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scripts import lint_words

WORDS = replace(lint_words.Words.read(Path(lint_words.__file__).with_suffix(".yaml")), exceptions={}, allowed={}, excluded={})
LONG = "This sentence goes on and on with " + "one word more and " * 10 + "then it ends."


def rules_of(root: Path) -> list[str]:
    return [fault.rule for fault in lint_words.all_faults(WORDS, root)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "toolchain").mkdir()
    (tmp_path / "docs").mkdir()
    for page in ("README.md", "CHANGELOG.md"):
        (tmp_path / page).write_text("# Page\n")
    return tmp_path


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("found = 1\n", "name"),
        ("def add(_made): return _made\n", "name"),
        ("list(map(lambda own: own, []))\n", "name"),
        ("class PlanMover: pass\n", "word"),
        ("def shortened(x): return x\n", "verb"),
        ('def add(x):\n    """Of both, the sum."""\n', "fragment"),
        ('def add(x):\n    """x: a number."""\n', "no-summary"),
        (f'def add(x):\n    """{LONG}"""\n', "sentence"),
    ],
)
def test_a_rule_refuses_its_kind(root: Path, code: str, rule: str) -> None:
    (root / "toolchain" / "module.py").write_text(code)
    assert rules_of(root) == [rule]


@pytest.mark.parametrize(
    "code",
    [
        "left, right = 1, 2\n",
        "def shorten(x): return x\n",
        "need = feed = 1\n",
        'def add(x):\n    """Return the sum.\n\n    `x`: a number.\n    """\n',
        "_NEAR = 1.01  # measured: docs/bounds.md\n",
        "class Plan:\n    @property\n    def shared(self): return 1\n",
    ],
)
def test_a_rule_spares_what_is_fine(root: Path, code: str) -> None:
    (root / "toolchain" / "module.py").write_text(code)
    assert rules_of(root) == []


@pytest.mark.parametrize(
    ("folder", "line", "measured", "rules"),
    [
        ("schedule", "_NEAR = 1.01", (), ["constant"]),
        ("schedule", "_NEAR = 1.01", ("toolchain/schedule/module.py", "_NEAR"), []),
        ("schedule", "_NEAR = 1.01", ("toolchain/schedule/other.py", "_NEAR"), ["constant"]),
        ("schedule", "_FEW = 1_000", (), ["constant"]),
        ("schedule", "_FEW: int = 20_000", (), ["constant"]),
        ("schedule", "_NEAR_BYTES = 64", (), []),
        ("cli", "_NEAR = 1.01", (), []),
    ],
)
def test_tuned_numbers_need_a_source(root: Path, folder: str, line: str, measured: tuple[str, ...], rules: list[str]) -> None:
    (root / "toolchain" / folder).mkdir()
    (root / "toolchain" / folder / "module.py").write_text(line + "\n")
    words = replace(WORDS, measured=frozenset([measured] if measured else []))
    assert [fault.rule for fault in lint_words.all_faults(words, root)] == rules


@pytest.mark.parametrize("code", ["helper.make_graph()", "make_graph()", "from onnx.helper import make_graph as g"])
@pytest.mark.parametrize(("folder", "rules"), [("tests", ["graph"]), ("bench", ["graph"]), ("toolchain", [])])
def test_graphs_come_from_the_builder_but_for_those_of_the_product(root: Path, folder: str, rules: list[str], code: str) -> None:
    (root / folder).mkdir(exist_ok=True)
    (root / folder / "module.py").write_text(code + "\n")
    assert rules_of(root) == rules


def test_pages_are_read_without_their_code(root: Path) -> None:
    (root / "docs" / "page.md").write_text(f"# {LONG}\n\n```\n{LONG}\n```\n\n{LONG}\n\n| a | {'x' * 161} |\n")
    assert rules_of(root) == ["cell", "sentence"]


def test_an_excluded_folder_is_not_read(root: Path) -> None:
    (root / "toolchain" / "module.py").write_text("found = 1\n")
    assert lint_words.all_faults(replace(WORDS, excluded={"toolchain": "a reason"}), root) == []


def test_allowed_numbers_and_exceptions_are_held(root: Path) -> None:
    (root / "toolchain" / "module.py").write_text("found = 1\ndef shortened(x): return x\n")
    faults = lint_words.all_faults(WORDS, root)
    assert [text.split(",")[0] for text in lint_words.judge(faults, WORDS)] == ["name: 1 places", "verb: 1 places"]
    assert lint_words.judge(faults, replace(WORDS, allowed={"name": 1, "verb": 1})) == []
    key = "name toolchain/module.py found"
    assert lint_words.judge(faults, replace(WORDS, allowed={"verb": 1}, exceptions={key: "a key of a file"})) == []
    gone = replace(WORDS, allowed={"name": 1, "verb": 1}, exceptions={"name toolchain/other.py found": "a key of a file"})
    assert lint_words.judge(faults, gone) == ["name toolchain/other.py found: no such place, take the exception out"]
