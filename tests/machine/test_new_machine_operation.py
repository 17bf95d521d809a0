"""Check that a machine operation takes two files, an operator, a row of the table and a line of the machine.

One file says what the operation is, the other computes its values.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

ADDED = Path(__file__).parents[1] / "support" / "plugin_example"
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[48,10] x) => (float[48,10] y) {
    a = Relu(x)
    y = LogSoftmax(a)
}
"""
ROW = """\
  row_log_softmax:
    opcode: 12
    fields:
      rows: {bits: [55, 32], bias: 1}
      columns: {bits: [79, 56], bias: 1}
      input_address: {bits: [103, 80]}
      input_row_stride: {bits: [127, 104]}
      output_address: {bits: [151, 128]}
      output_row_stride: {bits: [175, 152]}
      multiplier: {bits: [206, 176]}
      shift: {bits: [212, 207]}
    reserved: [[31, 26], [1023, 213]]
"""
SCRIPT = """
import json, sys
from pathlib import Path
import simulator.semantics, toolchain.machine.operations, toolchain.ops
folder, added = sys.argv[1], sys.argv[2]
toolchain.machine.operations.__path__.append(added + "/operations")
simulator.semantics.__path__.append(added + "/semantics")
toolchain.ops.__path__.append(added + "/operators")
import toolchain.vectors.draws
toolchain.vectors.draws.__path__.append(added + "/draws")
import numpy as np
from toolchain.api import BuildOptions, build
from toolchain.isa import disassemble, load_machine
from toolchain.isa.constants import c_header
from toolchain.isa.manual import manual
from toolchain.runtime import Session
from toolchain.vectors import instruction_cases
built = build(folder + "/m.onnx", BuildOptions(folder + "/own.yaml", calibration=folder + "/x.npz"))
session = Session(built.data)
y = session.run(None, dict(np.load(folder + "/x.npz")))[0]
np.save(folder + "/y.npy", y)
same = Session(built.data, backend="reference").run(None, dict(np.load(folder + "/x.npz")))[0]
machine = load_machine(folder + "/own.yaml")
rows = {row["name"]: row for row in built.figures["layers"]}
print(json.dumps({
    "fallbacks": built.figures["fallbacks"],
    "equal": bool((y == same).all()),
    "manual": "row_log_softmax" in manual(machine) and "row_log_softmax" in c_header(machine).lower(),
    "cases": [case.name for case in instruction_cases(machine) if case.operation == "row_log_softmax"],
    "layers": [[row["op"], row["engine"], row["cycles"]] for row in rows.values()],
}))
"""


KIT = """
import sys
import simulator.semantics, toolchain.machine.operations
toolchain.machine.operations.__path__.append(sys.argv[2] + "/operations")
simulator.semantics.__path__.append(sys.argv[2] + "/semantics")
import toolchain.vectors.draws
toolchain.vectors.draws.__path__.append(sys.argv[2] + "/draws")
from toolchain.cli.hw import app
app(["vectors", sys.argv[1] + "/own.yaml", "--out", sys.argv[1] + "/kit"])
"""


def make_machine(folder: Path, rate: str) -> None:
    """edge16 with one function more, and its table with one row more."""
    shipped = files("hw_configs")
    text = shipped.joinpath("edge16.yaml").read_text().replace("isa/descriptors1024.yaml", "own_table.yaml")
    text = text.replace("LogSoftmax, ", "")  # of those that are made of steps
    (folder / "own.yaml").write_text(text.replace("    functions:\n", f"    functions:\n      row_log_softmax: {rate}\n"))
    table = shipped.joinpath("isa/descriptors1024.yaml").read_text()
    (folder / "own_table.yaml").write_text(table.replace("  signal:\n", f"{ROW}  signal:\n", 1))


def ran(folder: Path, added: Path, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, str(folder), str(added)]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])


def log_softmax(x: np.ndarray) -> np.ndarray:
    less = x - x.max(-1, keepdims=True)
    return less - np.log(np.exp(less).sum(-1, keepdims=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(MODEL), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(5).normal(0, 3, (48, 10)).astype(np.float32))
    return tmp_path


@pytest.mark.slow
def test_files_are_an_operation(folder: Path) -> None:
    cycles = []
    for rate in ("{lanes: 16, startup: 8}", "{lanes: 1, startup: 8}"):
        make_machine(folder, rate)
        done = ran(folder, ADDED)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["fallbacks"], report["equal"], report["manual"]) == ([], True, True)
        assert report["cases"] == ["rows_of_1", "rows_of_10"]
        layer_row = next(layer for layer in report["layers"] if layer[0] == "RowLogSoftmax")
        assert layer_row[1] == "vector"
        cycles.append(layer_row[2])
        assert not np.modf(np.load(folder / "y.npy") * 16)[0].any()  # the operator's own scale, not that of what was measured
        error = np.load(folder / "y.npy") - log_softmax(np.maximum(np.load(folder / "x.npz")["x"], 0))
        assert np.abs(error).max() <= 2 / 16 and abs(error.mean()) <= 1 / 128
    # three passes over 480 elements, on one lane rather than on 16
    assert cycles[1] - cycles[0] >= 0.9 * 3 * (480 - 30)


def test_a_machine_without_the_files_names_the_function(folder: Path) -> None:
    make_machine(folder, "{lanes: 16}")
    message = ran(folder, folder).stderr
    line = (folder / "own.yaml").read_text().partition("row_log_softmax")[0].count("\n") + 1
    assert f"own.yaml:{line}: engines.vector.functions.row_log_softmax: no such function; known: abs, acos, acosh" in message


def test_the_kit_of_the_numerics_names_the_function(folder: Path) -> None:
    make_machine(folder, "{lanes: 16}")
    done = ran(folder, ADDED, KIT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("note: no cases here of row_log_softmax; --instructions writes those of every instruction\n")
    assert (folder / "kit" / "index.json").exists()
