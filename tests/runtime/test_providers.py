"""Host subgraphs and float models run where they are asked to, in float32, and what falls back to the CPU is told."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from quant import float_session
from quant.float_session import inference_notes, open_session
from scripts.onnx_builder import build_model
from toolchain.api import BuildOptions, Session, build
from toolchain.errors import CompileError
from toolchain.foundation import inference
from toolchain.foundation.inference import (
    CPU,
    CUDA,
    find_cuda_fault,
    host_providers,
    open_model,
    run_float_models_on,
    session_options,
)
from toolchain.report.report_text import host_segments_text
from toolchain.runtime import SegmentRun

OPTIONS = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}


def model(operators: str = "Relu Softmax") -> bytes:
    """A chain of these operators on float[2]."""
    names = ["x", *(f"t{i}" for i in range(len(operators.split()) - 1)), "y"]
    nodes = [helper.make_node(op, [a], [b], name=f"{op}_0") for op, a, b in zip(operators.split(), names, names[1:])]
    return build_model(nodes, {"x": [2]}, {"y": [2]}).SerializeToString()


class SessionWithGpu:
    """onnxruntime's session on the CPU that says it ran on a GPU, but for its nodes of Softmax."""

    opened: list[tuple[Any, Any]] = []  # noqa: RUF012

    def __init__(self, *arguments: Any, providers: list[Any], **options: Any) -> None:
        SessionWithGpu.opened.append((providers, arguments[1]))
        self._providers = [name if isinstance(name, str) else name[0] for name in providers]
        self._session = ORIGINAL(*arguments, providers=[*CPU], **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_providers(self) -> list[str]:
        return self._providers

    def get_provider_graph_assignment_info(self) -> list[Any]:
        nodes = [node for subgraph in self._session.get_provider_graph_assignment_info() for node in subgraph.get_nodes()]
        on_cpu = [n for n in nodes if n.op_type == "Softmax"]
        parts = [(CUDA[0], [n for n in nodes if n not in on_cpu]), (CPU[0], on_cpu)]
        return [SimpleNamespace(ep_name=name, get_nodes=lambda of=of: of) for name, of in parts if of]


ORIGINAL = onnxruntime.InferenceSession


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, Any]]]:
    """Sessions of a stand-in for a GPU; yields the providers and options of each that is opened."""
    SessionWithGpu.opened = []
    monkeypatch.setattr(onnxruntime, "InferenceSession", SessionWithGpu)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*CUDA])
    find_cuda_fault.cache_clear()
    yield SessionWithGpu.opened
    find_cuda_fault.cache_clear()


def test_products_on_a_gpu_are_exact_in_float32_and_the_same_each_time(gpu: list[tuple[Any, Any]]) -> None:
    open_model(model(), session_options(optimized=True), providers=CUDA)
    open_model(model(), session_options(optimized=True))
    (on_gpu, options), (on_cpu, _) = gpu
    assert on_gpu == [(CUDA[0], OPTIONS), *CPU]
    assert options.use_deterministic_compute
    assert on_cpu == [*CPU]


def test_nodes_of_each_provider_are_known(gpu: list[tuple[Any, Any]]) -> None:
    session = open_model(model(), session_options(optimized=False), providers=CUDA)
    assert session.get_nodes_by_provider() == {CUDA[0]: ("Relu_0 (Relu)",), CPU[0]: ("Softmax_0 (Softmax)",)}
    assert open_model(model(), session_options(optimized=False)).get_nodes_by_provider() == {}


def test_float_models_run_on_the_requested_host(gpu: list[tuple[Any, Any]]) -> None:
    with run_float_models_on("cuda"), inference_notes() as notes:
        open_session(model()).run(None, {"x": np.ones(2, np.float32)})
    assert gpu[-1][0] == [(CUDA[0], OPTIONS), *CPU]
    assert [*notes] == ["host cuda: nodes of float models ran on the CPU, for want of kernels: Softmax"]
    gpu.clear()
    open_session(model()).run(None, {"x": np.ones(2, np.float32)})
    assert all(providers == [*CPU] for providers, _ in gpu)


