"""Decompose LSTM, GRU and RNN into steps that the chip has, unrolled over their sequence; constants are shared by all steps.

The inputs of all steps are multiplied at once; each step multiplies the state before it and goes through the gates.
A tensor has one range over all steps, so that a state keeps its codes from step to step.
Functions here refuse a node (NotSelected) that is beyond what can be decomposed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolchain.ir.range_constraints import FixedRange
from toolchain.ops.kit.decomposition import Decomposition, DecompositionBuilder
from toolchain.ops.kit.operator import Array
from toolchain.ops.recurrence.activations import ACTIVATION_NAMES, Activation, activations
from toolchain.ops.recurrence.cells import CELLS, Cell, States
from toolchain.ops.recurrence.direction import Direction, Value, concat_parts

MOST_STEPS = 1024  # of a sequence, all directions together
_BACKWARDS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_CONSTANTS = {1: "weights", 2: "recurrent weights", 3: "biases", 4: "sequence lengths", 7: "peepholes"}


def recurrence(steps: DecompositionBuilder) -> None:
    """Decompose X [length, batch, inputs] into Y [length, directions, batch, units] and the last states, [directions, batch,
    units].

    A cell's last states are h, and of an LSTM c too. Sequences may have lengths of their own, and initial states may be computed.
    Refuse layout 1, computed weights or lengths, empty or overlong sequences, and more than `MOST_STEPS` steps.
    """
    steps.finest = True
    attributes, cell = steps.node.op.attributes, CELLS[steps.node.op.op_type]
    backwards = _BACKWARDS[attributes["direction"]]
    length, batch, inputs = steps.shape(steps.node.inputs[0])
    if attributes.get("layout"):
        steps.refuse("its steps are of sequences, not of batches (layout = 1)")
    if length * len(backwards) > MOST_STEPS:
        steps.refuse(f"{length * len(backwards)} steps of its sequence would be written out; {MOST_STEPS} are the most")
    _check(steps, cell, len(backwards))
    value_by_input = {index: _constant(steps, index, what) for index, what in _CONSTANTS.items()}
    lengths = np.full(batch, length) if value_by_input[4] is None else value_by_input[4]
    if (lengths > length).any():
        steps.refuse(f"one of its sequences has {lengths.max()} steps of {length}")
    if (lengths < 1).any():
        steps.refuse("one of its sequences has no step, and ONNX does not say what its last state is")
    rows = steps.add("Reshape", steps.node.inputs[0], (length * batch, inputs), what="inputs")
    functions = _functions(steps, cell, len(backwards))
    outputs: list[list[str]] = []
    last: list[States] = []
    bounds: list[FixedRange | None] = []
    for index, (backward, direction_functions) in enumerate(zip(backwards, functions)):
        weights, recurrent = value_by_input[1], value_by_input[2]
        assert weights is not None and recurrent is not None
        units = recurrent.shape[-1]
        biases = np.zeros(2 * len(cell.gates) * units, np.float32) if value_by_input[3] is None else value_by_input[3][index]
        peepholes = None if value_by_input[7] is None else value_by_input[7][index]
        first = tuple(_initial(steps, state, index, (batch, units)) for state in range(cell.states))
        constants = weights[index], recurrent[index], biases, peepholes
        direction = Direction(steps, cell.gates, direction_functions, index, backward, rows, first[0], *constants)
        step_outputs, states = _gone_through(direction, cell, lengths, first)
        outputs.append(step_outputs)
        last.append(states)
        bounds.append(direction.bounds)
    _join(steps, outputs, last, bounds[0] if len(set(bounds)) == 1 else None)


def _check(steps: DecompositionBuilder, cell: Cell, directions: int) -> None:
    """Refuse a node whose shapes, activations or clip contradict each other; onnxruntime refuses it as well."""
    a = steps.node.op.attributes
    _, batch, inputs = steps.shape(steps.node.inputs[0])
    units, clip = a["hidden_size"], a.get("clip")
    gates, states = len(cell.gates) * units, (directions, batch, units)
    expected_shapes = {1: (directions, gates, inputs), 2: (directions, gates, units), 3: (directions, 2 * gates), 4: (batch,)}
    expected_shapes |= {5: states, 6: states, 7: (directions, 3 * units)}
    shapes = {i: steps.shape(name) for i in expected_shapes if (name := _input(steps, i))}
    faults = [
        f"{_CONSTANTS.get(i) or 'first state'} have shape {list(shape)}, not {list(expected_shapes[i])}"
        for i, shape in shapes.items()
        if shape != expected_shapes[i]
    ]
    names, functions = tuple(a.get("activations") or cell.functions * 2), len(cell.functions) * directions
    if len(names) != functions and names != cell.functions * 2:  # what ONNX has of an RNN's by default
        faults.append(f"activations are {len(names)}, not {functions}")
    faults += [f"clip is {clip:g}, not above 0"] if clip is not None and clip <= 0 else []
    if faults:
        steps.refuse("; ".join(f"its {fault}" for fault in faults))


def _constant(steps: DecompositionBuilder, index: int, what: str) -> Array | None:
    """Return the value of an input; None where it is absent. Refuse a computed one."""
    name = _input(steps, index)
    value = steps.graph.constants.get(name)
    if name and value is None:
        steps.refuse(f"its {what} are computed")
    return value


def _input(steps: DecompositionBuilder, index: int) -> str:
    return steps.node.inputs[index] if index < len(steps.node.inputs) else ""


def _functions(steps: DecompositionBuilder, cell: Cell, directions: int) -> list[tuple[Activation, ...]]:
    """Return the activations of each direction. Refuse unknown ones, and those without their parameters."""
    a = steps.node.op.attributes
    names = tuple(a.get("activations") or cell.functions * directions)
    known_names = {name.lower() for name in ACTIVATION_NAMES}
    unknown = next((n for n in names if n.lower() not in known_names), None)
    if unknown is not None:
        steps.refuse(f"its activation {unknown} is none of {', '.join(sorted(ACTIVATION_NAMES))}")
    try:
        chosen = activations(names, tuple(a.get("activation_alpha") or ()), tuple(a.get("activation_beta") or ()))
    except ValueError as fault:
        steps.refuse(f"its {fault} has no parameters, of which onnxruntime has other defaults than ONNX")
    each = len(chosen) // directions
    return [chosen[d * each : (d + 1) * each] for d in range(directions)]


def _gone_through(of: Direction, cell: Cell, lengths: Array, states: States) -> tuple[list[str], States]:
    """Return the output of each step, by its place in the input, and the states at the end.

    Steps behind the end of a sequence give zeros and keep its states.
    """
    step = cell.start(of)
    outputs: dict[int, str] = {}
    for t in reversed(range(of.length)) if of.backwards else range(of.length):
        new_states = step(t, states)
        inside = (lengths > t).astype(np.float32)[:, None]
        assert isinstance(new_states[0], str)
        outputs[t] = new_states[0]
        if inside.all():
            states = new_states
            continue
        outputs[t] = of.make("output", t, "Mul", new_states[0], inside, range=of.bounds)
        states = tuple(_select_active(of, t, index, new, old, inside) for index, (new, old) in enumerate(zip(new_states, states)))
    return [outputs[t] for t in range(of.length)], states


def _select_active(of: Direction, t: int, index: int, new: Value, old: Value, inside: Array) -> Value:
    """Return the new state for sequences that go on, and the old one for the others."""
    what, range = "hc"[index], None if index else of.kept_bounds
    ended_states = of.times(f"{what} of ended", t, old, 1 - inside, range)
    return of.sum(f"{what} of all", t, of.times(f"{what} of others", t, new, inside, range), ended_states, range)


def _initial(steps: DecompositionBuilder, state: int, direction: int, shape: tuple[int, int]) -> Value:
    """Return the initial value of a state of one direction, [batch, units]: zeros, a constant, or a tensor."""
    name = _input(steps, 5 + state)
    if not name:
        return np.zeros(shape, np.float32)
    value = steps.graph.constants.get(name)
    if value is not None:
        return value[direction]
    steps.moves(name)
    what = f"first {'hc'[state]}{', backwards' if direction else ''}"
    if steps.shape(name)[0] > 1:
        name = steps.add("Slice", name, (direction,), (direction + 1,), (0,), (1,), what=f"{what}, of both")
    return steps.add("Reshape", name, shape, what=what)


def _join(
    steps: DecompositionBuilder, outputs: Sequence[Sequence[str]], last: Sequence[States], bounds: FixedRange | None
) -> None:
    """Make the node's outputs: the outputs of all steps, and the last states.

    `bounds`: of the step outputs, None where they are calibrated.
    """
    length, batch, _ = steps.shape(steps.node.inputs[0])
    units = steps.node.op.attributes["hidden_size"]
    if steps.reads(0):
        each = [concat_parts(f"outputs {d}", steps, tensors, bounds) for d, tensors in enumerate(outputs)]
        _out(steps, "output", each, (length, 1, batch, units), 1, 0, bounds)
    for index in range(len(last[0])):
        if steps.reads(1 + index):
            states = [states[index] for states in last]
            tensors = [s for s in states if isinstance(s, str)]
            _out(steps, f"last {'hc'[index]}", tensors, (1, batch, units), 0, 1 + index, None if index else bounds)


def _out(
    steps: DecompositionBuilder,
    what: str,
    parts: Sequence[str],
    shape: tuple[int, ...],
    axis: int,
    output: int,
    bounds: FixedRange | None,
) -> None:
    """Make one output of the node: the directions' parts under `shape`, joined along `axis`."""
    if len(parts) == 1:
        steps.add("Reshape", parts[0], shape, what=what, output=output)
        return
    shaped = [steps.add("Reshape", part, shape, what=f"{what} {d}") for d, part in enumerate(parts)]
    steps.add("Concat", *shaped, what=what, output=output, range=bounds, axis=axis)


DECOMPOSITIONS = {"GRU": Decomposition(recurrence), "LSTM": Decomposition(recurrence), "RNN": Decomposition(recurrence)}
