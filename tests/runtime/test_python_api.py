"""Python as people use it: models and data in memory, sessions of builds, pictures, cancelling, pickles, public names."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import external_data_helper, numpy_helper, parser

import toolchain.api
from tests.support.example_networks import fill_network
from toolchain.api import Build, BuildOptions, CancelledError, CompileError, EntriesSession, LeavingName, Session, build

ROOT = Path(__file__).parents[2]
GRAPH = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
    a = Conv<pads=[1,1,1,1]>(x, w) b = MeanVarianceNormalization<axes=[1]>(a) y = Relu(b) }"""
IMAGES = np.random.default_rng(0).normal(size=(8, 3, 8, 8)).astype(np.float32)


def make_model(graph: str = GRAPH) -> onnx.ModelProto:
    proto = parser.parse_model(graph)
    weights = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return proto


@pytest.fixture(scope="module")
def built() -> Build:
    return build(make_model(), BuildOptions("edge16", calibration=IMAGES))


# --- models in memory


def test_file_bytes_and_proto_give_the_same_file(built: Build, tmp_path: Path) -> None:
    onnx.save(make_model(), tmp_path / "model.onnx")
    options = BuildOptions("edge16", calibration=IMAGES)
    for model_or_bytes in (tmp_path / "model.onnx", str(tmp_path / "model.onnx"), make_model().SerializeToString()):
        assert build(model_or_bytes, options).data == built.data


def test_onnx_ir_models_bring_their_external_weights(built: Build, tmp_path: Path) -> None:
    ir = pytest.importorskip("onnx_ir")
    proto = make_model()
    external_data_helper.convert_model_to_external_data(proto, location="weights.bin", size_threshold=0)
    onnx.save(proto, tmp_path / "model.onnx")
    model = ir.load(tmp_path / "model.onnx")
    assert build(model, BuildOptions("edge16", calibration=IMAGES)).data == built.data
    assert isinstance(model.graph.initializers["w"].const_value, ir.ExternalTensor)  # the caller's model is as it was


def test_a_model_of_external_data_that_are_not_in_memory_is_refused(tmp_path: Path) -> None:
    proto = make_model()
    external_data_helper.convert_model_to_external_data(proto, location="weights.bin", size_threshold=0)
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(CompileError, match=r'weight w: its external data "weights\.bin" is not in memory'):
        build((tmp_path / "model.onnx").read_bytes(), BuildOptions("edge16"))


@pytest.mark.parametrize(
    ("model_or_bytes", "reason"),
    [
        (3, "model: is int; give a path, bytes, an onnx.ModelProto or an onnx_ir.Model"),
        (b"", "model: holds no bytes"),
        (b"no model", "model: is not an ONNX model, or is damaged or cut short\n  help: give the bytes of an .onnx file"),
    ],
)
def test_what_is_no_model_is_refused(model_or_bytes: Any, reason: str) -> None:
    with pytest.raises(CompileError) as fault:
        build(model_or_bytes, BuildOptions("edge16"))
    assert str(fault.value) == reason


# --- data in memory


class Reader:
    """A reader as onnxruntime's CalibrationDataReader."""

    def __init__(self) -> None:
        self._images = iter(IMAGES)

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self._images, None)
        return None if image is None else {"x": image[None]}


class Loader:
    """A loader as torch's DataLoader: batches with labels, the last one smaller."""

    def __init__(self, *, named: bool = False) -> None:
        self._named = named

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(IMAGES), 3):
            batch = IMAGES[start : start + 3]
            yield ({"x": batch} if self._named else batch), np.zeros(len(batch))


class Tensor:
    """A tensor as torch's: an array only by way of detach and cpu."""

    shape = IMAGES.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("is on another device")

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> np.ndarray:
        return IMAGES


FORMS: dict[str, Callable[[], Any]] = {
    "float64": lambda: IMAGES.astype(np.float64),
    "dict": lambda: {"x": IMAGES, "labels": np.zeros(8)},
    "dict of lists": lambda: {"x": IMAGES.tolist()},
    "list": lambda: list(IMAGES),
    "samples by name": lambda: [{"x": image[None]} for image in IMAGES],
    "iterator": lambda: iter(IMAGES),
    "reader": Reader,
    "class of a reader": lambda: Reader,
    "loader": Loader,
    "loader of names": lambda: Loader(named=True),
    "function": lambda: lambda: iter(IMAGES),
    "tensor": Tensor,
}


