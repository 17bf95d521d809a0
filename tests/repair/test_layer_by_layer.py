"""Codes and biases chosen layer by layer: nearer to float on samples not seen, right on average, and the same in the build."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from unequal_networks import convolutions, make_norm_network, network, nothing, plain, residual, samples

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.weight_scaling import GroupForm
from quant.fixed_point.sums.grouped_sums import WeightGroups
from quant.float_session import FloatSession
from quant.parameters import WeightQuant, check_chosen_weight
from quant.repair.choices import AS_IN_THE_MODEL, LayerParameters, Quantization
from quant.repair.damping import best_damping
from quant.repair.gptq_rounding import round_weights
from quant.repair.moments import Moments
from tests.support.numerics_variants import with_numerics
from toolchain.errors import CompileError
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.kit.layout import NHWC
from toolchain.ops.kit.operator import Array
from toolchain.repair import layerwise_reference as walked
from toolchain.repair import sampled_rows, weight_rounding
from toolchain.repair.layerwise_reference import ResidentSamples, pick_resident_samples, run_layerwise
from toolchain.repair.network import Network, Step
from toolchain.repair.repair_pipeline import SWEEPS
from toolchain.repair.sample_folds import spread_over
from toolchain.repair.weight_rounding import compensate_input_error, correct_biases, round_layer_weights

Sample = dict[str, np.ndarray]
CONV_SHAPE = (1, 3, 8, 8)


def make_grouped_network(folder: Path, machine: str = "wide32_w4a16") -> Network:
    """Dense with stride and padding, grouped, transposed and depthwise convolutions, a sum, and a product of rows."""
    rng = np.random.default_rng(5)
    shapes = {
        "w1": (8, 3, 3, 3),
        "b1": (8,),
        "w2": (8, 4, 3, 3),
        "w3": (8, 8, 2, 2),
        "w4": (8, 1, 3, 3),
        "w5": (8, 10),
        "b5": (10,),
    }
    return network(
        """g (float[1,3,8,8] x) => (float[1,10] y) {
            a = Conv <pads=[1,1,1,1], strides=[2,2]> (x, w1, b1)
            b = Relu(a)
            c = Conv <pads=[1,1,1,1], group=2> (b, w2)
            s = Add(c, b)
            t = ConvTranspose <strides=[2,2]> (s, w3)
            u = Relu(t)
            v = Conv <pads=[1,1,1,1], group=8> (u, w4)
            p = GlobalAveragePool(v)
            f = Flatten(p)
            y = Gemm(f, w5, b5)
        }""",
        {n: rng.standard_normal(s) / np.sqrt(max(1, np.prod(s[1:]))) for n, s in shapes.items()},
        folder,
        machine,
    )


def with_rounding(net: Network, rounding: str) -> Network:
    return Network(net.model, net.selection, with_numerics(net.machine, rounding=rounding, per_op={}))


def noise(net: Network, quantization: Quantization, data: list[Sample]) -> float:
    """Mean squared error of the first output over the mean square of float's."""
    name, session = net.model.graph.outputs[0], net.session(quantization)
    real = np.concatenate([FloatSession(net.model, [name]).run(s)[0] for s in data])
    actual = np.concatenate([session.run([name], s)[0] for s in data])
    return float(np.square(actual - real).mean() / np.square(real).mean())


@pytest.mark.parametrize(("machine", "most"), [("wide32_w4a16", 0.05), ("ws8_pow2", 0.5), ("edge16", 0.97)])
@pytest.mark.parametrize("step", [round_layer_weights, compensate_input_error])
def test_rounding_brings_outputs_nearer_on_samples_not_seen(tmp_path: Path, step: Step, machine: str, most: float) -> None:
    """Check rounding by its gain on unseen samples.
    With int8 weights and a scale for each channel the gain would be chance, since weights lose less than activations do.
    """
    net, data = make_grouped_network(tmp_path, machine), samples(CONV_SHAPE, 48)
    net = Network(net.model, net.selection, with_numerics(net.machine, weights_per_channel=machine == "wide32_w4a16"))
    before_step = plain(net, data)
    outcome = step(net, before_step, data, nothing)
    assert {g.layer for g in outcome.gains} == {n.name for n in net.graph.nodes if isinstance(n.op, Convolution)}
    assert sum(g.after for g in outcome.gains) < sum(g.before for g in outcome.gains)
    before, after = (noise(net, q, samples(CONV_SHAPE, 32, 1)) for q in (before_step, outcome.quantization))
    assert after < most * before


