"""Comparisons, logic and choices are exactly those of the numbers that the codes of their operands are, ties included."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.frontend.onnx_text import model
from tests.semantics.judge import save
from tests.semantics.machines import int8_machine, int16_machine, make_mixed_machine
from tests.support.decompose_cases import decomposing
from tests.support.numerics_variants import with_numerics
from tests.support.unsigned_machines import make_unsigned
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.isa import Machine, load_machine
from toolchain.runtime import Session

Array = np.ndarray[Any, Any]
SHIPPED = ("edge16", "ethos_u55_256", "transformer64", "wide32_w4a16", "ws8_pow2")
OTHERS: Mapping[str, Callable[[], Machine]] = {
    "asymmetric int16": int16_machine,
    "rounding once": int8_machine,
    "uint8": lambda: make_unsigned(load_machine("edge16")),
    "no broadcasts": lambda: _change_machine("limits", {"elementwise": {"broadcast": False}}),
    "no headroom": lambda: with_numerics(load_machine("edge16"), add_left_shift=0),
    "float32 sums": lambda: with_numerics(load_machine("edge16"), scale={"kind": "float32"}, rounding="fp32_rne"),
}
INT8_MACHINES = {"ethos_u55_256", "transformer64", "rounding once"}  # int8 as on edge16, other roundings
MACHINES = [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in INT8_MACHINES)) for name in (*SHIPPED, *OTHERS)]
NOT_EACH = [name for name in MACHINES if name.values != ("no broadcasts",)]
COMPARISONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Equal": np.equal,
}
LOGIC: Mapping[str, Callable[[Array, Array], Array]] = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}


def _change_machine(section: str, keys: Mapping[str, Any]) -> Machine:
    machine = load_machine("edge16")
    changed = getattr(machine.chip, section).model_copy(
        update={k: _merge_values(machine, section, k, v) for k, v in keys.items()}
    )
    return Machine(machine.chip.model_copy(update={section: changed}), machine.isa)


def _merge_values(machine: Machine, section: str, key: str, values: Mapping[str, Any]) -> Any:
    return getattr(getattr(machine.chip, section), key).model_copy(update=values)


@cache
def machine_of(name: str) -> Machine:
    return OTHERS[name]() if name in OTHERS else load_machine(name)


def built(text: str, samples: list[dict[str, Array]], machine: Machine, types: tuple[str, ...] = ()) -> Build:
    with tempfile.TemporaryDirectory() as folder:
        file, data = save(model(text), samples, Path(folder))
        return build(file, BuildOptions(machine, calibration=str(data), types=types))


def ran(build: Build, sample: Mapping[str, Array]) -> tuple[list[Array], dict[str, Array], dict[str, float]]:
    """Outputs; the numbers that inputs are in their codes, and the steps of these."""
    run = Session(build.container, backend="reference").run_detailed(sample)
    (region,) = build.container.segments  # all of it on the chip
    assert isinstance(region, Region)
    real = {p.model: p.scale * (run.codes[p.tensor].astype(np.float64) - p.zero_point) for p in region.inputs}
    shown = {p.model: v.transpose(0, 3, 1, 2) if p.layout == "nhwc" else v for p, v in zip(region.inputs, real.values())}
    return list(run.outputs.values()), shown, {p.model: p.scale for p in region.inputs}


def draw(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float, step: float = 0.0) -> Array:
    x = rng.uniform(low, high, shape)
    return (np.rint(x / step) * step if step else x).astype(np.float32)


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("name", MACHINES)
def test_two_tensors_are_compared_by_their_codes(name: str, kind: str) -> None:
    """Check comparisons at one scale exactly; zero is the same number at every scale."""
    rng = np.random.default_rng(1)
    for shapes in (((2, 5, 4, 6), (2, 5, 4, 6)), ((3, 7), (1, 7))):
        if name == "no broadcasts" and shapes[0] != shapes[1]:
            continue
        a, b = (str(list(s)) for s in shapes)
        text = f"(float{a} x, float{b} z) => (bool{a} y) {{ y = {kind}(x, z) }}"
        samples = [{"x": draw(rng, shapes[0], -1, 2, 0.5), "z": draw(rng, shapes[1], -2.5, 0.7)} for _ in range(3)]
        for sample in samples:
            sample["z"].flat[::3] = sample["x"].flat[0] = 0
        build = built(text, samples, machine_of(name))
        for sample in samples:
            (y,), real, steps = ran(build, sample)
            near = max(steps.values()) * (1.0 if name == "no headroom" else 1 / 64)
            distinct = (np.abs(real["x"] - real["z"]) > near) | (real["x"] == real["z"])
            assert y.dtype == bool and (y == COMPARISONS[kind](real["x"], real["z"]))[distinct].all()
            assert distinct.mean() > (0.5 if name == "no headroom" else 0.9)


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("name", MACHINES)
def test_tensors_of_one_scale_are_compared_exactly(name: str, kind: str) -> None:
    rng = np.random.default_rng(2)
    text = f"(float[6,8] x) => (bool[3,8] y) {{ s = int64[2] {{3,3}} a, b = Split(x, s) y = {kind}(a, b) }}"
    samples = [{"x": draw(rng, (6, 8), -1.3, 2.2, 0.25)} for _ in range(3)]
    build = built(text, samples, machine_of(name))
    for sample in samples:
        (y,), real, _ = ran(build, sample)
        assert (y == COMPARISONS[kind](*np.split(real["x"], 2))).all()


CONSTANTS: Mapping[str, Array] = {
    "float {0}": np.array(0.0),
    "float {0.4}": np.array(0.4),
    "float {-50}": np.array(-50.0),
    "float {50}": np.array(50.0),
    "float[7] {-50,-0.6,0,0.2,1.1,50,0}": np.array([-50, -0.6, 0, 0.2, 1.1, 50, 0]),
    "float[2,1,1] {-0.1,50}": np.array([[[-0.1]], [[50]]]),
}


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("name", MACHINES)
def test_a_constant_splits_the_codes_where_it_lies(name: str, kind: str) -> None:
    """Order is told exactly, whatever lies between two codes or beyond them; what is equal is the nearest code, within them."""
    samples = [{"x": draw(np.random.default_rng(3), (3, 7), -1.3, 1.9)} for _ in range(2)]
    samples[0]["x"][0] = 1.9, -1.3, 0.4, -0.6, 0, 0.2, 1.1
    same = [c for c, v in CONSTANTS.items() if v.ndim < 2 or name != "no broadcasts"]
    cases = list(enumerate(product(same, ("x, c", "c, x"))))
    body = " ".join(f"c{i} = {c} y{i} = {kind}({operands.replace('c', f'c{i}')})" for i, (c, operands) in cases)
    outputs = ", ".join(f"bool[{'2,' if '[2,1,1]' in c else ''}3,7] y{i}" for i, (c, _) in cases)
    build = built(f"(float[3,7] x) => ({outputs}) {{ {body} }}", samples, machine_of(name))
    for sample in samples:
        results, real, steps = ran(build, sample)
        for (_, (constant, operands)), y in zip(cases, results, strict=True):
            away = real["x"] - np.float64(np.float32(CONSTANTS[constant]))
            assert (y == _compute_expected(kind, away, steps["x"], operands == "c, x", y)).all(), (constant, operands)


def _compute_expected(kind: str, away: Array, step: float, is_swapped: bool, y: Array) -> Array:
    """Return the expected result of a comparison with a constant.

    `away`: distance of a tensor's numbers from the constant.
    `y`: the actual result, which counts where the constant is halfway between codes.
    """
    if kind == "Equal":
        halfway = np.abs(np.abs(away) - step / 2) < 1e-6 * step
        return np.where(halfway, y, np.abs(away) < step / 2)
    away = np.where(np.abs(away) < 1e-6 * step, 0.0, away)
    return COMPARISONS[kind](-away if is_swapped else away, np.zeros(()))


@pytest.mark.parametrize("name", ["edge16", "asymmetric int16", "uint8"])
def test_a_constant_that_is_a_code_is_that_code(name: str) -> None:
    """Check constants in float32, which are slightly off their code."""
    x = draw(np.random.default_rng(3), (3, 40), -1.2, 1.8)
    x[1, :2] = -1.3, 1.9
    _, _, steps = ran(built("(float[3,40] x) => (float[3,40] y) { y = Neg(x) }", [{"x": x}], machine_of(name)), {"x": x})
    constants = (np.arange(-20, 20) * steps["x"]).astype(np.float32)
    x[0] = constants
    kinds = (*COMPARISONS, "c, Greater", "c, Less")
    body = " ".join(f"y{i} = {k.removeprefix('c, ')}({'c, x' if 'c, ' in k else 'x, c'})" for i, k in enumerate(kinds))
    outputs = ", ".join(f"bool[3,40] y{i}" for i in range(len(kinds)))
    constant_text = ",".join(map(repr, constants.tolist()))
    build = built(f"(float[3,40] x) => ({outputs}) {{ c = float[40] {{{constant_text}}} {body} }}", [{"x": x}], machine_of(name))
    results, _, _ = ran(build, {"x": x})
    for kind, y in zip(kinds, results, strict=True):
        assert (y[0] == (kind in ("GreaterOrEqual", "LessOrEqual", "Equal"))).all(), kind


def test_what_a_file_gives_the_scale_of_is_equal_to_its_codes_alone() -> None:
    text = """(float[40] x) => (bool[40] y) {
        s = float {0.25} c = float[40] {%s}
        a = QuantizeLinear<output_dtype = 3>(x, s) b = DequantizeLinear(a, s) y = Equal(b, c) }"""
    constants = np.array([0.3, 0.25, -0.5, 40.0] * 10, np.float32)
    rng = np.random.default_rng(4)
    samples = [{"x": draw(rng, (40,), -0.6, 0.6, 0.25)} for _ in range(4)]
    build = built(text % ",".join(map(str, constants)), samples, machine_of("edge16"))
    for sample in samples:
        (y,), *_ = ran(build, sample)
        assert (y == (sample["x"] == constants)).all()
        assert y.any()


@pytest.mark.parametrize("kind", LOGIC)
@pytest.mark.parametrize("name", MACHINES)
def test_logic(name: str, kind: str) -> None:
    rng = np.random.default_rng(5)
    b = "bool[2,3,4,5]" if name == "no broadcasts" else "bool[3,1,5]"
    shape = (2, 3, 4, 5) if name == "no broadcasts" else (3, 1, 5)
    text = f"(bool[2,3,4,5] x, {b} z) => (bool[2,3,4,5] y, bool[2,3,4,5] n, float[2,3,4,5] f) "
    text += f"{{ y = {kind}(x, z) n = Not(x) f = Cast<to = 1>(y) }}"
    samples = [{"x": rng.random((2, 3, 4, 5)) < 0.5, "z": rng.random(shape) < 0.5} for _ in range(2)]
    build = built(text, samples, machine_of(name))
    for sample in samples:
        (y, n, f), *_ = ran(build, sample)
        assert (f == y).all()  # one, not only something
        assert (y == LOGIC[kind](sample["x"], sample["z"])).all() and y.dtype == bool
        assert (n == ~sample["x"]).all()


@pytest.mark.parametrize("kind", LOGIC)
@pytest.mark.parametrize("name", ["edge16", "wide32_w4a16", "uint8", "no broadcasts"])
def test_logic_with_a_constant(name: str, kind: str) -> None:
    rng = np.random.default_rng(6)
    constant = rng.random((4, 5)) < 0.5
    text = (
        f"(float[3,4,5] x, bool[4,5] w) => (bool[3,4,5] y) {{ a = Not(b) c = float {{0.3}} b = Greater(x, c) y = {kind}(a, w) }}"
    )
    text = text.replace("a = Not(b) c = float {0.3} b = Greater(x, c)", "c = float {0.3} b = Greater(x, c) a = Not(b)")
    samples = [{"x": draw(rng, (3, 4, 5), -1, 1)} for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        file, data = save(model(text, weights={"w": constant}), samples, Path(folder))
        build_ = build(file, BuildOptions(machine_of(name), calibration=str(data)))
    for sample in samples:
        (y,), real, _ = ran(build_, sample)
        assert (y == LOGIC[kind](~(real["x"] > np.float32(0.3)), constant)).all()


@pytest.mark.parametrize("name", MACHINES)
def test_bools_move_exactly_and_are_numbers(name: str) -> None:
    """Through movers, to real numbers and back."""
    text = """(float[1,4,6,6] x) => (bool[36,7] y, float[1,4,6,6] f, bool[1,4,6,6] g) {
        c = float {0.1} a = Greater(x, c) t = Transpose<perm = [0,2,3,1]>(a) s = int64[2] {36,4} r = Reshape(t, s)
        o = int64[1] {0} p = int64[1] {3} q = int64[1] {1} d = Slice(r, o, p, q) e = Not(d) y = Concat<axis = 1>(r, e)
        h = Cast<to = 1>(a) f = Mul(h, x) g = Cast<to = 9>(f) }"""
    rng = np.random.default_rng(7)
    samples = [{"x": draw(rng, (1, 4, 6, 6), -1, 1)} for _ in range(2)]
    build = built(text, samples, machine_of(name))
    for sample in samples:
        (y, f, g), real, _ = ran(build, sample)
        a = real["x"] > np.float32(0.1)
        r = a.transpose(0, 2, 3, 1).reshape(36, 4)
        assert (y == np.concatenate((r, ~r[:, :3]), 1)).all()
        assert (g == a).all() and np.abs(f - a * real["x"]).max() < 0.02


@pytest.mark.parametrize("name", MACHINES)
def test_what_codes_never_are(name: str) -> None:
    samples = [{"x": draw(np.random.default_rng(8), (3, 40), -1, 1)}]
    build = built("(float[3,40] x) => (bool[3,40] y, bool[3,40] z) { y = IsNaN(x) z = IsInf(x) }", samples, machine_of(name))
    (y, z), *_ = ran(build, samples[0])
    assert y.dtype == bool and not y.any() and not z.any()


@pytest.mark.parametrize("name", MACHINES)
def test_a_sign_is_that_of_the_code(name: str) -> None:
    rng = np.random.default_rng(10)
    samples = [{"x": draw(rng, (3, 40), -0.3, 1.7)} for _ in range(3)]
    samples[0]["x"].flat[:9] = np.linspace(-1e-4, 1e-4, 9)
    build = built("(float[3,40] x) => (float[3,40] y) { y = Sign(x) }", samples, machine_of(name))
    for sample in samples:
        (y,), real, _ = ran(build, sample)
        assert np.abs(y - np.sign(real["x"])).max() < 0.01


def test_what_the_host_makes_may_be_none() -> None:
    text = "(float[1,4] x) => (bool[1,4] y) { a = MeanVarianceNormalization<axes=[1]>(x) y = IsNaN(a) }"
    samples = [{"x": np.arange(1, 5, dtype=np.float32)[None]}]
    reasons = [reason for *_, reason in built(text, samples, machine_of("edge16")).container.fallbacks]
    assert "its input is made by the host, where it may hold NaN and infinity" in reasons


@pytest.mark.parametrize(
    ("far", "reader", "host"),
    [
        ("-inf", "y = Softmax(b)", False),
        ("-1e9", "r = ReduceMax(b, o) c = Sub(b, r) y = Softmax(c)", False),
        ("-999", "y = Relu(b)", False),
        ("-1000", "y = Relu(b)", True),
        ("-1e9", "s = Softmax(b) t = Relu(b) y = Add(s, t)", True),
        ("-1e9", "y = Transpose(b)", True),
        ("inf", "y = ReduceMin(b, o)", True),
        ("1e9", "y = Softmax(b)", True),
    ],
)
def test_what_stands_for_infinity_is_chosen_where_it_only_masks(far: str, reader: str, host: bool) -> None:
    text = f"(float[6,6] x) => (float[a,b] y) {{ n = float {{{far}}} z = float {{0.1}} o = int64[1] {{1}} "
    text += f"a = Less(x, z) b = Where(a, x, n) {reader} }}"
    samples = [{"x": np.eye(6, dtype=np.float32) * -2 + draw(np.random.default_rng(i), (6, 6), -0.2, 1)} for i in range(2)]
    fallbacks = {op: reason for _, op, reason in built(text, samples, machine_of("edge16")).container.fallbacks}
    assert ("Where" in fallbacks) == host
    scale_reason = (
        f"{float(far):g} for what is not chosen, read by others than ArgMax, Hardmax, LogSoftmax, Softmax: one scale does not"
    )
    assert not host or fallbacks["Where"] == f"{scale_reason} hold both"


def test_a_large_positive_constant_beside_a_larger_negative_one_is_refused() -> None:
    """Check that it is found behind a mask, in the same constant and in the second one."""
    samples = [{"x": draw(np.random.default_rng(0), (2, 2), -1, 1)}]
    for constants in (
        "n = float[1,2] {-1e9, 1e5} a = Less(x, z) b = Where(a, x, n)",
        "n = float {-1e9} m = float {1e5} a = Less(x, z) b = Where(a, n, m)",
    ):
        text = f"(float[2,2] x) => (float[2,2] y) {{ z = float {{0.1}} {constants} y = Softmax(b) }}"
        reasons = [reason for _, op, reason in built(text, samples, machine_of("edge16")).container.fallbacks if op == "Where"]
        assert len(reasons) == 1
        assert reasons[0].startswith("100000 for what is not chosen")


def test_a_softmax_in_steps_reads_masked_scores_of_the_chip() -> None:
    """Check that the numbers equal those of the host's Softmax."""
    text = """(float[6,16] x, bool[6,16] m) => (float[6,16] y) { n = float {-inf} a = Where(m, x, n) y = Softmax(a) }"""
    rng = np.random.default_rng(16)
    samples = [{"x": draw(rng, (6, 16), -2, 3), "m": rng.random((6, 16)) < 0.7} for _ in range(6)]
    for sample in samples:
        sample["m"][:, 3] = True
    build = built(text, samples, decomposing(load_machine("edge16"), "Softmax"))
    for sample in samples:
        (y,), *_ = ran(build, sample)
        powers = np.where(sample["m"], np.exp(sample["x"]), 0)
        assert np.abs(y - powers / powers.sum(1, keepdims=True)).max() < 0.06