@pytest.mark.parametrize("form", FORMS)
def test_data_in_every_form_give_the_same_file(form: str, built: Build) -> None:
    same = build(make_model(), BuildOptions("edge16", calibration=FORMS[form](), judge=FORMS[form]()))
    assert same.data == built.data
    assert (same.figures["calibration_samples"], same.figures["judged_on"]) == (8, "judge")
    assert ("labels" in " ".join(same.notes)) == (form == "loader")


def failing() -> Iterator[Any]:
    yield IMAGES[0]
    raise ValueError("the disk is gone")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"options": "edge16"}, "options: is str; give BuildOptions('edge16')"),
        ({"progress": 3}, "progress: is int; give a function of four arguments: stage, done, total, left_s"),
        ({"cancel": True}, "cancel: is bool; give an event, as threading.Event()"),
    ],
)
def test_arguments_of_another_kind_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(CompileError) as refusal:
        build(**{"model": b"", "options": BuildOptions("edge16"), **arguments})
    assert str(refusal.value) == reason


def test_a_callback_that_is_no_function_is_refused_at_once(built: Build) -> None:
    with pytest.raises(CompileError, match=r"^callback: is int; give a function of the outputs, user_data and the fault$"):
        Session(built).run_async(None, {}, 5, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (7, "calibration data: is int; give a path, an array, a dict of arrays, an iterable of samples"),
        (b"x.npz", "calibration data: is bytes; give a path"),
        ({"y": IMAGES}, "calibration data: no array for input 'x' (given: 'y'); give a dict with 'x'"),
        (IMAGES[..., :7], "calibration data: array for input 'x' has shape [8, 3, 8, 7]; the input takes [1, 3, 8, 8]"),
        ([], "calibration data: holds 0 samples; calibration needs at least 1"),
        (failing, "calibration data: sample 1: ValueError: the disk is gone; mend the data"),
        ([IMAGES[0], "image.png"], "calibration data: sample 1: TypeError: is an array of <U9; give arrays of numbers"),
        ([IMAGES[0], IMAGES[0] * np.nan], "calibration data: sample 1: input 'x' holds NaN at [0, 0, 0, 0]"),
        (lambda: 3, "calibration data: TypeError: 'int' object is not iterable; give an iterable of samples"),
    ],
)
def test_data_that_are_none_are_refused_in_one_sentence(data: Any, reason: str) -> None:
    with pytest.raises(CompileError) as fault:
        build(make_model(), BuildOptions("edge16", calibration=data))
    assert str(fault.value).startswith(reason) and "\n" not in str(fault.value)


def test_samples_limit_what_is_read_of_an_endless_iterable() -> None:
    def endless() -> Iterator[np.ndarray]:
        while True:
            yield IMAGES[0]

    built = build(make_model(), BuildOptions("edge16", calibration=endless(), samples=5))
    assert built.figures["calibration_samples"] == 5


