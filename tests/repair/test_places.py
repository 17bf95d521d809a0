"""The rows that layers are looked at by: of float and of integers the same numbers, but for rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unequal_networks import network, nothing, plain, samples

from quant.float_session import FloatSession
from toolchain.frontend import NormalModel
from toolchain.ir.file_quantization import make_file_weights
from toolchain.isa import load_machine
from toolchain.repair import sampled_rows as places_of
from toolchain.repair.sampled_rows import FloatRows, sample_rows
from toolchain.repair.weight_rounding import round_layer_weights

SHAPE = (1, 3, 8, 8)


@pytest.mark.parametrize("held_bytes", [places_of.HELD_BYTES, 1], ids=["at once", "one layer at a time"])
def test_rows_of_float_are_those_of_the_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int) -> None:
    """Check rows after padding in memory, a transposed convolution, and rows of a product."""
    monkeypatch.setattr(places_of, "HELD_BYTES", held_bytes)
    rng = np.random.default_rng(0)
    shapes = {"w1": (4, 3, 12, 12), "w2": (4, 4, 2, 2), "w3": (1840, 5), "b3": (5,)}
    net = network(
        """g (float[1,3,8,8] x) => (float[1,5] y) {
            a = Conv <pads=[16,17,16,17], strides=[3,4]> (x, w1)
            b = ConvTranspose <strides=[2,3]> (a, w2)
            f = Flatten(b)
            y = Gemm(f, w3, b3)
        }""",
        {n: rng.standard_normal(s) for n, s in shapes.items()},
        tmp_path,
        "ws8_pow2",
    )
    data = samples(SHAPE, 4)
    quantization = plain(net, data)
    graph, session, rows_by_layer = net.integer(quantization), net.session(quantization), sample_rows(net, quantization, 4)
    rows, codes = FloatRows(net, data, rows_by_layer), [session.run_detailed(s).codes for s in data]
    assert len(rows_by_layer) == 3 and len(next(iter(rows_by_layer.values())).moves) == 2
    for place in rows_by_layer.values():
        kind, real = graph.types[place.node.inputs[0]].quant, rows.take(place)
        assert kind is not None and real is not None
        read = [place.rows(c[place.node.inputs[0]], i, kind.zero_point) for i, c in enumerate(codes)]
        chip_values = np.concatenate(read, 1) * kind.scale
        assert real.shape == chip_values.shape and np.square(real - chip_values).mean() < 0.02 * np.square(real).mean()


@pytest.mark.parametrize("lean_bytes", [4 * 8 * 8 * 8, 4 * 8 * 8 * 8 - 1])
def test_windows_that_overlap_wait_as_the_tensor_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lean_bytes: int
) -> None:
    """Check that float runs once for both layers, lean where the tensors of one sample are large."""
    monkeypatch.setattr(places_of, "HELD_BYTES", 3 * (4 * 8 * 8 * 8 + 4 * 8 * 64))
    monkeypatch.setattr(places_of, "_LEAN_BYTES", lean_bytes)
    runs: list[bool] = []

    class Counted(FloatSession):
        def __init__(self, model: NormalModel, names: Sequence[str], *, lean: bool) -> None:
            super().__init__(model, names, lean=lean)
            runs.append(lean)

    monkeypatch.setattr(places_of, "FloatSession", Counted)
    rng = np.random.default_rng(0)
    net = network(
        """g (float[1,8,8,8] x) => (float[1,12,8,8] y) {
            a = Conv <pads=[2,2,2,2], group=8> (x, w1)
            b = Conv(x, w2)
            y = Concat <axis=1> (a, b)
        }""",
        {"w1": rng.standard_normal((8, 1, 5, 5)), "w2": rng.standard_normal((4, 8, 1, 1))},
        tmp_path,
    )
    data = samples((1, 8, 8, 8), 3)
    rows_by_layer = sample_rows(net, plain(net, data), 3)
    rows = FloatRows(net, data, rows_by_layer)
    assert [p.size_bytes // (3 * 4 * 8 * 64) for p in rows_by_layer.values()] == [25, 1]
    for place in rows_by_layer.values():
        expected = np.concatenate([place.rows(s["x"].transpose(0, 2, 3, 1), i, 0) for i, s in enumerate(data)], 1)
        real = rows.take(place)
        assert real is not None and np.array_equal(real, expected)
    assert runs == [lean_bytes < 4 * 8 * 8 * 8]


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        (  # of `a` and `d` others are read too, `c` is clamped
            """g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
                a = Conv(x, w1)
                b = Conv(a, w2)
                s = Add(a, b)
                c = Conv(s, w3)
                r = Relu(c)
                t = Add(s, r)
                d = Conv(t, w4)
                u = Add(d, t)
                y = Add(u, d)
            }""",
            {"w1": (4, 3, 1, 1), "w2": (4, 4, 1, 1), "w3": (4, 4, 1, 1), "w4": (4, 4, 1, 1)},
            {"b": "a"},
        ),
        (  # of two branches the one that is made last
            "g (float[1,3,8,8] x) => (float[1,4,8,8] y) { a = Conv(x, w1) b = Conv(x, w2) y = Add(a, b) }",
            {"w1": (4, 3, 1, 1), "w2": (4, 3, 1, 1)},
            {"b": "a"},
        ),
        (  # rows of a product
            """g (float[1,6,5] x) => (float[1,6,5] y) {
                a = MatMul(x, w1)
                r = Relu(a)
                b = MatMul(r, w2)
                y = Add(b, x)
            }""",
            {"w1": (5, 8), "w2": (8, 5)},
            {"b/rows@product": "x"},
        ),
    ],
    ids=["maps", "branches", "rows"],
)
def test_what_outputs_are_added_to_is_looked_at_where_it_is_made_before_them(
    tmp_path: Path, text: str, shapes: dict[str, tuple[int, ...]], expected: dict[str, str]
) -> None:
    rng = np.random.default_rng(0)
    net = network(text, {n: rng.standard_normal(s) for n, s in shapes.items()}, tmp_path)
    data = samples((1, 3, 8, 8) if "8,8" in text else (1, 6, 5), 3)
    quantization = plain(net, data)
    graph, session, rows_by_layer = net.integer(quantization), net.session(quantization), sample_rows(net, quantization, 3)
    rows, codes = FloatRows(net, data, rows_by_layer), [session.run_detailed(s).codes for s in data]
    addend_by_output: dict[str, str] = {}
    for layer in rows_by_layer.values():
        rows.take(layer)
        place = layer.addend
        if place is None:
            continue
        addend_by_output[layer.node.outputs[0]] = net.origins[place.read].tensor
        kind, real = graph.types[place.read].quant, rows.take(place)
        assert kind is not None and real is not None
        chip_values = np.concatenate([place.rows(c[place.read], i, kind.zero_point) for i, c in enumerate(codes)], 1) * kind.scale
        assert real.shape == chip_values.shape and np.square(real - chip_values).mean() < 0.02 * np.square(real).mean()
    assert addend_by_output == expected, addend_by_output


def test_layers_whose_codes_the_file_holds_are_left_alone(tmp_path: Path) -> None:
    net = network("g (float[1,3,8,8] x) => (float[1,4,8,8] y) { y = Conv(x, w) }", {"w": np.ones((4, 3, 1, 1))}, tmp_path)
    quantization, node = plain(net, samples(SHAPE, 4)), net.graph.nodes[-1]
    file_weights = {node.sources[0]: replace(make_file_weights(np.ones((4, 1)), np.ones(1), 0), product=True)}
    assert list(sample_rows(net, quantization, 4)) == [node.name]
    assert not sample_rows(net, replace(quantization, file_weights=file_weights), 4)
    pow2_network = replace(net, machine=load_machine("ws8_pow2"))  # its scales are powers of two
    third = {node.sources[0]: replace(file_weights[node.sources[0]], scales=np.full(1, 1 / 3))}
    assert list(sample_rows(pow2_network, replace(quantization, file_weights=third), 4)) == [node.name]


def test_weights_that_several_layers_read_are_left_alone(tmp_path: Path) -> None:
    """The chip holds them once: codes of each reader's own would be held and brought for each."""
    rng = np.random.default_rng(0)
    net = network(
        "g (float[1,8] x) => (float[1,8] y) { a = MatMul(x, w) r = Relu(a) b = MatMul(r, w) y = MatMul(b, u) }",
        {n: rng.standard_normal((8, 8)) for n in "wu"},
        tmp_path,
    )
    rows_by_layer = sample_rows(net, plain(net, samples((1, 8))), 4)
    assert len(net.weighted) == 3 and list(rows_by_layer) == [net.weighted[-1].name]


