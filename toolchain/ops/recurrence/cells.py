"""Define one step of each recurrent cell: how it changes the states of a layer. `CELLS` has them by ONNX operator.

A state is the name of a tensor or, at the first step, maybe a constant. A step takes a tuple of states and returns the new
one, in which the layer's output comes first. F, G and H are the activations of the layer, in ONNX's order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolchain.ir.range_constraints import FixedRange
from toolchain.ops.recurrence.direction import Direction, Value, product_bounds

UNIT = FixedRange(0.0, 1.0)
States = tuple[Value, ...]  # the output's first
Step = Callable[[int, States], States]


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent cell.

    `gates`: a letter for each, in the order of their weights.
    `functions`: names of the default activations.
    `states`: number of states.
    `start`: adds what all steps share, and returns the function of one step: (step number, states) to new states.
    """

    gates: str
    functions: tuple[str, ...]
    states: int
    start: Callable[[Direction], Step]


def lstm(of: Direction) -> Step:
    """Return the step of an LSTM.

    The gates i and f are F(x W + h R + P c + b).
    The gate o is F(x W + h R + P c' + b).
    The states are h' = o H(c') and c' = f c + i G(x W + h R + b). With input_forget, f = 1 - i.
    """
    coupled = bool(of.steps.node.op.attributes.get("input_forget"))
    together = ("iof",) if of.peepholes is None and not coupled else ("i", "o") if coupled else ("i", "o", "f")
    inputs = {gates: of.project_inputs(gates) for gates in (*together, "c")}

    def before(gates: str, t: int, h: Value, c: Value) -> Value:
        which = 1 if gates == "c" else 0
        state = of.product(gates, h, t)
        looks = None if gates == "c" or len(gates) > 1 else of.peephole(gates)
        total = of.sum(f"before {gates}", t, of.at(t, inputs[gates], gates), state, of.get_effective_range(which))
        if looks is None or not looks.any():
            return total
        cell_term = of.times(f"cell of {gates}", t, c, looks)
        return of.sum(f"before {gates}, with the cell", t, total, cell_term, of.get_effective_range(which))

    def gate(gates: str, t: int, h: Value, c: Value) -> str:
        return of.function(0, gates, t, before(gates, t, h, c))

    def step(t: int, states: States) -> States:
        h, c = states
        new = of.function(1, "c", t, before("c", t, h, c))
        if together == ("iof",):
            all_of_them = gate("iof", t, h, c)
            i, o, f = (of.part(t, all_of_them, "iof", g) for g in "iof")
        else:
            i, o = gate("i", t, h, c), ""
            f = of.make("1 - i", t, "Sub", 1.0, i, range=UNIT) if coupled else gate("f", t, h, c)
        input_term = of.times("i c", t, i, new, product_bounds(of.functions[0], of.functions[1]))
        cell = of.sum("cell", t, input_term, of.times("f cell", t, c, f))
        o = o or gate("o", t, h, cell)
        shown = of.function(2, "shown", t, of.clip_to_effective(2, "cell as it tells", t, cell), clip=False)
        return of.times("h", t, o, shown, of.bounds), cell

    return step


def gru(of: Direction) -> Step:
    """Return the step of a GRU.

    The gates are z, r = F(x W + h R + b), and n = G(x W + (r h) R + b).
    The state is h' = n + z (h - n).

    With linear_before_reset, n = G(x W + r (h R + b) + b).
    """
    linear = bool(of.steps.node.op.attributes.get("linear_before_reset"))
    inputs = {"zr": of.project_inputs("zr"), "h": of.project_inputs("h", recurrent_bias=not linear)}
    bounded = of.bounds

    def step(t: int, states: States) -> States:
        (h,) = states
        both = of.sum("before zr", t, of.at(t, inputs["zr"], "zr"), of.product("zr", h, t), of.get_effective_range(0))
        gates = of.function(0, "zr", t, both)
        z, r = (of.part(t, gates, "zr", g) for g in "zr")
        if linear:
            state = of.times("r state", t, of.product("h", h, t, bias=True), r)
        else:
            state = of.product("h", of.times("r h", t, h, r, bounded), t)
        new = of.function(1, "new", t, of.sum("before new", t, of.at(t, inputs["h"], "h"), state, of.get_effective_range(1)))
        if not isinstance(h, str) and not h.any():
            return (of.less("h", t, new, of.times("z new", t, z, new, bounded), bounded),)
        change = _negative(of, t, new, h)
        return (of.sum("h", t, new, of.times("z (h - new)", t, z, change), bounded),)

    return step


def rnn(of: Direction) -> Step:
    """Return the step of an RNN, h' = F(x W + h R + b)."""
    inputs = of.project_inputs("h")

    def step(t: int, states: States) -> States:
        (h,) = states
        total = of.sum("before h", t, of.at(t, inputs, "h"), of.product("h", h, t), of.get_effective_range(0))
        return (of.function(0, "h", t, total),)

    return step


def _negative(of: Direction, t: int, new: str, h: Value) -> Value:
    """Return h - new; a constant h is added to -new instead."""
    if isinstance(h, str):
        return of.less("h - new", t, h, new)
    return of.sum("h - new", t, of.make("-new", t, "Mul", new, -1.0), h)


CELLS = {
    "GRU": Cell("zrh", ("Sigmoid", "Tanh"), 1, gru),
    "LSTM": Cell("iofc", ("Sigmoid", "Tanh", "Tanh"), 2, lstm),
    "RNN": Cell("h", ("Tanh",), 1, rnn),
}
