"""Memory or threads that the system does not give are one sentence and exit code 2, whoever says so and however."""

from __future__ import annotations

import errno
from importlib import import_module
from pathlib import Path

import onnx
import pytest
from commands import run

import toolchain.cli
from toolchain.errors import CompileError, InternalError, is_out_of_memory

MEMORY_FAULTS = [
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("can't start new thread"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 262144"),
    SystemError("error return without exception set"),
    ImportError("/usr/lib/libx.so: failed to map segment from shared object"),
    ValueError("Error parsing message: Arena alloc failed"),
]
OTHERS = [
    OSError(errno.EAGAIN, "Resource temporarily unavailable"),
    CompileError("node out of memory (Conv): is not an ONNX operator"),
    InternalError("tensor std::bad_alloc has no place"),
    ValueError("3 is too many"),
]


@pytest.mark.parametrize("fault", MEMORY_FAULTS, ids=repr)
def test_what_lacks_memory(fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault may also follow a sentence that takes it for a fault of a file."""

    def fails(*_: object) -> None:
        try:
            raise fault
        except Exception:
            raise CompileError("good.npu: is damaged") from None

    monkeypatch.setattr(import_module("toolchain.cli.dis"), "read_container", fails)
    printed = run("npu-dis good.npu")
    assert (printed.code, printed.err.count("\n")) == (2, 1)
    assert printed.err.startswith("out of memory") and "damaged" not in printed.err


@pytest.mark.parametrize("fault", MEMORY_FAULTS, ids=repr)
def test_what_nobody_took_for_another_fault(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise fault

    monkeypatch.setattr(import_module("toolchain.cli.dis"), "read_container", fails)
    printed = run("npu-dis good.npu")
    assert (printed.code, printed.err.count("\n")) == (2, 1) and printed.err.startswith("out of memory")


@pytest.mark.parametrize("fault", OTHERS, ids=repr)
def test_what_does_not(fault: Exception) -> None:
    assert not is_out_of_memory(fault)


@pytest.mark.parametrize("fault", MEMORY_FAULTS, ids=repr)
def test_imports_that_lack_memory(fault: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fails(_: str) -> None:
        raise fault

    monkeypatch.setattr(toolchain.cli, "import_module", fails)
    with pytest.raises(SystemExit) as ended:
        toolchain.cli.run_command("build")
    message = capfd.readouterr().err
    assert (ended.value.code, message.count("\n")) == (2, 1) and message.startswith("out of memory")


def test_other_faults_of_imports_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: str) -> None:
        raise ImportError("no module named onnx")

    monkeypatch.setattr(toolchain.cli, "import_module", fails)
    with pytest.raises(ImportError):
        toolchain.cli.run_command("build")


def test_a_model_that_fails_when_it_is_optimized_is_built_with_a_note(tmp_path: Path) -> None:
    rms = """(float[1,6,1] x) => (float[1,6,3] y) <float two = {2}, float e = {1e-5}, float[3] scale = {1, -1, 2}> {
      a = Add(x, two) p = Pow(a, two) m = ReduceMean<axes = [-1]>(p) v = Add(m, e) s = Sqrt(v)
      d = Div(a, s) y = Mul(d, scale) }"""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {rms}')
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    printed = run(f"npu-build {tmp_path}/m.onnx --hw edge16 -o {tmp_path}/m.npu")
    assert printed.code == 0
    assert "\nnote: onnxruntime's optimizer fails on it (Scale and (optional) bias must match" in printed.out