def test_a_walk_drops_what_no_later_part_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax is the host's here: each leaves a real tensor behind."""
    from toolchain.repair import layerwise_reference

    real_counts: list[int] = []
    run_island = layerwise_reference._Values.run_island
    monkeypatch.setattr(
        layerwise_reference._Values,
        "run_island",
        lambda self, part: (run_island(self, part), real_counts.append(len(self.real[0]))),
    )
    steps = " ".join(f"a{i} = MatMul({f's{i - 1}' if i else 'x'}, w{i}) s{i} = Softmax(a{i})" for i in range(4))
    rng = np.random.default_rng(0)
    net = network(
        f"g (float[1,8] x) => (float[1,8] y) {{ {steps} y = MatMul(s3, w4) }}",
        {f"w{i}": rng.standard_normal((8, 8)) for i in range(5)},
        tmp_path,
    )
    data = samples((1, 8), 4)
    run, real_sizes = layerwise_reference._Values.run, list[int]()
    monkeypatch.setattr(
        layerwise_reference._Values,
        "run",
        lambda self, node, chosen: (run(self, node, chosen), real_sizes.append(len(self.real[0]))),
    )
    round_layer_weights(net, plain(net, data), data, nothing)
    assert len(real_counts) == 4 and max(real_counts) <= 2
    assert real_sizes and not any(real_sizes)  # what is codes by now is held as these alone
