#!/usr/bin/env python3
"""Measure what each tuned number of the compiler is worth: halve it, double it, and build small networks again.

    `python bench/measure_constants.py RECORD.jsonl [--only NAME] [--page docs/constants.md]`.

A tuned number is a constant of a module in FOLDERS that chooses between plans or decides accuracy.
Numbers of planning are judged by cycles and bytes of programs, those of the memory planner by bytes of its answers.
Those of the quantizer are judged by the SQNR of outputs on samples that it never saw.
Each run is a fork that changes the number in every module that binds it. It imports all modules again only where
one of them reads the number at import. What no run of the unchanged compiler reads is not built: it has no effect here.
RECORD has a line a measurement: a run that was stopped goes on, and numbers that were edited are measured anew.
With --page the table of all numbers is written and nothing is measured. The lint of words takes it as their source.
"""

from __future__ import annotations

import argparse
import ast
import dis
import importlib.abc
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

import numpy as np
import onnx
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before any installed copy: the tree beside this file is measured
from scripts.onnx_builder import build_model

ROOT = Path(__file__).resolve().parents[1]
LINT = ROOT / "scripts" / "lint_words.yaml"
SAMPLES = 32  # to calibrate and repair with
JUDGED = 48  # other samples
SEED = 7

Kind = Literal["planning", "memory", "accuracy"]
Case = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Constant:
    """A named number in the source.

    `text`: its expression.
    `value`: its value.
    """

    path: str
    name: str
    text: str
    value: float

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    @property
    def kind(self) -> Kind:
        if self.path.startswith("toolchain/memory/"):
            return "memory"
        planning = ("toolchain/schedule/", "toolchain/codegen/", "toolchain/machine/")
        return "planning" if self.path.startswith(planning) else "accuracy"

    def has_source(self) -> bool:
        """Return whether the line says where the number comes from. The lint of words has the same rule."""
        lines = (ROOT / self.path).read_text().splitlines()
        return any(re.match(rf"{self.name}\b.*=.*#.*(docs/|https?:|[Mm]easured|[Ss]ource)", line) for line in lines)

    def scale(self, factor: float) -> float:
        """Return the number times `factor`; a whole number stays whole, and above 0."""
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
    reads: Mapping[str, list[str]] = field(default_factory=dict)  # `path name` of what functions read, case by case


def evaluate(node: ast.expr) -> float | None:
    """Return the value of an expression of numbers alone, or None."""
    allowed = (ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if not all(isinstance(part, allowed) for part in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "constant", "eval"), {})
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def constants(folders: list[str], exempt: tuple[str, ...]) -> Iterator[Constant]:
    """Yield all tuned numbers in these folders.

    `exempt`: ends of names that are widths, sizes of formats and the like.
    """
    for path in sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py")):
        for statement in ast.parse(path.read_text()).body:
            name = get_assigned_name(statement)
            if name is None or not name.isupper() or name.endswith(exempt):
                continue
            assert isinstance(statement, (ast.Assign, ast.AnnAssign))
            value = None if statement.value is None else evaluate(statement.value)
            if statement.value is not None and value is not None and (value > 0 or isinstance(value, float)):
                yield Constant(path.relative_to(ROOT).as_posix(), name, ast.unparse(statement.value), value)


def get_assigned_name(statement: ast.stmt) -> str | None:
    """Return the only name that a statement assigns, or None."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(statement, ast.AnnAssign):
        target = statement.target
    return target.id if isinstance(target, ast.Name) else None


class Changed(importlib.abc.MetaPathFinder):
    """An import hook: it finds one module of the tree and multiplies one number in its source."""

    def __init__(self, constant: Constant, factor: float) -> None:
        self.constant, self.factor = constant, factor

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.constant.module:
            return None
        loader = ChangedLoader(fullname, str(ROOT / self.constant.path), self)
        return importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


class ChangedLoader(importlib.machinery.SourceFileLoader):
    """A loader that compiles a module's source with one number of it changed, and leaves no bytecode."""

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


def is_product_module(name: str) -> bool:
    return name.split(".")[0] in ("toolchain", "quant", "simulator", "hw_configs")


