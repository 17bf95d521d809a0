"""Random network with a state x random machine: kept on the chip it has the bits that it has handed over by the host.

`RANDOM_STATES=5000` draws as many, others each time."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.random_cases import DRAWN, DrawnMachine, machines
from tests.random_exports import EXPORTS
from tests.random_layers import LAYERS
from tests.random_network import DrawnModel, Network
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.runtime import Session, random_feeds

CASES = int(os.environ.get("RANDOM_STATES", "6"))


@st.composite
def networks(draw: Any) -> DrawnModel:
    """Layers over an input and a state `h`, whose next value `hn` is any tensor of its shape, made of the state, or cut out of
    what it and a newer tensor are joined to."""
    net = Network(draw, 17)
    shape = tuple(net.number(1, 6) for _ in range(draw(st.sampled_from([4, 4, 3, 2]))))
    for name in ("x", "h"):
        net.inputs[name] = net.shapes[name] = shape
    net.add("Add", ["x", "h"], shape)
    for _ in range(net.number(1, 6)):
        draw(st.sampled_from(LAYERS + EXPORTS))(net)
    alike = [name for name, found in net.shapes.items() if found == shape]
    made = draw(st.sampled_from(alike[-4:]))
    kind = net.choose("Tanh", "Identity", "Identity", "Relu", "window", "window")
    if kind == "window":
        window(net, net.choose("x", made, made), shape)
    else:
        net.add(kind, [net.clip(made, -4.0, 4.0) if net.choose(0, 1) else made], shape)
    left = list(net.shapes)[-1]
    net.nodes[-1].output[0], net.shapes["hn"] = "hn", net.shapes.pop(left)
    net.add("Sigmoid", ["x"], shape)
    return net.model()


def window(net: Network, newer: str, shape: tuple[int, ...]) -> None:
    axis = net.number(0, len(shape) - 1)
    taken, size = net.number(1, shape[axis]), shape[axis]
    if taken < size:
        newer = net.slice(newer, [0], [taken], [axis], [1], (*shape[:axis], taken, *shape[axis + 1 :]))
    whole = net.add("Concat", ["h", newer], (*shape[:axis], size + taken, *shape[axis + 1 :]), axis=axis)
    net.add("Relu", [whole], net.shapes[whole])
    net.slice(whole, [taken], [size + taken], [axis], [1], shape)


@pytest.mark.slow
def test_kept_as_if_the_host_handed_it_over() -> None:
    check = equal_on_drawn if "RANDOM_STATES" in os.environ else seed(1)(equal_on_drawn)
    check()


@settings(DRAWN, max_examples=CASES)
@given(networks(), machines())
def equal_on_drawn(model: DrawnModel, drawn: DrawnMachine) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "n.onnx"
        onnx.save(model.proto, path)
        try:
            built = build(path, BuildOptions(drawn.machine, repair="none"))
        except CompileError:
            return
    names = [state.output for _, state in built.container.states]
    if not names:
        assert any("state h=hn: goes through the host" in note for note in built.notes)
        return
    chip, reference, host = Session(built.data), Session(built.data, backend="reference"), Session(built.data)
    outputs = [o.name for o in built.container.outputs]
    handed = np.zeros(host.get_states()[0].shape, np.float32)
    for step in range(3):
        feeds = random_feeds(built.container.inputs, step)
        got, expected = chip.run(None, feeds), reference.run(None, feeds)
        host.reset()
        *again, handed = host.run([*outputs, "hn"], {**feeds, "h": handed})
        for a, b, c in zip(got, expected, again):
            assert np.array_equal(a, b, equal_nan=True) and np.array_equal(a, c, equal_nan=True)
        assert np.array_equal(chip.state("h"), reference.state("h")) and np.array_equal(chip.state("h"), handed)
