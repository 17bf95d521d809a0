"""Check how messages quote other libraries."""

from __future__ import annotations

import pytest

from toolchain.errors import MAX_QUOTED, first_line

SOURCE = "/onnxruntime_src/onnxruntime/core/providers/cpu"
CODE = "[ONNXRuntimeError] : 1 : FAIL : "


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Max(13) node with name 'Max_0'",
            "Could not find an implementation for Max(13) node with name 'Max_0'",
        ),
        (
            f"{CODE}Non-zero status code returned while running Gather node. Name:'g' Status Message: an index is out of bounds",
            "an index is out of bounds",
        ),
        (
            f"{CODE}Non-zero status code returned while running ConvInteger node. Name:'c' Status Message: {SOURCE}/conv.cc:52 "
            "virtual onnxruntime::common::Status onnxruntime::ConvInteger::Compute(onnxruntime::OpKernelContext*) const "
            "X_Zero_Point must be a scalar",
            "X_Zero_Point must be a scalar",
        ),
        (
            f"{CODE}Exception during initialization: {SOURCE}/rnn/rnn.h:48 onnxruntime::RNN<T>::RNN(const OpKernelInfo&) "
            "[with T = float] layout_ == 0 was false. Batchwise recurrent operations are not supported",
            "layout_ == 0 was false. Batchwise recurrent operations are not supported",
        ),
        ("two\nlines", "two"),
        ("", "ValueError"),
        ("x" * 1000, "x" * MAX_QUOTED),
        ("no such file /a/b.cc", "no such file /a/b.cc"),
        ("malformed node on line 1: <ast.BinOp object at 0x7f66063c6110>", "malformed node on line 1: ast.BinOp"),
        ("<function f.<locals>.g at 0x7F2> is no type", "function f.<locals>.g is no type"),
    ],
)
def test_first_line(text: str, quoted: str) -> None:
    assert first_line(ValueError(text)) == quoted
