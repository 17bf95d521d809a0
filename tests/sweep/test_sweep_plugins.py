"""Sweeps take plug-ins and libraries of custom operators; their bytes count in the keys of results."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from tiny_sweep import TINY

from tests.cli.commands import ROOT, run
from tests.plugins.sources import break_plugin, source_of
from toolchain.foundation import inference
from toolchain.plugin import get_plugins
from toolchain.plugin_loading import unload_plugin
from toolchain.sweep.build_job import tell_keys

SOFT_CLIP = """
<ir_version: 8, opset_import: ["" : 17, "my.org" : 1]>
g (float[1,4,8,8] x) => (float[1,4,8,8] y) { r = Relu(x) y = my.org.SoftClip<limit = 2.0>(r) }
"""
CUSTOM = """
<ir_version: 8, opset_import: ["" : 17, "ai.onnx.contrib" : 1]>
g (float[1,4,8,8] x) => (float[1,4,8,8] y) { r = Relu(x) a, b = ai.onnx.contrib.NegPos(r) y = Add(b, x) }
"""
ONE_MACHINE = TINY.replace("{engines.mac.rows: [8, 16], memories.sram.size: [32 KiB, 128 KiB]}", "{engines.mac.rows: [8, 16]}")
KEYS = "in the sweep's file --plugin is plugins, --custom-ops is custom_ops"


@pytest.fixture(autouse=True)
def unload_plugins() -> Iterator[None]:
    """Unload what the command of a test has loaded into this process."""
    yield
    for name in list(get_plugins()):
        unload_plugin(name)


def write_sweep(folder: Path, model: str, extra: str = "", machines: str = ONE_MACHINE) -> Path:
    """Write the model, data, a copy of the plug-in soft_clip and the sweep; return the last."""
    onnx.save(parser.parse_model(model), folder / "tiny.onnx")
    np.savez(folder / "calib.npz", x=np.random.default_rng(1).normal(size=(4, 4, 8, 8)).astype(np.float32))
    (folder / "soft_clip.py").write_bytes(source_of("soft_clip").read_bytes())
    file = folder / "sweep.yaml"
    file.write_text(machines.replace("model: tiny.onnx", "model: tiny.onnx, calib: calib.npz") + extra)
    return file


def read_rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((file.with_suffix(".results") / "results.csv").open()))


def test_a_sweep_builds_with_a_plugin_and_again_where_it_changed(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, SOFT_CLIP, "plugins: soft_clip.py\n")
    out = run(f"npu-sweep {file}").out
    assert "2 points: 2 built; 2 new results" in out and "  energy (pJ)  " in out
    keys = [row["key"] for row in read_rows(file)]
    assert "; 0 new results" in run(f"npu-sweep {file}").out
    write_sweep(tmp_path, SOFT_CLIP)
    assert "; 0 new results" in run(f"npu-sweep {file} --plugin {tmp_path / 'soft_clip.py'}").out
    assert [row["key"] for row in read_rows(file)] == keys
    unload_plugin("soft_clip")
    write_sweep(tmp_path, SOFT_CLIP, "plugins: [soft_clip.py]\n")
    break_plugin("soft_clip", tmp_path, 'Plugin(\n    "soft_clip",\n    "1.0"', 'Plugin(\n    "soft_clip",\n    "1.1"')
    assert "; 2 new results" in run(f"npu-sweep {file}").out
    assert set(keys).isdisjoint(row["key"] for row in read_rows(file))


def test_a_row_without_its_plugin_names_the_key_of_the_file(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, SOFT_CLIP)
    printed = run(f"npu-sweep {file}")
    assert printed.code == 1 and "2 points: 2 refused" in printed.out
    row = read_rows(file)[0]
    assert row["reason"] == 'node SoftClip_1 (SoftClip): domain "my.org" is not known'
    assert run(f"npu-sweep {file} --report {row['key']}").out.endswith(f"{KEYS}\n")


def test_a_machine_with_the_operation_of_a_plugin_is_read(tmp_path: Path) -> None:
    plugin, machine = source_of("mid_pool"), tmp_path / "mine.yaml"
    shipped = (ROOT / "hw_configs" / "edge16.yaml").read_text()
    text = shipped.replace("    functions:\n", "    functions:\n      mid_pool: {lanes: 8, startup: 8}\n", 1)
    assert text != shipped
    (isa_line,) = [line for line in text.splitlines() if line.startswith("isa: ")]
    machine.write_text(text.replace(isa_line, ""))
    (tmp_path / "isa.yaml").write_text(run(f"npu-hw --plugin {plugin} table {machine}").out)
    unload_plugin("mid_pool")
    machine.write_text(text.replace("isa/descriptors1024.yaml", "isa.yaml"))
    file = write_sweep(tmp_path, SOFT_CLIP, "plugins: soft_clip.py\n", ONE_MACHINE.replace("edge16", "mine.yaml"))
    refused = run(f"npu-sweep {file}")
    assert refused.code == 2 and "mid_pool" in refused.err
    assert "2 points: 2 built" in run(f"npu-sweep {file} --plugin {plugin}").out


def test_a_plugin_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, SOFT_CLIP, "plugins: [soft_clip.py, gone.py]\n")
    before = sorted(tmp_path.iterdir())
    printed = run(f"npu-sweep {file}")
    assert printed.code == 2 and sorted(tmp_path.iterdir()) == before
    assert printed.err == f"{file}:8: plugins[1]: plugin {tmp_path / 'gone.py'}: no such file or directory\n"
    option = run(f"npu-sweep {write_sweep(tmp_path, SOFT_CLIP)} --plugin {tmp_path / 'gone.py'}")
    assert (option.code, option.err) == (2, f"--plugin {tmp_path / 'gone.py'}: no such file or directory\n")


def test_a_library_of_custom_operators_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extensions = pytest.importorskip("onnxruntime_extensions")
    monkeypatch.setattr(inference, "_LIBRARIES", [])
    file = write_sweep(tmp_path, CUSTOM)
    assert "2 points: 2 refused by the toolchain; 2 new results" in run(f"npu-sweep {file}").out
    assert "2 points: 2 built; 2 new results" in run(f"npu-sweep {file} --custom-ops {extensions.get_library_path()}").out
    write_sweep(tmp_path, CUSTOM, f"custom_ops: {extensions.get_library_path()}\n")
    assert "2 points: 2 built; 0 new results" in run(f"npu-sweep {file}").out


def test_options_in_reasons_are_told_as_keys_or_as_options_of_npu_build() -> None:
    assert tell_keys("no range; give --calib DATA or --judge DATA") == (
        "no range; give --calib DATA or --judge DATA; in the sweep's file --calib is networks.NAME.calib; "
        "npu-sweep does not take --judge: npu-build does"
    )
    assert tell_keys("node a--b (X): no such thing") == "node a--b (X): no such thing"
