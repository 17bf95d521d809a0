"""npu-build as its user meets it: options, files, tables, warnings, progress."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bad_files import model
from commands import run

from bench.make_mobilenet_chain import bodies
from toolchain.compiler import STAGES

CLASSIFIER = Path(__file__).parents[2] / "examples" / "classifier"
BOTH_FILES = {
    "cycles",
    "clock_hz",
    "macs",
    "mac_utilization",
    "attribution",
    "roofline_cycles",
    "dram_read_bytes",
    "dram_write_bytes",
    "dram_bound_bytes",
    "sram_peak_bytes",
    "sram_bound_bytes",
    "layers",
    "fallbacks",
}


def done(line: str) -> str:
    """Return the stdout of a command that must succeed."""
    printed = run(line)
    assert printed.code == 0, printed.err
    return printed.out


@pytest.mark.parametrize("level", ["-O2", "-O 2", ""])
def test_level_two_is_the_default_however_written(level: str, in_workshop: Path, tmp_path: Path) -> None:
    done(f"npu-build good.onnx --hw edge16 --calib good.npz -o {tmp_path}/a.npu {level}".strip())
    assert (tmp_path / "a.npu").read_bytes() == (in_workshop / "good.npu").read_bytes()


def test_levels_differ(tmp_path: Path) -> None:
    images = set()
    onnx.save(bodies(1, 8), tmp_path / "m.onnx")
    for level in range(3):
        done(f"npu-build {tmp_path}/m.onnx --hw edge16 -O{level} -o {tmp_path}/a.npu")
        images.add((tmp_path / "a.npu").read_bytes())
    assert len(images) == 3


def test_every_shape_is_bound(in_workshop: Path, tmp_path: Path) -> None:
    graph = "(float[N,3,H,W] x, float[N,4,K,L] z) => (float[N,4,P,Q] y) { a = Conv<pads=[1,1,1,1]>(x, w) y = Add(a, z) }"
    onnx.save(model(graph), tmp_path / "two.onnx")
    done(f"npu-build {tmp_path}/two.onnx --hw edge16 --shape x=2,3,6,5 --shape z=2,4,6,5 --json {tmp_path}/two.json")
    assert json.loads((tmp_path / "two.json").read_text())["macs"] >= 2 * 6 * 5 * 4 * 3 * 9
    assert (tmp_path / "two.npu").exists()  # beside the model, where -o does not say otherwise


def test_report_and_json(in_workshop: Path, tmp_path: Path) -> None:
    out = done(f"npu-build island.onnx --hw edge16 --calib good.npz -o {tmp_path}/a.npu --json {tmp_path}/a.json")
    figures = json.loads((tmp_path / "a.json").read_text())
    assert BOTH_FILES | {"expected_cycles", "outputs", "concats"} <= figures.keys()
    assert [set(o) >= {"name", "sqnr_db", "cosine"} for o in figures["outputs"]] == [True]
    assert [sorted(f) for f in figures["fallbacks"]] == [["node", "op", "reason"]]
    assert all({"name", "op", "engine", "cycles", "macs", "bound_by"} <= layer.keys() for layer in figures["layers"])
    assert sum(layer["cycles"] for layer in figures["layers"]) == figures["cycles"]
    assert [f"WARNING: {w}" for w in figures["warnings"]] == FEW_SAMPLES.splitlines()
    assert out.splitlines()[-1] == (
        f"wrote {tmp_path}/a.npu: {(tmp_path / 'a.npu').stat().st_size:,} bytes; "
        "the emitted program equals the integer reference bit for bit"
    )
    assert "outputs against float, on 1 sample of the data it was calibrated on:\n" in out
    assert "\n1 node runs on the host:\n" in out and "\n% of cycles, by cause\n" in out


FEW_SAMPLES = (
    "WARNING: calibrated on 1 sample; ranges of fewer than 16 may not hold for other data\n"
    "WARNING: judged on the data it was calibrated on: others may do worse; give more than 16 samples, or --judge DATA\n"
)


def test_random_calibration_is_said_loudly(in_workshop: Path, tmp_path: Path) -> None:
    quiet = run(f"npu-build good.onnx --hw edge16 --calib good.npz -o {tmp_path}/a.npu")
    assert quiet.err == FEW_SAMPLES
    loud = run(f"npu-build good.onnx --hw edge16 -o {tmp_path}/a.npu --json {tmp_path}/a.json")
    warning_text = "calibrated and judged on RANDOM inputs: bits and cycles are right, accuracy means NOTHING; give --calib DATA"
    assert loud.err == f"WARNING: {warning_text}\n"
    assert "outputs against float, on 4 samples of RANDOM inputs (means nothing):" in loud.out
    assert json.loads((tmp_path / "a.json").read_text())["warnings"] == [warning_text]
    judged = run(f"npu-build good.onnx --hw edge16 --quant good_parameters.yaml -o {tmp_path}/a.npu")
    assert judged.err == f"WARNING: {warning_text.replace('calibrated and ', '')}\n"


def test_random_inputs_give_figures_and_no_verdict(in_workshop: Path, tmp_path: Path) -> None:
    """Parameters of another range make the output poor; without data nobody can say so."""
    far = (in_workshop / "good_parameters.yaml").read_text().replace("high: 9.0", "high: 0.1").replace("low: -9.0", "low: -0.1")
    (tmp_path / "far.yaml").write_text(far)
    line = f"npu-build good.onnx --hw edge16 --quant {tmp_path}/far.yaml -o {tmp_path}/a.npu --json {tmp_path}/a.json"
    random = run(line)
    assert "outputs against float, on 4 samples of RANDOM inputs (means nothing):" in random.out
    assert "POOR" not in random.out and "WARNING: output" not in random.err
    assert json.loads((tmp_path / "a.json").read_text())["judged_on"] == "random inputs"
    real = run(f"{line} --calib good.npz")
    assert "outputs against float, on 1 sample of --calib:" in real.out and "POOR" in real.out
    (gate_line,) = [one for one in real.err.splitlines() if "against float" in one]
    assert (
        gate_line.startswith("WARNING: output y: SQNR ")
        and ", tensor y: clipped tail" in gate_line
        and "; tried on 1 sample: low: 0, high: " in gate_line
    )
    figures = json.loads((tmp_path / "a.json").read_text())
    assert figures["judged_on"] == "calib" and gate_line.removeprefix("WARNING: ") in figures["warnings"]


def test_a_network_that_only_the_host_runs(in_workshop: Path, tmp_path: Path) -> None:
    graph = "(float[1,3,8,8] x) => (float[1,3,8,8] y) { y = MeanVarianceNormalization<axes=[3]>(x) }"
    onnx.save(model(graph), tmp_path / "h.onnx")
    out = done(f"npu-build {tmp_path}/h.onnx --hw edge16 --explain")
    assert out.startswith("h on edge16: nothing runs on the NPU, the host runs all of it\n\n1 node runs on the host:\n")
    assert out.splitlines()[-1].endswith(" bytes; no program")
    assert done(f"npu-sim {tmp_path}/h.npu").startswith("h on edge16: nothing runs on the NPU, the host runs all of it\n\n")


EXPLAINED = """\
node   operator                   engine  cycles of its layer  ops  types  why
conv   Conv                       mac                       N  I:I-I  int8 to int8; int8 weights
relu   Relu                       mac                       N  I:I-I  int8 to int8; int8 weights  part of conv
same   Identity                   none                      0  folded away: constant, without effect, or merged into another node
norm   MeanVarianceNormalization  host                      -  no operator of the chip computes LayerNormalization
                                                                     limits.decompose makes it of steps where the chip has each
