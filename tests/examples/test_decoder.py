"""A decoder whose caches stay on the chip: step by step as near as the whole sequence at once, and what is not touched stays."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from tests.semantics.judge import sqnr_db
from toolchain.api import Build, BuildOptions, build
from toolchain.runtime import EntriesSession, Session

FOLDER = Path(__file__).parents[2] / "examples" / "decoder"
MACHINE = "transformer64"


@cache
def modules() -> tuple[ModuleType, ModuleType]:
    """make_decoder and generate, as scripts of their folder import them."""
    sys.path.insert(0, str(FOLDER))
    try:
        return import_module("make_decoder"), import_module("generate")
    finally:
        sys.path.remove(str(FOLDER))


@cache
def tokens(seed: int) -> np.ndarray:
    decoder_module, generated = modules()
    return np.fromiter(generated.letters(decoder_module.SEQUENCE, seed), np.int64)


@cache
def both() -> Build:
    """Return the build for a step and for a chunk."""
    with TemporaryDirectory() as folder:
        return modules()[1].built_for(MACHINE, Path(folder))


def step_by_step() -> Build:
    return both().entries["decode"]


def test_the_models_are_one_in_float() -> None:
    decoder_module, generated = modules()
    model = generated.Float()
    steps = np.stack([model.run(int(t), i) for i, t in enumerate(tokens(1))])
    runner = onnxruntime.InferenceSession(decoder_module.decoder(decoder_module.SEQUENCE, False).SerializeToString())
    (full_output,) = runner.run(None, {"token": tokens(1)[None]})
    assert np.abs(steps - np.asarray(full_output)[0]).max() < 1e-4
    assert np.unique(tokens(1)).size > 10


def test_all_caches_stay_on_the_chip() -> None:
    container = step_by_step().container
    assert [t.name for t in container.inputs] == ["token", "step"]
    assert [t.name for t in container.outputs] == ["logits"]
    kinds = [f"past_key_values.{i}.{kind}" for i in (0, 1) for kind in ("key", "value")]
    assert [state.port.model for _, state in container.states] == kinds
    assert "Pad" not in [layer.op for s in container.segments for layer in getattr(s, "layers", ())]  # no copy at the end


def test_what_is_written_to_dram_is_a_row_of_each_cache_and_the_logits() -> None:
    built = step_by_step()
    decoder_module, _ = modules()
    rows = sum(state.port.size_bytes // decoder_module.PLACES for _, state in built.container.states)
    assert built.figures["dram_write_bytes"] == rows + len(decoder_module.WORDS)


def test_200_steps_are_as_near_to_float_as_the_whole_sequence_at_once(tmp_path: Path) -> None:
    decoder_module, generated = modules()
    onnx.save(decoder_module.decoder(decoder_module.SEQUENCE, False), tmp_path / "whole.onnx")
    np.savez(tmp_path / "data.npz", allow_pickle=False, token=np.stack([tokens(s) for s in (2, 3, 4)])[:, None])
    sequence_build = build(tmp_path / "whole.onnx", BuildOptions(MACHINE, str(tmp_path / "data.npz")))
    (at_once,) = Session(sequence_build.data, backend="reference").run(None, {"token": tokens(1)[None]})
    session, model = Session(step_by_step().data, backend="reference"), generated.Float()
    real, made_here = list[np.ndarray](), list[np.ndarray]()
    for i, t in enumerate(tokens(1).tolist()):
        real.append(model.run(t, i))
        made_here.append(session.run(None, generated.feeds([t], i))[0][0, 0])
    expected = np.stack(real)
    assert sqnr_db(expected, np.stack(made_here)) > sqnr_db(expected, at_once[0]) - 1


def test_programs_keep_caches_as_the_reference_does() -> None:
    _, generated = modules()
    data = step_by_step().data
    chip, reference = Session(data), Session(data, backend="reference")
    first: np.ndarray | None = None
    for i, t in enumerate(tokens(1)[:6].tolist()):
        assert np.array_equal(chip.run(None, generated.feeds([t], i))[0], reference.run(None, generated.feeds([t], i))[0])
        for state in chip.get_states():
            state_value = chip.state(state.name)
            assert np.array_equal(state_value, reference.state(state.name))
            assert not state_value[:, :, i + 1 :].any() and state_value[:, :, i].any()
        key = chip.state("past_key_values.0.key")[:, :, 0]
        first = key if first is None else first
        assert np.array_equal(key, first)


def test_a_prompt_in_chunks_and_then_letters_are_the_bits_of_single_steps() -> None:
    _, generated = modules()
    form, text = generated.FORMS["standard"], tokens(1)[:37].tolist()
    session = EntriesSession(both().data, backend="reference")
    single = Session(both().data, backend="reference", entry="decode")
    runs = list(generated.runs_of(len(text)))
    assert [last - first for first, last in runs] == [16, 16, 1, 1, 1, 1, 1]
    at_once = np.concatenate([session.run(None, form.feeds(text[a:b], a))[0][0] for a, b in runs])
    steps = np.stack([single.run(None, form.feeds([token], i))[0][0, 0] for i, token in enumerate(text)])
    assert np.array_equal(at_once, steps)
    assert all(np.array_equal(session.state(state.name), single.state(state.name)) for state in single.get_states())


def test_programs_of_a_chunk_and_of_a_step_go_on_from_each_other() -> None:
    _, generated = modules()
    feeds, text = generated.FORMS["standard"].feeds, tokens(1)[:18].tolist()
    runs = [(0, 1), (1, 17), (17, 18)]
    chip, reference = EntriesSession(both().data), EntriesSession(both().data, backend="reference")
    for session_runs in (runs, runs[1:]):  # again from what reset leaves
        for a, b in session_runs:
            actual, expected = (s.run(None, feeds(text[a:b], a))[0] for s in (chip, reference))
            assert np.array_equal(actual, expected)
        states = [chip.state(state.name) for state in chip.get_states()]
        assert all(np.array_equal(value, reference.state(s.name)) for value, s in zip(states, chip.get_states()))
        for session in (chip, reference):
            session.reset({"past_key_values.0.key": states[0]})
    places = [{s.port.model: s.port.address for _, s in one.container.states} for one in both().entries.values()]
    assert places[0] == places[1]
    assert "entries decode, prefill: 4 states in common, as the last run leaves them" in both().notes
    assert sum(both().figures["alone_bytes"].values()) - len(both().data) > 100_000  # of constants that stand once


SCATTERED = {
    "linear": ("float[2,3,8,4] cache, float[2,3,1,4] x", "axis = -2", [3, 7]),
    "circular": ("float[2,3,8,4] cache, float[2,3,1,4] x", 'axis = 2, mode = "circular"', [11, 0]),
    "of three": ("float[2,8,4] cache, float[2,1,4] x", "axis = 1", [0, 5]),
}


@pytest.mark.parametrize("name", SCATTERED)
@pytest.mark.parametrize("machine", ["edge16", MACHINE, "wide32_w4a16"])
def test_one_step_into_a_cache(machine: str, name: str, tmp_path: Path) -> None:
    inputs, attributes, at = SCATTERED[name]
    kind = inputs.partition(" ")[0]
    text = f"({inputs}, int64[2] at) => ({kind} y, {kind} cache_out) {{ cache_out = TensorScatter<{attributes}>(cache, x, at) "
    proto = parser.parse_model(f'<ir_version: 11, opset_import: ["" : 24]> g {text} y = Neg(cache_out) }}')
    onnx.save(proto, tmp_path / "n.onnx")
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    rng = np.random.default_rng(1)
    data = {n: rng.uniform(-1, 1, (4, *shapes[n])).astype(np.float32) for n in ("cache", "x")}
    np.savez(tmp_path / "data.npz", allow_pickle=False, at=np.tile(at, (4, 1)), **data)
    built = build(tmp_path / "n.onnx", BuildOptions(machine, str(tmp_path / "data.npz")))
    assert [state.output for _, state in built.container.states] == ["cache_out"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    runner = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    session = Session(built.data)
    for x, cached in zip(data["x"], data["cache"]):
        feeds = {"x": x, "at": np.array(at)}
        session.reset({"cache": cached})
        before = session.state("cache")
        y, cache_out = session.run(["y", "cache_out"], feeds)
        expected = np.asarray(runner.run(["cache_out"], {**feeds, "cache": cached})[0])
        untouched = expected == cached
        assert np.array_equal(cache_out[untouched], before[untouched])
        assert np.abs(cache_out - expected).max() < 0.02 and np.abs(y + expected).max() < 0.02
        assert not untouched.all()


def test_steps_at_once_stay_on_the_host(tmp_path: Path) -> None:
    signature = "(float[1,2,8,4] cache, float[1,2,3,4] x, int64[1] at) => (float[1,2,8,4] y)"
    text = f"{signature} {{ c = TensorScatter(cache, x, at) y = Relu(c) }}"
    onnx.save(parser.parse_model(f'<ir_version: 11, opset_import: ["" : 24]> g {text}'), tmp_path / "n.onnx")
    built = build(tmp_path / "n.onnx", BuildOptions("edge16"))
    assert [op for _, op, _ in built.container.fallbacks] == ["TensorScatter"]


ROWS = '<ir_version: 11, opset_import: ["" : 24]> g (float[1,2,8,4] cache, float[1,2,3,4] x, int64[1] at) => '


@pytest.mark.parametrize("keeps_state", [True, False])
def test_rows_at_a_computed_place(keeps_state: bool, tmp_path: Path) -> None:
    """Check rows that replace part of a state, and rows that are put into a cache without a state."""
    out = "other"  # that it is the cache's next value is seen by the operator, not by its name
    outputs = f"(float[1,2,8,4] y, float[1,2,8,4] {out}) {{ {out} = TensorScatter(cache, x, at) y = Neg({out}) }}"
    proto = parser.parse_model(ROWS + outputs)
    onnx.save(proto, tmp_path / "n.onnx")
    rng = np.random.default_rng(1)
    data = {n: rng.uniform(-1, 1, (4, *shape)).astype(np.float32) for n, shape in (("cache", (1, 2, 8, 4)), ("x", (1, 2, 3, 4)))}
    np.savez(tmp_path / "data.npz", allow_pickle=False, at=np.array([[0], [5], [2], [3]]), **data)
    states = None if keeps_state else ("none",)
    built = build(tmp_path / "n.onnx", BuildOptions(MACHINE, str(tmp_path / "data.npz"), states=states))
    assert not built.container.fallbacks and len(built.container.states) == keeps_state
    chip, reference = Session(built.data), Session(built.data, backend="reference")
    for x, before, (at, first) in zip(data["x"], data["cache"], ((0, 0), (5, 5), (70_000, 5), (-3, 0))):
        feeds = {"x": x, "at": np.array([at]), "cache": before}
        y, cache_out = chip.run(["y", out], feeds)
        assert np.array_equal(y, reference.run(["y"], feeds)[0])
        assert np.abs(cache_out - before).max(axis=(0, 1, 3))[[*range(first), *range(first + 3, 8)]].max() < 0.02
        assert np.abs(cache_out[:, :, first : first + 3] - x).max() < 0.02
    assert built.figures["dram_write_bytes"] == 64 + (24 if keeps_state else 88)


def test_a_cache_of_more_places_than_registers_hold(tmp_path: Path) -> None:
    """Registers for rows are those that areas leave; where these are too few, areas become one."""
    names = [f"{kind}{i}" for i in range(5) for kind in "kv"]
    inputs = ", ".join(f"float[1,1,{8 + i},4] past_{n}" for i, n in enumerate(names))
    outputs = ", ".join(f"float[1,1,{8 + i},4] present_{n}" for i, n in enumerate(names))
    body = " ".join(f"present_{n} = TensorScatter(past_{n}, x, at)" for n in names)
    text = (
        f'<ir_version: 11, opset_import: ["" : 24]> g (float[1,1,1,4] x, int64[1] at, {inputs}) => (float[1,1,1,4] y, {outputs})'
    )
    onnx.save(parser.parse_model(f"{text} {{ y = Neg(x) {body} }}"), tmp_path / "n.onnx")
    for machine, count in ((MACHINE, 10), ("edge16", 0)):
        built = build(tmp_path / "n.onnx", BuildOptions(machine))
        assert len(built.container.states) == 10
        chip, reference = Session(built.data), Session(built.data, backend="reference")
        feeds = {"x": np.full((1, 1, 1, 4), 0.5, np.float32), "at": np.array([6])}
        for session in (chip, reference):
            session.run(None, feeds)
        assert all(np.array_equal(chip.state(f"past_{n}"), reference.state(f"past_{n}")) for n in names)
        ops = [op for s in built.container.segments for layer in getattr(s, "layers", ()) for op in [layer.op]]
        assert ops.count("PutRows") == count
