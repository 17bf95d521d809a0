"""Writes and reads the conformance kit: cases as files (inputs, parameters, expected) that RTL or silicon is run against.

`write_vectors` writes one `.npz` for each case and an `index.json`; every file stands for itself. `replay` computes a case again
from its file alone. The same arguments give the same bytes. `npu-hw vectors` calls it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.conformance.cases import draw_cases
from quant.fixed_point.conformance.directory import INDEX, kit_directory, sha256
from quant.fixed_point.conformance.draw import Contents
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import ScaleKind
from quant.fixed_point.curves.curve_tables import CurveTable
from quant.fixed_point.curves.norms import NormUnit, layer_norm, rms_norm
from quant.fixed_point.curves.softmax import SoftmaxUnit, log_softmax, softmax
from quant.fixed_point.pointwise.elementwise import add, leaky_relu, mul, prelu, rescale
from quant.fixed_point.pointwise.resize import bilinear_sums, linear_axis_tosa, nearest_indices_tosa, resize_nearest
from quant.fixed_point.pointwise.tables import lookup8, lookup16
from quant.fixed_point.sums.conv import conv2d, conv_transpose2d
from quant.fixed_point.sums.matmul import matmul
from quant.fixed_point.sums.pool_sums import max_pool, pool_sum

Array = NDArray[Any]
EVERYTHING = Contents()


@dataclass(frozen=True, eq=False)
class VectorCase:
    """One case of the kit.

    `op`: one of `draw.OPERATORS`.
    `inputs`: arrays by name.
    `parameters`: JSON values, a requantization under its own name.
    `expected`: the output.
    """

    name: str
    op: str
    inputs: dict[str, Array]
    parameters: dict[str, Any]
    expected: Array


def _requant(values: Mapping[str, Any]) -> Requant:
    """Return the Requant of `requant_values`."""
    kind: ScaleKind = values["kind"]
    return Requant(
        np.array(values["multiplier"], np.int64),
        np.array(values["shift"], np.int64),
        Rounding(values["rounding"]),
        values["zero_point"],
        values["low"],
        values["high"],
        values["wrap"],
        kind,
        values["width_bits"],
    )


def _convolution(function: Callable[..., Array], i: dict[str, Array], p: dict[str, Any]) -> Array:
    """Return the output of a convolution case, computed by `function`, from its inputs i and parameters p, as the others
    below."""
    geometry: dict[str, Any] = {k: tuple(cast(list[int], v)) if isinstance(v, list) else v for k, v in p["geometry"].items()}
    acc = function(
        i["x"],
        i["w"],
        bias=i["bias"],
        x_zero_point=p["x_zero_point"],
        w_zero_point=p["w_zero_point"],
        accumulator_bits=p["accumulator_bits"],
        **geometry,
    )
    return requantize(acc, _requant(p["requant"]), i["x"].dtype)


def _matmul(i: dict[str, Array], p: dict[str, Any]) -> Array:
    acc = matmul(
        i["a"],
        i["b"],
        a_zero_point=p["a_zero_point"],
        b_zero_point=p["b_zero_point"],
        bias=i["bias"],
        accumulator_bits=p["accumulator_bits"],
    )
    return requantize(acc, _requant(p["requant"]), i["a"].dtype)


def _sum(i: dict[str, Array], p: dict[str, Any], subtract: bool) -> Array:
    return add(
        i["a"],
        i["b"],
        _requant(p["a_requant"]),
        _requant(p["b_requant"]),
        _requant(p["requant"]),
        a_zero_point=p["a_zero_point"],
        b_zero_point=p["b_zero_point"],
        left_shift=p["left_shift"],
        subtract=subtract,
        dtype=i["a"].dtype,
    )


def _mul(i: dict[str, Array], p: dict[str, Any]) -> Array:
    zeros = {"a_zero_point": p["a_zero_point"], "b_zero_point": p["b_zero_point"]}
    return mul(i["a"], i["b"], _requant(p["requant"]), dtype=i["a"].dtype, **zeros)


def _prelu(i: dict[str, Array], p: dict[str, Any]) -> Array:
    zeros = {"x_zero_point": p["x_zero_point"], "alpha_zero_point": p["alpha_zero_point"]}
    return prelu(i["x"], i["alpha"], _requant(p["positive"]), _requant(p["negative"]), dtype=i["x"].dtype, **zeros)


def _leaky_relu(i: dict[str, Array], p: dict[str, Any]) -> Array:
    positive, negative = _requant(p["positive"]), _requant(p["negative"])
    return leaky_relu(i["x"], positive, negative, x_zero_point=p["x_zero_point"], dtype=i["x"].dtype)


def _window(p: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments kernel, strides and pads of a pool."""
    return {k: tuple(p[k]) for k in ("kernel", "strides", "pads")}


def _average_pool(i: dict[str, Array], p: dict[str, Any]) -> Array:
    return requantize(pool_sum(i["x"], x_zero_point=p["x_zero_point"], **_window(p)), _requant(p["requant"]), i["x"].dtype)


def _resize(i: dict[str, Array], p: dict[str, Any]) -> Array:
    x = i["x"]
    axes = [(x.shape[1 + a], p["size"][a], p["scale"][2 * a], p["scale"][2 * a + 1], p["offset"][a]) for a in range(2)]
    if p["mode"] == "nearest":
        return resize_nearest(x, *(nearest_indices_tosa(*a) for a in axes))
    sums = bilinear_sums(x, *(linear_axis_tosa(*a) for a in axes), x_zero_point=p["x_zero_point"])
    return requantize(sums, _requant(p["requant"]), x.dtype)


