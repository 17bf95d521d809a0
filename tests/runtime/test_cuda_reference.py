"""The backend `cuda`: the reference's own functions on arrays of another library give the reference's bits.

Here they run on a stand-in for CuPy that refuses what CuPy refuses; the test marked `cuda` runs on a GPU.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from quant.fixed_point import CodeType, Rounding
from quant.fixed_point.core.requant import Requant
from scripts.onnx_builder import build_model
from tests.support.device_arrays import ATTRIBUTES, FUNCTIONS, METHODS, UFUNCS, DeviceArray, DeviceLibrary
from toolchain.api import Build, BuildOptions, Session, build
from toolchain.errors import CompileError
from toolchain.ops.data_movement import IntegerConcat, IntegerPad, ResizeNearest, Slice
from toolchain.ops.kit.operator import NpuOp
from toolchain.ops.kit.registry import INTEGER_OPERATORS
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.ops.pool.geometry import Geometry
from toolchain.ops.pool.integer_pool import IntegerAveragePool, IntegerMaxPool
from toolchain.ops.tensor_scatter import PutRows, TakeRows
from toolchain.runtime import cuda_reference
from toolchain.runtime.cuda_reference import import_cupy

X = np.random.default_rng(0).integers(-128, 128, (1, 5, 6, 4)).astype(np.int8)
GEOMETRY = Geometry((3, 2), (2, 1), (1, 0, 1, 1))
COUNTED = tuple(
    (n, Requant(np.array([(1 << 31) // n]), np.array([31]), Rounding.DOUBLE_ROUND, 3, -128, 127, codes=CodeType.INT8))
    for n in (2, 3, 4, 6)
)
CASES: list[tuple[NpuOp, list[np.ndarray]]] = [
    (Slice((0, 1, 0, 1), (1, 2, 1, 1), (1, 2, 6, 3)), [X]),
    (IntegerPad((0, 1, 0, 0), (0, 2, 1, 0), -7), [X]),
    (ResizeNearest((1, 2, 3, 1)), [X]),
    (IntegerConcat(3), [X, X[..., :1]]),
    (Reshape((5, 24)), [X]),
    (Transpose((0, 3, 1, 2)), [X]),
    (PutRows(1, False, 2), [X, X[:, :1], np.array([9], np.int16)]),
    (TakeRows(1, 1, 2, 2, (2, 6, 4)), [X, np.array([-3], np.int16)]),
    (IntegerMaxPool(GEOMETRY), [X]),
    (IntegerAveragePool(GEOMETRY, False, 5, COUNTED), [X]),
]


@pytest.mark.parametrize(("op", "inputs"), CASES, ids=lambda value: type(value).__name__ if isinstance(value, NpuOp) else "")
def test_operators_on_device_arrays(op: NpuOp, inputs: list[np.ndarray]) -> None:
    result: Any = op.reference([DeviceArray(x.copy()) for x in inputs])  # type: ignore[arg-type]
    expected = op.reference(inputs)
    assert isinstance(result, DeviceArray)
    assert result._boxed.dtype == expected.dtype
    np.testing.assert_array_equal(result._boxed, expected)


def test_operators_that_take_device_arrays_are_tested() -> None:
    """Operators of the networks are run by tests/golden/test_cuda_networks.py."""
    of_networks = {"Convolution", "Binary", "Lookup", "MatrixProduct", "Rescale"}
    supported = {name for name, operator in INTEGER_OPERATORS.items() if operator.takes_device_arrays}
    assert supported == {op.NAME for op, _ in CASES} | of_networks
    assert {name for name in INTEGER_OPERATORS if name not in supported} == {"Softmax"}


@pytest.fixture(scope="module")
def built() -> Build:
    """A MatMul and a Softmax, which runs in integers on this machine."""
    rng = np.random.default_rng(1)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="m"), helper.make_node("Softmax", ["h"], ["y"], name="s")]
    weights = {"w": rng.normal(size=(8, 8)).astype(np.float32)}
    model = build_model(nodes, {"x": [2, 8]}, {"y": [2, 8]}, weights)
    return build(model, BuildOptions("transformer64", calibration={"x": rng.normal(size=(2, 2, 8)).astype(np.float32)}))


FEEDS = {"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)}


def test_a_session_gives_the_bits_and_names_what_ran_on_the_cpu(built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    library = DeviceLibrary()
    monkeypatch.setattr(cuda_reference, "import_cupy", lambda: library)
    session, reference = Session(built, backend="cuda"), Session(built, backend="reference")
    assert session.get_providers() == ["npu (cuda)"]
    run, expected = session.run_detailed(FEEDS), reference.run_detailed(FEEDS)
    np.testing.assert_array_equal(run.outputs["y"], expected.outputs["y"])
    (segment,) = run.segments
    assert segment.where == "npu (cuda)"
    assert segment.on_cpu == ("s",)
    uploads = library.uploads
    session.run(None, FEEDS)
    assert library.uploads - uploads < uploads, "constants stay on the device"


def test_without_cupy_it_is_one_sentence(built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    import_cupy.cache_clear()
    expected = r"^backend cuda: CuPy is not installed; install the extra 'cuda' \(docs/cuda\.md\), or take reference$"
    with pytest.raises(CompileError, match=expected):
        Session(built, backend="cuda").run(None, FEEDS)


class CUDARuntimeError(RuntimeError):
    """An error like CuPy's, which names what CUDA says."""

    __module__ = "cupy_backends.cuda.api.runtime"


def test_without_a_gpu_it_is_one_sentence(built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=fail)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    import_cupy.cache_clear()
    expected = (
        r"^backend cuda: cudaErrorNoDevice: no CUDA-capable device is detected; docs/cuda\.md says what it needs, "
        r"or take reference$"
    )
    with pytest.raises(CompileError, match=expected):
        Session(built, backend="cuda").run(None, FEEDS)


def test_a_stop_inside_is_refused(built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_reference, "import_cupy", DeviceLibrary)
    loaded = Session(built, backend="cuda")._load(0)
    with pytest.raises(CompileError, match=r"^backend cuda: computes tensors, so that it stops behind no operation"):
        loaded.run(np.zeros(1, np.uint8), until=1)


def test_cupy_has_what_the_stand_in_has() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    assert [name for name in (*UFUNCS, *FUNCTIONS) if not hasattr(cupy, name)] == []
    assert [name for name in (*METHODS, *ATTRIBUTES) if not hasattr(cupy.ndarray, name)] == []


@pytest.mark.cuda("backend")
def test_a_gpu_gives_the_bits(built: Build) -> None:
    expected = Session(built, backend="reference").run(None, FEEDS)
    for a, b in zip(Session(built, backend="cuda").run(None, FEEDS), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.cuda("backend")
@pytest.mark.parametrize(("op", "inputs"), CASES, ids=lambda value: type(value).__name__ if isinstance(value, NpuOp) else "")
def test_operators_on_a_gpu(op: NpuOp, inputs: list[np.ndarray]) -> None:
    cupy = import_cupy()
    result = cupy.asnumpy(op.reference([cupy.asarray(x) for x in inputs]))
    np.testing.assert_array_equal(result, op.reference(inputs))