def test_sequences_of_a_model_with_states_need_no_state() -> None:
    graph = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x, float[1,4] past) => (float[1,4] y, float[1,4] present) {
        present = Add(x, past) y = Relu(present) }"""
    steps = list(np.random.default_rng(2).normal(size=(8, 1, 4)).astype(np.float32))
    built = build(
        parser.parse_model(graph), BuildOptions("edge16", calibration=[{"x": s} for s in steps], states=("past=present",))
    )
    assert any(note.startswith("calibration data has no past: the samples are taken as one sequence") for note in built.notes)


# --- what a build shows


def test_a_build_prints_itself_in_ten_lines(built: Build) -> None:
    lines = repr(built).splitlines()
    assert len(lines) <= 10 and max(map(len, lines)) <= 160
    assert lines[0].startswith(f"model on edge16: {built.figures['cycles']:,} cycles")
    assert f"y {built.figures['outputs'][0]['sqnr_db']:.1f} dB" in repr(built) and built.warnings[0] in repr(built)


def test_a_notebook_shows_cycles_parts_and_warnings(built: Build) -> None:
    page = built._repr_html_()
    assert all(f"{layer['cycles']:,}</text>" in page for layer in built.figures["layers"])
    assert page.count("<rect") == len(built.figures["layers"]) and page.count("<li>") == len(built.warnings)
    assert f"{built.figures['outputs'][0]['sqnr_db']:.1f} dB" in page


def test_names_in_a_page_are_escaped() -> None:
    model = make_model(GRAPH.replace("float[1,4,8,8] y", "float[1,4,8,8] q").replace("y = Relu", "q = Relu"))
    model.graph.node[-1].output[0] = model.graph.output[0].name = "<script>"
    model.graph.node[-1].name = "<b>"
    page = build(model, BuildOptions("edge16", calibration=IMAGES))._repr_html_()
    assert "<script>" not in page and "<b>:" not in page and "&lt;script&gt;" in page


def test_a_build_of_entries_shows_each() -> None:
    shapes = {f"h{n}": {"x": (1, 3, n, 8)} for n in (8, 4)}
    several = build(make_model(GRAPH.replace("3,8,8", "3,H,8").replace("4,8,8", "4,H,8")), BuildOptions("edge16", entries=shapes))
    assert len(repr(several).splitlines()) <= 10 and "entry h4:" in repr(several)
    assert several._repr_html_().count("<svg") == 2
    again = pickle.loads(pickle.dumps(several))
    assert again.data == several.data and [*again.entries] == ["h8", "h4"]
    assert again.entries["h4"].schedule == several.entries["h4"].schedule
    feeds = {"x": IMAGES[:1, :, :4]}
    assert np.array_equal(EntriesSession(several).run(None, feeds)[0], Session(several, entry="h4").run(None, feeds)[0])


# --- sessions


def test_a_session_takes_a_build_or_bytes(built: Build) -> None:
    expected = Session(built.container).run(None, {"x": IMAGES[:1]})[0]
    for model_or_bytes in (built, built.data, bytearray(built.data), memoryview(built.data)):
        assert np.array_equal(Session(model_or_bytes).run(None, {"x": IMAGES[:1]})[0], expected)
    with pytest.raises(CompileError, match=r"model: is int; give a path, bytes, or what build\(\) returns"):
        Session(3)


def test_builds_and_sessions_are_pickled(built: Build) -> None:
    again = pickle.loads(pickle.dumps(built))
    assert (again.data, again.notes, again.schedule, repr(again)) == (built.data, built.notes, built.schedule, repr(built))
    session = Session(built, timing=True)
    expected = session.run_detailed({"x": IMAGES[:1]})
    ran = pickle.loads(pickle.dumps(session)).run_detailed({"x": IMAGES[:1]})
    assert np.array_equal(ran.outputs["y"], expected.outputs["y"])
    assert [s.simulation and s.simulation.cycles for s in ran.segments] == [
        s.simulation and s.simulation.cycles for s in expected.segments
    ]


def test_a_pickled_session_keeps_its_states() -> None:
    graph = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x, float[1,4] past) => (float[1,4] y, float[1,4] present) {
        present = Add(x, past) y = Relu(present) }"""
    session = Session(build(parser.parse_model(graph), BuildOptions("edge16", states=("past=present",))))
    session.run(None, {"x": np.ones((1, 4), np.float32)})
    again = pickle.loads(pickle.dumps(session))
    assert session.state("past").any() and np.array_equal(again.state("past"), session.state("past"))


