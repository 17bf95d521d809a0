"""Judge a build against the user's file in onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import onnx

from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.rounding import Rounding
from quant.float_session import FloatSession, PlainModel
from quant.observe import Range
from quant.repair.choices import Quantization
from tests.semantics.chip_tensors import Codes, HeldCodes, match_held_codes
from tests.semantics.recorder import Coverage, operators
from tests.semantics.rounding_oracle import Rounded, by_chance, nearest, session
from tests.semantics.shared_functions import SharedFunctions, widen_codes
from toolchain import compiler
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import HostSubgraph
from toolchain.frontend import load_model
from toolchain.ir.graph import Graph
from toolchain.isa import Machine
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.passes import pipeline
from toolchain.report.frontend_check import distance, same_but_for_rounding
from toolchain.runtime import Session

Array = np.ndarray[Any, Any]
Samples = Sequence[Mapping[str, Array]]
EXACT_DB = 120.0  # what float32 leaves
NEIGHBOURS = 4  # draws of inputs that float32 could as well have rounded to
ULPS = 2  # how far off these are, at most
AMPLIFIED = 10.0  # how many times what the neighbours do to an output two ways of computing it may differ


@dataclass(frozen=True)
class Judged:
    """A judgement of one output, against the file in float.

    `sqnr_db`: SQNR of the chip.
    `rounded_db`: SQNR of the file rounded where the chip rounds, with ties in the least favourable direction. A function that the
    file rounds for other readers has codes over all its values here, where these are better (`shared_functions`).
    `numbers`: count of the numbers that are not zero, over all samples.
    `error`: the largest error.
    `error_codes`: the same in steps of its codes.
    `codes_db`: what the rounding of the output itself leaves, a twelfth of a squared step a number (inf where the chip does
    not hold it).
    `float_error`: how far any number of the file's own output moves where its inputs do by an ulp or two.
    """

    output: str
    numbers: int
    sqnr_db: float
    rounded_db: float
    error: float
    error_codes: float
    codes_db: float
    float_error: float

    @property
    def within_float(self) -> bool:
        """Return whether the file in float, computed in another order, might be as far off.
        A difference of equal numbers may be off by all of itself, anything else by about a millionth.
        """
        return self.error <= AMPLIFIED * self.float_error


def sqnr_db(expected: Array, got: Array) -> float:
    """Return the SQNR in dB, inf where nothing differs.
    It is -inf where the expected values are zero and something differs. It is also -inf where a number is NaN or infinite, as of
    a file that divides by a zero of its codes.
    """
    assert expected.shape == got.shape, (expected.shape, got.shape)
    a, b = expected.astype(np.float64), got.astype(np.float64)
    signal, noise = float((a**2).sum()), float(((a - b) ** 2).sum())
    if noise == 0:
        return math.inf
    if not math.isfinite(noise):
        return -math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def codes_db(expected: Array, codes: HeldCodes | None) -> float:
    """Return the SQNR that rounding to these codes leaves.

    `codes`: scale and zero point of the output.
    """
    power = float((expected.astype(np.float64) ** 2).mean()) if expected.size else 0.0
    return math.inf if codes is None or not power else 10 * math.log10(12 * power / codes[0] ** 2)


def save(proto: onnx.ModelProto, samples: Samples, folder: Path) -> tuple[Path, Path]:
    """The file and its calibration data: the samples along a new first dimension."""
    model, data = folder / "model.onnx", folder / "data.npz"
    onnx.save(proto, model)
    np.savez(data, allow_pickle=False, **{name: np.stack([s[name] for s in samples]) for name in samples[0]})
    return model, data


def in_float(proto: onnx.ModelProto, samples: Samples) -> list[list[Array]]:
    """Per sample the outputs of the file as it was written."""
    runner = session(proto)
    return [runner.run(None, dict(s)) for s in samples]  # type: ignore[misc]


def neighbours(samples: Samples) -> list[dict[str, Array]]:
    """The samples, NEIGHBOURS times over, each float up to ULPS away."""
    rng = np.random.default_rng(7)

    def near(x: Array) -> Array:
        return np.asarray(x + np.spacing(x) * rng.integers(-ULPS, ULPS + 1, x.shape), x.dtype) if x.dtype.kind == "f" else x

    return [{name: near(x) for name, x in sample.items()} for _ in range(NEIGHBOURS) for sample in samples]


def largest(x: Array) -> float:
    return float(np.abs(x).max(initial=0.0))


def find_changed_outputs(model: Path, samples: Samples, expected: Sequence[Sequence[Array]]) -> list[tuple[str, float]]:
    """Return the outputs that the canonical form computes differently from the file, with their error in units of the largest
    magnitude.
    The rule is the build's, but on every sample and with onnxruntime's defaults.
    """
    normal = load_model(model)
    runner, names = session(normal.proto), normal.graph.outputs
    changed = []
    for sample, values in zip(samples, expected, strict=True):
        actual = runner.run(None, {n: sample[n] for n in normal.graph.inputs})
        for name, value, got in zip(names, values, actual, strict=True):
            if not same_but_for_rounding(normal, name, sample, value, np.asarray(got)):
                changed.append((name, distance(value, np.asarray(got))))
    return changed


@dataclass(frozen=True)
class Verdict:
    """A build, each float output of it, and the operators that it went through."""

    built: Build
    outputs: tuple[Judged, ...]
    coverage: Coverage


def judge_build(
    proto: onnx.ModelProto,
    machine: Machine,
    samples: Samples,
    folder: Path,
    level: int = 2,
    types: tuple[str, ...] = (),
    draws: int = 0,
) -> Verdict:
    """Build the file for the machine, calibrated on the samples, and compare each float output with the file.

    `draws`: how often the file is also rounded by chance, for machines and networks of which an output has few numbers.
    """
    model, data = save(proto, samples, folder)
    built, selected, integer = _built(model, BuildOptions(machine, calibration=str(data), level=level, types=types))
    reported, channels = get_reported_codes(integer, selected.origins), read_channel_scales(built)
    codes = extend_codes(proto, model, samples, reported) | {n: reported[f"{n}/in codes"] for n in channels}
    numerics = machine.chip.numerics
    bits = 16 if types or numerics.activation == "int16" else 8
    weight_bits = 4 if numerics.weight == "int4" else None  # int8 holds the weights of cases and drawn networks exactly
    constants, ways = with_constants(integer), (*nearest(Rounding(numerics.rounding)), *map(by_chance, range(draws)))
    expected, moved = in_float(proto, samples), in_float(proto, neighbours(samples))
    sets_of_codes, near = [codes, *_widen(proto, samples, codes, numerics)], []
    for one in sets_of_codes:
        oracles = [Rounded(proto, one, bits, way, constants, weight_bits, channels) for way in ways]
        near.append([[oracle.run(s) for s in samples] for oracle in oracles])
    chip = Session(built.container, backend="reference")
    names = [o.name for o in proto.graph.output]
    got = [chip.run(names, s) for s in samples]
    judged_outputs = []
    for i, name in enumerate(names):
        a, b = (np.stack([run[i] for run in runs]) for runs in (expected, got))
        if a.dtype.kind == "f":
            worst = max(min(sqnr_db(a, np.stack([run[i] for run in runs])) for runs in oracle_runs) for oracle_runs in near)
            error, of_float = largest(a - b), largest(a - np.reshape([run[i] for run in moved], (NEIGHBOURS, *a.shape)))
            steps = error / codes[name][0] if name in codes else math.inf
            own_codes_db = codes_db(a, codes.get(name))
            judged_outputs.append(
                Judged(name, int(np.count_nonzero(a)), sqnr_db(a, b), worst, error, steps, own_codes_db, of_float)
            )
    return Verdict(built, tuple(judged_outputs), operators(selected, built.container.graph))


def _widen(proto: onnx.ModelProto, samples: Samples, codes: Codes, numerics: Numerics) -> list[dict[str, HeldCodes]]:
    """Return the codes with others over all values of functions that the file rounds for some readers; none if all hold these."""
    shared = SharedFunctions(proto).tensors & codes.keys()
    runs = [Rounded(proto, {}, 16).tensors(s) for s in samples] if shared else []
    widened = widen_codes(shared, codes, runs, 2.0 if numerics.scale.kind == "pow2" else 1.0)
    return [{**codes, **widened}] if widened else []


def _built(model: Path, options: BuildOptions) -> tuple[Build, Graph, Graph]:
    """Return the build, and the graph before and after quantization."""
    with _record_quantization() as graph_pairs:
        return build(model, options), *graph_pairs[0]


def without_room(quantization: Quantization) -> Quantization:
    """Return the quantization without tails: it is judged on its calibration data, so nothing lies beyond any range."""
    sure = {n: replace(r, tails=None) if isinstance(r, Range) else r for n, r in quantization.ranges.items()}
    return replace(quantization, ranges=sure)


@contextmanager
def _record_quantization() -> Iterator[list[tuple[Graph, Graph]]]:
    """Record the graph before and after quantization, without room, of builds in this block."""
    graph_pairs: list[tuple[Graph, Graph]] = []
    real = pipeline.quantize

    def record_quantize(graph: Graph, chip: Any, quantization: Quantization) -> Graph:
        graph_pairs.append((graph, real(graph, chip, without_room(quantization))))
        return graph_pairs[-1][1]

    with patch.object(pipeline, "quantize", record_quantize):
        yield graph_pairs


class _Fused(Exception):
    """Ends a build before its program is made."""


def built_through(proto: onnx.ModelProto, machine: Machine, samples: Samples, folder: Path) -> Coverage:
    """The operators that a build of the file goes through."""
    model, data = save(proto, samples, folder)
    fused: list[Graph] = []

    def end(graph: Graph) -> NoReturn:
        fused.append(graph)
        raise _Fused

    with _record_quantization() as graph_pairs, patch.object(compiler, "partition_graph", end), suppress(_Fused):
        build(model, BuildOptions(machine, calibration=str(data)))
    return operators(graph_pairs[0][0], fused[0])


def extend_codes(proto: onnx.ModelProto, model: Path, samples: Samples, codes: Codes) -> dict[str, HeldCodes]:
    """The codes, those of a tensor of the normal form also for the ones of the file that have its numbers; none of steps."""
    loaded = load_model(model)
    codes = {name: qparams for name, qparams in codes.items() if name in loaded.types}
    normal = FloatSession(PlainModel(loaded.proto), list(codes))
    exact = Rounded(proto, {}, 16)
    return match_held_codes([exact.tensors(s) for s in samples], [dict(zip(codes, normal.run(s))) for s in samples], codes)


def get_reported_codes(integer: Graph, origins: Mapping[str, tuple[str, str]]) -> dict[str, HeldCodes]:
    """Return the codes of the tensors of the normal form that the chip holds."""
    codes_by_tensor: dict[str, HeldCodes] = {}
    for name, kind in integer.types.items():
        tensor, _ = origins.get(name, ("", ""))
        if kind.quant is not None and name.partition("@")[0] == tensor and (name == tensor or tensor not in codes_by_tensor):
            codes_by_tensor[tensor] = HeldCodes(kind.quant.scale, kind.quant.zero_point, np.iinfo(kind.dtype).bits)
    return codes_by_tensor


def read_channel_scales(built: Build) -> dict[str, tuple[Array, Array | float]]:
    """Return scale and offset by channel of the outputs that the host scales behind their codes."""
    constants = dict[str, Array]()
    for segment in built.container.segments:
        if isinstance(segment, HostSubgraph):
            proto = onnx.load_from_string(segment.model)
            constants |= {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
    outputs = [t.name for t in built.container.outputs]
    names = {n: f"{n}/in codes" for n in outputs}
    return {
        n: (constants[f"{codes}/scale"], constants.get(f"{codes}/offset", 0.0))
        for n, codes in names.items()
        if f"{codes}/scale" in constants
    }


def with_constants(integer: Graph) -> frozenset[str]:
    """The nodes of the file that became an operator on single elements with a constant operand."""
    binary = [n for n in integer.nodes if isinstance(n.op, IntegerBinary) and integer.constants.keys() & set(n.inputs)]
    return frozenset(source for n in binary for source in n.sources)
