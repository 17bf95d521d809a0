"""A compiled model in Python: the shape of onnxruntime's InferenceSession, and the same answers as the commands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from bad_files import model

from simulator import prepare_program
from toolchain.api import BuildOptions, build
from toolchain.codegen import IoType
from toolchain.errors import CompileError, ProgramError
from toolchain.runtime import Session, builtin_backends, random_feeds
from toolchain.runtime.feeds import check_feeds

GRAPH = (
    "(float[1,3,8,8] x, int64[2] i, bool[2] c) => (float[1,4,8,8] y, float[1,2,8,8] g, bool[2] n) "
    "{ a = Conv<pads=[1,1,1,1]>(x, w) y = Relu(a) g = Gather<axis=1>(y, i) n = Not(c) }"
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("session")
    onnx.save(model(GRAPH), folder / "m.onnx")
    (folder / "m.npu").write_bytes(build(folder / "m.onnx", BuildOptions("edge16")).data)
    return folder / "m.npu"


def feeds() -> dict[str, np.ndarray]:
    x = np.random.default_rng(3).normal(size=(1, 3, 8, 8)).astype(np.float32)
    return {"x": x, "i": np.array([2, 0]), "c": np.array([True, False])}


def test_arguments_are_described_as_onnxruntime_describes_them(compiled: Path) -> None:
    ours, theirs = Session(compiled), onnxruntime.InferenceSession(compiled.with_suffix(".onnx"))
    for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(a.name, list(a.shape), a.type) for a in mine] == [(a.name, a.shape, a.type) for a in other]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("float64", "tensor(double)"), ("float16", "tensor(float16)"), ("uint8", "tensor(uint8)"), ("bool", "tensor(bool)")],
)
def test_type_names(dtype: str, name: str) -> None:
    from toolchain.codegen import IoType

    assert IoType("x", (1,), dtype).type == name


@pytest.mark.parametrize("backend", ["simulator", "reference"])
def test_outputs_come_as_asked_for(backend, compiled: Path) -> None:
    session = Session(compiled, backend=backend)
    all_outputs = session.run(None, feeds())
    assert [v.shape for v in all_outputs] == [(1, 4, 8, 8), (1, 2, 8, 8), (2,)]
    assert [v.dtype.name for v in all_outputs] == ["float32", "float32", "bool"]
    for names in (["g"], ["n", "y"], ["y", "y"]):
        index = {"y": 0, "g": 1, "n": 2}
        for name, value in zip(names, session.run(names, feeds()), strict=True):
            assert np.array_equal(value, all_outputs[index[name]])
    assert len(session.run([], feeds())) == 3


def test_engines_agree_and_are_near_float(compiled: Path) -> None:
    mine = Session(compiled).run(None, feeds())
    for a, b in zip(mine, Session(compiled, backend="reference").run(None, feeds()), strict=True):
        assert np.array_equal(a, b)
    y = np.asarray(onnxruntime.InferenceSession(compiled.with_suffix(".onnx")).run(["y"], feeds())[0])
    assert (mine[0] * y).sum() / np.linalg.norm(mine[0]) / np.linalg.norm(y) > 0.998


def test_path_bytes_and_container_are_the_same_model(compiled: Path) -> None:
    first = Session(str(compiled))
    expected = first.run(["y"], feeds())[0]
    for source in (compiled, compiled.read_bytes(), first.container):
        assert np.array_equal(Session(source).run(["y"], feeds())[0], expected)


def test_runs_do_not_remember_each_other(compiled: Path) -> None:
    session = Session(compiled)
    first = session.run(["y"], feeds())[0]
    session.run(None, {**feeds(), "x": -feeds()["x"]})
    assert np.array_equal(session.run(["y"], feeds())[0], first)


def test_rules_and_times_are_found_in_the_first_run(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[int] = []
    monkeypatch.setattr(builtin_backends, "prepare_program", lambda *a, **k: prepared.append(1) or prepare_program(*a, **k))
    session = Session(compiled, timing=True)
    first, second = (session.run_detailed({**feeds(), "x": value}) for value in (feeds()["x"], -feeds()["x"]))
    programs = [ran for ran in first.segments if ran.simulation is not None]
    assert len(prepared) == len(programs) > 0
    for ran, again in zip(first.segments, second.segments):
        assert (ran.simulation is None) == (again.simulation is None)
        assert ran.simulation is None or again.simulation is None or ran.simulation.cycles == again.simulation.cycles > 0


def test_says_what_ran_where(compiled: Path) -> None:
    ran = Session(compiled).run_detailed(feeds()).segments
    assert {(s.where, n) for s in ran for n in s.nodes if "@" not in n} >= {
        ("npu (simulator)", "Conv_0"),
        ("CPUExecutionProvider", "Gather_2"),
        ("npu (simulator)", "Not_3"),
    }


@pytest.mark.parametrize(
    ("names", "changes", "reason"),
    [
        (["z"], {}, "no output 'z'; the model's outputs are g, n, y"),
        ("y", {}, "output_names: is text; give a list of names, ['y']"),
        (None, {"x": np.zeros((1, 3, 8, 7), np.float32)}, "input 'x' has shape [1, 3, 8, 7]; the model takes [1, 3, 8, 8]"),
        (None, {"i": np.zeros(2, np.int32)}, "input 'i' is int32; the model takes int64: "
                                       "give i.astype('int64'), nothing is rounded here where bits are compared"),
        (None, {"x": None, "c": None}, "input 'x' is missing; give an array of float32 [1, 3, 8, 8]\n"
                                       "input 'c' is missing; give an array of bool [2]"),
        (None, {"x": np.zeros((4, 3, 8, 8), np.float32)},
         "input 'x' has shape [4, 3, 8, 8]; the model takes [1, 3, 8, 8] at once: give so much of it, for example x[:1]"),
        (None, {"d": np.zeros(1)}, "there is no input 'd'; the model's inputs are c, i, x"),
        (None, {"x": np.full((1, 3, 8, 8), np.inf, np.float32)}, "input 'x' holds NaN or infinity; codes cannot hold them"),
    ],
)  # fmt: skip
def test_refused(names, changes, reason: str, compiled: Path) -> None:
    values = {k: v for k, v in {**feeds(), **changes}.items() if v is not None}
    with pytest.raises(CompileError) as fault:
        Session(compiled).run(names, values)
    assert str(fault.value) == reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"level": 9}, "level 9: must be a whole number from 0 to 3"),
        ({"level": -1}, "level -1: must be a whole number from 0 to 3"),
        ({"level": "2"}, "level '2': must be a whole number from 0 to 3"),
        ({"samples": 0}, "samples 0: must be 1 or more"),
        ({"samples": 2.5}, "samples 2.5: must be a whole number"),
        ({"samples": True}, "samples True: must be a whole number"),
        ({"hardware": None}, "hardware: is NoneType; give a machine's name, the path of a YAML file, or a loaded machine"),
        ({"host_nodes": "Relu"}, "host_nodes: is text; give a tuple of texts, ('Relu',)"),
        ({"types": "x=int16"}, "types: is text; give a tuple of texts, ('x=int16',)"),
        ({"goal": "cycles"}, "goal: is 'cycles'; give a toolchain.api.Goal, such as Goal('balanced')"),
        ({"plugins": "a.py"}, "plugins: is text; give a tuple of texts, ('a.py',)"),
        ({"shapes": {"x": "1,4"}}, "shapes: 'x' is '1,4'; give whole numbers, as in {'x': (1, 3, 224, 224)}"),
        ({"shapes": {"x": (1, 4.5)}}, "shapes: 'x' is (1, 4.5); give whole numbers, as in {'x': (1, 3, 224, 224)}"),
        ({"observer": "best"}, "observer best: must be one of minmax, percentile, mse, auto"),
        ({"host": "tpu"}, "host tpu: must be cpu or cuda"),
    ],
)
def test_options_that_are_not(options, reason: str) -> None:
    with pytest.raises(CompileError) as fault:
        BuildOptions(**{"hardware": "edge16", **options})
    assert str(fault.value) == reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"backend": "gpu"},
            "backend gpu: must be one of cuda, reference, simulator; "
            "a package adds one by an entry point of npu_toolchain.backends",
        ),
        ({"host": "tpu"}, "host tpu: must be cpu or cuda"),
    ],
)
def test_sessions_that_are_not(options, reason: str, compiled: Path) -> None:
    with pytest.raises(CompileError) as fault:
        Session(compiled, **options)
    assert str(fault.value) == reason


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ProgramError) as fault:
        Session("nothere.npu")
    assert str(fault.value) == "nothere.npu: no such file or directory"


def test_feeds_without_names(compiled: Path) -> None:
    with pytest.raises(CompileError) as fault:
        Session(compiled).run(None, feeds()["x"])  # type: ignore[arg-type]
    example = "{'x': array, 'i': array, 'c': array}"
    assert str(fault.value) == f"feeds: is ndarray; give a mapping from the inputs' names, {example}"


def test_what_onnxruntime_refuses_is_one_message(compiled: Path) -> None:
    with pytest.raises(CompileError, match=r"^host nodes Gather_2.*: onnxruntime cannot run them: ") as fault:
        Session(compiled).run(None, {**feeds(), "i": np.array([9, 9])})
    assert "\n" not in str(fault.value)


def test_bytes_that_are_no_model() -> None:
    with pytest.raises(ProgramError, match=r"^model: not a compiled model"):
        Session(b"nothing")


def test_random_feeds_fit(compiled: Path) -> None:
    session = Session(compiled)
    assert len(session.run(None, random_feeds(session.get_inputs(), seed=5))) == 3


def test_runs_take_the_options_of_onnxruntime(compiled: Path) -> None:
    session, options = Session(compiled), onnxruntime.RunOptions()
    for output, expected in zip(session.run(None, feeds(), options), session.run(None, feeds())):
        assert np.array_equal(output, expected)
    options.terminate = True
    with pytest.raises(CompileError, match=r"^run_options: terminate is set"):
        session.run(None, feeds(), options)
    with pytest.raises(CompileError, match=r"onnxruntime cannot run them"):
        session.run(None, feeds(), "no options")


def test_what_a_session_says_of_itself(compiled: Path) -> None:
    session = Session(compiled, backend="reference")
    assert session.get_providers() == ["npu (reference)", "CPUExecutionProvider"]
    meta = session.get_modelmeta()
    assert meta.graph_name == session.container.name and meta.producer_name == "npu_toolchain"
    assert meta.custom_metadata_map["machine"] == session.container.machine.chip.name
    assert re.fullmatch("[0-9a-f]{64}", meta.custom_metadata_map["machine_digest"])


def test_arrays_that_are_bound_once(compiled: Path) -> None:
    session, inputs = Session(compiled, backend="reference"), feeds()
    names = [t.name for t in session.get_outputs()]
    bound = session.io_binding()
    with pytest.raises(CompileError, match=r"^no output is bound; bind_output names each that is wanted$"):
        session.run_with_iobinding(bound)
    for name, value in inputs.items():
        bound.bind_cpu_input(name, value)
    expected = dict(zip(names, session.run(None, inputs)))
    output_array = np.empty_like(expected[names[0]])
    bound.bind_output(names[0], array=output_array)
    for name in names[1:]:
        bound.bind_output(name)
    with pytest.raises(CompileError, match=r"is bound, and nothing has run since; call run_with_iobinding$"):
        bound.copy_outputs_to_cpu()
    session.run_with_iobinding(bound)
    assert all(np.array_equal(output, expected[name]) for output, name in zip(bound.copy_outputs_to_cpu(), names, strict=True))
    assert bound.copy_outputs_to_cpu()[0] is output_array
    inputs["x"][...] = -inputs["x"]  # read anew, and written to the same array
    session.run_with_iobinding(bound)
    assert np.array_equal(output_array, session.run(names[:1], inputs)[0]) and not np.array_equal(
        output_array, expected[names[0]]
    )
    bound.bind_output(names[0], array=output_array.ravel()[:1])
    with pytest.raises(CompileError, match=rf"^output '{names[0]}' is float32 .*, the array bound to it float32 \[1\]$"):
        session.run_with_iobinding(bound)
    with pytest.raises(CompileError, match=r"^output 'y': device cuda; outputs of a session are on the cpu$"):
        bound.bind_output("y", "cuda")
    with pytest.raises(CompileError, match=r"^io_binding: is of another session"):
        Session(compiled).run_with_iobinding(bound)


def test_states_are_told_apart_from_inputs() -> None:
    inputs, states = [IoType("x", (1, 2), "float32")], [IoType("h", (1, 2), "float32")]
    values = {"x": np.zeros((1, 2), np.float32), "z": np.zeros(1)}
    with pytest.raises(CompileError) as caught:
        check_feeds(inputs, values, states)
    assert str(caught.value) == "there is no input 'z'; the model's inputs are x; its states, h, may be given too"