ECHO = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, int64[2] i, bool[2] b, uint8[2] u) =>
    (float[2] y, int64[2] j, bool[2] c, uint8[2] v) { y = Neg(x) j = Neg(i) c = Not(b) v = Identity(u) }"""
PLAIN = {"x": np.ones(2, np.float32), "i": np.ones(2, np.int64), "b": np.ones(2, bool), "u": np.ones(2, np.uint8)}


@pytest.fixture(scope="module")
def echo() -> tuple[Session, onnxruntime.InferenceSession]:
    proto = parser.parse_model(ECHO)
    calibration = {name: np.stack([value, value]) for name, value in PLAIN.items()}
    built = build(proto, BuildOptions("edge16", calibration=calibration, host_nodes=("Neg", "Not", "Identity")))
    return Session(built), onnxruntime.InferenceSession(proto.SerializeToString())


@pytest.mark.parametrize(
    "feed",
    [
        {"x": [1.5, 2]}, {"x": [1, 2]}, {"x": [np.float32(1), np.float64(2.25)]}, {"x": [True, False]},
        {"i": [1, -2]}, {"b": [1, 0]}, {"u": [0, 255]},
    ],
    ids=str,
)  # fmt: skip
def test_lists_are_taken_as_onnxruntime_takes_them(feed: dict[str, Any], echo: tuple[Session, Any]) -> None:
    ours, theirs = (session.run(None, {**PLAIN, **feed}) for session in echo)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype and np.array_equal(mine, other)


@pytest.mark.parametrize(
    ("feed", "reason"),
    [
        ({"x": ["a", "b"]}, "input 'x': the list is no array of float32: could not convert string to float"),
        ({"x": [1.0, [2.0]]}, "input 'x': the list is no array of float32: setting an array element with a sequence"),
        ({"u": [300, 1]}, "input 'u': the list holds numbers that uint8 does not; give whole numbers in its range"),
        ({"i": [1.5, 1]}, "input 'i': the list holds numbers that int64 does not; give whole numbers in its range"),
        ({"x": [[1.0, 2.0]]}, "input 'x' has shape [1, 2]; the model takes [2]"),
        ({"i": np.ones(2, np.int32)}, "input 'i' is int32; the model takes int64"),
    ],
)
def test_lists_that_are_no_inputs_are_refused(feed: dict[str, Any], reason: str, echo: tuple[Session, Any]) -> None:
    with pytest.raises(CompileError) as fault:
        echo[0].run(None, {**PLAIN, **feed})
    assert str(fault.value).startswith(reason)


def test_float64_is_taken_as_float32(built: Build) -> None:
    wide = IMAGES[:1].astype(np.float64) + 1e-12
    session = Session(built)
    assert np.array_equal(session.run(None, {"x": wide})[0], session.run(None, {"x": wide.astype(np.float32)})[0])


def test_an_asynchronous_run_calls_back_with_outputs_or_the_fault(built: Build) -> None:
    session, done, answers = Session(built), threading.Event(), list[Any]()

    def callback(outputs: list[np.ndarray], user_data: Any, fault: str) -> None:
        answers.append((outputs, user_data, fault, threading.current_thread() is not threading.main_thread()))
        done.set()

    for feeds in ({"x": IMAGES[:1]}, {}):
        done.clear()
        session.run_async(None, feeds, callback, "mine")
        assert done.wait(30)
    assert np.array_equal(answers[0][0][0], session.run(None, {"x": IMAGES[:1]})[0])
    assert answers[0][1:] == ("mine", "", True)
    assert answers[1][0] == [] and answers[1][2].startswith("input 'x' is missing")


def test_providers_and_options_are_what_runs(built: Build) -> None:
    session = Session(built, timing=True, check=False)
    assert session.get_providers() == ["npu (simulator)", "CPUExecutionProvider"]
    assert session.get_provider_options() == {"npu (simulator)": {"timing": "1", "check": "0"}, "CPUExecutionProvider": {}}
    assert session.get_session_options().intra_op_num_threads == 1


def test_a_profile_has_an_event_for_each_segment_of_each_run(built: Build, tmp_path: Path) -> None:
    session = Session(built, timing=True, profile=tmp_path / "profile.json")
    for _ in range(2):
        run = session.run_detailed({"x": IMAGES[:1]})
    assert session.end_profiling() == str(tmp_path / "profile.json")
    events = json.loads((tmp_path / "profile.json").read_text())
    assert [event["args"]["provider"] for event in events] == 2 * [segment.where for segment in run.segments]
    cycles = [event["args"].get("cycles") for event in events[: len(run.segments)]]
    assert cycles == [s.simulation and s.simulation.cycles for s in run.segments]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events)
    with pytest.raises(CompileError, match="end_profiling: nothing was recorded; open the session with profile=FILE"):
        Session(built).end_profiling()


# --- progress and cancelling


def test_progress_tells_the_stages() -> None:
    stages: list[str] = []
    build(make_model(), BuildOptions("edge16", calibration=IMAGES), progress=lambda stage, done, total: stages.append(stage))
    assert [*dict.fromkeys(stages)][:2] == ["load", "calibrate"] and {"compile", "check"} <= set(stages)


@pytest.mark.parametrize("stage", ["calibrate", "compile"])
def test_a_cancelled_build_ends_within_two_seconds_and_leaves_nothing(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cancel, begun_s, threads = threading.Event(), list[float](), threading.active_count()

    def progress(now: str, done: int, total: int | None) -> None:
        if now == stage and not cancel.is_set():
            begun_s.append(time.monotonic())
            cancel.set()

    with pytest.raises(CancelledError, match="cancelled by the caller; nothing was written"):
        build(fill_network("mobilenet_v2_224"), BuildOptions("edge16"), progress=progress, cancel=cancel)
    assert time.monotonic() - begun_s[0] < 2
    assert threading.active_count() == threads and [*tmp_path.iterdir()] == []


def test_a_build_that_ends_before_its_event_is_set_is_whole(built: Build) -> None:
    event = threading.Event()
    assert build(make_model(), BuildOptions("edge16", calibration=IMAGES), cancel=event).data == built.data
    event.set()
    with pytest.raises(CancelledError):
        build(make_model(), BuildOptions("edge16", calibration=IMAGES), cancel=event)


def test_what_a_callback_raises_is_the_callers() -> None:
    def progress(*_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build(make_model(), BuildOptions("edge16"), progress=progress)


# --- packages and names


@pytest.mark.parametrize(
    ("place", "name"), [("quant.py", "quant"), ("simulator/__init__.py", "simulator"), ("hw_configs/__init__.py", "hw_configs")]
)
def test_a_module_that_hides_a_package_is_named(place: str, name: str, tmp_path: Path) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("raise SystemExit('not ours')\n")
    done = subprocess.run([sys.executable, "-c", "import toolchain.api"], cwd=tmp_path, capture_output=True, text=True)
    sentence = done.stderr.splitlines()[-1]
    assert (
        f"npu-toolchain: {tmp_path / place} hides its package '{name}'; rename that" in sentence and "not ours" not in done.stderr
    )
    program = "import sys; sys.argv = ['/bin/npu-hw', 'list']; from toolchain.cli import hw; hw()"
    command = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (command.returncode, command.stdout, command.stderr.count("\n")) == (2, "", 1)
    assert "Traceback" not in command.stderr and f"hides its package '{name}'" in command.stderr


def test_a_name_that_leaves_warns_and_works(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = LeavingName(lambda: build, "0.9.0", "use toolchain.api.build")
    monkeypatch.setitem(toolchain.api.LEAVING, "build_model", entry)
    with pytest.warns(
        DeprecationWarning, match=r"^toolchain\.api\.build_model leaves in 0\.9\.0; use toolchain\.api\.build$"
    ) as warned:
        assert toolchain.api.build_model is build
    assert warned[0].filename == __file__
    with pytest.raises(AttributeError, match=r"module 'toolchain\.api' has no attribute 'buld'"):
        toolchain.api.buld  # noqa: B018


def test_names_that_leave_have_not_outstayed_their_release() -> None:
    def numbers(version: str) -> tuple[int, ...]:
        return tuple(map(int, version.split(".")))

    for name, entry in toolchain.api.LEAVING.items():
        assert name not in toolchain.api.__all__
        assert numbers(entry.gone_in) > numbers(toolchain.__version__), f"{name} was to leave in {entry.gone_in}: remove it"


def test_the_page_lists_the_public_names() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", page, re.M)
    assert sorted(listed) == sorted(toolchain.api.__all__)
    assert all(hasattr(toolchain.api, name) for name in toolchain.api.__all__)