def importers(constant: Constant) -> list[ModuleType]:
    """Return the imported modules that bind the number: its own and those that import its name."""
    modules = [m for name, m in sys.modules.items() if is_product_module(name) and constant.name in vars(m)]
    return [m for m in modules if m.__name__ == constant.module or constant.name in list_imports(m)]


@cache
def list_imports(module: ModuleType) -> frozenset[str]:
    tree = ast.parse(Path(module.__file__ or "").read_text())
    return frozenset(a.asname or a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names)


def is_read_at_import(constant: Constant) -> bool:
    """Return whether a module reads the number outside of functions: for a default, a class or another number."""
    return any(constant.name in code.co_names[:] and reads_global(code, constant.name) for code in module_codes(constant))


def module_codes(constant: Constant) -> Iterator[CodeType]:
    """Yield the code of each importer's top level and of its class bodies."""
    for module in importers(constant):
        pending = [compile(Path(module.__file__ or "").read_text(), "module", "exec")]
        while pending:
            code = pending.pop()
            yield code
            is_class = (part for part in code.co_consts if isinstance(part, CodeType) and "__qualname__" in part.co_names)
            pending += is_class


def reads_global(code: CodeType, name: str) -> bool:
    return any(i.opname in ("LOAD_NAME", "LOAD_GLOBAL") and i.argval == name for i in dis.get_instructions(code))


def change(constant: Constant, factor: float) -> None:
    """Multiply the number in this process: in all modules that bind it, or by another import of all modules."""
    if not is_read_at_import(constant):
        for module in importers(constant):
            setattr(module, constant.name, constant.scale(factor))
        return
    for name in [name for name in sys.modules if is_product_module(name)]:
        del sys.modules[name]
    sys.meta_path.insert(0, Changed(constant, factor))
    import_product()


def import_product() -> None:
    for name in ("toolchain.api", "toolchain.memory", "toolchain.foundation.inference"):
        importlib.import_module(name)


def planning_cases(folder: Path) -> dict[str, Case]:
    """Return the cases of planning by name: two kinds of network in scarce memory."""
    cases = {"depthwise": ("edge16", 12), "transformer": ("transformer64", 32)}
    return {name: partial(planning_figures, folder / f"{name}.onnx", *case) for name, case in cases.items()}


def planning_figures(path: Path, machine: str, kib: int) -> dict[str, float]:
    """Return the cycles of a network, and the bytes of its program."""
    from toolchain.api import BuildOptions, Goal, build

    built = build(str(path), BuildOptions(machine, goal=Goal("cycles", kib << 10), repair="none"))
    return {key: float(built.figures[figure]) for key, figure in (("cycles", "cycles"), ("bytes", "program_bytes"))}


def memory_cases(_folder: Path) -> dict[str, Case]:
    placements: dict[str, Case] = {
        f"{n} buffers": partial(placement_figures, n, span) for n, span in ((150, 20), (700, 60), (3100, 400))
    }
    return placements | {"order": order_figures, "residents": residents_figures}


def placement_figures(count: int, span: int) -> dict[str, float]:
    """Return the bytes that drawn buffers take.

    `span`: steps that they live at most.
    """
    from toolchain.memory import Buffer, place

    rng = np.random.default_rng(SEED)
    draws = zip(rng.integers(0, count, count), rng.integers(1, 400, count), rng.integers(1, span, count), strict=True)
    buffers = [Buffer(f"b{i}", int(start), int(start + length), 16 * int(size)) for i, (start, size, length) in enumerate(draws)]
    return {"bytes": float(place(buffers, effort_nodes=2000).peak_bytes)}


def order_figures() -> dict[str, float]:
    """Return the peak of an order of drawn operators."""
    from toolchain.memory import order_operators

    operators, sizes = draw_operators(np.random.default_rng(SEED), 60)
    order = order_operators(operators, sizes, ["t0"], [operators[-1].outputs[0]], effort_states=200)
    return {"bytes": float(order.peak_bytes)}