def test_wide_and_fine_tensors_are_compared_with_coarse_ones() -> None:
    text = "(float[3,40] x, float[3,40] z) => (bool[3,40] y, float[3,40] v) { a = Add(x, z) y = Less(a, z) v = Where(y, a, z) }"
    rng = np.random.default_rng(9)
    samples = [{"x": draw(rng, (3, 40), -1, 1), "z": draw(rng, (3, 40), -1, 1)} for _ in range(3)]
    for wide in ("int16", "int32"):
        build = built(text, samples, make_mixed_machine("int32"), (f"Add={wide}", "z=int16", f"y={wide}"))
        for sample in samples:
            (y, v), *_ = ran(build, sample)
            clear = np.abs(sample["x"]) > 0.02
            assert (y == (sample["x"] < 0))[clear].all()
            assert np.abs(v - np.where(sample["x"] < 0, sample["x"] + sample["z"], sample["z"])).max() < 0.03


ARGUMENTS = [  # shape, axis, keepdims
    ((2, 9, 6, 5), 1, 1),
    ((2, 9, 6, 5), 1, 0),
    ((2, 9, 6, 5), 2, 0),
    ((4, 30), -1, 1),
    ((30, 4), 0, 0),
    ((7,), 0, 0),
    ((2, 1, 3), 1, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ArgMax", pytest.param("ArgMin", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", NOT_EACH)
def test_positions_are_those_of_the_codes(name: str, kind: str) -> None:
    """Check the first of equal positions, or the last where the node selects it."""
    rng = np.random.default_rng(11)
    for shape, axis, keeps_dims in ARGUMENTS:
        for last in (0, 1):
            positions = np.argmax(np.zeros(shape), axis)
            text = (
                f"(float{list(shape)} x) => "
                f"(int64{list(np.expand_dims(positions, axis).shape if keeps_dims else positions.shape) or ''} y)"
            )
            text += f" {{ y = {kind}<axis = {axis}, keepdims = {keeps_dims}, select_last_index = {last}>(x) }}"
            samples = [{"x": draw(rng, shape, -0.6, 1.3, 0.25)} for _ in range(2)]
            build = built(text, samples, machine_of(name))
            for sample in samples:
                (y,), real, _ = ran(build, sample)
                x = real["x"] if kind == "ArgMax" else -real["x"]
                places = shape[axis] - 1 - np.argmax(np.flip(x, axis), axis) if last else np.argmax(x, axis)
                assert y.dtype == np.int64 and (y == (np.expand_dims(places, axis) if keeps_dims else places)).all()


@pytest.mark.parametrize(("name", "most"), [("edge16", 256), ("ws8_pow2", 128), ("uint8", 256), ("transformer64", 4000)])
def test_positions_end_where_codes_end(name: str, most: int) -> None:
    rng = np.random.default_rng(12)
    for length in (most, most + 1):
        samples = [{"x": rng.permutation(length * 3).reshape(3, length).astype(np.float32)} for _ in range(3)]
        for sample, place in zip(samples, (0, length // 2, length - 1)):
            sample["x"][:, place] = 4 * length
        text = f"(float[3,{length}] x) => (int64[3,1] y) {{ y = ArgMax<axis = 1>(x) }}"
        build = built(text, samples, machine_of(name))
        on_chip = length <= most or name == "transformer64"
        assert [type(s).__name__ for s in build.container.segments] == (["Region"] if on_chip else ["HostSubgraph"])
        if not on_chip:
            ((_, _, reason),) = build.container.fallbacks
            type_names = ", ".join(machine_of(name).chip.operand_types)
            keys = "numerics.activation, more_activations"
            assert reason == f"positions 0 to {length - 1}, more than codes of {type_names} hold ({keys})"
        session = Session(build.container, backend="reference")
        for sample, place in zip(samples, (0, length // 2, length - 1)):
            assert (session.run(None, sample)[0] == place).all()


@pytest.mark.parametrize("name", NOT_EACH)
def test_positions_go_on_as_whole_numbers(name: str) -> None:
    """Through moves and comparisons, and as real numbers."""
    text = """(float[6,20] x) => (float[6] f, bool[6,20] e, bool[20,6] l, bool[6] b, int32[1,6] i) {
        a = ArgMax<axis = 1>(x) s = int64[1] {6} r = Reshape(a, s) f = Cast<to = 1>(r) b = Cast<to = 9>(r)
        p = int64[20] {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19} e = Equal(a, p)
        t = Transpose<perm = [1,0]>(a) q = int64[20,1] {-5,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,300} l = Less(t, q)
        i = Cast<to = 6>(t) }"""
    rng = np.random.default_rng(13)
    samples = [{"x": draw(rng, (6, 20), -0.6, 1.3)} for _ in range(3)]
    samples[0]["x"][0, 0] = 2
    build = built(text, samples, machine_of(name))
    for sample in samples:
        (f, e, less, b, i), real, _ = ran(build, sample)
        a = np.argmax(real["x"], 1)
        assert (f == a).all() and (e == (a[:, None] == np.arange(20))).all() and (b == (a != 0)).all()
        assert (less == (a < np.array([-5, *range(1, 19), 300])[:, None])).all()
        assert i.dtype == np.int32 and (i == a).all()


@pytest.mark.parametrize("name", NOT_EACH)
def test_one_hot_of_positions(name: str) -> None:
    """Beyond the depth nothing is on."""
    text = """(float[5,6,9] x) => (float[5,7,6] y, float[7,5,6] z, bool[5,6,12] b) {
        v = float[2] {-0.4,1.2} d = int64 {7} t = int64 {12} a = ArgMax<axis = 2, keepdims = 0>(x)
        y = OneHot<axis = 1>(a, d, v) z = OneHot<axis = 0>(a, d, v) u = Cast<to = 9>(w) b = OneHot(a, t, u) }"""
    text = text.replace("u = Cast<to = 9>(w)", "i = int64[2] {0,1} u = Cast<to = 9>(i)")
    rng = np.random.default_rng(15)
    samples = [{"x": draw(rng, (5, 6, 9), -1, 1)} for _ in range(3)]
    build = built(text, samples, machine_of(name))
    for sample in samples:
        (y, z, b), real, _ = ran(build, sample)
        one_hot = np.argmax(real["x"], 2)[..., None] == np.arange(12)
        assert np.abs(y - np.where(one_hot[..., :7].transpose(0, 2, 1), 1.2, -0.4)).max() < 0.01
        assert np.abs(z - np.where(one_hot[..., :7].transpose(2, 0, 1), 1.2, -0.4)).max() < 0.01
        assert (b == one_hot).all()


def test_positions_need_broadcasts() -> None:
    samples = [{"x": draw(np.random.default_rng(14), (3, 8), -1, 1)}]
    text = "(float[3,8] x) => (int64[3,1] y) { y = ArgMax<axis = 1>(x) }"
    ((_, _, reason),) = built(text, samples, machine_of("no broadcasts")).container.fallbacks
    assert reason == "each element is compared with the largest of all, which needs limits.elementwise.broadcast: true"


def test_whole_numbers_of_the_host_stay_there() -> None:
    samples = [{"x": np.arange(4)}]
    build = built("(int64[4] x) => (bool[4] y) { c = int64 {2} y = Less(x, c) }", samples, machine_of("edge16"))
    ((_, _, reason),) = build.container.fallbacks
    assert reason == "tensor x is int64, and nothing of the chip makes it, from which its largest number were known"


@pytest.mark.parametrize("value", [-2.3, 0.3, 1.8, 2.0])
@pytest.mark.parametrize("rounded", [False, True], ids=["float", "in a quantized model"])
def test_a_number_put_beside_truths_is_no_truth(rounded: bool, value: float, tmp_path: Path) -> None:
    """0 and 1 have a scale of 1, which another number than a whole one needs finer; it is within a step of 8 bits."""
    rounds = "q = QuantizeLinear(c, s, z) y = DequantizeLinear(q, s, z)" if rounded else "y = Identity(c)"
    low, high = min(value, 0.0), max(value, 1.0)
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,4,6,6] x) => (float[1,4,8,8] y)
      <float t = {{0.2}}, float v = {{{value}}}, int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}, float s = {{{(high - low) / 255}}},
       int8 z = {{{round(-low * 255 / (high - low)) - 128}}}>
      {{ a = Greater(x, t) b = Cast<to=1>(a) c = Pad(b, pads, v) {rounds} }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((20, 1, 4, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    built = build(tmp_path / "m.onnx", BuildOptions("edge16", calibration=str(tmp_path / "x.npz")))
    actual = Session(built.container, backend="reference").run(None, {"x": x[0]})[0]
    expected = np.pad((x[0] > 0.2).astype(np.float32), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=value)
    assert np.mean(np.abs(actual - expected) > (high - low) / 255) <= 0.02  # x next to the threshold has its codes


@pytest.mark.parametrize("bits", [4, 8])
def test_a_truth_becomes_a_number_in_as_many_steps_as_the_machines_scales_need(bits: int) -> None:
    """A table of int16 reads 1 as 16,384 of its steps: more than a multiplier of so few bits makes at once, or twice."""
    machine = with_numerics(
        load_machine("wide32_w4a16"), scale={"kind": "multiplier", "multiplier_bits": bits, "shift_min": 0, "shift_max": 62}
    )
    samples = [{"x": draw(np.random.default_rng(15), (3, 8), -1, 1)} for _ in range(4)]
    network_build = built(
        "(float[3,8] x) => (float[3,8] y) { k = float {0} c = Greater(x, k) y = Cast<to = 1>(c) }", samples, machine
    )
    (y,), numbers, _ = ran(network_build, samples[0])
    assert np.array_equal(y, (numbers["x"] > 0).astype(np.float32))
