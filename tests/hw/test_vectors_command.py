"""npu-hw vectors: the conformance kit of a machine, replayed, and of the machine's own numerics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from machine_files import write_changed
from typer.testing import CliRunner

from quant.fixed_point import read_vectors, replay
from quant.fixed_point.conformance.vectors import VectorCase
from tests.support.accumulator_machines import emitting
from toolchain.cli.hw import app
from toolchain.hw import list_shipped_names
from toolchain.isa import load_machine

PRODUCTS = {"requantize", "conv2d", "conv_transpose2d", "matmul"}
VECTOR = {"add", "sub", "mul", "rescale", "prelu", "max_pool", "average_pool"}
NO_TABLES = {"nvdla_small", "ws8_pow2"}


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def written(machine: str, kit: Path) -> dict[str, VectorCase]:
    code, out, err = run("vectors", machine, "--out", str(kit))
    assert (code, err) == (0, "")
    cases = read_vectors(kit)
    assert out.startswith(f"{kit}: {len(cases)} cases for the numerics of ")
    assert {p.name for p in kit.iterdir()} == {f"{c.name}.npz" for c in cases} | {"index.json"}
    return {c.name: c for c in cases}


@pytest.mark.parametrize("name", list_shipped_names())
def test_every_shipped_machine_has_a_kit(name: str, tmp_path: Path) -> None:
    cases = written(name, tmp_path / "kit")
    assert {c.op for c in cases.values()} == PRODUCTS | VECTOR | ({"table"} if name not in NO_TABLES else set())
    for case in cases.values():
        got = replay(case.op, case.inputs, case.parameters)
        np.testing.assert_array_equal(got, case.expected, err_msg=case.name)
        assert got.dtype == case.expected.dtype


def test_the_kit_is_of_the_machine(tmp_path: Path) -> None:
    edge = written("edge16", tmp_path / "edge")
    assert edge["requantize_per_channel"].parameters["requant"]["rounding"] == "double_round"
    assert edge["add"].parameters["left_shift"] == 20
    assert edge["table_tanh"].inputs["table"].shape == (256,)
    assert edge["conv2d_3x3"].expected.dtype == np.int8

    pow2 = written("ws8_pow2", tmp_path / "pow2")
    requant = pow2["conv2d_3x3"].parameters["requant"]
    assert (requant["kind"], requant["rounding"], len(requant["shift"])) == ("pow2", "truncate", 1)
    assert pow2["matmul"].parameters["a_zero_point"] == 0
    assert pow2["sub"].parameters["left_shift"] == 12

    wide = written("wide32_w4a16", tmp_path / "wide")
    assert wide["conv2d_3x3"].parameters["accumulator_bits"] == 48
    assert wide["conv2d_3x3"].inputs["w"].min() >= -8 and wide["conv2d_3x3"].inputs["w"].max() <= 7
    assert wide["table_tanh"].inputs["table"].shape == (513,)
    assert wide["table_tanh"].parameters == {"interpolation": "tflite"}
    assert max(wide["mul"].parameters["requant"]["multiplier"]) < 1 << 15


def test_a_kit_of_uint8_has_its_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = [
        ("{activation: int8, weight: int8}", "{activation: uint8, weight: int8}"),
        ("  activation: int8\n", "  activation: uint8\n"),
    ]
    write_changed(tmp_path, "edge16.yaml", changes)
    (tmp_path / "isa").symlink_to(Path(__file__).parents[2] / "hw_configs" / "isa")
    cases = written("mine.yaml", tmp_path / "kit")
    assert cases.keys() == written("edge16", tmp_path / "edge").keys()
    assert {c.expected.dtype for c in cases.values()} == {np.dtype(np.uint8)}
    assert cases["conv2d_3x3"].inputs["w"].dtype == np.int8
    assert {(c["low"], c["high"]) for c in (cases[n].parameters["requant"] for n in ("conv2d_3x3", "add", "mul"))} == {(0, 255)}
    table = cases["table_random"]
    np.testing.assert_array_equal(table.inputs["x"], np.arange(256))
    np.testing.assert_array_equal(table.expected, table.inputs["table"])  # the first entry is that of code 0
    for case in cases.values():
        np.testing.assert_array_equal(replay(case.op, case.inputs, case.parameters), case.expected, err_msg=case.name)


def test_rounding_of_an_operator_and_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rounding = "rounding: double_round"
    per_op = "per_op: {convolution: floor, matrix_product: half_away, sub: half_even, prelu: truncate}"
    write_changed(tmp_path, "edge16.yaml", [(rounding, f"{rounding}\n  {per_op}\n  overflow: wrap")])
    (tmp_path / "isa").symlink_to(Path(__file__).parents[2] / "hw_configs" / "isa")
    cases = written("mine.yaml", tmp_path / "kit")
    for name, key, rounding in [
        ("conv2d_depthwise", "requant", "floor"),
        ("conv_transpose2d_transposed", "requant", "floor"),
        ("matmul", "requant", "half_away"),
        ("add", "requant", "double_round"),
        ("sub", "a_requant", "half_even"),
        ("prelu", "negative", "truncate"),
        ("requantize_relu", "requant", "double_round"),
        ("requantize_floor_relu", "requant", "floor"),
    ]:
        assert cases[name].parameters[key]["rounding"] == rounding, name
    assert cases["mul"].parameters["requant"]["wrap"]


def test_refusals(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    kit.mkdir()
    (kit / "notes.txt").write_text("mine")
    code, out, err = run("vectors", "edge16", "--out", str(kit))
    assert (code, out) == (2, "")
    assert err == f"{kit}: holds notes.txt, which is no part of a kit; give a new or an empty directory\n"
    assert run("vectors", "none", "--out", str(tmp_path / "new"))[0] == 2
    assert run("vectors", "edge16")[0] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["kit"]


def test_functions_without_cases_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requantizations of `emit` are cases; rows of a softmax need a unit, which machine files do not describe."""
    note = "note: no cases here of softmax; --instructions writes those of every instruction\n"
    for machine, notes in (("nvdla_small", ""), ("transformer64", note)):
        assert run("vectors", machine, "--out", str(tmp_path / machine))[1].partition("\n")[2] == notes
    machine = emitting(load_machine("edge16"))
    assert "emit" in machine.chip.functions
    monkeypatch.setattr("toolchain.cli.hw.load_machine", lambda _: machine)
    code, out, err = run("vectors", "emits.yaml", "--out", str(tmp_path / "kit"))
    assert (code, err, out.count("\n")) == (0, "", 1)