def residents_figures() -> dict[str, float]:
    """Return the bytes that no choice of drawn residents saves."""
    from toolchain.memory import ResidentTensor, place_residents

    draws = np.random.default_rng(SEED).integers((0, 1, 1, 1), (50, 40, 300, 4), (120, 4))
    tensors = [
        ResidentTensor(f"r{i}", int(start), int(start + length), 16 * int(size), 16 * int(size) * int(uses))
        for i, (start, length, size, uses) in enumerate(draws)
    ]
    residents = place_residents(tensors, [], 20_000, effort_labels=500, effort_nodes=500)
    return {"bytes": float(sum(t.saving_bytes for t in tensors) - residents.residency.saved_bytes)}


def draw_operators(rng: np.random.Generator, count: int) -> tuple[list[Any], dict[str, int]]:
    """Draw operators of one output that read one or two of the ten tensors before, and the sizes of all tensors."""
    from toolchain.memory import Operator

    operators = []
    for i in range(1, count + 1):
        inputs = {f"t{int(k)}" for k in rng.integers(max(0, i - 10), i, 2)}
        operators.append(Operator(f"o{i}", tuple(sorted(inputs)), (f"t{i}",)))
    return operators, {f"t{i}": int(16 * rng.integers(1, 100)) for i in range(count + 1)}


def accuracy_cases(folder: Path) -> dict[str, Case]:
    """Return the cases of accuracy by name: networks with and without repair."""
    draws = {"x": np.random.default_rng(SEED).normal(size=(SAMPLES + JUDGED, 1, 16, 8, 8)).astype(np.float32)}
    return {
        "small": partial(accuracy_figures, folder / "small.onnx", "wide32_w4a16", "full", draws),
        "functions": partial(accuracy_figures, folder / "functions.onnx", "wide32_w4a16", "none", draws),
        "slices": partial(accuracy_figures, folder / "small.onnx", "wide32_w4a16", "none", draws, ("w[0-3]=int8",)),
        "floored": partial(accuracy_figures, folder / "sums.onnx", str(folder / "floored.yaml"), "full", draws),
    }


def accuracy_figures(
    path: Path, machine: str, effort: Any, samples: Mapping[str, np.ndarray], types: tuple[str, ...] = ()
) -> dict[str, float]:
    """Return the SQNR against float, in dB, on samples that served no choice."""
    from toolchain.api import BuildOptions

    few = {name: values[:SAMPLES] for name, values in samples.items()}
    other = {name: values[-JUDGED:] for name, values in samples.items()}
    return {"dB": decibels_of(str(path), BuildOptions(machine, calibration=few, repair=effort, level=1, types=types), other)}


def decibels_of(model: str, options: Any, judged: Mapping[str, np.ndarray]) -> float:
    """Return the SQNR of all outputs of a build together, in dB, against onnxruntime on the float model."""
    from toolchain.api import Session, build
    from toolchain.foundation.inference import open_model, session_options

    session, floats = Session(build(model, options)), open_model(model, session_options(optimized=True))
    signal = noise = 0.0
    for index in range(len(next(iter(judged.values())))):
        feeds = {name: values[index] for name, values in judged.items()}
        for ours, theirs in zip(session.run(None, feeds), map(np.asarray, floats.run(None, feeds)), strict=True):
            signal += float(np.square(theirs, dtype=np.float64).sum())
            noise += float(np.square(ours.astype(np.float64) - theirs).sum())
    return 10 * float(np.log10(signal / max(noise, 1e-30)))


def draw_weights(rng: np.random.Generator, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {n: (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32) for n, shape in shapes.items()}


def save_network(path: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], x: list[int], y: list[int]) -> None:
    onnx.save(build_model(nodes, {"x": x}, {"y": y}, weights, name=path.stem), path)


