"""Counts names, docstrings and sentences that the words of this project refuse, and compares with what is allowed.

usage: python scripts/lint_words.py [--list RULE]

The rules, the refused words, the numbers that may still stand and the exceptions are in lint_words.yaml beside this file.
Exit code 1 where a rule has more places than allowed, or an exception names a place that is gone.

    name        an identifier that says how a value came about (`found`), not what it holds (`tilings`)
    word        an identifier with a word for which docs/glossary.md has a term
    verb        a function whose name begins with a participle, where a verb belongs
    fragment    a docstring that opens without a subject or a verb
    no-summary  a docstring that opens with a parameter
    sentence    a sentence of a docstring or page that has too many words
    cell        a cell of a table in a page that has too many characters
    constant    a tuned number without a source: a measurement beside it or in docs/constants.md
    graph       a call of `make_graph` outside the product, whose place is scripts/onnx_builder.py
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "constants.md"
CODE = ("toolchain", "quant", "simulator", "scripts", "bench", "tests", "examples")
PRODUCT = ("toolchain/", "quant/", "simulator/")
Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PARTICIPLE = re.compile(
    r"(?!(need|speed|feed|seed|embed|exceed)$)([a-z]{2,}ed|found|made|held|kept|said|told|given|taken|seen|left)$"
)
_PARAMETER_FIRST = re.compile(r"`?[a-z_][a-z_0-9]*`?(, `?[a-z_0-9]+`?)*: ")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(])")
_MEASURED_ROW = re.compile(r"^\| `(\w+)` \| `([\w./]+)` \|", re.M)  # of bench/measure_constants.py: number, module
_NUMBER = re.compile(r"_?[A-Z][A-Z0-9_]* *(: *\w+)? *= *-?[0-9._]+(e-?\d+)?\b(?!.*#.*(docs/|https?:|[Mm]easured|[Ss]ource))")


@dataclass(frozen=True)
class Fault:
    """A place that a rule refuses.

    `path`: relative to the root.
    `text`: the identifier, or the sentence.
    """

    path: str
    line: int
    rule: str
    text: str

    @property
    def key(self) -> str:
        """The text by which an exception names the place: rule, path and text."""
        return f"{self.rule} {self.path} {self.text}"


@dataclass(frozen=True)
class Words:
    """The rules' data: lint_words.yaml, and the measured numbers of docs/constants.md.

    `bare`: identifiers that are refused whole; `words`: refused as one word of an identifier.
    `pairs`: a bare name -> the name that allows it in the same scope.
    `fragments`: words with which no docstring opens.
    `sentence_words`, `cell_characters`: the most that are allowed.
    `allowed`: rule -> places that may still stand.
    `excluded`, `exceptions`: folder, or `Fault.key`, -> the reason.
    `tuned`: folders whose numbers need a source; `untuned_names`: ends of names that need none; `untuned`: (path, name) likewise.
    `measured`: (path, name) of numbers in docs/constants.md.
    """

    bare: frozenset[str]
    words: frozenset[str]
    pairs: dict[str, str]
    fragments: frozenset[str]
    sentence_words: int
    cell_characters: int
    allowed: dict[str, int]
    excluded: dict[str, str]
    exceptions: dict[str, str]
    tuned: tuple[str, ...] = ()
    untuned_names: tuple[str, ...] = ()
    untuned: frozenset[tuple[str, ...]] = frozenset()
    measured: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def read(cls, path: Path) -> Words:
        """Return the data of lint_words.yaml at `path`, with the numbers that docs/constants.md says were measured."""
        data = yaml.safe_load(path.read_text())
        sets = {key: frozenset(data.pop(key)) for key in ("bare", "words", "fragments")}
        tuples = {key: tuple(data.pop(key)) for key in ("tuned", "untuned_names")}
        untuned = {tuple(entry.split()) for entries in data.pop("untuned").values() for entry in entries}
        rows = _MEASURED_ROW.findall(MEASURED.read_text()) if MEASURED.exists() else []
        return cls(
            **sets, **tuples, **data, measured=frozenset((module, name) for name, module in rows), untuned=frozenset(untuned)
        )

    def needs_source(self, path: str, name: str) -> bool:
        """Return whether a named number chooses between plans or decides accuracy, and no page has its measurement."""
        is_tuned = path.startswith(tuple(f"{folder}/" for folder in self.tuned)) and not name.endswith(self.untuned_names)
        return is_tuned and (path, name) not in self.untuned | self.measured

    def refuses(self, name: str, scope: set[str]) -> str | None:
        """Return the rule that refuses an identifier, `name` or `word`, or None.

        `scope`: all names bound beside it, without underscores.
        """
        plain = name.lstrip("_")
        if plain.lower() in self.bare and self.pairs.get(plain) not in scope:
            return "name"
        return "word" if self.words & set(split_words(name)) else None

    def long_sentences(self, text: str) -> list[str]:
        """Return the sentences of a text that have too many words."""
        sentences = _SENTENCE_END.split(" ".join(text.split()))
        return [s for s in sentences if len(s.split()) > self.sentence_words]


def split_words(name: str) -> list[str]:
    """Return the lower-case words of an identifier: `TilePlan` and `tile_plan` give tile, plan."""
    return [w.lower() for part in name.split("_") for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", part)]


def walk_scopes(module: ast.Module) -> tuple[list[ast.AST], list[dict[str, int]]]:
    """Return a file's nodes, and by module, class and function the names that it binds itself with the first line of each."""
    names_by_scope: list[dict[str, int]] = [{}]
    nodes: list[ast.AST] = []
    pending: list[tuple[ast.AST, dict[str, int]]] = [(module, names_by_scope[0])]
    while pending:
        node, lines = pending.pop()
        nodes.append(node)
        if isinstance(node, (ast.arg, *Definition)) or isinstance(getattr(node, "ctx", None), ast.Store):
            name = next((getattr(node, field) for field in ("arg", "id", "attr", "name") if hasattr(node, field)), None)
            if name is not None:
                lines[name] = min(lines.get(name, sys.maxsize), getattr(node, "lineno", 1))
        if isinstance(node, (ast.Lambda, *Definition)):
            lines = dict[str, int]()
            names_by_scope.append(lines)
        pending.extend((child, lines) for child in ast.iter_child_nodes(node))
    return nodes, names_by_scope


