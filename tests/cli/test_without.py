"""npu-sim --without TERM: the same program on a machine on which one term of its time costs nothing."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from commands import run
from two_layers import save_two_layers

from tests.hw.machine_files import section_text
from toolchain.api import BuildOptions, build
from toolchain.hw.timing_terms import TERMS
from toolchain.runtime import Session, random_feeds

# Terms that each cost something for the network below.
TIMING = "timing: {fold_cycles: 40, input_edge_bytes: 2, weight_edge_bytes: 2, window_bytes: 0, output: {lanes: 1}}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model for an array of a depth of 4, whose taps have 3 channels each, and a function of the vector
    engine.
    """
    folder = tmp_path_factory.mktemp("without")
    shutil.copytree(str(files("hw_configs") / "isa"), folder / "isa")
    text = (files("hw_configs") / "edge16.yaml").read_text()
    changes = [
        (section_text("edge16.yaml", "timing"), TIMING),
        ("rows: 16", "rows: 4\n    depth: 4"),
        ("post: [table, add]", "post: []"),
    ]
    dma = text[text.index("    bytes_per_cycle: 16.0\n") : text.index("    dimensions: 3\n")]
    changes += [(dma, "    bytes_per_cycle: 3.0\n")]
    changes += [("read_bytes_per_cycle: 64", "read_bytes_per_cycle: 1")]
    changes += [("bank_bytes: 8", "bank_bytes: 512"), ("bank_cycles: 1 ", "bank_cycles: 128 ")]
    changes += [(", program_memory: own", "")]
    for old, new in changes:
        text = text.replace(old, new, 1)
    (folder / "mine.yaml").write_text(text)
    ports = "(float[1,3,12,12] x) => (float[1,8,12,12] y)"
    save_two_layers(folder / "net.onnx", ports, (5, 3, 3, 3), (8, 5, 1, 1), np.random.default_rng(0))
    built = build(folder / "net.onnx", BuildOptions(str(folder / "mine.yaml")))
    path = folder / "net.npu"
    path.write_bytes(built.data)
    return path


def cycles(model: Path, *terms: str) -> int:
    session = Session(model, timing=True, without=terms)
    run = session.run_detailed(random_feeds(session.get_inputs(), seed=1))
    return sum(s.simulation.cycles for s in run.segments if s.simulation is not None)


@pytest.mark.parametrize("term", TERMS)
def test_no_term_makes_it_slower_and_those_of_the_machine_cost_something(model: Path, term: str) -> None:
    # where one hides behind another: the memory's port behind the array's edges, the front end behind the program's port, banks
    # and the array behind the memory's port
    hidden = {"window": ("edges",), "words": ("program",), "banks": ("alignment",), "reduction": ("alignment",)}
    hiding_terms = hidden.get(term, ())
    saved = cycles(model, *hiding_terms) - cycles(model, term, *hiding_terms)
    assert saved >= 0
    assert saved > 0 or term in ("startup", "bursts")  # no vector function here; bursts of 64 bytes that are all used


def test_terms_together_are_ideal_together(model: Path) -> None:
    alone = {term: cycles(model, term) for term in ("edges", "output")}
    assert cycles(model, *alone) < min(alone.values())


def test_outputs_are_the_same_and_the_report_says_what_is_left_out(model: Path) -> None:
    plain = run(f"npu-sim {model} --json {model.parent / 'a.json'} --output {model.parent / 'a.npz'}")
    printed = run(
        f"npu-sim {model} --json {model.parent / 'b.json'} --output {model.parent / 'b.npz'} --without edges --without fill"
    )
    assert (plain.code, printed.code) == (0, 0)
    assert "note: times of a copy of edge16 on which this costs nothing: edges, fill" in printed.out
    assert "costs nothing" not in plain.out
    a, b = (json.loads((model.parent / f"{name}.json").read_text()) for name in "ab")
    assert "without" not in a
    assert b["without"] == ["edges", "fill"]
    assert b["cycles"] < a["cycles"]
    for name, value in np.load(model.parent / "a.npz").items():
        np.testing.assert_array_equal(value, np.load(model.parent / "b.npz")[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--without edge", '--without edge: no such term; did you mean "edges"?'),
        ("--without foo", "--without foo: no such term; known: alignment, banks, "),
        ("--without fill --backend reference", "--without fill: times of the simulator only, not of backend reference"),
        ("--without fill --dump-memory end --out folder", "--without: does not go with --dump-memory end"),
    ],
)
def test_refusals(model: Path, options: str, message: str) -> None:
    printed = run(f"npu-sim {model} {options}")
    assert (printed.code, printed.out) == (2, "")
    assert printed.err.startswith(message)