def save_depthwise(path: Path) -> None:
    """Save three inverted residual blocks on 24x24 pixels."""
    rng = np.random.default_rng(SEED)
    nodes, shapes, x = [], {}, "x"
    for i in range(3):
        layers = ((96, 16, 1, 1), (96, 1, 3, 96), (16, 96, 1, 1))
        y = x
        for part, (outputs, inputs, k, group) in enumerate(layers):
            shapes[f"w{i}{part}"] = (outputs, inputs, k, k)
            pads = [k // 2] * 4
            nodes.append(onnx.helper.make_node("Conv", [y, f"w{i}{part}"], [f"c{i}{part}"], pads=pads, group=group))
            y = f"c{i}{part}"
            if part < 2:
                nodes.append(onnx.helper.make_node("Relu", [y], [f"r{i}{part}"]))
                y = f"r{i}{part}"
        nodes.append(onnx.helper.make_node("Add", [x, y], [x := "y" if i == 2 else f"a{i}"]))
    save_network(path, nodes, draw_weights(rng, shapes), [1, 16, 24, 24], [1, 16, 24, 24])


def save_transformer(path: Path) -> None:
    """Save one head of attention and two dense layers, 48 tokens of 64."""
    rng, node = np.random.default_rng(SEED), onnx.helper.make_node
    shapes = {f"w{name}": (64, 64) for name in "qkvo"} | {"w1": (64, 256), "w2": (256, 64), "shift": (64,)}
    constants = draw_weights(rng, shapes) | {"gain": np.ones(64, np.float32)}
    nodes = [node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"]
    nodes += [
        node("Transpose", ["k"], ["t"], perm=[1, 0]),
        node("MatMul", ["q", "t"], ["scores"]),
        node("Softmax", ["scores"], ["p"]),
        node("MatMul", ["p", "v"], ["heads"]),
        node("MatMul", ["heads", "wo"], ["o"]),
        node("Add", ["x", "o"], ["a"]),
        node("LayerNormalization", ["a", "gain", "shift"], ["n"]),
        node("MatMul", ["n", "w1"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "w2"], ["d"]),
        node("Add", ["n", "d"], ["y"]),
    ]
    save_network(path, nodes, constants, [48, 64], [48, 64])


def save_small(path: Path) -> None:
    """Save a network of few weights with one layer of each kind that repair treats: dense, depthwise, pointwise."""
    rng, node = np.random.default_rng(SEED), onnx.helper.make_node
    shapes = {"w0": (16, 16, 3, 3), "w1": (16, 1, 3, 3), "w2": (24, 16, 1, 1), "w3": (10, 24), "b0": (16,), "b3": (10,)}
    constants = draw_weights(rng, shapes)
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "w1"], ["d"], pads=[1, 1, 1, 1], group=16),
        node("Relu", ["d"], ["s"]),
        node("Conv", ["s", "w2"], ["e"]),
        node("GlobalAveragePool", ["e"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]
    save_network(path, nodes, constants, [1, 16, 8, 8], [1, 10])


def save_sums(path: Path) -> None:
    """Save a network whose sum and averages a machine that floors rounds down."""
    rng, node = np.random.default_rng(SEED), onnx.helper.make_node
    constants = draw_weights(rng, {"w0": (16, 16, 3, 3), "w1": (16, 16, 1, 1), "w2": (10, 16)})
    nodes = [
        node("Conv", ["x", "w0"], ["c"], pads=[1, 1, 1, 1]),
        node("Conv", ["x", "w1"], ["d"]),
        node("Add", ["c", "d"], ["s"]),
        node("AveragePool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w2"], ["y"], transB=1),
    ]
    save_network(path, nodes, constants, [1, 16, 8, 8], [1, 10])


def save_flooring_machine(path: Path) -> None:
    """Save edge16 with results rounded down."""
    machine = yaml.safe_load((ROOT / "hw_configs" / "edge16.yaml").read_text())
    machine["numerics"]["rounding"] = "floor"
    path.write_text(yaml.safe_dump(machine))


def save_functions(path: Path) -> None:
    """Save a network of the operators that need numbers beyond a convolution: norm, softmax, tables, sums, resize."""
    rng = np.random.default_rng(SEED)
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
    shapes = {"w0": (16, 16, 3, 3), "w1": (16, 16, 3, 3), "w2": (64, 32), "w3": (32, 16), "shift": (64,)}
    constants = draw_weights(rng, shapes) | {"rows": np.array([16, 64]), "gain": np.ones(64, np.float32)}
    constants["factors"] = np.array([1, 1, 2, 2], np.float32)
    save_network(path, nodes, constants, [1, 16, 8, 8], [16, 16])


