"""Check that `--check-plugin` passes what is right, and names the fault of each broken copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.plugins.sources import FOLDER, break_plugin, source_of
from toolchain.cli.application import application
from toolchain.cli.build import build_command
from toolchain.plugin_check import Finding, check_plugin
from toolchain.plugin_loading import load_plugin

MOST_LINES = {"soft_clip": 120, "unit_norm": 120, "mid_pool": 220}


def first_failure(file: Path) -> Finding | None:
    return next((finding for finding in check_plugin(load_plugin(file)) if not finding.passed), None)


@pytest.mark.parametrize("name", ["rmsnorm", *MOST_LINES])
def test_the_plugins_of_the_docs_pass_all_checks(name: str) -> None:
    findings = [*check_plugin(load_plugin(source_of(name)))]
    assert [finding for finding in findings if not finding.passed] == []
    machines = {finding.check.split(" on ")[1].split(":")[0] for finding in findings if " on " in finding.check}
    assert {"edge16", "transformer64", "ws8_pow2"} <= machines
    bits = [finding for finding in findings if finding.check.endswith(": bits")]
    assert len(bits) == (6 if name == "mid_pool" else 4)


def test_the_plugins_are_short() -> None:
    for name, most in MOST_LINES.items():
        assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= most, name


BROKEN = {
    "soft_clip shape": ("soft_clip", "TensorType(x.shape, x.dtype)", "TensorType(x.shape[1:], x.dtype)", "shape rule"),
    "soft_clip float": ("soft_clip", "np.tanh(self.slope", "np.arctan(self.slope", "float function"),
    "unit_norm shape": ("unit_norm", "TensorType(x.shape, x.dtype)", "TensorType((*x.shape, 1), x.dtype)", "shape rule"),
    "unit_norm float": ("unit_norm", "np.sum(x * x, -1, keepdims=True)", "np.mean(x * x, -1, keepdims=True)", "float function"),
    "mid_pool shape": ("mid_pool", "w // self.size), x.dtype)", "-(-w // self.size) + 1), x.dtype)", "shape rule"),
    "mid_pool float": ("mid_pool", "windows.min(3) / 2)", "windows.mean(3) / 2)", "float function"),
    "mid_pool reads too few": ("mid_pool", "read = (self.rows * self.size,", "read = (self.rows,", "accesses"),
    "mid_pool writes too few": ("mid_pool", "written = (self.rows, self.columns)", "written = (self.rows, 1)", "accesses"),
    "mid_pool reads too many": ("mid_pool", "read = (self.rows * self.size,", "read = (self.rows * self.size + 2,", "accesses"),
    "mid_pool rounds down": ("mid_pool", "((total + ((total >> 1) & 1)) >> 1)", "(total >> 1)", "rounding"),
    "mid_pool rounds up": ("mid_pool", "((total + ((total >> 1) & 1)) >> 1)", "((total + 1) >> 1)", "rounding"),
    "mid_pool rounds otherwise than its reference": (
        "mid_pool",
        "y[...] = mid_of_windows(x, op.size)[0]",
        "y[...] = mid_of_windows(x + 1, op.size)[0]",
        "bits",
    ),
    "mid_pool tiles read beside": ("mid_pool", "(n, y * k, x * k, c), (1", "(n, y * k, x * k + 1, c), (1", "bits"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_copy_is_named(fault: str, tmp_path: Path) -> None:
    name, old, new, check = BROKEN[fault]
    finding = first_failure(break_plugin(name, tmp_path, old, new))
    assert finding is not None
    assert finding.check.endswith(f": {check}")


def test_an_operator_without_an_example_is_missing(tmp_path: Path) -> None:
    file = break_plugin("unit_norm", tmp_path, "    examples=(", "    examples=() and (")
    finding = first_failure(file)
    assert finding is not None
    assert finding.text == "UnitNorm has no Example in PLUGIN: nothing of it is checked"


def test_an_attribute_may_be_empty_by_default(tmp_path: Path) -> None:
    file = break_plugin("soft_clip", tmp_path, "slope: float = 1.0", "slope: float = 1.0\n    axes: tuple[int, ...] = ()")
    assert first_failure(file) is None


def test_a_file_that_cannot_be_loaded_is_refused_by_the_name_of_the_option(tmp_path: Path) -> None:
    ran = CliRunner().invoke(application(build_command), ["--check-plugin", str(tmp_path / "gone.py")])
    assert ran.exit_code == 2
    assert ran.output == f"--check-plugin {tmp_path / 'gone.py'}: no such file or directory\n"


def test_the_command_prints_a_line_a_check_and_ends_with_1_where_one_fails(tmp_path: Path) -> None:
    file = break_plugin("soft_clip", tmp_path, "np.tanh(self.slope", "np.arctan(self.slope")
    ran = CliRunner().invoke(application(build_command), ["--check-plugin", str(file)])
    assert ran.exit_code == 1
    assert "FAIL  example 0 (SoftClip): float function: compute and steps differ by" in ran.output
    assert ran.output.splitlines()[-1] == "2 of the checks failed"
