"""Random network with a state x random machine: kept on the chip it has the bits that it has handed over by the host.

`RANDOM_STATES=5000` draws as many, others each time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.support.control_flow_machines import with_control
from tests.support.random_cases import DRAWN, DrawnMachine, machines
from tests.support.random_exports import EXPORTS
from tests.support.random_layers import LAYERS
from tests.support.random_network import DrawnModel, Network
from tests.support.threads import require_concurrent
from toolchain.api import BuildOptions, build
from toolchain.codegen import Container
from toolchain.errors import CompileError
from toolchain.isa import Machine
from toolchain.runtime import Session, random_feeds

CASES = int(os.environ.get("RANDOM_STATES", "6"))


@st.composite
def networks(draw: Any) -> DrawnModel:
    """Draw a network of layers over an input and a state `h`.
    Its next value `hn` is any tensor of its shape, computed from the state, or a slice of the state joined with a newer tensor.
    """
    net = Network(draw, 17)
    shape = tuple(net.number(1, 6) for _ in range(draw(st.sampled_from([4, 4, 3, 2]))))
    for name in ("x", "h"):
        net.inputs[name] = net.shapes[name] = shape
    net.add("Add", ["x", "h"], shape)
    for _ in range(net.number(1, 6)):
        draw(st.sampled_from(LAYERS + EXPORTS))(net)
    same_shaped = [name for name, tensor_shape in net.shapes.items() if tensor_shape == shape]
    chosen = draw(st.sampled_from(same_shaped[-4:]))
    kind = net.choose("Tanh", "Identity", "Identity", "Relu", "window", "window")
    if kind == "window":
        window(net, net.choose("x", chosen, chosen), shape)
    else:
        net.add(kind, [net.clip(chosen, -4.0, 4.0) if net.choose(0, 1) else chosen], shape)
    return end_network(net)


@st.composite
def windows(draw: Any) -> DrawnModel:
    """Draw a network of a few layers over an input, with a state of the last rows of what was joined to it.
    The state is cut before or after the join, and read with the newer rows, alone, or both.
    """
    net = Network(draw, 17)
    shape = tuple(net.number(1, 6) for _ in range(draw(st.sampled_from([4, 4, 3, 2]))))
    axis = net.number(0, len(shape) - 1)
    state_shape = (*shape[:axis], shape[axis] * net.number(1, 3) + net.number(1, 2), *shape[axis + 1 :])
    net.inputs["x"] = net.shapes["x"] = shape
    net.inputs["h"] = net.shapes["h"] = state_shape
    newer = net.add(net.choose("Relu", "Tanh", "Neg"), ["x"], shape) if net.choose(0, 1, 1) else "x"
    if net.choose(0, 1, 1):
        net.add("Relu", ["h"], state_shape)
    join_and_cut(net, newer, state_shape, axis, before=bool(net.choose(0, 1)))
    return end_network(net)


def join_and_cut(net: Network, newer: str, state_shape: tuple[int, ...], axis: int, before: bool) -> None:
    """Join newer rows to the state and cut it.

    `before`: old rows are cut off before newer rows are joined.
    """
    rows, size = net.shapes[newer][axis], state_shape[axis]

    def of(count: int) -> tuple[int, ...]:
        return (*state_shape[:axis], count, *state_shape[axis + 1 :])

    older = net.slice("h", [rows], [size], [axis], [1], of(size - rows)) if before else "h"
    joined = net.add("Concat", [older, newer], of(size if before else size + rows), axis=axis)
    if net.choose(0, 1, 1):
        net.add("Tanh", [joined], net.shapes[joined])
    if before:
        net.add("Identity", [joined], state_shape)
    else:
        net.slice(joined, [rows], [size + rows], [axis], [1], state_shape)


def end_network(net: Network) -> DrawnModel:
    """Make the last tensor the state's next value, and add another output."""
    last_tensor = list(net.shapes)[-1]
    net.nodes[-1].output[0], net.shapes["hn"] = "hn", net.shapes.pop(last_tensor)
    net.add("Sigmoid", ["x"], net.shapes["x"])
    return net.model()


def window(net: Network, newer: str, shape: tuple[int, ...]) -> None:
    axis = net.number(0, len(shape) - 1)
    new_rows, size = net.number(1, shape[axis]), shape[axis]
    if new_rows < size:
        newer = net.slice(newer, [0], [new_rows], [axis], [1], (*shape[:axis], new_rows, *shape[axis + 1 :]))
    joined = net.add("Concat", ["h", newer], (*shape[:axis], size + new_rows, *shape[axis + 1 :]), axis=axis)
    net.add("Relu", [joined], net.shapes[joined])
    net.slice(joined, [new_rows], [size + new_rows], [axis], [1], shape)


@pytest.mark.slow
def test_kept_as_if_the_host_handed_it_over() -> None:
    check = equal_on_drawn if "RANDOM_STATES" in os.environ else seed(1)(equal_on_drawn)
    check()


@pytest.mark.slow
def test_in_a_ring_wherever_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small, and however many cycles it takes."""
    monkeypatch.setattr("toolchain.passes.circular_states._gains", lambda *_: True)
    monkeypatch.setattr("toolchain.compiler._worth_of_all", lambda *_: [0.0])
    ring_counts = Counter[bool]()

    @settings(DRAWN, max_examples=CASES)
    @given(windows(), machines())
    def equal(model: DrawnModel, drawn: DrawnMachine) -> None:
        for container in equal_on(model, with_indirect(drawn.machine)):
            ring_counts.update([any(state.ring is not None for _, state in container.states)])

    (equal if "RANDOM_STATES" in os.environ else seed(3)(equal))()
    assert ring_counts[True]


def with_indirect(machine: Machine) -> Machine:
    """A machine like it that reads base registers from memory."""
    return machine if machine.chip.control.indirect is not None else with_control(machine)


@settings(DRAWN, max_examples=CASES)
@given(networks(), machines())
def equal_on_drawn(model: DrawnModel, drawn: DrawnMachine) -> None:
    list(equal_on(model, drawn.machine))


def equal_on(model: DrawnModel, machine: Machine) -> Iterator[Container]:
    """Check a model on a machine and yield what was built, if anything was."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "n.onnx"
        onnx.save(model.proto, path)
        try:
            built = build(path, BuildOptions(machine, repair="none"))
        except CompileError:
            return
    names = [state.output for _, state in built.container.states]
    if not names:
        assert any("state h=hn: goes through the host" in note for note in built.notes)
        return
    yield built.container
    chip, reference, host = Session(built.data), Session(built.data, backend="reference"), Session(built.data)
    outputs = [o.name for o in built.container.outputs]
    handed = np.zeros(host.get_states()[0].shape, np.float32)
    for step in range(4):
        feeds = random_feeds(built.container.inputs, step)
        got, expected = chip.run(None, feeds), reference.run(None, feeds)
        host.reset()
        *again, handed = host.run([*outputs, "hn"], {**feeds, "h": handed})
        for a, b, c in zip(got, expected, again):
            assert np.array_equal(a, b, equal_nan=True) and np.array_equal(a, c, equal_nan=True)
        assert np.array_equal(chip.state("h"), reference.state("h")) and np.array_equal(chip.state("h"), handed)
    require_concurrent(built)
