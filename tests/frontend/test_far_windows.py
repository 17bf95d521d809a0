"""Windows beyond what an instruction says where a machine sets no limit: cut like others, or the host's with a reason."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chip_against_file import against_file
from onnx_text import model, save

from toolchain.api import BuildOptions, build
from toolchain.codegen import link
from toolchain.codegen.synchronise import SynchronisedProgram, synchronise
from toolchain.errors import CompileError, InternalError
from toolchain.isa import assembler
from toolchain.machine import Elementwise

ROW = "(float[1,1,1,%d] x"
CUT = [
    f"{ROW % 140010}, float[2,1,1,3] w) => (float[a,b,c,d] y) {{ y = Conv<dilations = [1,70000]>(x, w) }}",
    f"{ROW % 150000}, float[2,1,1,2] w) => (float[a,b,c,d] y) {{ y = Conv<strides = [1,70000]>(x, w) }}",
    f"{ROW % 70005}, float[2,1,1,70000] w) => (float[a,b,c,d] y) {{ y = Conv(x, w) }}",
    f"{ROW % 9}, float[2,1,1,3] w) => (float[a,b,c,d] y) {{ y = Conv<pads = [0,70000,0,1]>(x, w) }}",
    f"{ROW % 70005}) => (float[a,b,c,d] y) {{ y = GlobalAveragePool(x) }}",
]


@pytest.mark.parametrize("graph", CUT)
def test_cut(graph: str, tmp_path: Path) -> None:
    assert not against_file(save(model(graph), tmp_path)).figures["fallbacks"]


@pytest.mark.parametrize(
    ("machine", "graph", "reason"),
    [
        (
            "edge16",
            f"{ROW % 70010}) => (float[a,b,c,d] y) {{ y = MaxPool<kernel_shape = [1,2], dilations = [1,70000]>(x) }}",
            "dilation 1x70000 is larger than what an instruction can say=65535x65535",
        ),
        (
            "ethos_u55_256",
            f"{ROW % 310}) => (float[a,b,c,d] y) {{ y = MaxPool<kernel_shape = [1,2], dilations = [1,300]>(x) }}",
            "dilation 1x300 is larger than limits.pool.max_kernel=256x256",
        ),
    ],
)
def test_left_to_the_host(machine: str, graph: str, reason: str, tmp_path: Path) -> None:
    built = against_file(save(model(graph), tmp_path), machine)
    assert [f["reason"] for f in built.figures["fallbacks"]] == [reason]


def test_an_emitted_operation_that_does_not_fit_is_our_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def misfit(*_: object) -> bytes:
        raise CompileError("instruction 0 (fill): value=300 does not fit its 8 bits (-128 to 127)")

    monkeypatch.setattr(assembler.descriptors, "pack", misfit)
    path = save(model("(float[1,4] x) => (float[a,b] y) { y = Neg(x) }"), tmp_path)
    with pytest.raises(InternalError, match="edge16: an operation was emitted that it cannot say: instruction 0"):
        build(path, BuildOptions("edge16"))


def test_an_emitted_zero_point_that_the_machine_does_not_have_is_our_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instructions of wide32_w4a16 have bits for zero points, which its arithmetic leaves out."""

    def displace(*arguments: Any) -> SynchronisedProgram:
        program = synchronise(*arguments)
        ops = [replace(op, output_zero_point=5) if isinstance(op, Elementwise) else op for op in program.ops]
        return replace(program, ops=tuple(ops))

    path = save(model("(float[1,4] x, float[1,4] z) => (float[a,b] y) { y = Add(x, z) }"), tmp_path)
    build(path, BuildOptions("wide32_w4a16"))
    monkeypatch.setattr(link, "synchronise", displace)
    reason = "elementwise was emitted with output_zero_point=5, must be 0..0 (numerics.symmetric_activations)"
    with pytest.raises(InternalError, match=f"wide32_w4a16: {re.escape(reason)}"):
        build(path, BuildOptions("wide32_w4a16"))