def _table(i: dict[str, Array], p: dict[str, Any]) -> Array:
    return lookup8(i["x"], i["table"]) if p["interpolation"] == "none" else lookup16(i["x"], i["table"], p["interpolation"])


def _softmax(function: Callable[..., Array], i: dict[str, Array], p: dict[str, Any]) -> Array:
    tables = ("exponential", "inverse", "logarithm")
    values: dict[str, Any] = {k: CurveTable(**v) if k in tables else v for k, v in p["unit"].items()}
    unit = SoftmaxUnit(**values)
    x = i["x"]
    return function(x, p["input_scale"], p["output_scale"], p["output_zero_point"], unit, dtype=x.dtype)


def _norm_unit(values: Mapping[str, Any]) -> NormUnit:
    return NormUnit(CurveTable(**values["inverse_sqrt"]), values["fraction_bits"], Rounding(values["rounding"]))


def _layer_norm(i: dict[str, Array], p: dict[str, Any]) -> Array:
    x, gamma, beta, unit = i["x"], i["gamma"], i["beta"], _norm_unit(p["unit"])
    return layer_norm(x, gamma, beta, p["input_scale"], p["epsilon"], unit, _requant(p["requant"]), x.dtype)


def _rms_norm(i: dict[str, Array], p: dict[str, Any]) -> Array:
    x, unit, r = i["x"], _norm_unit(p["unit"]), _requant(p["requant"])
    zero = p["x_zero_point"]
    return rms_norm(x, i["gamma"], i["beta"], p["input_scale"], zero, p["epsilon"], unit, r, x.dtype)


_REPLAYS: dict[str, Callable[[dict[str, Array], dict[str, Any]], Array]] = {
    "requantize": lambda i, p: requantize(i["acc"], _requant(p["requant"]), p["dtype"]),
    "conv2d": lambda i, p: _convolution(conv2d, i, p),
    "conv_transpose2d": lambda i, p: _convolution(conv_transpose2d, i, p),
    "matmul": _matmul,
    "add": lambda i, p: _sum(i, p, False),
    "sub": lambda i, p: _sum(i, p, True),
    "mul": _mul,
    "rescale": lambda i, p: rescale(i["x"], _requant(p["requant"]), x_zero_point=p["x_zero_point"], dtype=i["x"].dtype),
    "prelu": _prelu,
    "leaky_relu": _leaky_relu,
    "max_pool": lambda i, p: max_pool(i["x"], **_window(p)),
    "average_pool": _average_pool,
    "resize": _resize,
    "table": _table,
    "softmax": lambda i, p: _softmax(softmax, i, p),
    "log_softmax": lambda i, p: _softmax(log_softmax, i, p),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}


def replay(op: str, inputs: dict[str, Array], parameters: dict[str, Any]) -> Array:
    """Return the output of a case from what its file holds. Raise FixedPointError for an unknown op."""
    if op not in _REPLAYS:
        raise FixedPointError(f"vectors: op {op!r}; known are {', '.join(_REPLAYS)}")
    return _REPLAYS[op](inputs, parameters)


def make_vectors(numerics: Numerics, contents: Contents = EVERYTHING, *, seed: int = 0) -> list[VectorCase]:
    """Return all cases for a machine that `contents` asks for.

    Raise ScaleRangeError where its scale form does not express a case's scales.
    """
    cases: list[VectorCase] = []
    for name, op, inputs, parameters in draw_cases(numerics, contents, seed):
        cases.append(VectorCase(name, op, inputs, parameters, replay(op, inputs, parameters)))
    return cases


def write_vectors(out_dir: Path, numerics: Numerics, contents: Contents = EVERYTHING, *, seed: int = 0) -> list[Path]:
    """Write NAME.npz for each case (arrays in_*, `expected`, `case` as JSON text) and index.json, and return the paths.

    The whole directory is written, or nothing. It is new or empty, or holds an earlier kit, which is replaced; FixedPointError
    otherwise. int4 codes are stored one to a byte, as int8.
    """
    cases = make_vectors(numerics, contents, seed=seed)
    with kit_directory(out_dir) as staging:
        names = [*(_write_case(staging, case) for case in cases), INDEX]
        index = [{"file": n, "op": c.op, "sha256": sha256(staging / n)} for n, c in zip(names, cases)]
        (staging / INDEX).write_text(json.dumps(index, indent=1) + "\n", newline="\n")
    return [out_dir / name for name in names]


def _write_case(directory: Path, case: VectorCase) -> str:
    """Write a case into the directory and return its file's name."""
    text = json.dumps({"op": case.op, "parameters": case.parameters}, sort_keys=True)
    arrays: dict[str, Any] = {f"in_{k}": v for k, v in case.inputs.items()}
    np.savez_compressed(directory / f"{case.name}.npz", expected=case.expected, case=np.array(text), **arrays)
    return f"{case.name}.npz"


def read_vectors(directory: Path) -> list[VectorCase]:
    """Return the cases that `write_vectors` wrote, in the order of index.json."""
    cases: list[VectorCase] = []
    for entry in json.loads((directory / INDEX).read_text()):
        with np.load(directory / entry["file"]) as file:
            case = json.loads(str(file["case"]))
            inputs = {name[3:]: file[name] for name in file.files if name.startswith("in_")}
            cases.append(VectorCase(Path(entry["file"]).stem, case["op"], inputs, case["parameters"], file["expected"]))
    return cases