def name_faults(path: str, names_by_scope: Sequence[dict[str, int]], words: Words) -> Iterator[Fault]:
    """Yield the faults of the rules `name` and `word` among the names that a file's scopes bind, with their lines."""
    for lines in names_by_scope:
        plain = {name.lstrip("_") for name in lines}
        for name, line in sorted(lines.items(), key=lambda item: item[1]):
            if (rule := words.refuses(name, plain)) is not None:
                yield Fault(path, line, rule, name)


def is_participle(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the function's name begins with a participle. A property may: it is read like a field."""
    is_property = any("property" in ast.dump(decorator) for decorator in function.decorator_list)
    return not is_property and _PARTICIPLE.match((split_words(function.name) or [""])[0]) is not None


def definition_faults(path: str, nodes: Sequence[ast.AST], words: Words) -> Iterator[Fault]:
    """Yield the faults of function names (`verb`) and of docstrings among a file's nodes."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_participle(node):
            yield Fault(path, node.lineno, "verb", node.name)
        if isinstance(node, (ast.Module, *Definition)) and (docstring := ast.get_docstring(node)):
            yield from docstring_faults(path, getattr(node, "lineno", 1), docstring, words)


def graph_faults(path: str, text: str, nodes: Sequence[ast.AST]) -> Iterator[Fault]:
    """Yield the faults of a script or test that makes an ONNX graph by hand. The product writes graphs, each in its own way."""
    for node in () if path.startswith(PRODUCT) or "make_graph" not in text else nodes:
        if "make_graph" in (getattr(node, field, None) for field in ("id", "attr", "name")):
            yield Fault(path, getattr(node, "lineno", 1), "graph", "make_graph")


def docstring_faults(path: str, line: int, docstring: str, words: Words) -> Iterator[Fault]:
    """Yield the faults of one docstring: `fragment`, `no-summary`, `sentence`."""
    first = docstring.split()[0].rstrip(",:;.")
    if first in words.fragments:
        yield Fault(path, line, "fragment", docstring.splitlines()[0])
    elif _PARAMETER_FIRST.match(docstring):
        yield Fault(path, line, "no-summary", docstring.splitlines()[0])
    for sentence in words.long_sentences(docstring):
        yield Fault(path, line, "sentence", sentence)


def python_faults(path: str, text: str, words: Words) -> Iterator[Fault]:
    """Yield the faults of a Python file by all rules."""
    nodes, names_by_scope = walk_scopes(ast.parse(text))
    yield from name_faults(path, names_by_scope, words)
    yield from definition_faults(path, nodes, words)
    yield from graph_faults(path, text, nodes)
    for number, line in enumerate(text.splitlines(), 1):
        name = line.split("=")[0].split(":")[0].strip()
        if _NUMBER.match(line) and words.needs_source(path, name):
            yield Fault(path, number, "constant", name)


def page_faults(path: str, text: str, words: Words) -> Iterator[Fault]:
    """Yield the faults of a Markdown page. Its code blocks and headings are left out."""
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    for line in prose.splitlines():
        if line.startswith("|"):
            yield from (Fault(path, 1, "cell", c) for c in line.strip("| ").split(" | ") if len(c) > words.cell_characters)
    for block in re.split(r"\n\s*\n|\n(?=[-*|#] )", prose):
        if not block.lstrip().startswith(("|", "#")):
            yield from (Fault(path, 1, "sentence", sentence) for sentence in words.long_sentences(block))


def all_faults(words: Words, root: Path = ROOT) -> list[Fault]:
    """Return what the rules refuse in the code and pages below `root`, exceptions included."""
    faults: list[Fault] = []
    code = [path for folder in CODE for path in sorted((root / folder).rglob("*.py"))]
    for path in (*code, root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("*.md"))):
        name = path.relative_to(root).as_posix()
        if not any(name.startswith(f"{folder}/") for folder in words.excluded):
            check = python_faults if path.suffix == ".py" else page_faults
            faults += check(name, path.read_text(), words)
    return faults


def judge(faults: list[Fault], words: Words) -> list[str]:
    """Return one sentence for each rule with more places than allowed and for each exception without a place."""
    keys = {fault.key for fault in faults}
    counts = Counter(fault.rule for fault in faults if fault.key not in words.exceptions)
    gone = [f"{key}: no such place, take the exception out" for key in words.exceptions if key not in keys]
    more = [
        f"{rule}: {count} places, {words.allowed.get(rule, 0)} allowed (python scripts/lint_words.py --list {rule})"
        for rule, count in sorted(counts.items())
        if count > words.allowed.get(rule, 0)
    ]
    return gone + more


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="RULE", help="print every place of one rule")
    rule = parser.parse_args().list
    words = Words.read(Path(__file__).with_suffix(".yaml"))
    faults = all_faults(words)
    for fault in faults:
        if fault.rule == rule and fault.key not in words.exceptions:
            print(f"{fault.path}:{fault.line}: {fault.text[:150]}")
    counts = Counter(fault.rule for fault in faults if fault.key not in words.exceptions)
    print(", ".join(f"{rule} {count}" for rule, count in sorted(counts.items())))
    complaints = judge(faults, words)
    print("\n".join(complaints), end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
