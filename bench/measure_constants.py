#!/usr/bin/env python3
"""Measure what each tuned number of the compiler is worth: halve it, double it, and build small networks again.

    `python bench/measure_constants.py RECORD.jsonl [--only NAME] [--page docs/constants.md]`.

A tuned number is a constant of a module in FOLDERS that chooses between plans or decides accuracy.
A number of planning is judged by cycles, one of the quantizer by the SQNR of outputs on samples that it never saw.
Each build runs in a process of its own, whose import of the module multiplies the number in its source.
RECORD has a line a measurement: a run that was stopped goes on, and numbers that were edited are measured anew.
With --page the table of all numbers is written and nothing is measured. The lint of words takes it as their source.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import onnx
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # before any installed copy: the tree beside this file is measured
CLASSIFIER = ROOT / "examples" / "classifier"
LINT = ROOT / "scripts" / "lint_words.yaml"
SAMPLES = 32  # to calibrate and repair with
JUDGED = 48  # other samples
SEED = 7

Kind = Literal["planning", "accuracy"]


@dataclass(frozen=True)
class Constant:
    """A named number in the source. `text`: its expression, `value`: what that gives."""

    path: str
    name: str
    text: str
    value: float

    @property
    def kind(self) -> Kind:
        return (
            "planning" if self.path.startswith(("toolchain/schedule/", "toolchain/memory/", "toolchain/machine/")) else "accuracy"
        )

    def scale(self, factor: float) -> float:
        """The number times `factor`; a whole number stays whole, and above 0."""
        scaled = self.value * factor
        return max(1, round(scaled)) if isinstance(self.value, int) else scaled


@dataclass(frozen=True)
class Measured:
    """The figures of builds with one number changed, case by case, or the fault that one of them ended in."""

    path: str
    name: str
    text: str
    factor: float
    figures: Mapping[str, float]
    cpu_s: float
    fault: str = ""


def evaluate(node: ast.expr) -> float | None:
    """The value of an expression of numbers alone, or None."""
    allowed = (ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if not all(isinstance(part, allowed) for part in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "constant", "eval"), {})
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def constants(folders: list[str], exempt: tuple[str, ...]) -> Iterator[Constant]:
    """All tuned numbers. `exempt`: ends of names that are widths, sizes of formats and the like."""
    for path in sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py")):
        for statement in ast.parse(path.read_text()).body:
            name = get_assigned_name(statement)
            if name is None or not name.isupper() or name.endswith(exempt):
                continue
            assert isinstance(statement, (ast.Assign, ast.AnnAssign))
            value = None if statement.value is None else evaluate(statement.value)
            if statement.value is not None and value is not None and value > 0:
                yield Constant(path.relative_to(ROOT).as_posix(), name, ast.unparse(statement.value), value)


def get_assigned_name(statement: ast.stmt) -> str | None:
    """The only name that a statement assigns, or None."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(statement, ast.AnnAssign):
        target = statement.target
    return target.id if isinstance(target, ast.Name) else None


class Changed(importlib.abc.MetaPathFinder):
    """Finds one module of the tree and multiplies one number in its source."""

    def __init__(self, constant: Constant, factor: float) -> None:
        self.constant, self.factor = constant, factor
        module = constant.path.removesuffix(".py").replace("/", ".")
        self.module = module.removesuffix(".__init__")

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        loader = ChangedLoader(fullname, str(ROOT / self.constant.path), self)
        return importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


class ChangedLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module's source with one number of it changed, and leaves no bytecode."""

    def __init__(self, fullname: str, path: str, changed: Changed) -> None:
        super().__init__(fullname, path)
        self.changed = changed

    def get_code(self, fullname: str) -> Any:
        tree = ast.parse(Path(self.path).read_text())
        for statement in tree.body:
            if get_assigned_name(statement) == self.changed.constant.name:
                assert isinstance(statement, (ast.Assign, ast.AnnAssign))
                statement.value = ast.Constant(self.changed.constant.scale(self.changed.factor))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


def planning_figures(folder: Path) -> dict[str, float]:
    """Cycles of plans of two kinds of network, in memory that is scarce for them."""
    from toolchain.api import BuildOptions, Goal, build

    cases = {"mobilenet_v2_224": "edge16", "bert_tiny_relu_l2h128_s128": "transformer64"}
    figures: dict[str, float] = {}
    for name, machine in cases.items():
        built = build(str(folder / f"{name}.onnx"), BuildOptions(machine, goal=Goal("cycles", 128 << 10), repair="none"))
        figures[f"{name} cycles"] = float(built.figures["cycles"])
    return figures


