"""Operators in steps: when they are taken apart, how their tensors are called, calibrated, stored, shown and judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime
import pytest

from quant.file import Parameters, read_parameters, write_parameters
from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from tests.semantics.judge import sqnr_db
from tests.semantics.machines import int16_machine
from tests.support.decompose_cases import (
    LOG_SOFTMAX,
    NORM,
    QUOTIENT,
    SOFTMAX,
    decomposing,
    make_mixed_machine,
    remove_decomposition,
    save_model,
)
from toolchain.api import Build, BuildOptions, build
from toolchain.errors import ConfigError, InternalError
from toolchain.frontend import load_model, to_graph
from toolchain.hw.chip_sections import Decomposed
from toolchain.ir.graph import verify
from toolchain.isa import Machine, load_machine
from toolchain.ops.kit.decomposition import Decomposition, DecompositionBuilder
from toolchain.ops.kit.registry import DECOMPOSITIONS
from toolchain.passes.decompose import decompose_all, decompose_model
from toolchain.passes.select import IDLE
from toolchain.runtime import Session

ROOT = Path(__file__).parents[2]
EDGE16 = decomposing(load_machine("edge16"))
ATTENTION = """g (float[1,32,48] x, float[1,1,32] seen) => (float[1,32,48] y)
    <float[48,48] a, float[48,48] b, float[48,48] c, float[48] w, float[48] v> {
    n = LayerNormalization(x, w, v)
    q = MatMul(n, a) k = MatMul(n, b) u = MatMul(n, c) kt = Transpose<perm=[0,2,1]>(k)
    t = MatMul(q, kt) mask = Log(seen) s = Add(t, mask)
    p = Softmax(s) o = MatMul(p, u) y = Add(x, o)
}"""


def attention(folder: Path) -> tuple[Path, Path]:
    """The last positions of each sample are masked: log of 0 is minus infinity."""
    model, data = save_model(ATTENTION, folder, samples=20)
    mask = np.ones((20, 1, 32), np.float32)
    for i in range(20):
        mask[i, 0, 32 - i % 12 :] = 0
    np.savez(data, allow_pickle=False, **{**np.load(data), "seen": mask})
    return model, data


def decibels(model: Path, data: Path, built: Build) -> float:
    session, chip = onnxruntime.InferenceSession(str(model)), Session(built.container, backend="reference")
    samples, shapes = dict(np.load(data)), {i.name: i.shape for i in session.get_inputs()}
    feeds = [{n: samples[n][i].reshape(s) for n, s in shapes.items()} for i in range(6)]
    expected, got = (np.stack([np.asarray(run.run(["y"], f)[0]) for f in feeds]) for run in (session, chip))
    return sqnr_db(expected, got)


def engines(built: Build) -> dict[str, tuple[str, str]]:
    return {row["node"]: (row["engine"], row["reason"]) for row in built.figures["nodes"]}


def test_the_machine_names_what_has_steps() -> None:
    assert set(get_args(Decomposed)) == {name for name, rule in DECOMPOSITIONS.items() if rule.is_by_request}


def test_a_machine_that_names_none_takes_none_apart(tmp_path: Path) -> None:
    model, _ = save_model(SOFTMAX, tmp_path)
    built = build(model, BuildOptions(remove_decomposition(load_machine("edge16"))))
    reason = "engines.vector.functions has no softmax; limits.decompose makes it of steps where the chip has each"
    assert engines(built)["Softmax_0"] == ("host", reason)


def test_steps_are_a_sound_model_that_says_the_same(tmp_path: Path) -> None:
    for graph, kinds in ((SOFTMAX, "ReduceMax Sub Exp ReduceMean Mul Reciprocal Mul"), (NORM, None)):
        model = load_model(save_model(graph, tmp_path)[0])
        decomposed_model = decompose_model(model, EDGE16.chip)
        assert not verify(decomposed_model.graph) and not verify(to_graph(decomposed_model))
        assert kinds is None or " ".join(n.op.op_type for n in decomposed_model.graph.nodes) == kinds
        assert {n.sources for n in decomposed_model.graph.nodes} == {n.sources for n in model.graph.nodes}
        x = np.random.default_rng(0).normal(0, 3, model.types["x"].shape).astype(np.float32)
        both = [
            onnxruntime.InferenceSession(m.proto.SerializeToString()).run(["y"], {"x": x})[0] for m in (model, decomposed_model)
        ]
        assert np.abs(np.subtract(*map(np.asarray, both))).max() < 1e-5


def test_steps_that_mean_something_else_end_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mean(steps: DecompositionBuilder) -> None:
        steps.add("Exp", steps.node.inputs[0], what="exp", output=0)

    monkeypatch.setitem(DECOMPOSITIONS, "Softmax", Decomposition(mean))
    with pytest.raises(InternalError, match="the frontend changed the model"):
        build(save_model(SOFTMAX, tmp_path)[0], BuildOptions(EDGE16))


@pytest.mark.parametrize(("bits", "least_db", "lost_db"), [("int8", 30.0, 4.0), ("int16", 43.0, 0.2)])
def test_attention_stays_on_the_chip(bits: str, least_db: float, lost_db: float, tmp_path: Path) -> None:
    """Masked with minus infinity: the difference from the largest is measured down to where exp is zero, and no further."""
    base = remove_decomposition(load_machine("edge16")) if bits == "int8" else int16_machine()
    model, data = attention(tmp_path)
    built, hosted = (build(model, BuildOptions(m, calibration=str(data))) for m in (decomposing(base), base))
    assert not [n for n, (engine, _) in engines(built).items() if engine == "host"]
    assert "p: x - max" not in str(built.warnings)
    assert decibels(model, data, built) > max(least_db, decibels(model, data, hosted) - lost_db)


def test_on_edge16_norms_alone_stay_on_the_host(tmp_path: Path) -> None:
    model, data = attention(tmp_path)
    built = build(model, BuildOptions("edge16", calibration=str(data)))
    assert [n for n, (engine, _) in engines(built).items() if engine == "host"] == ["LayerNormalization_0"]
    for graph in (SOFTMAX, LOG_SOFTMAX, QUOTIENT):
        built = build(save_model(graph, tmp_path)[0], BuildOptions("edge16", calibration=str(tmp_path / "data.npz")))
        assert "host" not in {engine for engine, _ in engines(built).values()}


def test_steps_of_finer_types_lose_nothing(tmp_path: Path) -> None:
    """--type names the operator, and each of its steps has that type; what the rule says of ranges is then for int16."""
    model, data = attention(tmp_path)
    types = ("Softmax=int16", "LayerNormalization=int16")
    coarse, fine = (
        build(model, BuildOptions(decomposing(make_mixed_machine()), calibration=str(data), types=t)) for t in ((), types)
    )
    hosted = build(model, BuildOptions(make_mixed_machine(), calibration=str(data)))
    assert not [n for n, (engine, _) in engines(fine).items() if engine == "host"]
    kinds = {name: t for name, t in fine.container.graph.types.items() if name in ("p: exp", "p: x - max", "p: 1 / sum, refined")}
    assert len(kinds) == 3 and {t.dtype for t in kinds.values()} == {"int16"}
    levels_db = {
        name: decibels(model, data, network_build)
        for name, network_build in (("coarse", coarse), ("fine", fine), ("hosted", hosted))
    }
    assert levels_db["fine"] > levels_db["hosted"] > levels_db["coarse"] + 2, levels_db


def test_a_file_gives_steps_finer_types(tmp_path: Path) -> None:
    model, data = save_model(SOFTMAX, tmp_path)
    machine = decomposing(make_mixed_machine())
    decomposed = decompose_model(load_model(model), machine.chip, finest=None)
    ranges = {n: Range(-4.0, 9.0) for n in decomposed.types if n not in decomposed.graph.constants}
    types = dict.fromkeys((n for n in decomposed.types if ": " in n), CodeType.INT16)
    write_parameters(tmp_path / "p.yaml", Parameters(ranges, types=types))
    built = build(model, BuildOptions(machine, parameters=str(tmp_path / "p.yaml"), calibration=str(data)))
    assert built.container.graph.types["y: 1 / sum, refined"].dtype == "int16"


def test_masks_are_seen_in_the_model_as_it_was(tmp_path: Path) -> None:
    notes = [
        [note for note in build(*both).notes if "masks as well" in note]
        for both in (_with(tmp_path, EDGE16), _with(tmp_path, remove_decomposition(load_machine("edge16"))))
    ]
    assert notes[0] == notes[1] != []


def _with(folder: Path, machine: Machine, **options: Any) -> tuple[Path, BuildOptions]:
    model, data = attention(folder)
    return model, BuildOptions(machine, calibration=str(data), **options)


def test_each_step_is_explained_and_reported(tmp_path: Path) -> None:
    """Over a dimension before the last: along rows the mean is a product, on which 1 / sum rides."""
    model, data = save_model(SOFTMAX.replace("Softmax(x)", "Softmax<axis = 2>(x)"), tmp_path)
    built = build(model, BuildOptions(EDGE16, calibration=str(data), error_report=True))
    steps = ["max", "x - max", "exp", "mean of exp", "1 / sum"]
    rows = engines(built)
    assert [n for n in rows if n.startswith("Softmax_0: ")] == [f"Softmax_0: {what}" for what in steps]
    assert all("a step of Softmax_0" in rows[f"Softmax_0: {what}"][1] for what in steps)
    cycles = {row["layer"]: row["cycles"] for row in built.figures["nodes"]}
    assert sum(cycles.values()) == sum(layer["cycles"] for layer in built.figures["layers"])
    assert built.errors is not None
    row_by_tensor = {row.tensor: row for row in built.errors.rows}
    assert {f"y/softmax: {what}" for what in steps} < row_by_tensor.keys()
    effects = [row_by_tensor[f"y/softmax: {what}"].effect_db for what in ("x - max", "exp", "1 / sum")]
    assert all(effect is not None and effect < 60 for effect in effects)  # what each does to the output, of which it is a part


def test_dumps_name_the_tensors(tmp_path: Path) -> None:
    text_by_stage: dict[str, str] = {}
    build(save_model(SOFTMAX, tmp_path)[0], BuildOptions(EDGE16), dump=lambda stage, text: text_by_stage.update({stage: text()}))
    assert all(
        "y: x - max" in text_by_stage[stage]
        for stage in ("normal", "compose", "select", "clamps", "quantize", "fuse", "schedule")
    )


def test_a_lacking_step_leaves_the_operator_whole(tmp_path: Path) -> None:
    model, _ = save_model(SOFTMAX, tmp_path)
    built = build(model, BuildOptions(decomposing(load_machine("ws8_pow2"))))
    reason = "in steps (limits.decompose), of which Unary: engines.vector.functions has neither exp nor table; "
    reason += "Unary: engines.vector.functions has no table"  # of 1 / sum
    assert engines(built) == {"Softmax_0": ("host", reason)}


def test_a_step_that_only_moves_data_is_no_reason_beside_others(tmp_path: Path) -> None:
    graph = "g (float[2,1,8] x) => (float[2,1,1,4] y) <float[1,12,8] w, float[1,12,4] r> { y, h = GRU<hidden_size = 4>(x, w, r) }"
    model, _ = save_model(graph, tmp_path)
    built = build(model, BuildOptions(decomposing(load_machine("ws8_pow2"), "GRU")))
    ((engine, reason),) = engines(built).values()
    assert engine == "host" and reason.startswith("in steps (limits.decompose), of which Unary: ")
    assert IDLE not in reason


def test_over_another_dimension_it_is_turned(tmp_path: Path) -> None:
    model, data = save_model(SOFTMAX.replace("Softmax(", "Softmax<axis = 1>("), tmp_path)
    built = build(model, BuildOptions(EDGE16, calibration=str(data)))
    assert not built.container.fallbacks
    assert decibels(model, data, built) > 25


def test_a_tensor_of_the_model_keeps_its_name(tmp_path: Path) -> None:
    model, _ = save_model(SOFTMAX, tmp_path)
    proto = onnx.load(model)
    proto.graph.node.insert(0, onnx.helper.make_node("Neg", ["x"], ["y: exp"]))
    proto.graph.node[1].input[0] = "y: exp"
    onnx.save(proto, model)
    reason = "its step would make tensor 'y: exp', which the model has already; rename that"
    assert ("host", reason) in engines(build(model, BuildOptions(EDGE16))).values()


def test_a_host_node_stays_whole(tmp_path: Path) -> None:
    model, _ = save_model(SOFTMAX, tmp_path)
    rows = engines(build(model, BuildOptions(EDGE16, host_nodes=("Softmax",))))
    assert rows == {"Softmax_0": ("host", "asked for by --host-node")}


@pytest.mark.parametrize("machine", [(), ("--hw",)], ids=["any machine", "its machine"])
def test_a_parameters_file_holds_what_is_measured(machine: tuple[str, ...], tmp_path: Path) -> None:
    model, data = attention(tmp_path)
    _write_machine(tmp_path)
    hw = (*machine, str(tmp_path / "own.yaml")) if machine else ()
    command = [sys.executable, str(ROOT / "scripts" / "calibrate.py"), model, "--data", data, *hw, "-o", tmp_path / "p.yaml"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    tensors = read_parameters(tmp_path / "p.yaml").tensors
    assert {"p: x - max", "p: 1 / sum", "n: variance"} < tensors.keys() and "p: exp" not in tensors
    machine_file = str(tmp_path / "own.yaml")
    by_file = [build(model, BuildOptions(hw, parameters=str(tmp_path / "p.yaml"))) for hw in (machine_file, "edge16")]
    assert not [row for row in engines(by_file[0]).values() if row[0] == "host"]
    assert (
        by_file[0].data == build(model, BuildOptions(machine_file, calibration=str(data))).data
    )  # what goes beyond int8's bounds is cut


def _write_machine(folder: Path) -> None:
    lines = (ROOT / "hw_configs" / "edge16.yaml").read_text().splitlines()
    others = [line for line in lines if not line.startswith("limits:")]
    (folder / "own.yaml").write_text("\n".join([*others, "limits: {decompose: [LayerNormalization, Softmax]}", ""]))


def test_a_parameters_file_without_them_is_told_so(tmp_path: Path) -> None:
    model, _ = save_model(SOFTMAX, tmp_path)
    (tmp_path / "p.yaml").write_text('version: 1\ntensors: {"x": {low: -4, high: 5}, "y": {low: 0, high: 1}}\n')
    with pytest.raises(ConfigError, match="tensor 'y: x - max' of the model has no entry; add it, or calibrate again"):
        build(model, BuildOptions(EDGE16, parameters=str(tmp_path / "p.yaml")))


@pytest.mark.parametrize(
    "options", [{"observer": "mse"}, {"observer": "percentile"}, {"observer": "auto"}, {"repair": "fast"}], ids=str
)
def test_observers_and_repair_know_them(options: dict[str, Any], tmp_path: Path) -> None:
    model, options_used = _with(tmp_path, EDGE16, **options)
    built = build(model, options_used)
    assert decibels(model, tmp_path / "data.npz", built) > 27
    scales = {name: t.quant.scale for name, t in built.container.graph.types.items() if t.quant is not None}
    assert scales["p: exp"] == pytest.approx(1 / 255)


def test_outputs_of_a_norm_beside_the_first_are_steps_too(tmp_path: Path) -> None:
    graph = "g (float[1,32,64] x) => (float[1,32,64] y, float[1,32,1] mean, float[1,32,1] inverse) <float[64] w>"
    model, data = save_model(f"{graph} {{ y, mean, inverse = LayerNormalization(x, w) }}", tmp_path)
    built = build(model, BuildOptions(EDGE16, calibration=str(data)))
    assert not [row for row in engines(built).values() if row[0] == "host"]
    x = np.load(data)["x"][0].reshape(1, 32, 64)
    names = ["y", "mean", "inverse"]
    expected = onnxruntime.InferenceSession(str(model)).run(names, {"x": x})
    got = Session(built.data).run(names, {"x": x})
    assert all(sqnr_db(np.asarray(a), b) > 30 for a, b in zip(expected, got))


def test_an_exported_model_holds_the_steps(tmp_path: Path) -> None:
    model, data = save_model(SOFTMAX, tmp_path)
    built = build(model, BuildOptions(EDGE16, calibration=str(data), export_qdq=True))
    assert built.qdq is not None
    x = np.load(data)["x"][:1].reshape(1, 4, 16, 64)
    exported = onnxruntime.InferenceSession(built.qdq).run(["y"], {"x": x})[0]
    chip = Session(built.data).run(["y"], {"x": x})[0]
    assert np.abs(np.asarray(exported) - chip).max() < 0.02 and "y: x - max" in str(onnx.load_from_string(built.qdq).graph)


def test_rows_of_equal_numbers_are_no_range(tmp_path: Path) -> None:
    """All differences from the largest are zero: they take the range of what they are made from."""
    model, data = save_model(SOFTMAX, tmp_path)
    np.savez(data, x=np.repeat(np.linspace(-1, 1, 6, dtype=np.float32), 4 * 16 * 64).reshape(6, 4, 16, 64))
    built = build(model, BuildOptions(EDGE16, calibration=str(data)))
    assert decibels(model, data, built) > 40
    assert any(note.startswith("y: x - max: zero throughout the data; it took the range") for note in built.notes)


def test_two_sets_of_shapes_have_the_same_ranges(tmp_path: Path) -> None:
    model, _ = save_model(SOFTMAX, tmp_path)
    proto = onnx.load(model)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[2].dim_param = "rows"
    onnx.save(proto, model)
    entries = {"few": {"x": (1, 4, 8, 64)}, "many": {"x": (1, 4, 16, 64)}}
    built = build(model, BuildOptions(EDGE16, entries=entries))
    scales = [{n: t.quant for n, t in one.container.graph.types.items() if ": " in n} for one in built.entries.values()]
    assert scales[0] == scales[1] and "y: x - max" in scales[0]


def test_a_quantized_model_gives_its_scales_and_the_steps_are_measured(tmp_path: Path) -> None:
    graph = """g (float[1,16,64] x) => (float[1,16,64] y) {
        s = Constant<value_float = 0.05>() z = Constant<value = int8 {5}>()
        a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
        t = Constant<value_float = 0.0039>() u = Constant<value = int8 {-128}>()
        p = Softmax(b) c = QuantizeLinear(p, t, u) y = DequantizeLinear(c, t, u)
    }"""
    model, data = save_model(graph, tmp_path)
    built = build(model, BuildOptions(EDGE16, calibration=str(data)))
    assert decibels(model, data, built) > 18
    assert engines(built)["Softmax_6"][0] == "vector"


def test_every_machine_has_the_names_of_any(tmp_path: Path) -> None:
    model = load_model(attention(tmp_path)[0])
    every = decompose_all(model)
    for machine in (EDGE16, decomposing(int16_machine())):
        decomposed = decompose_model(model, machine.chip)
        assert decomposed.types.keys() <= every.types.keys() and decomposed.fixed <= every.fixed


def test_a_repair_by_factors_keeps_what_is_fixed(tmp_path: Path) -> None:
    """Channels that are unlike, between two products in front of a Softmax."""
    graph = """g (float[1,16,32] x) => (float[1,16,32] y) <float[32,32] a, float[32,32] b> {
        p = MatMul(x, a) q = Relu(p) r = MatMul(q, b) y = Softmax(r)
    }"""
    model, data = save_model(graph, tmp_path, samples=24)
    proto = onnx.load(model)
    for weights, power in zip(proto.graph.initializer, (2.0, -2.0)):
        values = onnx.numpy_helper.to_array(weights)
        spread = np.logspace(0, power, 32, dtype=np.float32)
        weights.CopyFrom(onnx.numpy_helper.from_array(values * (spread if power > 0 else spread[:, None]), weights.name))
    onnx.save(proto, model)
    plain, repaired = (build(model, BuildOptions(EDGE16, calibration=str(data), repair=r)) for r in ("none", "fast"))
    steps = {step["step"]: step for step in repaired.figures["repair"]["steps"]}
    assert steps["equalization"]["kept"], steps["equalization"]
    assert decibels(model, data, repaired) > decibels(model, data, plain) + 1


def test_a_function_that_goes_on_behind_the_steps_leaves_the_operator_whole(tmp_path: Path) -> None:
    graph = "g (float[1,32,64] x) => (float[1,32,64] y, float[1,32,1] z) <float[64] w>"
    body = "two = Constant<value_float = 2.0>() y, mean, inverse = LayerNormalization(x, w) z = Mul(inverse, two)"
    model, _ = save_model(f"{graph} {{ {body} }}", tmp_path)
    rows = engines(build(model, BuildOptions(decomposing(load_machine("ws8_pow2")))))
    assert rows["LayerNormalization_1"][0] == "host"
    assert rows["LayerNormalization_1"][1].startswith(
        "in steps (limits.decompose), of which Unary: engines.vector.functions has "
    )