@pytest.mark.parametrize("make", [residual, make_norm_network], ids=["residual", "host"])
def test_what_else_a_network_may_hold(tmp_path: Path, make) -> None:
    net = make(tmp_path)
    shape = (1, 3, 4, 4) if make is residual else (1, 16, 8)
    before_step = plain(net, samples(shape))
    outcome = round_layer_weights(net, before_step, samples(shape), nothing)
    before, after = (noise(net, q, samples(shape, 16, 1)) for q in (before_step, outcome.quantization))
    assert after < 1.05 * before and outcome.gains


@pytest.mark.parametrize("rounding", ["floor", "truncate", "double_round"])
def test_means_are_float_s_on_the_integer_reference(tmp_path: Path, rounding: str) -> None:
    """Check the mean of every channel that a convolution makes, over all samples, in steps of the tensor."""
    net, data = with_rounding(convolutions(tmp_path), rounding), samples(CONV_SHAPE, 32)
    before_step = plain(net, data)

    def errors(quantization: Quantization) -> float:
        graph, session, names = net.integer(quantization), net.session(quantization), ["r", "e", "y"]
        runs = [session.run_detailed(s).codes for s in data]
        real = FloatSession(net.model, names)
        sums = [real.run(s) for s in data]
        largest_errors = []
        for i, name in enumerate(names):
            q = graph.types[name].quant
            assert q is not None
            codes = np.concatenate([r[name] for r in runs]).mean((0, 1, 2)) - q.zero_point
            largest_errors.append(np.abs(codes - np.concatenate([s[i] for s in sums]).mean((0, 2, 3)) / q.scale).max())
        return max(largest_errors)

    assert errors(correct_biases(net, before_step, data, nothing).quantization) < min(0.1, 0.25 * errors(before_step))


def test_the_build_makes_what_the_walk_saw(tmp_path: Path) -> None:
    net, data = make_grouped_network(tmp_path), samples(CONV_SHAPE, 16)
    before_step = plain(net, data)
    outcome = round_layer_weights(net, before_step, data, nothing)
    read: dict[str, list[Array]] = {}

    def look(node, live) -> LayerParameters:
        read[node.inputs[0]] = list(live[node.inputs[0]])
        return outcome.quantization.layers.get(node.name, AS_IN_THE_MODEL)

    run_layerwise(net, before_step, ResidentSamples(spread_over(data, 16)), look)
    session = net.session(outcome.quantization)
    for i, sample in enumerate(data):
        codes = session.run_detailed(sample).codes
        assert all(np.array_equal(codes[name], codes_read[i]) for name, codes_read in read.items())


@pytest.mark.parametrize("between", ["Softmax <axis=1>", "Relu"], ids=["behind the host", "in a region"])
def test_samples_that_come_in_later_are_seen_as_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """First tensors are many times as large as last ones, so that memory has room for few samples there alone."""
    rng = np.random.default_rng(0)
    net = network(
        f"""g (float[1,3,16,16] x) => (float[1,5,2,2] y) {{
            a = Conv <strides=[2,2]> (x, w1) b = Relu(a) c = Conv <strides=[2,2]> (b, w2)
            d = {between} (c) e = Conv(d, w3) y = Conv <strides=[2,2]> (e, w4)
        }}""",
        {
            n: rng.standard_normal(s)
            for n, s in {"w1": (64, 3, 1, 1), "w2": (4, 64, 1, 1), "w3": (5, 4, 1, 1), "w4": (5, 5, 1, 1)}.items()
        },
        tmp_path,
    )
    data = samples((1, 3, 16, 16), 24)
    before_step = plain(net, data)
    monkeypatch.setattr("toolchain.repair.layerwise_reference.SAMPLES", 12)
    monkeypatch.setattr("toolchain.repair.layerwise_reference.HELD_BYTES", 50_000)
    resident = pick_resident_samples(net, before_step, data)
    assert (
        0 < resident.first.size < 12 == resident.every.size
        and net.weighted[0].name not in resident.joining_nodes
        and resident.together < 5
    )
    assert {id(s["x"]) for s in resident.every} == {id(s["x"]) for s in spread_over(data, 12)}
    batch_sizes = list[int]()
    extend = walked._Values.extend
    monkeypatch.setattr(walked._Values, "extend", lambda self, other: (batch_sizes.append(len(other.real)), extend(self, other)))
    outcome = round_layer_weights(net, before_step, data, nothing)
    assert max(batch_sizes) == resident.together and sum(batch_sizes) == resident.later.size
    assert "12 samples" in outcome.notes[0] and len(outcome.gains) == 4
    read: dict[str, list[Array]] = {}

    def look(node, live) -> LayerParameters:
        read[node.inputs[0]] = list(live[node.inputs[0]])
        return outcome.quantization.layers.get(node.name, AS_IN_THE_MODEL)

    assert run_layerwise(net, before_step, resident, look) == outcome.quantization.layers
    session = net.session(outcome.quantization)
    codes = [session.run_detailed(sample).codes for sample in resident.every]
    assert {len(codes_read) for codes_read in read.values()} == {resident.first.size, 12}
    assert all(np.array_equal(codes[i][name], x) for name, codes_read in read.items() for i, x in enumerate(codes_read))


