"""The softmax unit of a vector engine: what it means, in which types, and what it is refused for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from quant.fidelity import sqnr_db
from quant.fixed_point.core.codes import CodeType
from scripts.onnx_builder import build_model
from tests.semantics.machines import make_mixed_machine
from toolchain.api import BuildOptions, build
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, Quant, TensorType
from toolchain.isa import load_machine
from toolchain.machine.operations.softmax import scale_fields
from toolchain.ops.softmax import IntegerSoftmax, Softmax
from toolchain.runtime import Session

NO_SOFTMAX = "engines.vector.functions has no softmax"


def network(path: Path, shape: tuple[int, ...], axis: int) -> Path:
    nodes = [helper.make_node("Neg", ["x"], ["n"], name="before"), helper.make_node("Softmax", ["n"], ["y"], name="s", axis=axis)]
    onnx.save(build_model(nodes, {"x": shape}, {"y": shape}), path)
    return path


def samples(path: Path, shape: tuple[int, ...]) -> Path:
    np.savez(path, x=np.random.default_rng(4).normal(0, 3, (16, *shape[1:])).astype(np.float32))
    return path


@pytest.mark.parametrize("shape", [(1, 20), (1, 6, 33), (1, 3, 8, 20), (1, 2, 2, 3, 7)])
@pytest.mark.parametrize(
    ("types", "least_db", "scale"), [((), 30.0, Quant(1 / 256, -128)), (("s=int16", "x=int16"), 60.0, Quant(2**-15, 0))]
)
def test_rows_of_any_rank_mean_softmax(
    shape: tuple[int, ...], types: tuple[str, ...], least_db: float, scale: Quant, tmp_path: Path
) -> None:
    path, data = network(tmp_path / "net.onnx", shape, -1), samples(tmp_path / "x.npz", shape)
    built = build(path, BuildOptions(make_mixed_machine(), calibration=str(data), types=types))
    assert built.figures["fallbacks"] == []
    assert [n.outputs[0] for n in built.container.graph.nodes if type(n.op).__name__ == "IntegerSoftmax"]
    assert built.container.graph.types["y"].quant == scale
    x = np.load(data)["x"].astype(np.float64)
    power = np.exp(-x - (-x).max(-1, keepdims=True))
    session = Session(built.data)
    got = np.concatenate([session.run(["y"], {"x": row[None]})[0] for row in x.astype(np.float32)])
    assert sqnr_db(power / power.sum(-1, keepdims=True), got) > least_db


@pytest.mark.parametrize(("codes", "remainder"), [(CodeType.INT8, 0), (CodeType.INT16, 2)])  # TFLite's exp of 16 bits ends at -10
def test_of_codes_that_are_far_apart_the_largest_has_all(codes: CodeType, remainder: int) -> None:
    op = IntegerSoftmax(*scale_fields(39.2, codes))
    y = op.reference([np.array([[3, 5, 4, -7]], codes.dtype)])
    none = remainder + (codes.low if codes.bits == 8 else 0)
    assert y[0].tolist() == [none, codes.high - 3 * remainder, none, none]


def test_what_it_reads_has_its_type(tmp_path: Path) -> None:
    shape = (1, 6, 33)
    path, data = network(tmp_path / "net.onnx", shape, -1), samples(tmp_path / "x.npz", shape)
    types = build(path, BuildOptions(make_mixed_machine(), calibration=str(data), types=("y=int16",))).container.graph.types
    assert (types["y"].dtype, types["n"].dtype, types["x"].dtype) == ("int16", "int16", "int8")


@pytest.mark.parametrize(("columns", "symmetric"), [(4096, False), (20, True)])
def test_what_8_bits_cannot_do_is_done_in_16(columns: int, symmetric: bool, tmp_path: Path) -> None:
    """Whatever is asked for: rows whose sum 8 bits do not hold, codes without one for 0 at their end."""
    machine = replace(make_mixed_machine(), chip=change_chip(symmetric_activations=symmetric))
    shape = (1, 2, columns)
    path, data = network(tmp_path / "net.onnx", shape, -1), samples(tmp_path / "x.npz", shape)
    built = build(path, BuildOptions(machine, calibration=str(data), types=("y=int8",)))
    types = built.container.graph.types
    assert built.figures["fallbacks"] == []
    assert (types["y"].dtype, types["n"].dtype, types["x"].dtype) == ("int16", "int16", "int8")
    x = np.load(data)["x"][:1]
    power = np.exp(-x.astype(np.float64) + x.min(-1, keepdims=True))
    (got,) = Session(built.data).run(["y"], {"x": x})
    assert sqnr_db(power / power.sum(-1, keepdims=True), got) > 25


@pytest.mark.parametrize(
    ("peak", "columns", "options", "hosted", "between"),
    [
        (15.0, 4096, {}, True, (25, 120)),
        (15.0, 4096, {"raw_ports": ("y",)}, False, (10, 20)),
        (15.0, 4096, {"types": ("y=int16",)}, False, (10, 20)),
        (15.0, 4096, {"host_ports": False}, False, (10, 20)),
        (0.0, 4096, {}, False, (20, 60)),
        (15.0, 1600, {"types": ("y=int16",)}, False, (20, 60)),
    ],
    ids=["peaks", "raw port", "type", "no host ports", "even rows", "shorter rows"],
)
def test_peaks_of_long_rows_are_made_by_the_host(
    peak: float, columns: int, options: dict[str, Any], hosted: bool, between: tuple[float, float], tmp_path: Path
) -> None:
    """4,096 least exponentials add up to 0.25, which the sum has too much."""
    shape = (1, 2, columns)
    path, data = network(tmp_path / "net.onnx", shape, -1), tmp_path / "x.npz"
    x = np.random.default_rng(4).normal(0, 1, (16, *shape[1:])).astype(np.float32)
    x[..., 7] -= peak
    np.savez(data, x=x)
    built = build(path, BuildOptions(make_mixed_machine(), calibration=str(data), repair="none", **options))
    reasons = [f["reason"] for f in built.figures["fallbacks"]]
    assert bool(reasons) == hosted and all("no score as less than exp(-10)" in r for r in reasons)
    power = np.exp(-x[:1].astype(np.float64) + x[:1].min(-1, keepdims=True))
    (got,) = Session(built.data, backend="reference").run(["y"], {"x": x[:1]})
    assert between[0] < sqnr_db(power / power.sum(-1, keepdims=True), got) < between[1]


@pytest.mark.parametrize("size", [1e-10, 1e-7])
@pytest.mark.parametrize("types", [(), ("s=int16", "x=int16")])
def test_rows_that_hardly_differ_are_equal(size: float, types: tuple[str, ...], tmp_path: Path) -> None:
    path, data = network(tmp_path / "net.onnx", (1, 6, 20), -1), tmp_path / "x.npz"
    np.savez(data, x=(size * np.random.default_rng(4).normal(0, 1, (20, 6, 20))).astype(np.float32))
    got = Session(build(path, BuildOptions(make_mixed_machine(), calibration=str(data), types=types)).data).run(
        ["y"], {"x": np.load(data)["x"][:1]}
    )
    np.testing.assert_allclose(got[0], 1 / 20, atol=0.5 / 256 if not types else 1 / 32768)


def test_it_takes_three_passes_of_its_own_lanes(tmp_path: Path) -> None:
    path, data = network(tmp_path / "net.onnx", (1, 16, 64), -1), samples(tmp_path / "x.npz", (1, 16, 64))
    figures = build(path, BuildOptions(make_mixed_machine(), calibration=str(data))).figures
    (softmax_row,) = [row for row in figures["layers"] if row["op"] == "Softmax"]
    assert softmax_row["engine"] == "vector"
    assert 3 * 16 * 64 // 4 <= softmax_row["cycles"] <= 3 * 16 * 64 // 4 + 140


def change_chip(**numerics: Any) -> Chip:
    data = json.loads(make_mixed_machine().chip.model_dump_json())
    data["numerics"].update(numerics)
    return Chip.model_validate_json(json.dumps(data))


@pytest.mark.parametrize(
    ("chip", "columns", "reason"),
    [
        (make_mixed_machine().chip, 4095, None),
        (make_mixed_machine().chip, 4096, None),
        (change_chip(more_activations=[]), 4096, "rows of 4096; a softmax of 8 bits takes 4095"),
        (change_chip(activation="int16", more_activations=[]), 4096, None),
        (
            load_machine("edge16").chip,
            8,
            "engines.vector.functions has no softmax; limits.decompose makes it of steps where the chip has each",
        ),
        (
            change_chip(symmetric_activations=True, more_activations=[]),
            8,
            "a softmax of 8 bits has the least code for 0; numerics.symmetric_activations is true",
        ),
        (change_chip(symmetric_activations=True), 8, None),
        (change_chip(symmetric_activations=True, activation="int16", more_activations=[]), 8, None),
    ],
)
def test_what_it_cannot_do_is_said(chip: Chip, columns: int, reason: str | None) -> None:
    node = Node("s", Softmax(), ("x",), ("y",), ("s",))
    types = {name: TensorType((2, columns), "float32") for name in "xy"}
    graph = Graph("g", (node,), ("x",), ("y",), types, {})
    assert Softmax().find_unsupported_reason(node, graph, chip) == reason


def test_over_another_dimension_it_is_turned(tmp_path: Path) -> None:
    path, data = network(tmp_path / "net.onnx", (1, 6, 33), 1), samples(tmp_path / "x.npz", (1, 6, 33))
    built = build(path, BuildOptions(make_mixed_machine(), calibration=str(data)))
    assert built.figures["fallbacks"] == []
    x, session = np.load(data)["x"], Session(built.data)
    power = np.exp(-x.astype(np.float64))
    got = np.concatenate([session.run(["y"], {"x": row[None]})[0] for row in x])
    assert sqnr_db(power / power.sum(1, keepdims=True), got) > 30