def build_changed(constant: Constant, factor: float, folder: Path, only: frozenset[str], sink: Any) -> None:
    """Run the cases `only` of the number's kind in a new process, and send what they gave."""
    begin = time.process_time()
    figures, reads, fault = {}, {}, ""
    if factor != 1:
        change(constant, factor)
    try:
        for case, run in CASES[constant.kind](folder).items():
            if case in only or factor == 1:
                codes: set[CodeType] = set()
                if factor == 1:
                    sys.setprofile(lambda frame, event, _, codes=codes: codes.add(frame.f_code) if event == "call" else None)
                figures |= {f"{case} {figure}": value for figure, value in run().items()}
                sys.setprofile(None)
                reads[case] = read_names(codes)
    except Exception as error:  # a number may be one that the code cannot do without: that is a result
        fault = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    seconds = time.process_time() - begin
    sink.send(Measured(constant.path, constant.name, constant.text, factor, figures, round(seconds, 2), fault, reads))


def read_names(codes: set[CodeType]) -> list[str]:
    """Return `path name` of all globals in capitals that functions of this tree read."""
    return sorted({f"{path} {name}" for code in codes if (path := path_of(code)) for name in code.co_names if name.isupper()})


def path_of(code: CodeType) -> str:
    """Return the path of a function's module below ROOT, empty for one of another project."""
    path = Path(code.co_filename)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""


def cases_that_read(constant: Constant, base: Measured) -> frozenset[str]:
    """Return the cases whose unchanged run calls a function that reads the number; all, where it is read at import."""
    paths = [Path(module.__file__ or "").relative_to(ROOT).as_posix() for module in importers(constant)]
    keys = {f"{path} {constant.name}" for path in paths}
    is_import = is_read_at_import(constant)
    return frozenset(case for case, names in base.reads.items() if is_import or keys & set(names))


def measure(constant: Constant, factor: float, folder: Path, only: frozenset[str] = frozenset()) -> Measured:
    receiver, sink = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=build_changed, args=(constant, factor, folder, only, sink))
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
        if not case.endswith("dB") and abs(value / before - 1) >= 0.0005:
            parts.append(f"{case} {100 * (value / before - 1):+.2f} %")
        elif case.endswith("dB") and abs(value - before) >= 0.05:
            parts.append(f"{case.removesuffix(' dB')} {value - before:+.2f} dB")
    return ", ".join(parts) or "-"


CASES = {"planning": planning_cases, "memory": memory_cases, "accuracy": accuracy_cases}
PAGE = """# What the tuned numbers are worth

The compiler has numbers that somebody chose: how many tilings are tried, how many samples judge, how near two scales are one.
`bench/measure_constants.py` halves and doubles each of them and builds small networks again. This page is its table.

- Numbers of planning: cycles and program bytes of two networks. They are three inverted residual blocks on edge16 with
  12 KiB of SRAM, and a layer of a transformer on transformer64 with 32 KiB.
- Numbers of the memory planner: bytes of placements, of an order and of what is not resident, of drawn problems.
- Numbers of accuracy: SQNR against float of 48 samples that served no choice. On wide32_w4a16 they are of a small network with
  `--repair full`, and of a network of functions, a norm and a softmax. There is also the small one with weights in two bit
  slices. On an edge16 that rounds down they are of a network of sums and averages with `--repair full`.
- `ends in a fault`: `_CLOSE` is a ratio to the fewest cycles and at least 1; half of it leaves no plan.
- `-`: the change is below 0.05 % of cycles or 0.05 dB. What a number costs in build time is not in the table.

A number may matter on other networks. One that changes nothing here is a candidate to go. Other numbers have a source beside
them, or a reason in `scripts/lint_words.yaml`. `python scripts/lint_words.py --list constant` lists those that have neither.
"""


EARLIER_TEXT = """
## On larger networks

These were measured before on mobilenet_v2 (edge16) and bert_tiny (transformer64), each with 128 KiB of SRAM: cycles.

"""
TITLES = "\n## Numbers that change something\n\n", "\n## Numbers that change nothing here\n\n"
HEAD = "| number | module | value | halved | doubled |\n|---|---|---|---|---|\n"