def test_a_build_runs_its_float_models_and_islands_there(gpu: list[tuple[Any, Any]]) -> None:
    data = [{"x": np.array([[-1.0, 2.0]], np.float32)}] * 2
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="r"), helper.make_node("Softmax", ["r"], ["y"], name="s")]
    proto = build_model(nodes, {"x": [1, 2]}, {"y": [1, 2]})
    built = build(proto, BuildOptions("ethos_u55_256", calibration=data, host="cuda", host_nodes=("r", "s"), error_report=True))
    assert built.figures["segments"] == [{"where": CUDA[0], "nodes": 2, "on_cpu": ["s (Softmax)"]}]
    assert "2 nodes on CUDAExecutionProvider (1 of them on the CPU: s (Softmax))" in host_segments_text(built.figures)
    assert "host cuda: nodes of float models ran on the CPU, for want of kernels: Softmax" in built.notes
    on_cpu = [providers for providers, _ in gpu if providers == [*CPU]]
    assert len(on_cpu) < len(gpu) / 2, "all but the reading of the model runs on the GPU"
    session = Session(built, host="cuda")
    assert session.get_providers() == [*CUDA]
    assert session.get_provider_options() == {CUDA[0]: OPTIONS, CPU[0]: {}}


def test_islands_on_one_provider_are_counted() -> None:
    rows = [SegmentRun(CPU[0], ("a",), None), SegmentRun("npu (simulator)", ("b",), None), SegmentRun(CPU[0], ("c",), None)]
    figures = {"segments": inference_figures(rows)}
    assert host_segments_text(figures) == "host subgraphs ran: 2 on CPUExecutionProvider"
    assert host_segments_text({"segments": figures["segments"][1:2]}) == ""


def inference_figures(rows: list[SegmentRun]) -> list[dict[str, Any]]:
    from toolchain.report.host_metrics import list_segment_figures

    return list_segment_figures(rows)


def test_both_packages_of_onnxruntime_are_refused(gpu: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_has_distribution", lambda name: True)
    expected = (
        r"^host cuda: onnxruntime and onnxruntime-gpu are both installed and own the same files; uninstall both, then install "
        r"onnxruntime-gpu alone \(docs/cuda\.md\), or use cpu$"
    )
    with pytest.raises(CompileError, match=expected):
        host_providers("cuda")


def test_a_provider_that_does_not_start_is_refused(gpu: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-gpu lists its provider on any machine, and leaves it out of a session where there is no GPU."""
    monkeypatch.setattr(SessionWithGpu, "get_providers", lambda self: [*CPU])
    expected = (
        r"^host cuda: onnxruntime's CUDAExecutionProvider does not start here; it needs a GPU with its driver, CUDA and cuDNN "
        r"\(docs/cuda\.md\), or use cpu$"
    )
    with pytest.raises(CompileError, match=expected):
        Session(b"", host="cuda")


def test_calibration_repair_and_error_report_run_there(gpu: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    rng, requested = np.random.default_rng(1), list[tuple[str, ...]]()

    def record(*arguments: Any, providers: tuple[str, ...], **options: Any) -> Any:
        requested.append(tuple(providers))
        return open_model(*arguments, providers=providers, **options)

    monkeypatch.setattr(float_session, "open_model", record)
    weights = {"w": rng.normal(size=(8, 8)).astype(np.float32)}
    proto = build_model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [1, 8]}, {"y": [1, 8]}, weights)
    data = {"x": rng.normal(size=(20, 1, 8)).astype(np.float32)}
    built = build(proto, BuildOptions("ws8_pow2", calibration=data, host="cuda", repair="fast", error_report=True))
    assert built.figures["repair"]["steps"]
    assert len(requested) > 5
    assert set(requested) == {CUDA}
