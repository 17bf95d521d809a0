"""A sample of bench/check_node_cases.py: for each operator that a chip takes a case of the onnx package."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
ON_CHIP = (
    *(
        "abs",
        "acos",
        "acosh",
        "add",
        "add_bcast",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "averagepool_2d_ceil",
        "averagepool_1d_default",
    ),
    *(
        "averagepool_1d_default",
        "averagepool_2d_pads_count_include_pad",
        "averagepool_2d_same_lower",
        "basic_conv_with_padding",
        "batchnorm_example",
    ),
    *("ceil", "clip", "clip_min_greater_than_max", "concat_3d_axis_1", "constant_pad", "conv_with_autopad_same", "cos", "cosh"),
    *("conv_with_strides_and_asymmetric_padding", "convtranspose_autopad_same", "convtranspose_dilations", "convtranspose_1d"),
    *("convtranspose_group_2", "elu", "erf", "exp", "expand_dim_changed", "floor", "gather_0", "gelu_tanh_2"),
    *("gemm_all_attributes", "globalaveragepool", "globalmaxpool", "hardsigmoid", "hardswish", "leakyrelu", "log", "matmul_2d"),
    *("maxpool_1d_default", "maxpool_2d_ceil", "maxpool_2d_dilations", "maxpool_2d_same_upper", "mean_example"),
    *("mish", "mul", "mul_bcast", "neg", "pow_bcast_scalar", "prelu_broadcast", "reciprocal", "relu", "selu", "sigmoid", "sign"),
    *("reduce_max_keepdims_random", "reduce_mean_do_not_keepdims_random", "reduce_sum_keepdims_random"),
    *("resize_upsample_scales_linear", "resize_upsample_scales_nearest", "sin", "sinh", "slice", "softplus", "softsign"),
    *("split_equal_parts_2d", "sqrt", "sub", "sub_bcast", "sum_example", "swish", "tan_example", "tanh", "thresholdedrelu"),
    *("transpose_all_permutations_3", "upsample_nearest"),
)
ELSEWHERE = (  # on the host, wholly or partly; or refused
    *(
        "adagrad",
        "argmax_keepdims_random",
        "attention_4d_fp16_expanded",
        "cast_FLOAT_to_STRING",
        "castlike_FLOAT_to_INT2",
        "cumsum_1d",
        "div_example",
    ),
    *("einsum_sum", "gru_defaults", "identity_opt", "if", "isnan", "layer_normalization_2d_axis0", "loop11", "nonzero_example"),
    *("pow_types_float32_int64", "reshape_allowzero_reordered", "sequence_insert_at_back", "softmax_large_number", "top_k"),
)


@pytest.mark.slow
def test_sample_of_node_cases(tmp_path: Path) -> None:
    pytest.importorskip("onnx.backend.test.case.node", reason="the installed onnx has no node cases")
    results_file = tmp_path / "found.json"
    names = [f"test_{name}" for name in (*ON_CHIP, *ELSEWHERE)]
    command = [sys.executable, "bench/check_node_cases.py", *names, "--json", str(results_file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads(results_file.read_text())
    assert len(rows) > 0.95 * 2 * len(names)  # other versions of onnx may lack some
    fixed = {row["case"].removeprefix("test_"): (row["kind"], row["where"]) for row in rows if row["variant"] == "constants"}
    assert {n: fixed[n] for n in ON_CHIP if n in fixed and fixed[n] != ("right", "chip")} == {}


def test_counts_are_printed_behind_every_hundred_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    script = import_module("check_node_cases")
    monkeypatch.setattr(script, "as_given", lambda case: case)
    monkeypatch.setattr(script, "with_constants", lambda case: None)
    monkeypatch.setattr(script, "in_own_process", lambda case, machine: script.Verdict(case.kind))
    kinds = ["wrong", *["right"] * 149, *["refused"] * 70]
    cases = [SimpleNamespace(name="test_round" if i == 0 else f"test_{i}", kind=kind) for i, kind in enumerate(kinds)]
    assert len(script.run_cases(cases, None, 1)) == 2 * len(cases)
    assert capsys.readouterr().err.splitlines() == [
        "100 of 220: as given 99 right, 1 known; constants 99 right, 1 known",
        "200 of 220: as given 149 right, 1 known, 50 refused; constants 149 right, 1 known, 50 refused",
    ]
