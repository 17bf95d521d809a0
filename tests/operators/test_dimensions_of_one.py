"""Check every operator's case with one of its sizes set to 1 in all tensors that have it.

The case is built on shipped machines, equals its reference bit for bit, and equals float on fine codes.

    `ONES_CASES=500 ONES_SEED=7 pytest tests/operators/test_dimensions_of_one.py -rP`

The variables set how many cases are drawn, and by which seed.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.semantics import arithmetic, decompose_models, functions, logic_cases, movement, windows
from tests.semantics.case import Case
from tests.semantics.judge import in_float, judge_build, save
from tests.semantics.machines import int16_machine
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.runtime import Session

MACHINES = ("edge16", "ethos_u55_256", "ethos_u65_512", "nvdla_small", "transformer64", "wide32_w4a16", "ws8_pow2")
CONSTANT = "wvuks"  # how names of constants begin
COUNT, SEED = int(os.environ.get("ONES_CASES", "6")), int(os.environ.get("ONES_SEED", "0"))
ONE_SENTENCE = re.compile(r"[^\n]+(\n  help: [^\n]+)?")
# What may be said of a case, each a part of its sentence: of a ConvTranspose with SAME whose window is 1.
REFUSED = ("beyond its window: the specification and onnxruntime do not agree what that is",)
MOST_REFUSED = 0.05  # of the cases
LEAST_DB = 40.0  # of int16: as of random networks
ALL = [c for m in (windows, arithmetic, movement, functions, decompose_models, logic_cases) for c in m.CASES]
ONE = [Case(f"Arg{kind}_of_one", "x 2,1,8", f"y = Arg{kind}<axis=1>(x) z = Cast<to=1>(y)", "z") for kind in ("Max", "Min")]


def variants(case: Case) -> Iterator[Case]:
    """The case with each size of its tensors, where it is not 1, set to 1 wherever it occurs."""
    for size in sorted({d for shape in case.shapes.values() for d in shape} - {0, 1}):
        shapes = {n: ",".join("1" if d == size else str(d) for d in s) for n, s in case.shapes.items()}
        yield replace(case, name=f"{case.name}, 1 for {size}", inputs="; ".join(f"{n} {s}".strip() for n, s in shapes.items()))


def is_valid(case: Case, folder: Path) -> bool:
    """Return whether onnxruntime runs the case; a subgraph holds sizes too, which are not set.
    A window larger than its input is not tried, since a Slice of its result ends the process.
    """
    try:
        load_model(save(case.proto, case.samples, folder)[0])
    except CompileError as fault:
        if "is larger than its input" in str(fault):
            return False
    try:
        outputs = in_float(case.proto, case.samples)
    except Exception:  # of onnx or onnxruntime, whose errors share no base class
        return False
    return all(np.isfinite(y).all() for run in outputs for y in run if y.dtype.kind == "f")


def drawn(folder: Path) -> list[tuple[Case, str]]:
    rng = random.Random(SEED)
    names = [(case, machine) for case in ALL for machine in rng.sample(MACHINES, 2)]
    rng.shuffle(names)
    chosen: list[tuple[Case, str]] = []
    for case, machine in names:
        if len(chosen) == COUNT:
            break
        valid = [v for v in variants(case) if is_valid(v, folder)]
        chosen += [(rng.choice(valid), machine)] if valid else []
    return chosen


@pytest.mark.parametrize("case", ONE, ids=lambda case: case.name)
@pytest.mark.parametrize("machine", ["wide32_w4a16", "transformer64"])
def test_the_place_of_one_element(case: Case, machine: str, tmp_path: Path) -> None:
    model, data = save(case.proto, case.samples, tmp_path)
    types = ("*=int16",) if machine == "transformer64" else ()
    built = build(model, BuildOptions(machine, str(data), types=types))
    (z,) = Session(built.data).run(None, case.samples[0])
    np.testing.assert_array_equal(z, np.zeros((2, 1, 8), np.float32))


def test_sizes_of_zero(tmp_path: Path) -> None:
    """An input whose first size is 0, by the file and by --shape: built, or one sentence a node."""
    counts: Counter[str] = Counter()
    for case in ALL:
        x = next((name for name, shape in case.shapes.items() if name[0] not in CONSTANT and shape), None)
        if x is None:
            continue
        shapes = {x: (0, *case.shapes[x][1:])}
        inputs = "; ".join(f"{n} {','.join(map(str, s))}".strip() for n, s in {**case.shapes, **shapes}.items())
        onnx.save(replace(case, inputs=inputs).proto, tmp_path / "m.onnx")
        try:
            build(tmp_path / "m.onnx", BuildOptions("edge16", shapes=shapes))
            counts["built"] += 1
        except CompileError as fault:
            rest = str(fault).split("\n")[1:]  # several nodes are named, each in a line
            assert all(line.startswith(("node ", "  help: ")) for line in rest), f"{case.name}: {fault}"
            counts["refused"] += 1
    print(counts)
    assert counts["built"] > counts["refused"] > 0


def test_sizes_of_one(tmp_path: Path) -> None:
    """The same cases each time; with ONES_SEED others. A build compares program and reference itself."""
    faults, counts, cases = list[str](), Counter[str](), drawn(tmp_path)
    assert len(cases) == COUNT
    for case, machine in cases:
        model, data = save(case.proto, case.samples, tmp_path)
        counts["cases"] += 1
        try:
            build(model, BuildOptions(machine, str(data)))
            outputs = judge_build(case.proto, int16_machine(), case.samples, tmp_path).outputs
        except CompileError as fault:
            assert ONE_SENTENCE.fullmatch(str(fault)), fault
            counts[f"refused: {next((text for text in REFUSED if text in str(fault)), str(fault))}"] += 1
        except Exception as fault:
            faults.append(f"{case.name} on {machine}: {type(fault).__name__}: {fault}")
        else:
            least = min(case.least_db, LEAST_DB)
            bad = [o for o in outputs if not o.within_float and o.sqnr_db < min(least, o.rounded_db - 3, o.codes_db - 12)]
            faults += [f"{case.name}: {output}" for output in bad]
    print("\n".join(f"{times:7}  {what}" for what, times in sorted(counts.items())))
    refused = {what: times for what, times in counts.items() if what.startswith("refused: ")}
    assert not faults, "\n".join(faults)
    assert refused.keys() <= {f"refused: {text}" for text in REFUSED}
    assert sum(refused.values()) <= MOST_REFUSED * COUNT
