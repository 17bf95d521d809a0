"""Threads that share a session, on every backend: none gets another's outputs, and states go from run to run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import onnx
import pytest

from quant.float_session import CheckedSession
from simulator import PreparedProgram, prepare_program
from tests.support.threads import count_wrong_runs, require_runs_in_turn, run_in_threads
from toolchain.api import BuildOptions, build
from toolchain.codegen import Region
from toolchain.errors import CompileError
from toolchain.runtime import EntriesSession, Execution, IoBinding, Program, Session, builtin_backends, random_feeds, read_port

RUNS = 25  # in each of 8 threads; where runs share one memory image, these tests failed in each of 3 trials
BACKENDS = ("simulator", "reference")


class Board:
    """A backend of another package that has one memory and gives it out at each run."""

    observes = False
    _memory: np.ndarray
    _prepared: PreparedProgram

    def load(self, program: Program, *, timing: bool, check: bool) -> Board:
        board, size = Board(), program.region.dram_bytes
        board._memory = np.zeros(size, np.uint8)
        board._prepared = prepare_program(program.machine.chip, program.flow, None, size, [(0, size)])
        return board

    def run(self, dram: np.ndarray, *, until: int | None = None, observe: Any = None, progress: Any = None) -> Execution:
        self._memory[:] = dram
        self._memory[:] = self._prepared.run(self._memory, until=until).memory["dram"]
        return Execution({"dram": self._memory})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A region, an island, a region."""
    graph = "(float[1,3,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] z) { a = Conv<pads=[1,1,1,1]>(x, w) z = Relu(a) " \
        "b = MeanVarianceNormalization<axes=[1]>(a) y = Relu(b) }"  # fmt: skip
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g ' + graph)
    weights = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path_factory.mktemp("threads") / "m.onnx"
    onnx.save(proto, path)
    return build(path, BuildOptions("edge16", host_nodes=("MeanVarianceNormalization",), repair="none")).data


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Two entries with one state, of which runs of one input leave another value each time."""
    folder = tmp_path_factory.mktemp("threads")
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N,8] x, float[1,8] h) => (float[1,8] y, float[1,8] hn) { '
        "m = ReduceMean<axes = [0], keepdims = 1>(x) most = Constant<value_float = 0.9>() b = Mul(h, most) "
        "hn = Add(b, m) y = Neg(hn) }"
    )
    onnx.save(proto, folder / "m.onnx")
    np.savez(folder / "c.npz", allow_pickle=False, x=np.ones((24, 2, 8), np.float32))
    shapes = {"two": {"x": (2, 8)}, "three": {"x": (3, 8)}}
    options = BuildOptions("transformer64", str(folder / "c.npz"), states=("h=hn",), entries=shapes, repair="none")
    return build(folder / "m.onnx", options).data


def inputs_of(session: Session, count: int = 8) -> list[dict[str, np.ndarray]]:
    return [random_feeds(session.get_inputs(), seed) for seed in range(count)]


@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param(Board(), id="board")])
def test_each_run_gives_its_own_outputs(backend: Any, plain: bytes) -> None:
    session = Session(plain, backend=backend)
    assert session.concurrent == isinstance(backend, str)
    assert not count_wrong_runs(lambda feeds: session.run(None, feeds), inputs_of(session), RUNS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bindings_of_threads(backend: str, plain: bytes) -> None:
    session = Session(plain, backend=backend)

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        bound = session.io_binding()
        for name, value in feeds.items():
            bound.bind_cpu_input(name, value)
        for output in session.get_outputs():
            bound.bind_output(output.name, array=np.empty(output.shape, output.dtype))
        session.run_with_iobinding(bound)
        return bound.copy_outputs_to_cpu()

    assert not count_wrong_runs(run, inputs_of(session), RUNS)


class Numbered:
    """A session of many outputs, in each the number of the run."""

    def __init__(self) -> None:
        self._numbers = count()

    def run(self, output_names: Any, feeds: Mapping[str, np.ndarray], run_options: Any = None) -> list[np.ndarray]:
        return [np.array(next(self._numbers))] * len(output_names)


def test_outputs_of_a_shared_binding_are_of_one_run() -> None:
    bound = IoBinding(Numbered())
    for number in range(500):
        bound.bind_output(str(number))

    def run_once(_: int) -> None:
        for _ in range(RUNS):
            bound.run(None)
            assert len({int(value) for value in bound.copy_outputs_to_cpu()}) == 1

    run_in_threads(run_once)


@pytest.mark.parametrize("backend", ["simulator", pytest.param(Board(), id="board")])
def test_memories_behind_operations(backend: Any, plain: bytes) -> None:
    """Check memories while other runs go to the end."""
    session = Session(plain, backend=backend)
    index = next(i for i, s in enumerate(session.container.segments) if isinstance(s, Region))
    region, last = session.program(index).region, len(session.program(index).flow) - 1

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        memory = session.memory_behind(index, last, feeds)
        return [*(read_port(memory["dram"], port) for port in region.outputs), *session.run(None, feeds)]

    assert not count_wrong_runs(run, inputs_of(session), RUNS // 3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("names", [["y", "hn"], ["hn"]])
def test_runs_with_states_are_served_one_after_another(backend: str, names: list[str], entries: bytes) -> None:
    session = Session(entries, backend=backend, entry="two")
    feeds = {"x": np.ones((2, 8), np.float32)}
    require_runs_in_turn(lambda _: session.run(names, feeds), session.reset, 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_entries_share_states_in_threads(backend: str, entries: bytes) -> None:
    """Both entries compute the same of these inputs, so that it does not matter whose turn it is."""
    session = EntriesSession(entries, backend=backend)
    feeds = [{"x": np.ones((rows, 8), np.float32)} for rows in (2, 3)]
    require_runs_in_turn(lambda turn: session.run(["y", "hn"], feeds[turn % 2]), session.reset, 4)


def test_a_failed_run_leaves_states_to_the_other_threads(entries: bytes) -> None:
    session = Session(entries, entry="two")
    good = {"x": np.ones((2, 8), np.float32)}

    def run(turn: int) -> list[np.ndarray]:
        if turn % 2:
            with pytest.raises(CompileError, match="another thread ends it"):
                session.run_detailed(good, watch=refuse)
        return session.run(["hn"], good)

    require_runs_in_turn(run, session.reset, 4)


def refuse(*_: Any) -> Callable[..., None]:
    def observe(*_: Any) -> None:
        raise CompileError("another thread ends it")

    return observe


def test_programs_are_prepared_once(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[int] = []
    monkeypatch.setattr(builtin_backends, "prepare_program", lambda *a, **k: prepared.append(1) or prepare_program(*a, **k))
    session = Session(plain)
    feeds = inputs_of(session, 1)[0]
    run_in_threads(lambda _: session.run(None, feeds))
    assert len(prepared) == sum(isinstance(s, Region) for s in session.container.segments)


def test_a_session_of_onnxruntime_is_chosen_before_another_thread_asks() -> None:
    opened: list[bool] = []
    asking = threading.Thread(target=lambda: checked.get_inputs())

    class Plain:
        def run(self, *_: Any) -> list[np.ndarray]:
            return [np.zeros(1, np.float32)]

        def get_inputs(self) -> list[Any]:
            return []

    def open_one(unoptimized: bool) -> Any:
        opened.append(unoptimized)
        if len(opened) == 2:  # none is held
            asking.start()
            asking.join(0.1)
        return Plain()

    checked = CheckedSession(open_one)
    checked.run(None, {})
    asking.join()
    assert len(opened) == 2
