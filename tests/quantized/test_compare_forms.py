"""scripts/compare_forms.py: a file against onnxruntime's kernels, and against the float model with the same scales."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.quantized.forms import comparing
from tests.quantized.test_forms import small_network
from toolchain.isa import load_machine

HELD = ("edge16", "transformer64")


@pytest.mark.parametrize("form", ["qdq_s8_channel", "qop_s8_tensor", "integer", "qdq_s16", "blocked"])
def test_a_line_a_form(form: str, tmp_path: Path) -> None:
    script = comparing()
    model, samples = small_network()
    onnx.save(model, tmp_path / "m.onnx")
    judge = script.Judge(tmp_path / "m.onnx", samples[:4], samples)
    machine, others = script.with_int16(script.float32_machine(load_machine("edge16"))), {n: load_machine(n) for n in HELD}
    row = script.compared(judge, model, form, machine, others)
    assert row.hosted == 0
    exact = form not in ("qdq_s16", "blocked")
    assert row.chip_db == script.EXACT_DB if exact else row.chip_db >= 45
    assert sorted(row.above_db) == (sorted(HELD) if exact else [])
    assert all(db >= -0.5 for db in row.above_db.values()), row.above_db
    assert ("onnxruntime equal" in script.text(row)) == (row.chip_db == script.EXACT_DB)


def test_a_last_softmax_is_left_out() -> None:
    model, _ = small_network()
    model.graph.node.append(onnx.helper.make_node("Softmax", ["y"], ["p"]))
    model.graph.output[0].name = "p"
    assert comparing().to_scores(model).graph.output[0].name == "y"
    assert model.graph.node[-1].op_type == "Gemm"