def accuracy_figures(folder: Path) -> dict[str, float]:
    """SQNR against float, in dB, of networks with and without repair, on samples that served no choice."""
    from toolchain.api import BuildOptions

    images = np.load(CLASSIFIER / "calib.npz")
    name = onnx.load(CLASSIFIER / "classifier.onnx").graph.input[0].name
    functions = functions_network(folder / "functions.onnx")
    rng = np.random.default_rng(SEED)
    draws = {"x": rng.normal(size=(SAMPLES + JUDGED, 1, 16, 8, 8)).astype(np.float32)}
    few = {name: images[name][:SAMPLES, np.newaxis]}
    other = {name: images[name][-JUDGED:, np.newaxis]}
    fast = BuildOptions("edge16", calibration=few, repair="fast", level=1)
    plain = BuildOptions("wide32_w4a16", calibration={"x": draws["x"][:SAMPLES]}, repair="none", level=1)
    steps = BuildOptions("transformer64", calibration={"x": draws["x"][:SAMPLES]}, repair="none", level=1)
    cases = {"classifier": (str(CLASSIFIER / "classifier.onnx"), fast, other)}
    cases |= {f"functions {o.hardware}": (str(functions), o, {"x": draws["x"][SAMPLES:]}) for o in (plain, steps)}
    return {f"{case} dB": decibels_of(*arguments) for case, arguments in cases.items()}


def decibels_of(model: str, options: Any, judged: Mapping[str, np.ndarray]) -> float:
    """SQNR of all outputs of a build together, in dB, against onnxruntime on the float model."""
    from toolchain.api import Session, build
    from toolchain.inference import open_model, session_options

    session, floats = Session(build(model, options)), open_model(model, session_options(optimized=True))
    signal = noise = 0.0
    for index in range(len(next(iter(judged.values())))):
        feeds = {name: values[index] for name, values in judged.items()}
        for ours, theirs in zip(session.run(None, feeds), map(np.asarray, floats.run(None, feeds)), strict=True):
            signal += float(np.square(theirs, dtype=np.float64).sum())
            noise += float(np.square(ours.astype(np.float64) - theirs).sum())
    return 10 * float(np.log10(signal / max(noise, 1e-30)))


def functions_network(path: Path) -> Path:
    """A network of the operators that need numbers beyond a convolution: norm, softmax, tables, sums, resize."""
    rng = np.random.default_rng(SEED)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array((rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32), name)

    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["c"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["c"], ["s"]),
        node("Mul", ["c", "s"], ["silu"]),
        node("Resize", ["silu", "", "factors"], ["r"], mode="linear"),
        node("Conv", ["r", "w1"], ["d"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Tanh", ["d"], ["t"]),
        node("Add", ["t", "c"], ["a"]),
        node("Reshape", ["a", "rows"], ["m"]),
        node("LayerNormalization", ["m", "gain", "shift"], ["n"]),
        node("MatMul", ["n", "w2"], ["q"]),
        node("Softmax", ["q"], ["p"]),
        node("MatMul", ["p", "w3"], ["y"]),
    ]
    initializers = [weights("w0", 16, 16, 3, 3), weights("w1", 16, 16, 3, 3), weights("w2", 64, 32), weights("w3", 32, 16)]
    initializers += [weights("shift", 64), onnx.numpy_helper.from_array(np.array([16, 64]), "rows")]
    initializers += [onnx.numpy_helper.from_array(np.ones(64, np.float32), "gain")]
    initializers += [onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "factors")]
    value = onnx.helper.make_tensor_value_info
    ports = [value("x", onnx.TensorProto.FLOAT, [1, 16, 8, 8])], [value("y", onnx.TensorProto.FLOAT, [16, 16])]
    graph = onnx.helper.make_graph(nodes, "functions", *ports, initializers)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def build_changed(constant: Constant, factor: float, folder: Path, sink: Any) -> None:
    """Runs in a new process: builds the cases of the number's kind and sends what they gave."""
    sys.meta_path.insert(0, Changed(constant, factor))
    begin = time.process_time()
    figures, fault = {}, ""
    try:
        figures = (planning_figures if constant.kind == "planning" else accuracy_figures)(folder)
    except Exception as error:  # a number may be one that the code cannot do without: that is a result
        fault = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    seconds = time.process_time() - begin
    sink.send(Measured(constant.path, constant.name, constant.text, factor, figures, round(seconds, 2), fault))


def measure(constant: Constant, factor: float, folder: Path) -> Measured:
    receiver, sink = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=build_changed, args=(constant, factor, folder, sink))
    process.start()
    sink.close()
    limit_s = 300
    try:
        measured = receiver.recv() if receiver.poll(limit_s) else None
    except EOFError:
        measured = None
    process.kill()
    process.join()
    lost = Measured(constant.path, constant.name, constant.text, factor, {}, 0.0, f"no answer within {limit_s} s, or ended")
    return lost if measured is None else measured


