"""onnxruntime computes what the model says, also where its own fusions do not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from quant.float_session import open_session

X = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
POOL = "<ceil_mode = 1, count_include_pad = 1, kernel_shape = [2,3], pads = [0,0,0,1], strides = [2,1]>"


@pytest.mark.parametrize(
    ("pads", "pool", "expected"),
    [
        ("0,0,0,0,0,0,1,0", f"AveragePool{POOL}", [[2.5, 2.0], [0.0, 0.0]]),
        ("0,0,0,0,0,0,0,3", "AveragePool<kernel_shape = [2,3], strides = [1,3]>", [[2.5, 0.0]]),
    ],
)
def test_padding_before_a_pool(pads: str, pool: str, expected: list[list[float]]) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,1,2,3] x) => (float[a,b,c,d] y) '
        f"<int64[8] p = {{{pads}}}> {{ t = Pad(x, p) y = {pool}(t) }}"
    )
    (y,) = open_session(model.SerializeToString()).run(None, {"x": X})
    assert y.tolist() == [[expected]]