prelu  PRelu                      host                      -  engines.vector.functions has no prelu
pool   GlobalAveragePool          vector                    N  I:I-I  int8 to int8
shape  Flatten                    none                      0  the same bytes under another shape"""


def test_explain_lists_every_node(in_workshop: Path, tmp_path: Path) -> None:
    graph = (
        "(float[1,3,8,8] x) => (float[1,4] y) { a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Identity(b) "
        "d = MeanVarianceNormalization<axes=[1,2,3]>(c) e = PRelu(d, s) f = GlobalAveragePool(e) y = Flatten(f) }"
    )
    proto = model(graph)
    proto.graph.initializer.append(onnx.helper.make_tensor("s", onnx.TensorProto.FLOAT, [4, 1, 1], [0.1, 0.2, 0.3, 0.4]))
    for node, name in zip(proto.graph.node, ("conv", "relu", "same", "norm", "prelu", "pool", "shape"), strict=True):
        node.name = name
    onnx.save(proto, tmp_path / "m.onnx")
    out = done(f"npu-build {tmp_path}/m.onnx --hw without_prelu.yaml --explain --json {tmp_path}/m.json")
    table = next(section for section in out.split("\n\n") if "cycles of its layer" in section)
    assert shape_of(table) == shape_of(EXPLAINED)
    rows = json.loads((tmp_path / "m.json").read_text())["nodes"]
    assert [r["node"] for r in rows] == [n.name for n in proto.graph.node]
    assert rows[1] == {**rows[0], "node": "relu", "op": "Relu", "reason": "part of conv"}


def shape_of(table: str) -> list[list[str]]:
    """Words of each line; rules, cycles and indices left out, for they follow from widths and schedules."""
    lines = [re.sub(r"\b\d+:\d+-\d+\b", "I:I-I", line).split() for line in table.splitlines()]
    return [["N" if w.replace(",", "").isdigit() and w != "0" else w for w in words] for words in lines if words[0][0] != "-"]


def test_explain_names_every_node_of_the_classifier(in_workshop: Path, tmp_path: Path) -> None:
    line = f"npu-build {CLASSIFIER}/classifier.onnx --hw ws8_pow2 --calib {CLASSIFIER}/calib.npz --samples 4 -O0"
    done(f"{line} -o {tmp_path}/c.npu --json {tmp_path}/c.json")
    names = [n.name for n in onnx.load(CLASSIFIER / "classifier.onnx").graph.node]
    rows = [r for r in json.loads((tmp_path / "c.json").read_text())["nodes"] if r["made_by"] == "model"]
    assert [r["node"] for r in rows] == names
    assert {r["engine"] for r in rows} <= {"mac", "vector", "dma", "none", "host"}


def test_dumps(in_workshop: Path, tmp_path: Path) -> None:
    line = f"npu-build good.onnx --hw edge16 --calib good.npz -o {tmp_path}/a.npu --dump-dir {tmp_path}/d --dump-after"
    done(f"{line} quantize")
    name = f"{STAGES.index('quantize'):02d}-quantize"
    assert {f.name for f in (tmp_path / "d").iterdir()} == {f"{name}.txt", f"{name}.onnx", "constants.npz"}
    done(f"{line} all")
    names = [f"{i:02d}-{name}" for i, name in enumerate(STAGES)]
    views = [f"{name}.onnx" for name in names[: STAGES.index("schedule")]]
    assert {f.name for f in (tmp_path / "d").iterdir()} == {*(f"{name}.txt" for name in names), *views, "constants.npz"}
    assert all(f.stat().st_size for f in (tmp_path / "d").iterdir())


def test_dumps_of_several_builds_share_their_arrays(in_workshop: Path, tmp_path: Path) -> None:
    line = f"npu-build good.onnx --hw edge16 --calib good.npz -o {tmp_path}/a.npu --dump-dir {tmp_path}/d"
    done(f"{line} --dump-after select")
    early = {**np.load(tmp_path / "d" / "constants.npz")}
    done(f"{line} --dump-after fuse")
    assert early and early.keys() < np.load(tmp_path / "d" / "constants.npz").keys()
    (tmp_path / "d" / "constants.npz").write_bytes(b"cut")
    done(f"{line} --dump-after select")
    assert np.load(tmp_path / "d" / "constants.npz").files == list(early)


def test_arrays_that_no_text_names_leave_the_dumps(in_workshop: Path, tmp_path: Path) -> None:
    line = f"npu-build good.onnx --hw edge16 --calib good.npz -o {tmp_path}/a.npu --dump-dir {tmp_path}/d"
    folder = tmp_path / "d"
    done(f"{line} --dump-after select")
    arrays = {**np.load(folder / "constants.npz")}
    more: dict[str, Any] = {**arrays, "0123456789abcdef": np.arange(9), "fedcba9876543210": np.arange(9)}
    np.savez(folder / "constants.npz", **more)
    (folder / "edited").write_text("constant w: int64[9] = <int64[9] 0..8 @0123456789abcdef>\n")
    done(f"{line} --dump-after select")
    assert np.load(folder / "constants.npz").keys() == {*arrays, "0123456789abcdef"}
    (folder / "edited").unlink()
    done(f"{line} --dump-after select")
    assert np.load(folder / "constants.npz").keys() == arrays.keys()


def test_a_pass_is_dumped_under_its_name_with_the_number_of_its_stage(in_workshop: Path, tmp_path: Path) -> None:
    line = f"npu-build good.onnx --hw edge16 -o {tmp_path}/a.npu --dump-dir {tmp_path}/d --dump-after"
    for name, stage in (("fold-qdq", "compose"), ("fuse-tables", "fuse"), ("circular-states", "schedule")):
        done(f"{line} {name}")
        assert (tmp_path / "d" / f"{STAGES.index(stage):02d}-{name}.txt").read_text().startswith("graph ")
    done(f"{line} fuse-residuals")
    assert (tmp_path / "d" / f"{STAGES.index('fuse'):02d}-fuse.txt").exists()


def build_twice(seed: str, folder: Path) -> list[bytes]:
    """Two models on two kinds of machine, built in a process of its own."""
    script = "import sys; from toolchain.cli import build; build()"
    images = []
    for source, hw in ((folder / "good.onnx", "wide32_w4a16"), (folder / "island.onnx", "ws8_pow2")):
        target = folder / "again.npu"
        subprocess.run(
            [sys.executable, "-c", script, str(source), "--hw", hw, "-o", str(target)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        images.append(target.read_bytes())
        target.unlink()
    return images


@pytest.mark.slow  # golden programs, of which each run has another seed, are equal too
def test_two_processes_give_the_same_bytes(in_workshop: Path) -> None:
    assert build_twice("1", in_workshop) == build_twice("271828", in_workshop)


def test_progress_is_shown_on_a_terminal_only(in_workshop: Path, tmp_path: Path) -> None:
    """Piped, the same build leaves stderr empty: test_random_calibration_is_said_loudly."""
    pty = pytest.importorskip("pty")
    command = [sys.executable, "-c", "from toolchain.cli import build; build()"]
    command += f"good.onnx --hw edge16 --calib good.npz -o {tmp_path}/a.npu".split()
    main_end, terminal = pty.openpty()
    with os.fdopen(main_end, "rb", buffering=0) as screen:
        built = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env={**os.environ, "TERM": "xterm"})
        os.close(terminal)
        shown = b""
        while built.poll() is None or not shown:
            try:
                shown += screen.read(4096)
            except OSError:  # the other end is closed: EIO on Linux
                break
        out = built.communicate()[0]
    assert built.returncode == 0
    assert b"wrote " in out
    assert b"\x1b[" not in out
    assert b"\x1b[" in shown


@pytest.mark.parametrize(
    ("parameters", "warning"),
    [
        ("point", "tensor 'x': 100% of its values, in [LOW, HIGH], are clipped; widen its range"),
        ("wide", "tensor 'x': its values, in [LOW, HIGH], all become one code; narrow its range"),
        ("good", None),
    ],
)
def test_a_range_that_loses_its_tensor_is_warned_of(
    parameters: str, warning: str | None, in_workshop: Path, tmp_path: Path
) -> None:
    file = "good_parameters.yaml" if parameters == "good" else f"parameters_{parameters}.yaml"
    printed = run(f"npu-build good.onnx --hw edge16 --quant {file} --calib good.npz -o {tmp_path}/a.npu")
    with np.load("good.npz") as data:
        x = data["x"]
    expected = [] if warning is None else [f"WARNING: {file}: {warning}"]
    assert printed.code == 0
    file_lines = [line for line in printed.err.splitlines() if file in line]
    assert file_lines == [e.replace("LOW", f"{x.min():.4g}").replace("HIGH", f"{x.max():.4g}") for e in expected]