def test_the_same_twice(tmp_path: Path) -> None:
    net, data = make_grouped_network(tmp_path), samples(CONV_SHAPE, 16)
    first, second = (round_layer_weights(net, plain(net, data), data, nothing).quantization for _ in range(2))
    assert first.layers.keys() == second.layers.keys()
    for name, layer in first.layers.items():
        other = second.layers[name]
        assert layer.weight is not None and other.weight is not None
        assert layer.bias is not None and other.bias is not None
        assert np.array_equal(layer.weight.codes, other.weight.codes) and np.array_equal(layer.bias, other.bias)


def test_a_second_pass_goes_on_from_what_the_first_left(tmp_path: Path) -> None:
    net, data = make_grouped_network(tmp_path), samples(CONV_SHAPE, 24)
    first = compensate_input_error(net, plain(net, data), data, nothing, sweeps=SWEEPS)
    second = compensate_input_error(net, first.quantization, data, nothing, sweeps=SWEEPS)
    assert second.gains[0].before == pytest.approx(first.gains[0].after) and first.gains[0].after < 0.95 * first.gains[0].before
    assert sum(g.after for g in second.gains) < 1.05 * sum(g.after for g in first.gains)


def test_biases_that_came_with_their_codes_are_not_corrected_again(tmp_path: Path) -> None:
    net, data = make_grouped_network(tmp_path), samples(CONV_SHAPE, 16)
    rounded = round_layer_weights(net, plain(net, data), data, nothing).quantization
    assert correct_biases(net, rounded, data, nothing).quantization is rounded


@pytest.mark.parametrize("minima", [0, 16])
@pytest.mark.parametrize("step", [round_layer_weights, compensate_input_error])
def test_weights_in_groups_are_chosen_at_their_scales(tmp_path: Path, step: Step, minima: int) -> None:
    """Check a product of 40 inputs in groups of 32: scales of groups keep their relations, and a group of zeros stays so."""
    rng = np.random.default_rng(3)
    w, mixed = rng.standard_normal((40, 24)), rng.standard_normal((3, 40))
    w[:32, 5] = 0
    text = """g (float[1,6,3] x) => (float[1,6,24] y) {
        h = MatMul(x, m)
        r = Relu(h)
        y = MatMul(r, w)
    }"""
    chip = (files("hw_configs") / "wide32_w4a16.yaml").read_text()
    chip = chip.replace("    kind: mac_array\n", f"    kind: mac_array\n    groups: {{sizes: [32], minimum_bits: {minima}}}\n")
    chip = chip.replace("\nnumerics:\n", "\nnumerics:\n  weight_group: 32\n")
    (tmp_path / "mine.yaml").write_text(chip)
    net = network(text, {"m": mixed, "w": w}, tmp_path, str(tmp_path / "mine.yaml"))
    data, others = samples((1, 6, 3), 32), samples((1, 6, 3), 32, 1)
    before_step = plain(net, data)
    after_step = step(net, before_step, data, nothing).quantization
    group_weights = [p.weight for p in after_step.layers.values() if p.weight is not None and p.weight.codes.shape[0] == 24]
    assert len(group_weights) == 1 and group_weights[0].groups is not None and group_weights[0].groups.scales.shape == (24, 2)
    assert (group_weights[0].groups.minima is not None) == bool(minima)
    assert not group_weights[0].dequantize().reshape(24, 40)[5, :32].any()
    assert noise(net, after_step, others) < 0.6 * noise(net, before_step, others)


def outlying(folder: Path, machine: str) -> Network:
    """A depthwise convolution of which a channel has far larger weights, for an input that is next to nothing."""
    rng = np.random.default_rng(6)
    weights = {"w1": rng.standard_normal((8, 3, 1, 1)), "w2": rng.standard_normal((8, 1, 3, 3)), "w3": np.ones((4, 8, 1, 1))}
    weights["w1"][0] *= 1e-3
    weights["w2"][0] *= 40
    return network(
        """g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
            c = Conv(x, w1)
            d = Conv <pads=[1,1,1,1], group=8> (c, w2)
            y = Conv(d, w3)
        }""",
        weights,
        folder,
        machine,
    )


