"""An operator is one file in toolchain/ops: put there, it is selected, quantized, emitted, stored, read back and simulated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from toolchain.errors import InternalError
from toolchain.foundation.module_registry import merge_tables
from toolchain.ops.kit import registry
from toolchain.ops.pool.select_pool import RULES

OPERATORS = Path(__file__).parents[1] / "support" / "triangle_operator"
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[6,5] x) => (float[6,5] y) {
    a = Relu(x)
    y = Trilu(a)
}
"""
SCRIPT = """
import sys
import toolchain.ops
if sys.argv[2]:
    toolchain.ops.__path__.append(sys.argv[2])
import numpy as np
from toolchain.api import BuildOptions, build
from toolchain.runtime import Session
built = build(sys.argv[1] + "/m.onnx", BuildOptions("edge16", calibration=sys.argv[1] + "/c.npz"))
np.save(sys.argv[1] + "/y.npy", Session(built.data).run(None, dict(np.load(sys.argv[1] + "/x.npz")))[0])
print(*(f["reason"] for f in built.figures["fallbacks"]))
"""


@pytest.mark.parametrize(("folder", "host"), [(OPERATORS, ""), ("", "no operator of the chip computes Trilu")])
def test_a_file_is_an_operator(tmp_path: Path, folder: Path | str, host: str) -> None:
    onnx.save(parser.parse_model(MODEL), tmp_path / "m.onnx")
    x = np.linspace(-1, 2, 30, dtype=np.float32).reshape(6, 5)
    np.savez(tmp_path / "x.npz", x=x)
    np.savez(tmp_path / "c.npz", x=np.stack([x] * 9))  # whose ends are sure
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(folder)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert ran.stdout.strip() == host
    assert np.abs(np.load(tmp_path / "y.npy") - np.triu(np.maximum(x, 0))).max() <= 3 / 255  # a step of x


def test_two_files_with_one_rule_are_refused() -> None:
    pool = next(m for m in registry._MODULES if getattr(m, "RULES", None) is RULES)
    with pytest.raises(InternalError, match="another file has a rule for MaxPool"):
        merge_tables([pool, pool], "RULES", registry._HAS)
