"""The kernels that are compared bit for bit: how a case is drawn, what the reference gives, what this project gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tflite_model as tfl
import tosa_model
from tflite_model import Tensor, constant, single_operator

from quant.fixed_point.curves import roots, softmax
from quant.fixed_point.pointwise import tables
from quant.fixed_point.pointwise.compare import Relation, arg_max, arg_min, tflite_compare8, top_k
from quant.fixed_point.pointwise.real_functions import gelu, gelu_tanh, sigmoid
from quant.fixed_point.reference_ops import tflite_activations

Array = np.ndarray
Params = dict[str, Any]
Draw = Callable[[np.random.Generator], tuple[Params, list[Array]]]


@dataclass(frozen=True)
class Kernel:
    """draw(rng) -> parameters and inputs; reference(engine, p, *inputs) and ours(p, *inputs) -> array.

    engines: those of tflite_model that compute it, or "tosa".
    """

    name: str
    draw: Draw
    reference: Callable[..., Array]
    ours: Callable[..., Array]
    engines: tuple[str, ...] = ("reference", "micro")

    def missing(self, engine: str) -> str | None:
        return tosa_model.missing() if engine == "tosa" else tfl.missing(engine)  # type: ignore[arg-type]


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.float32(np.exp(rng.uniform(np.log(low), np.log(high)))))


def _zero_point(rng: np.random.Generator, dtype: Any) -> int:
    limits = np.iinfo(dtype)
    return int(rng.choice(np.array([limits.min, limits.max, rng.integers(limits.min, limits.max)])))


def _all_codes(rng: np.random.Generator, dtype: Any) -> Array:
    """Every 8-bit code; of 16 bits the limits, both sides of 0 and 2,000 others."""
    limits = np.iinfo(dtype)
    if limits.bits == 8:
        return np.arange(limits.min, limits.max + 1).astype(dtype)[None]
    edges = [int(limits.min), limits.min + 1, -129, -128, -127, -1, 0, 1, 127, 128, limits.max - 1, int(limits.max)]
    return np.concatenate([np.array(edges), rng.integers(limits.min, limits.max + 1, 2000)]).astype(dtype)[None]


def _rows(rng: np.random.Generator, dtype: Any, n: int) -> Array:
    """6 rows: spread over everything, a narrow band, all alike, two extremes, one peak, a ramp."""
    limits = np.iinfo(dtype)
    middle = int(rng.integers(limits.min + 20, limits.max - 20))
    peak = np.full(n, limits.min)
    peak[rng.integers(n)] = limits.max
    rows = [
        rng.integers(limits.min, limits.max + 1, n),
        rng.integers(middle - 9, middle + 10, n),
        np.full(n, middle),
        rng.choice([limits.min, limits.max], n),
        peak,
        np.clip(limits.min + np.arange(n), limits.min, limits.max),
    ]
    return np.stack(rows).astype(dtype)


def _draw_quantized(rng: np.random.Generator, dtype: Any, in_scale: tuple[float, float], ratio: tuple[float, float]) -> Params:
    scale = _log_uniform(rng, *in_scale)
    out = float(np.float32(scale * _log_uniform(rng, *ratio)))
    return {
        "input_scale": scale,
        "input_zero_point": 0 if dtype == np.int16 else _zero_point(rng, dtype),
        "output_scale": out,
        "output_zero_point": 0 if dtype == np.int16 else _zero_point(rng, dtype),
    }


def _unary(op: str, options: str | None = None, **fields: Any) -> Callable[..., Array]:
    """A TFLite operator of one input, fields of its options taken from the parameters where they are names."""

    def reference(engine: Any, p: Params, x: Array) -> Array:
        field_values = {k: p[v] if isinstance(v, str) else v for k, v in fields.items()}
        source = Tensor(x.shape, x.dtype, p["input_scale"], p["input_zero_point"])
        out = p.get("output_type", x.dtype)
        target = Tensor(x.shape, out, p["output_scale"], p["output_zero_point"])
        return tfl.run(single_operator(op, [source], [target], options, **field_values), [x], engine)[0]

    return reference


# --- softmax ---------------------------------------------------------------------------------------------------------


def _draw_softmax(dtype: Any, output_type: str, beta: bool = True) -> Draw:
    out = np.iinfo(output_type)

    def draw(rng: np.random.Generator) -> tuple[Params, list[Array]]:
        # above 511 equal elements TFLite's int8 kernel aborts
        n = int(rng.choice([1, 2, 3, 10, 100, 500]))
        low, high = (0.0005, 4.0) if np.iinfo(dtype).bits == 8 else (2e-6, 0.02)
        p = {
            "input_scale": _log_uniform(rng, low, high),
            "input_zero_point": 0 if dtype == np.int16 else 3,
            "output_scale": 1 / 32768 if dtype == np.int16 else 1.0 / (1 << out.bits),
            "output_zero_point": 0 if dtype == np.int16 else int(out.min),
            "output_type": output_type,
        }
        if beta:
            p["beta"] = float(np.float32(rng.choice([1.0, 1.0, 0.5, 2.3])))
        return p, [_rows(rng, dtype, n)]

    return draw


def _draw_softmax_pairs(rng: np.random.Generator) -> tuple[Params, list[Array]]:
    """Rows of two at the scale of the table of exp: sums all over the table of 1 / (1 + x)."""
    p, _ = _draw_softmax(np.int16, "int16")(rng)
    below = -rng.integers(0, 20000, 1000)
    return p | {"input_scale": float(np.float32(10 / 65535)), "beta": 1.0}, [
        np.stack([np.zeros(1000), below], axis=1).astype(np.int16)
    ]


def _draw_log_softmax(dtype: Any) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[Params, list[Array]]:
        p, inputs = _draw_softmax(dtype, np.dtype(dtype).name, beta=False)(rng)
        return p | {"output_scale": 1 / 16, "output_zero_point": int(np.iinfo(dtype).max)}, inputs

    return draw


_SOFTMAX = _unary("SOFTMAX", "SoftmaxOptions", beta="beta")
_LOG_SOFTMAX = _unary("LOG_SOFTMAX", "LogSoftmaxOptions")


def _ours_softmax8(p: Params, x: Array) -> Array:
    return softmax.softmax8(x, p["input_scale"], p["beta"], p["output_type"])


def _softmax16(precision: type[np.floating]) -> Callable[..., Array]:
    return lambda p, x: softmax.softmax16(x, p["input_scale"], p["beta"], precision=precision)


SOFTMAX = (
    Kernel("SOFTMAX int8", _draw_softmax(np.int8, "int8"), _SOFTMAX, _ours_softmax8),
    Kernel("SOFTMAX uint8", _draw_softmax(np.uint8, "uint8"), _SOFTMAX, _ours_softmax8, ("reference",)),
    Kernel("SOFTMAX int8 to int16", _draw_softmax(np.int8, "int16"), _SOFTMAX, _ours_softmax8),
    # LiteRT builds its tables in float64, TFLite Micro in float32
    Kernel("SOFTMAX int16", _draw_softmax(np.int16, "int16"), _SOFTMAX, _softmax16(np.float64), ("reference", "optimized")),
    Kernel("SOFTMAX int16 pairs", _draw_softmax_pairs, _SOFTMAX, _softmax16(np.float64), ("reference", "optimized")),
    Kernel("SOFTMAX int16, float32 tables", _draw_softmax(np.int16, "int16"), _SOFTMAX, _softmax16(np.float32), ("micro",)),
    Kernel("SOFTMAX int16 pairs, float32 tables", _draw_softmax_pairs, _SOFTMAX, _softmax16(np.float32), ("micro",)),
    Kernel("LOG_SOFTMAX int8", _draw_log_softmax(np.int8), _LOG_SOFTMAX, lambda p, x: softmax.log_softmax8(x, p["input_scale"])),
    Kernel(
        "LOG_SOFTMAX uint8",
        _draw_log_softmax(np.uint8),
        _LOG_SOFTMAX,
        lambda p, x: softmax.log_softmax8(x, p["input_scale"]),
        ("reference",),
    ),
)

# --- activations -----------------------------------------------------------------------------------------------------


def _draw_fixed_output(dtype: Any, scale: float, zero_point: int, input_scales: tuple[float, float]) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[Params, list[Array]]:
        p = _draw_quantized(rng, dtype, input_scales, (1, 1))
        if dtype == np.int16 and rng.integers(3) == 0:
            p["input_scale"] = float(rng.choice([2.0**-12, 2.0**-11, 2.0**-13, 2.0**-10]))
        return p | {"output_scale": scale, "output_zero_point": zero_point}, [_all_codes(rng, dtype)]

    return draw


def _draw_free(dtype: Any, input_scales: tuple[float, float], ratio: tuple[float, float], positive: bool = False) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[Params, list[Array]]:
        p = _draw_quantized(rng, dtype, input_scales, ratio)
        if positive:
            p["input_zero_point"] = -128
        if rng.integers(4) == 0:
            # a ratio just below 1: the largest multiplier
            p["output_scale"] = float(np.nextafter(np.float32(p["input_scale"]), np.float32(np.inf)))
        return p, [_all_codes(rng, dtype)]

    return draw


def _table8(f: tables.RealFunction) -> Callable[..., Array]:
    def ours(p: Params, x: Array) -> Array:
        table = tables.build_table8(f, p["input_scale"], p["input_zero_point"], p["output_scale"], p["output_zero_point"])
        return tables.lookup8(x, table)

    return ours


def _table16(f: tables.RealFunction) -> Callable[..., Array]:
    def ours(p: Params, x: Array) -> Array:
        return tables.lookup16(x, tables.build_table16(f, p["input_scale"], p["output_scale"], form="tflite"), "tflite")

    return ours


def _ours_hard_swish(p: Params, x: Array) -> Array:
    parameters = tflite_activations.hard_swish_parameters(
        p["input_scale"], p["input_zero_point"], p["output_scale"], p["output_zero_point"]
    )
    return tflite_activations.hard_swish8(x, parameters)


def _ours_rsqrt(p: Params, x: Array) -> Array:
    return roots.rsqrt8(x, p["input_scale"], p["input_zero_point"], p["output_scale"], p["output_zero_point"])


_IN8, _IN16 = (0.002, 2.0), (1e-5, 0.002)
_GELU, _GELU_TANH = _unary("GELU", "GeluOptions", approximate=False), _unary("GELU", "GeluOptions", approximate=True)
_EXP = _unary("EXP", "ExpOptions")
ACTIVATIONS = (
    Kernel("LOGISTIC int8", _draw_fixed_output(np.int8, 1 / 256, -128, _IN8), _unary("LOGISTIC"), _table8(sigmoid)),
    Kernel("TANH int8", _draw_fixed_output(np.int8, 1 / 128, 0, _IN8), _unary("TANH"), _table8(np.tanh)),
    Kernel(
        "LOGISTIC int16",
        _draw_fixed_output(np.int16, 1 / 32768, 0, _IN16),
        _unary("LOGISTIC"),
        lambda p, x: tflite_activations.logistic16(x, p["input_scale"]),
    ),
    Kernel(
        "TANH int16",
        _draw_fixed_output(np.int16, 1 / 32768, 0, _IN16),
        _unary("TANH"),
        lambda p, x: tflite_activations.tanh16(x, p["input_scale"]),
    ),
    Kernel("HARD_SWISH int8", _draw_free(np.int8, _IN8, (0.02, 8)), _unary("HARD_SWISH", "HardSwishOptions"), _ours_hard_swish),
    Kernel("RSQRT int8", _draw_free(np.int8, _IN8, (0.02, 8), positive=True), _unary("RSQRT"), _ours_rsqrt),
    Kernel("GELU int8", _draw_free(np.int8, _IN8, (0.1, 8)), _GELU, _table8(gelu), ("reference",)),
    Kernel("GELU tanh int8", _draw_free(np.int8, _IN8, (0.1, 8)), _GELU_TANH, _table8(gelu_tanh), ("reference",)),
    Kernel(
        "EXP int8", _draw_free(np.int8, (0.002, 0.05), (0.1, 8)), _unary("EXP", "ExpOptions"), _table8(np.exp), ("reference",)
    ),
    Kernel("EXP int16", _draw_free(np.int16, _IN16, (0.1, 8)), _EXP, _table16(np.exp), ("reference",)),
)

# --- comparisons, argmax, top-k --------------------------------------------------------------------------------------


def _draw_pair(rng: np.random.Generator) -> tuple[Params, list[Array]]:
    p = {
        "a_scale": _log_uniform(rng, 0.002, 0.9),
        "a_zero_point": _zero_point(rng, np.int8),
        "b_scale": _log_uniform(rng, 0.002, 0.9),
        "b_zero_point": _zero_point(rng, np.int8),
    }
    if rng.integers(2):
        p["b_scale"], p["b_zero_point"] = p["a_scale"], p["a_zero_point"]
    return p, [_all_codes(rng, np.int8), rng.integers(-128, 128, (1, 256)).astype(np.int8)]


def _comparison(relation: Relation) -> Kernel:
    op = relation.value.upper()
    options = "".join(word.capitalize() for word in relation.value.split("_")) + "Options"

    def reference(engine: Any, p: Params, a: Array, b: Array) -> Array:
        left, right = (
            Tensor(a.shape, a.dtype, p["a_scale"], p["a_zero_point"]),
            Tensor(b.shape, b.dtype, p["b_scale"], p["b_zero_point"]),
        )
        return tfl.run(single_operator(op, [left, right], [Tensor(a.shape, np.bool_)], options), [a, b], engine)[0]

    return Kernel(f"{op} int8", _draw_pair, reference, lambda p, a, b: tflite_compare8(a, b, relation, **p))


def _draw_ties(rng: np.random.Generator) -> tuple[Params, list[Array]]:
    return {"k": int(rng.integers(1, 20))}, [rng.integers(-4, 4, (5, 40)).astype(np.int8)]


def _arg(op: str, options: str) -> Callable[..., Array]:
    def reference(engine: Any, p: Params, x: Array) -> Array:
        axis = constant(np.array([1], np.int32))
        target = Tensor(x.shape[:1], np.int32)
        return tfl.run(single_operator(op, [Tensor(x.shape, x.dtype, 0.1), axis], [target], options, outputType=2), [x], engine)[
            0
        ]

    return reference


def _reference_top_k(engine: Any, p: Params, x: Array) -> Array:
    shape = (*x.shape[:-1], p["k"])
    targets = [Tensor(shape, x.dtype, 0.1), Tensor(shape, np.int32)]
    inputs = [Tensor(x.shape, x.dtype, 0.1), constant(np.array(p["k"], np.int32))]
    return np.stack(tfl.run(single_operator("TOPK_V2", inputs, targets, "TopKV2Options"), [x], engine))


COMPARISONS = (
    *(_comparison(relation) for relation in Relation),
    Kernel("ARG_MAX int8", _draw_ties, _arg("ARG_MAX", "ArgMaxOptions"), lambda p, x: arg_max(x)),
    Kernel("ARG_MIN int8", _draw_ties, _arg("ARG_MIN", "ArgMinOptions"), lambda p, x: arg_min(x)),
    Kernel("TOPK_V2 int8", _draw_ties, _reference_top_k, lambda p, x: np.stack(top_k(x, p["k"])), ("reference",)),
)

# --- TOSA ------------------------------------------------------------------------------------------------------------


def _draw_tosa8(rng: np.random.Generator) -> tuple[Params, list[Array]]:
    return {}, [_all_codes(rng, np.int8), rng.integers(-128, 128, 256).astype(np.int8)]


def _draw_tosa16(rng: np.random.Generator) -> tuple[Params, list[Array]]:
    """A table as random as TOSA allows: steps within int16."""
    table = rng.integers(-16384, 16384, 513)
    if rng.integers(2):
        table = np.where(np.arange(513) % 2, 0, rng.choice([-32767, 32767], 513))
    return {}, [_all_codes(rng, np.int16), table.astype(np.int16)]


def _tosa(name: str, draw: Draw, ours: Callable[[Array, Array], Array]) -> Kernel:
    return Kernel(name, draw, lambda _, p, x, t: tosa_model.run_table(x, t), lambda p, x, t: ours(x, t), ("tosa",))


TOSA = (_tosa("TABLE int8", _draw_tosa8, tables.lookup8), _tosa("TABLE int16", _draw_tosa16, tables.interpolate16))

KERNELS = (*SOFTMAX, *ACTIVATIONS, *COMPARISONS, *TOSA)