@pytest.mark.parametrize("step", [round_layer_weights, compensate_input_error])
def test_scales_of_few_inputs_are_chosen_by_the_output(tmp_path: Path, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    net, data, others = outlying(tmp_path, "ws8_pow2"), samples(CONV_SHAPE, 16), samples(CONV_SHAPE, 16, 1)
    before_step = plain(net, data)

    def scale_and_noise() -> tuple[float, float]:
        after_step = step(net, before_step, data, nothing).quantization
        weight = after_step.layers[next(n.name for n in net.weighted if n.outputs[0] == "d")].weight
        assert weight is not None
        return float(weight.scales.item()), noise(net, after_step, others)

    scale, lost = scale_and_noise()
    monkeypatch.setattr("toolchain.repair.weight_rounding.FEW", 0)
    as_it_was, lost_before = scale_and_noise()
    assert scale == 0.5 * as_it_was and lost < 0.7 * lost_before


def test_scales_that_a_machine_has_not_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, data = outlying(tmp_path, "ws8_pow2"), samples(CONV_SHAPE, 16)
    before_step = plain(net, data)
    monkeypatch.setattr("toolchain.repair.weight_rounding.FEW", 0)
    before = round_layer_weights(net, before_step, data, nothing).quantization.layers
    monkeypatch.setattr("toolchain.repair.weight_rounding.FEW", 64)
    monkeypatch.setattr(
        "toolchain.repair.weight_scale_search.expressible_weight", lambda w, q, *_: replace(q, scales=2 * q.scales)
    )
    after = round_layer_weights(net, before_step, data, nothing).quantization.layers
    for name, layer in before.items():
        other = after[name].weight
        assert layer.weight is not None and other is not None and np.array_equal(layer.weight.scales, other.scales)


def make_sum_network(folder: Path, machine: str) -> Network:
    """`t` is the sum of a layer's output and of a sum before it."""
    rng = np.random.default_rng(2)
    weights = {"w1": (8, 3, 1, 1), "w2": (8, 8, 1, 1), "w3": (8, 8, 1, 1), "w4": (4, 8, 1, 1)}
    text = """g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
        a = Conv(x, w1)
        b = Conv(a, w2)
        s = Add(a, b)
        c = Conv(s, w3)
        t = Add(c, s)
        y = Conv(t, w4)
    }"""
    return network(text, {n: rng.standard_normal(s) for n, s in weights.items()}, folder, machine)


def errors_of(tensor: str, net: Network, quantization: Quantization, data: list[Sample]) -> Array:
    """[n, h, w, c]: of a tensor of the chip and the model."""
    session, real, kind = (
        net.session(quantization),
        FloatSession(net.model, [tensor]),
        net.integer(quantization).types[tensor].quant,
    )
    assert kind is not None
    actual = [(session.run_detailed(s).codes[tensor] - kind.zero_point) * kind.scale for s in data]
    return np.concatenate(actual) - np.concatenate([real.run(s)[0].transpose(NHWC) for s in data])


def test_weights_answer_for_the_other_operand_of_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes of 4 bits leave errors in `s` that are nearly a linear function of it."""
    net, data, others = make_sum_network(tmp_path, "wide32_w4a16"), samples(CONV_SHAPE, 24), samples(CONV_SHAPE, 16, 1)
    before_step = plain(net, data)

    def error() -> float:
        return float(
            np.square(errors_of("t", net, compensate_input_error(net, before_step, data, nothing).quantization, others)).mean()
        )

    with_addend = error()
    monkeypatch.setattr(sampled_rows, "_sums", lambda graph: {})
    assert with_addend < 0.8 * error()


def test_a_bias_makes_up_for_the_other_operand_of_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of a machine that rounds down lose half a step: `t` its own, and without this that of `s` as well."""
    net, data = with_rounding(make_sum_network(tmp_path, "edge16"), "floor"), samples(CONV_SHAPE, 24)
    before_step = plain(net, data)

    def lost() -> float:
        return float(errors_of("t", net, correct_biases(net, before_step, data, nothing).quantization, data).mean())

    with_addend = lost()
    monkeypatch.setattr(sampled_rows, "_sums", lambda graph: {})
    assert 0.85 * lost() < with_addend < 0


def test_a_step_of_nothing_has_code_0() -> None:
    w, hessian = np.array([[[3.0, -2.0]]]), np.eye(2)[None]
    assert round_weights(w, np.array([[[0.0, 0.5]]]), hessian, -8, 7).tolist() == [[[0, -4]]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (WeightGroups(64, np.ones((2, 1), np.int32)), "they are in groups of 64, the machine has those of (32,)"),
        (WeightGroups(32, np.full((2, 2), 300, np.int32)), "scales of groups reach 300, the machine's 255"),
        (
            WeightGroups(32, np.ones((2, 2), np.int32), np.full((2, 2), -9, np.int32)),
            "minima of groups reach 9, the machine's 0",
        ),
    ],
)
def test_groups_of_another_machine_are_refused(groups: WeightGroups, message: str) -> None:
    numerics = Numerics(CodeType.INT16, CodeType.INT4, groups=GroupForm((32,)))
    chosen = WeightQuant(np.ones((2, 1, 1, 40), np.int8), np.ones(2), 0, groups)
    with pytest.raises(CompileError) as caught:
        check_chosen_weight(chosen, np.ones((2, 1, 1, 40)), numerics, name="fc")
    assert str(caught.value) == f"fc: the codes chosen for it do not fit: {message}; repair it for this machine"