def page(record: Mapping[tuple[str, str, str, float], Measured], tuned: list[Constant], before: str) -> str:
    """Return the page of all measured numbers. Rows of the page `before` that the record lacks stay in their tables."""
    effects: list[str] = []
    no_effects: list[str] = []
    for c in tuned:
        base = record.get(("", c.kind, "", 1.0))
        halved, doubled = (record.get((c.path, c.name, c.text, factor)) for factor in (0.5, 2.0))
        if base is None or halved is None or doubled is None or not (halved.figures or halved.fault):
            continue  # not measured, or read by no case
        texts = changes(base, halved), changes(base, doubled)
        row = f"| `{c.name}` | `{c.path}` | {c.text} | {texts[0]} | {texts[1]} |"
        (no_effects if texts == ("-", "-") else effects).append(row)
    fresh = {tuple(row.split(" | ")[:2]) for row in effects + no_effects}
    parts = {TITLES[0]: effects, TITLES[1]: no_effects, EARLIER_TEXT: []}
    for title, part in zip(parts, split_rows(before), strict=True):
        parts[title] = sorted({*parts[title], *(row for row in part if tuple(row.split(" | ")[:2]) not in fresh)}, key=by_module)
    return PAGE + "".join(f"{title}{HEAD}" + "".join(f"{r}\n" for r in rows) for title, rows in parts.items() if rows)


def split_rows(page: str) -> list[list[str]]:
    """Return the rows of a page's three tables: with an effect, without one, measured earlier on larger networks."""
    before_earlier, _, earlier = page.partition(EARLIER_TEXT)
    effects, _, no_effects = before_earlier.partition(TITLES[1])
    return [[line for line in part.splitlines() if line.startswith("| `")] for part in (effects, no_effects, earlier)]


def by_module(row: str) -> tuple[str, ...]:
    return tuple(reversed(row.split(" | ")[:2]))


def main() -> None:
    """Measure the numbers that the record lacks and append them, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--only", help="numbers whose name or path contains this")
    parser.add_argument("--page", type=Path, help="write the table here and measure nothing")
    options = parser.parse_args()
    data = yaml.safe_load(LINT.read_text())
    untuned = {entry for entries in data["untuned"].values() for entry in entries}
    numbers = constants(data["tuned"], tuple(data["untuned_names"]))
    tuned = [number for number in numbers if f"{number.path} {number.name}" not in untuned and not number.has_source()]
    record = read_record(options.record)
    if options.page:
        options.page.write_text(page(record, tuned, options.page.read_text() if options.page.exists() else ""))
        return
    import_product()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_networks(folder)
        for path in ("toolchain/schedule/", "toolchain/memory/", "quant/"):
            base = Constant(path, "none", "", 1.0)
            if ("", base.kind, "", 1.0) not in record:
                append(options.record, replace(measure(base, 1.0, folder), path="", name=base.kind))
        record = read_record(options.record)
        for constant in (c for c in tuned if (options.only or "") in f"{c.path} {c.name}"):
            measure_both(constant, options.record, record, folder)


def measure_both(constant: Constant, path: Path, record: Mapping[tuple[str, str, str, float], Measured], folder: Path) -> None:
    """Append the measurements of a number halved and doubled, those that the record has left out."""
    base = record["", constant.kind, "", 1.0]
    for factor in (0.5, 2.0):
        if (constant.path, constant.name, constant.text, factor) not in record:
            cases = cases_that_read(constant, base)
            unread = Measured(constant.path, constant.name, constant.text, factor, {}, 0.0)
            append(path, measure(constant, factor, folder, cases) if cases else unread)


def save_networks(folder: Path) -> None:
    save_depthwise(folder / "depthwise.onnx")
    save_transformer(folder / "transformer.onnx")
    save_functions(folder / "functions.onnx")
    save_small(folder / "small.onnx")
    save_sums(folder / "sums.onnx")
    save_flooring_machine(folder / "floored.yaml")


def append(path: Path, measured: Measured) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(measured)) + "\n")
    print(measured.path, measured.name, measured.factor, measured.fault or dict(measured.figures), measured.cpu_s, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
