"""What a build means, held against the user's file in onnxruntime."""

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

from quant.fixed_point.core.rounding import Rounding
from quant.float_session import FloatSession, PlainModel
from quant.observe import Range
from quant.repair.choices import Quantization
from tests.semantics.chip_tensors import Codes, held_codes
from tests.semantics.recorder import Seen, operators
from tests.semantics.rounding_oracle import Rounded, by_chance, nearest, session
from toolchain import compiler
from toolchain.api import Build, BuildOptions, build
from toolchain.frontend import load_model
from toolchain.ir.graph import Graph
from toolchain.isa import Machine
from toolchain.ops.elementwise.integer import IntegerBinary
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
    """One output. sqnr_db: of the chip; rounded_db: of the file rounded where the chip rounds, its halves in the way that serves
    it least; both against the file in float. numbers: those that are not zero, over all samples; error: the largest;
    error_codes: the same in steps of its codes. codes_db: what the rounding of the output itself leaves, a twelfth of a squared
    step a number (inf where the chip does not hold it). float_error: how far any number of the file's own output moves where
    its inputs do by an ulp or two."""

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
        """Whether the file in float, computed in another order, might be as far off: of what is left of equal numbers taken from
        each other, all of it; of anything else about a millionth."""
        return self.error <= AMPLIFIED * self.float_error


def sqnr_db(expected: Array, got: Array) -> float:
    """inf where nothing differs; -inf where the expected is zero and something differs, and where a number is none or infinite,
    as of a file that divides by a zero of its codes."""
    assert expected.shape == got.shape, (expected.shape, got.shape)
    a, b = expected.astype(np.float64), got.astype(np.float64)
    signal, noise = float((a**2).sum()), float(((a - b) ** 2).sum())
    if noise == 0:
        return math.inf
    if not math.isfinite(noise):
        return -math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def codes_db(expected: Array, codes: tuple[float, int] | None) -> float:
    """codes: scale and zero point of the output."""
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


def changed_outputs(model: Path, samples: Samples, expected: Sequence[Sequence[Array]]) -> list[tuple[str, float]]:
    """The outputs that the normal form computes otherwise than the file, by the build's rule, but on every sample and by
    onnxruntime as it comes; and how far they are off, in units of their largest magnitude."""
    normal = load_model(model)
    runner, names = session(normal.proto), normal.graph.outputs
    changed = []
    for sample, values in zip(samples, expected, strict=True):
        found = runner.run(None, {n: sample[n] for n in normal.graph.inputs})
        for name, value, got in zip(names, values, found, strict=True):
            if not same_but_for_rounding(normal, name, sample, value, np.asarray(got)):
                changed.append((name, distance(value, np.asarray(got))))
    return changed


@dataclass(frozen=True)
class Verdict:
    """A build, each float output of it, and the operators that it went through."""

    built: Build
    outputs: tuple[Judged, ...]
    seen: Seen


def judged(
    proto: onnx.ModelProto,
    machine: Machine,
    samples: Samples,
    folder: Path,
    level: int = 2,
    types: tuple[str, ...] = (),
    draws: int = 0,
) -> Verdict:
    """Builds the file for the machine, calibrated on the samples, and holds each float output against the file.

    draws: how often the file is also rounded by chance, for machines and networks of which an output has few numbers."""
    model, data = save(proto, samples, folder)
    built, selected, integer = _built(model, BuildOptions(machine, calibration=str(data), level=level, types=types))
    codes = held(proto, model, samples, reported_codes(integer, selected.origins))
    numerics = machine.chip.numerics
    bits = 16 if types or numerics.activation == "int16" else 8
    weight_bits = 4 if numerics.weight == "int4" else None  # int8 holds the weights of cases and drawn networks exactly
    constants, ways = with_constants(integer), (*nearest(Rounding(numerics.rounding)), *map(by_chance, range(draws)))
    expected, moved = in_float(proto, samples), in_float(proto, neighbours(samples))
    oracles = [Rounded(proto, codes, bits, way, constants, weight_bits) for way in ways]
    near = [[oracle.run(s) for s in samples] for oracle in oracles]
    chip = Session(built.container, backend="reference")
    names = [o.name for o in proto.graph.output]
    got = [chip.run(names, s) for s in samples]
    found = []
    for i, name in enumerate(names):
        a, b, *c = (np.stack([run[i] for run in runs]) for runs in (expected, got, *near))
        if a.dtype.kind == "f":
            worst = min(sqnr_db(a, rounded) for rounded in c)
            error, of_float = largest(a - b), largest(a - np.reshape([run[i] for run in moved], (NEIGHBOURS, *a.shape)))
            steps = error / codes[name][0] if name in codes else math.inf
            left = codes_db(a, codes.get(name))
            found.append(Judged(name, int(np.count_nonzero(a)), sqnr_db(a, b), worst, error, steps, left, of_float))
    return Verdict(built, tuple(found), operators(selected, built.container.graph))


