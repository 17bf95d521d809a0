"""The rows that layers are looked at by: of float and of integers the same numbers, but for rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unequal_networks import network, nothing, plain, samples

from toolchain.ir.stored import stored
from toolchain.isa import load_machine
from toolchain.repair import places as places_of
from toolchain.repair.places import FloatRows, places
from toolchain.repair.rounding import rounded_weights

SHAPE = (1, 3, 8, 8)


@pytest.mark.parametrize("held_bytes", [places_of.HELD_BYTES, 1], ids=["at once", "one layer at a time"])
def test_rows_of_float_are_those_of_the_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int) -> None:
    """Behind padding that is written into memory, a transposed convolution, and rows of a product."""
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
    seen = samples(SHAPE, 4)
    given = plain(net, seen)
    graph, session, found = net.integer(given), net.session(given), places(net, given, 4)
    rows, codes = FloatRows(net, seen, found), [session.run_detailed(s).codes for s in seen]
    assert len(found) == 3 and len(next(iter(found.values())).moves) == 2
    for place in found.values():
        kind, real = graph.types[place.node.inputs[0]].quant, rows.take(place)
        assert kind is not None and real is not None
        read = [place.rows(c[place.node.inputs[0]], i, kind.zero_point) for i, c in enumerate(codes)]
        held = np.concatenate(read, 1) * kind.scale
        assert real.shape == held.shape and np.square(real - held).mean() < 0.02 * np.square(real).mean()


def test_layers_whose_codes_the_file_holds_are_left_alone(tmp_path: Path) -> None:
    net = network("g (float[1,3,8,8] x) => (float[1,4,8,8] y) { y = Conv(x, w) }", {"w": np.ones((4, 3, 1, 1))}, tmp_path)
    given, node = plain(net, samples(SHAPE, 4)), net.graph.nodes[-1]
    held = {node.sources[0]: replace(stored(np.ones((4, 1)), np.ones(1), 0), product=True)}
    assert list(places(net, given, 4)) == [node.name]
    assert not places(net, replace(given, held=held), 4)
    anew = replace(net, machine=load_machine("ws8_pow2"))  # its scales are powers of two
    third = {node.sources[0]: replace(held[node.sources[0]], scales=np.full(1, 1 / 3))}
    assert list(places(anew, replace(given, held=third), 4)) == [node.name]


def test_weights_that_several_layers_read_are_left_alone(tmp_path: Path) -> None:
    """The chip holds them once: codes of each reader's own would be held and brought for each."""
    rng = np.random.default_rng(0)
    net = network(
        "g (float[1,8] x) => (float[1,8] y) { a = MatMul(x, w) r = Relu(a) b = MatMul(r, w) y = MatMul(b, u) }",
        {n: rng.standard_normal((8, 8)) for n in "wu"},
        tmp_path,
    )
    found = places(net, plain(net, samples((1, 8))), 4)
    assert len(net.weighted) == 3 and list(found) == [net.weighted[-1].name]


def test_a_walk_drops_what_no_later_part_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax is the host's here: each leaves a real tensor behind."""
    from toolchain.repair import walk

    held: list[int] = []
    run_island = walk._Values.run_island
    monkeypatch.setattr(walk._Values, "run_island", lambda self, part: (run_island(self, part), held.append(len(self.real[0]))))
    steps = " ".join(f"a{i} = MatMul({f's{i - 1}' if i else 'x'}, w{i}) s{i} = Softmax(a{i})" for i in range(4))
    rng = np.random.default_rng(0)
    net = network(
        f"g (float[1,8] x) => (float[1,8] y) {{ {steps} y = MatMul(s3, w4) }}",
        {f"w{i}": rng.standard_normal((8, 8)) for i in range(5)},
        tmp_path,
    )
    data = samples((1, 8), 4)
    rounded_weights(net, plain(net, data), data, nothing)
    assert len(held) == 4 and max(held) <= 2
