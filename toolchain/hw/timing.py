"""The section `timing` of an array in a machine's YAML: what its time depends on beside its size.

Each term is something that hardware has, with a default that can be built. A rate or buffer of `unlimited` and
`fold_cycles: 0` leave a term out. `timing: ideal` stands for IDEAL, which leaves out all but `shared_outputs`: that
stays at the array's columns. UNLIMITED is more of anything than an operation has.
Formulas and their sources are in docs/simulator.md. A fold is one pass of the array: the part of the work that its rows
and columns hold at a time.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler, PlainSerializer, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from toolchain.foundation.type_guards import is_list
from toolchain.hw.section import NonNegative, Positive, Section

UNLIMITED = 1 << 40  # more of anything than an operation has


def _number(value: object) -> object:
    return UNLIMITED if value == "unlimited" else value


def _word(value: int | None) -> int | str | None:
    return "unlimited" if value == UNLIMITED else value


def _schema(least: int) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": least, "maximum": UNLIMITED}, {"const": "unlimited"}]})


Rate = Annotated[Positive, BeforeValidator(_number), PlainSerializer(_word), _schema(1)]
Size = Annotated[NonNegative, BeforeValidator(_number), PlainSerializer(_word), _schema(0)]


def get_rate(rate: int | None, otherwise: int) -> int:
    """Return `rate`, or `otherwise` where a file gives none."""
    return otherwise if rate is None else rate


class OutputPath(Section):
    """The output of an array: requantization pixel by pixel, `lanes` output channels a cycle; None: the array's columns.

    `table_lanes`: channels a cycle through a lookup table. `addend_lanes`: where an addend is added; None: as `lanes`.
    `overlaps`: the output runs beside the operation's folds; False: behind them.
    """

    lanes: Rate | None = None  # not given: `columns`, as they leave the array
    table_lanes: Rate = 1  # channels a cycle where they pass through a table, of which each look-up a cycle takes a port
    addend_lanes: Rate | None = None  # where an addend is added; not given: as `lanes`
    overlaps: bool = False  # with the folds; else it comes behind those of the operation


Blocks = tuple[tuple[Positive, Positive], ...]  # of channels by taps
_REDUCTIONS: dict[str, Blocks] = {"per_tap": (), "dense": ((1, 1),)}


def _blocks(value: Any) -> Any:
    """Return the blocks that a name or a list of pairs stands for; other values as they are, for pydantic to refuse.
    Raise ValueError for an unknown name or an empty list.
    """
    if not isinstance(value, str) and value not in ((), []):
        return tuple(tuple(block) if is_list(block) else block for block in value) if is_list(value) else value
    if not isinstance(value, str) or value not in _REDUCTIONS:
        raise ValueError(f"must be per_tap, dense or a list of [channels, taps], for example [[32, 1], [8, 4]]; got {value!r}")
    return _REDUCTIONS[value]


def _reduction(blocks: Blocks) -> str | list[list[int]]:
    """Return the name of a known list of blocks, else the list itself."""
    named = next((name for name, preset in _REDUCTIONS.items() if preset == blocks), None)
    return named or [list(block) for block in blocks]


class _OrWords:
    """A schema entry for editors that allows the words beside the list."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{**handler(schema), "minItems": 1}, {"enum": [*_REDUCTIONS]}]}


Reduction = Annotated[Blocks, BeforeValidator(_blocks), PlainSerializer(_reduction), _OrWords()]


class ArrayTiming(Section):
    """The terms of an array's time beside its size.

    `reduction`: how taps and channels fill the depth: each tap by itself (per_tap), all together (dense), or in blocks
    of [channels, taps]. `depthwise_taps`: mode diagonal pads its taps to a multiple of this; 1 pads nothing, None: the
    array's depth.
    `fold_cycles`: before each fold.
    `input_edge_bytes`, `weight_edge_bytes`: bytes a cycle that enter; None: an element of the widest type for each row or
    column. `window_bytes`: buffer from which all taps take an input that is read once; with less, each tap reads for itself.
    `shared_outputs`: output channels for which an input is read once; None: the array's columns.
    """

    # per_tap: the elements of a kernel's tap fill depth (ws, is: and rows) for themselves, and the last ones are padded; dense:
    # those of all taps together, which takes a gather in front of the array; or in blocks of [channels, taps]
    reduction: Reduction = _REDUCTIONS["per_tap"]
    depthwise_taps: Positive | None = None  # that a `diagonal` takes together, the last ones padded; not given: `depth`
    fold_cycles: NonNegative = 3  # of each fold, before it begins
    # bytes a cycle; not given: an element of the widest type for each row or column that it enters by, and each of `depth`
    input_edge_bytes: Rate | None = None
    weight_edge_bytes: Rate | None = None
    # of the input, from which all taps take what they read once from memory: the rows of a kernel, or what one row of it
    # reaches; with less every tap reads for itself
    window_bytes: Size = 0
    shared_outputs: Rate | None = None  # output channels for which an input is read once; not given: `columns`
    output: OutputPath = OutputPath()


DENSE = _REDUCTIONS["dense"]
IDEAL = ArrayTiming(
    reduction=DENSE,
    depthwise_taps=1,
    fold_cycles=0,
    input_edge_bytes=UNLIMITED,
    weight_edge_bytes=UNLIMITED,
    window_bytes=UNLIMITED,
    output=OutputPath(lanes=UNLIMITED, table_lanes=UNLIMITED, addend_lanes=UNLIMITED, overlaps=True),
)


def _terms(value: Any) -> Any:
    return IDEAL.model_dump(mode="json") if value == "ideal" else value


class _OrIdeal:
    """A schema entry for editors that allows the word beside the section."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"const": "ideal"}]}


# `ideal` is short for the terms of IDEAL
Timing = Annotated[ArrayTiming, BeforeValidator(_terms), _OrIdeal()]