def _built(model: Path, options: BuildOptions) -> tuple[Build, Graph, Graph]:
    """And the graph before and behind quantization."""
    with _quantized() as seen:
        return build(model, options), *seen[0]


def without_room(given: Quantization) -> Quantization:
    """Of what is judged on what it was calibrated on: nothing lies beyond any range."""
    sure = {n: replace(r, tails=None) if isinstance(r, Range) else r for n, r in given.ranges.items()}
    return replace(given, ranges=sure)


@contextmanager
def _quantized() -> Iterator[list[tuple[Graph, Graph]]]:
    """Of builds in this block: the graph before and behind quantization, without room."""
    found: list[tuple[Graph, Graph]] = []
    real = compiler.quantize

    def seen(graph: Graph, chip: Any, given: Quantization) -> Graph:
        found.append((graph, real(graph, chip, without_room(given))))
        return found[-1][1]

    with patch.object(compiler, "quantize", seen):
        yield found


class _Fused(Exception):
    """Ends a build before its program is made."""


def built_through(proto: onnx.ModelProto, machine: Machine, samples: Samples, folder: Path) -> Seen:
    """The operators that a build of the file goes through."""
    model, data = save(proto, samples, folder)
    fused: list[Graph] = []

    def end(graph: Graph) -> NoReturn:
        fused.append(graph)
        raise _Fused

    with _quantized() as seen, patch.object(compiler, "partition_graph", end), suppress(_Fused):
        build(model, BuildOptions(machine, calibration=str(data)))
    return operators(seen[0][0], fused[0])


def held(proto: onnx.ModelProto, model: Path, samples: Samples, codes: Codes) -> dict[str, tuple[float, int]]:
    """The codes, those of a tensor of the normal form also for the ones of the file that have its numbers; none of steps."""
    loaded = load_model(model)
    codes = {name: found for name, found in codes.items() if name in loaded.types}
    normal = FloatSession(PlainModel(loaded.proto), list(codes))
    exact = Rounded(proto, {}, 16)
    return held_codes([exact.tensors(s) for s in samples], [dict(zip(codes, normal.run(s))) for s in samples], codes)


def reported_codes(integer: Graph, origins: Mapping[str, tuple[str, str]]) -> dict[str, tuple[float, int]]:
    """Scale and zero point of the tensors of the normal form that the chip holds."""
    found: dict[str, tuple[float, int]] = {}
    for name, kind in integer.types.items():
        tensor, _ = origins.get(name, ("", ""))
        if kind.quant is not None and name.partition("@")[0] == tensor and (name == tensor or tensor not in found):
            found[tensor] = (kind.quant.scale, kind.quant.zero_point)
    return found


def with_constants(integer: Graph) -> frozenset[str]:
    """The nodes of the file that became an operator on single elements with a constant operand."""
    binary = [n for n in integer.nodes if isinstance(n.op, IntegerBinary) and integer.constants.keys() & set(n.inputs)]
    return frozenset(source for n in binary for source in n.sources)