def read_record(path: Path) -> dict[tuple[str, str, str, float], Measured]:
    lines = path.read_text().splitlines() if path.exists() else []
    measured = [Measured(**json.loads(line)) for line in lines]
    return {(m.path, m.name, m.text, m.factor): m for m in measured}


def changes(base: Measured, changed: Measured) -> str:
    """Return the effects of a change on cycles or dB in a few words."""
    if changed.fault:
        return "ends in a fault"
    parts = []
    for case, value in changed.figures.items():
        before = base.figures[case]
        if case.endswith("cycles") and abs(value / before - 1) >= 0.0005:
            parts.append(f"{case.removesuffix(' cycles')} {100 * (value / before - 1):+.2f} %")
        elif case.endswith("dB") and abs(value - before) >= 0.05:
            parts.append(f"{case.removesuffix(' dB')} {value - before:+.1f} dB")
    return ", ".join(parts) or "-"


PAGE = """# What the tuned numbers are worth

The compiler has numbers that somebody chose: how many tilings are tried, how many samples judge, how near two scales are one.
`bench/measure_constants.py` halves and doubles each of them and builds small networks again. This page is its table.

- Numbers of planning: cycles of mobilenet_v2 on edge16 and bert_tiny on transformer64, each with 128 KiB of SRAM.
- Numbers of accuracy: SQNR against float of 48 samples that served no choice. They are of the classifier on edge16 with
  `--repair fast`, and of a network of functions, a norm and a softmax on wide32_w4a16 and transformer64.
- `-`: the change is below 0.05 % of cycles or 0.05 dB. What a number costs in build time is not in the table.

A number may matter on other networks. One that changes nothing here is a candidate to go. Numbers that are not in the table have
not been measured: `python scripts/lint_words.py --list constant` lists them.
"""


def page(record: Mapping[tuple[str, str, str, float], Measured], tuned: list[Constant]) -> str:
    lines, still = [], []
    for c in tuned:
        base = record.get(("", c.kind, "", 1.0))
        halved, doubled = (record.get((c.path, c.name, c.text, factor)) for factor in (0.5, 2.0))
        if base is None or halved is None or doubled is None:
            continue
        texts = changes(base, halved), changes(base, doubled)
        row = f"| `{c.name}` | `{c.path}` | {c.text} | {texts[0]} | {texts[1]} |"
        (still if texts == ("-", "-") else lines).append(row)
    head = "| number | module | value | halved | doubled |\n|---|---|---|---|---|\n"
    parts = {"Numbers that change something": lines, "Numbers that change nothing here": still}
    return PAGE + "".join(
        f"\n## {title}\n\n{head}" + "".join(f"{row}\n" for row in rows) for title, rows in parts.items() if rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--only", help="numbers whose name or path contains this")
    parser.add_argument("--page", type=Path, help="write the table here and measure nothing")
    options = parser.parse_args()
    data = yaml.safe_load(LINT.read_text())
    untuned = {entry for entries in data["untuned"].values() for entry in entries}
    numbers = constants(data["tuned"], tuple(data["untuned_names"]))
    tuned = [number for number in numbers if f"{number.path} {number.name}" not in untuned]
    record = read_record(options.record)
    if options.page:
        options.page.write_text(page(record, tuned))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sys.path.insert(0, str(ROOT / "examples" / "networks"))
        fill_in_a_process(folder)
        bases = [Constant(path, "none", "", 1.0) for path in ("toolchain/schedule/", "quant/")]
        for base in bases:
            key = ("", base.kind, "", 1.0)
            if key not in record:
                runs = [measure(base, 1.0, folder) for _ in range(3)]
                seconds = statistics.median(run.cpu_s for run in runs)
                append(options.record, Measured(*key, runs[0].figures, seconds, runs[0].fault))
        for constant in tuned:
            for factor in (0.5, 2.0):
                is_measured = (constant.path, constant.name, constant.text, factor) in record
                if not is_measured and (options.only or "") in f"{constant.path} {constant.name}":
                    append(options.record, measure(constant, factor, folder))


def fill_in_a_process(folder: Path) -> None:
    """Writes the networks in a process of its own, so that this one never imports the toolchain."""
    process = multiprocessing.get_context("fork").Process(target=fill, args=(folder,))
    process.start()
    process.join()


def fill(folder: Path) -> None:
    import fill_weights  # type: ignore[import-not-found]  # beside the graphs

    for name in ("mobilenet_v2_224", "bert_tiny_relu_l2h128_s128"):
        graph = ROOT / "examples" / "networks" / f"{name}.graph.onnx"
        (folder / f"{name}.onnx").write_bytes(fill_weights.fill_model(graph).SerializeToString(deterministic=True))


def append(path: Path, measured: Measured) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(measured)) + "\n")
    print(measured.path, measured.name, measured.factor, measured.fault or dict(measured.figures), measured.cpu_s, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