@pytest.mark.parametrize("step", [round_layer_weights, compensate_input_error])
def test_sweeps_reach_every_layer_s_codes(tmp_path: Path, step, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check sweeps that start from the same codes at the same scales."""
    monkeypatch.setattr("toolchain.repair.weight_rounding.FEW", 0)
    monkeypatch.setattr("toolchain.repair.weight_scale_search.WAYS", 1)
    net, data = make_grouped_network(tmp_path), samples(CONV_SHAPE, 16)
    before_step = plain(net, data)
    once, swept = (step(net, before_step, data, nothing, sweeps=n) for n in (0, 16))
    first = once.gains[0].layer  # which reads the same in both
    assert swept.gains[0].after < once.gains[0].after
    a, b = (o.quantization.layers[first].weight for o in (once, swept))
    assert a is not None and b is not None and not np.array_equal(a.codes, b.codes)


def test_dampings_are_judged_by_other_samples_than_the_hessian_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third sample judges: here they are nothing but zeros."""
    net, data = make_grouped_network(tmp_path), samples(CONV_SHAPE, 16)
    dark = [{"x": np.zeros_like(s["x"])} if i % 3 == 2 else s for i, s in enumerate(data)]
    before_step, parts = plain(net, data), list[tuple[Moments, Moments]]()

    def noted(w: Array, scales: Array, part: Moments, other: Moments, *limits: int) -> float:
        parts.append((part, other))
        return best_damping(w, scales, part, other, *limits)

    monkeypatch.setattr("toolchain.repair.weight_rounding.best_damping", noted)
    round_layer_weights(net, before_step, dark, nothing)
    part, other = parts[0]  # of the layer that reads the input
    assert other.count == 5 * 16 and not other.hessian.any() and not other.mean.any()
    assert (np.diag(part.hessian[0]) > 0).all()


def test_two_samples_have_none_to_judge_dampings_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, data = make_grouped_network(tmp_path), samples(CONV_SHAPE, 2)
    monkeypatch.setattr("toolchain.repair.weight_rounding.best_damping", None)
    outcome = compensate_input_error(net, plain(net, data), data, nothing)
    assert all(layer.weight is not None for layer in outcome.quantization.layers.values())


def test_sums_are_exact_whatever_the_sign_of_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the whole numbers of float32, by inputs of 16 bits none of which is positive."""
    largest: list[int] = []
    sums = weight_rounding._Layer._sums

    def checked(layer: weight_rounding._Layer, codes: Array) -> Array:
        sums_found, rows = sums(layer, codes), layer._rows[0].astype(np.int64)
        assert np.array_equal(sums_found, rows @ codes.reshape(len(codes), -1).astype(np.int64).T)
        largest.append(int(np.abs(sums_found).max()))
        return sums_found

    monkeypatch.setattr(weight_rounding._Layer, "_sums", checked)
    weights = 1 + np.random.default_rng(0).random((512, 8))
    net = network("g (float[1,512] x) => (float[1,8] y) { y = MatMul(x, w) }", {"w": weights}, tmp_path, "wide32_w4a16")
    data = [{"x": -1 - np.abs(s["x"])} for s in samples((1, 512), 4)]
    round_layer_weights(net, plain(net, data), data, nothing)
    assert len(largest) == 2 and min(largest) > 1 << 24
