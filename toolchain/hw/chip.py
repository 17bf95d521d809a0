"""The typed chip: a machine's YAML in base units, and what follows from it. `toolchain.hw.load_chip` loads it.

Sizes are bytes, times are cycles of the one clock, bandwidths are bytes per cycle.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import product
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from toolchain.hw.chip_sections import Control, Layout, Limits, Sync
from toolchain.hw.engines import Engine, MacArray, Memory, Name, group_form
from toolchain.hw.formats import MACHINE_FORMAT
from toolchain.hw.numerics import NumericsKeys, make_numerics
from toolchain.hw.section import Hertz, PositiveFloat, Section
from toolchain.hw.unit_map import DRAM, EMIT, EMITTED, KINDS, SRAM, SUMS, Space, Unit, explain_unused_unit, spaces_of, units_of


class Clock(Section):
    """The machine's one clock, in Hz."""

    frequency: Hertz


def table_name_fault(name: str) -> str | None:
    """Return why an instruction table may not have this file name, or None.

    A machine's file must not read files outside its folder.
    """
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or path.suffix not in (".yaml", ".yml"):
        return f"{name!r} must be a .yaml file in the machine's folder or below it, such as isa/mine.yaml"
    return None


def _table_name(name: str) -> str:
    """Return the name. Raise ValueError where an instruction table may not have it."""
    fault = table_name_fault(name)
    if fault is not None:
        raise ValueError(fault)
    return name


class Isa(Section):
    """The instruction table's file, and how instruction words are read.

    `word_cycles`: cycles in which the front end reads one word. `program_memory`: the memory whose read port gives the
    words; own: one that nothing else reads.
    """

    file: Annotated[str, AfterValidator(_table_name)]  # beside the machine's YAML, e.g. isa/registers.yaml
    word_cycles: PositiveFloat = 1.0  # the front end reads one instruction word in this time
    # whose read port gives the words; own: a memory of the front end's, which nothing else reads
    program_memory: Name | Literal["own"] = "dram"


class Energy(Section):
    """Energy of a multiply-accumulate and of a byte moved, in picojoules."""

    pj_per_mac: PositiveFloat
    pj_per_sram_byte: PositiveFloat
    pj_per_dram_byte: PositiveFloat


class Host(Section):
    """The price of the host's work, for estimates: of a tensor that crosses to or from the chip, its bytes, and
    products. It changes no program.
    """

    crossing_us: PositiveFloat = 10.0
    gigabytes_per_second: PositiveFloat = 1.0  # of the chip's codes, to the host or from it
    gigamacs_per_second: PositiveFloat = 20.0  # docs/machine.md: onnxruntime on one core of a desktop processor

    def price_seconds(self, crossings: int, crossing_bytes: int, macs: float) -> float:
        """Return the seconds that the host takes for all of it, one thing after the other.

        `crossings`: tensors that cross to or from the chip, of `crossing_bytes` in all. `macs`: multiply-accumulates.
        """
        crossing_seconds = crossings * self.crossing_us / 1e6 + crossing_bytes / (1e9 * self.gigabytes_per_second)
        return crossing_seconds + macs / (1e9 * self.gigamacs_per_second)


class Chip(Section):
    """A machine: the keys of its YAML file, in base units, and what follows from them."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_\-]*$")]
    description: str = ""
    clock: Clock
    memories: dict[Name, Memory]
    engines: dict[Name, Engine]
    numerics_keys: NumericsKeys = Field(alias="numerics")
    layout: Layout = Layout()
    limits: Limits = Limits()
    isa: Annotated[
        Isa,
        Field(
            description="(python -m toolchain.isa mine.yaml descriptors -o isa/mine.yaml writes a first table)",
            examples=[{"file": "isa/mine.yaml", "word_cycles": 8.0}],
        ),
    ]
    sync: Sync
    control: Control = Control()
    energy: Energy | None = None
    host: Host = Host()

    def with_sram(self, size_bytes: int) -> Self:
        """Return the same machine with an SRAM of another size."""
        sram = self.memories["sram"].model_copy(update={"size": size_bytes})
        return self.model_copy(update={"memories": {**self.memories, "sram": sram}})

    @cached_property
    def numerics(self) -> Numerics:
        """The arithmetic of the machine, from the keys `numerics` and the accumulators' width. Other packages read only
        this.
        """
        return make_numerics(self.numerics_keys, self.array.accumulators.bits, group_form(self.used_arrays))

    @property
    def used_arrays(self) -> dict[str, Engine]:
        """The arrays that programs use, by name; all arrays where programs can use none."""
        units = self.workers("mac_array") or self.of_kind("mac_array")
        return {unit.engine: self.engines[unit.engine] for unit in units}

    @cached_property
    def spaces(self) -> tuple[Space, ...]:
        """The memories that programs address, by their numbers: dram 0, sram 1, the others by name.

        Rates and latencies are in cycles of the chip's clock.
        """
        memories = {name: memory.in_cycles_of(self.clock.frequency) for name, memory in self.memories.items()}
        return spaces_of(memories, self.engines)

    @cached_property
    def banked(self) -> tuple[int, ...]:
        """The numbers of the memories whose words lie in banks."""
        return tuple(code for code, space in enumerate(self.spaces) if space.memory.bank_bytes is not None)

    @property
    def program_space(self) -> int | None:
        """The number of the memory that the front end reads; None where it is one that nothing else reads."""
        return None if self.isa.program_memory == "own" else self.space_code(self.isa.program_memory)

    def space_code(self, name: str) -> int:
        """Return the number of the memory of this name. Raise StopIteration where there is none."""
        return next(i for i, space in enumerate(self.spaces) if space.name == name)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The units that run operations, each an in-order queue: arrays, vector engines, DMA channels, each kind by
        name.
        """
        return units_of(self.engines, self.spaces)

    def of_kind(self, kind: str) -> tuple[Unit, ...]:
        """Return the units of one kind of engine; a unit's number is its index here."""
        return self._by_kind[kind]

    @cached_property
    def _by_kind(self) -> dict[str, tuple[Unit, ...]]:
        return {kind: tuple(u for u in self.units if u.kind == kind) for kind in KINDS}

    def workers(self, kind: str) -> tuple[Unit, ...]:
        """Return the units of one kind that compiled programs use.

        A unit that computes must have feature maps in the sram, and other operands in memories that are filled from
        dram. A DMA channel must fill such memories.
        """
        return self._workers[kind]

    @cached_property
    def _workers(self) -> dict[str, tuple[Unit, ...]]:
        return {kind: tuple(u for u in units if self._find_unreached_reason(u) is None) for kind, units in self._by_kind.items()}

    @property
    def unused(self) -> dict[str, str]:
        """The engines that compiled programs do not use, each with the reason."""
        reasons = {u.engine: self._find_unreached_reason(u) for u in self.units}
        return {engine: reason for engine, reason in reasons.items() if reason is not None}

    def _find_unreached_reason(self, unit: Unit) -> str | None:
        return explain_unused_unit(unit, self.spaces, self.units)

    @cached_property
    def staging(self) -> tuple[int, ...]:
        """The numbers of the memories that tile buffers may lie in: the sram, and others from which units read
        operands.
        """
        computing = (*self.workers("mac_array"), *self.workers("vector"))
        return tuple(sorted({SRAM, *(space for unit in computing for role, space in unit.roles.items() if role != SUMS)}))

    def emitter(self, array: Unit) -> Unit | None:
        """Return the vector unit that takes an array's sums out of their memory; arrays use several in turn.

        None: the array keeps its sums to itself, or no unit that programs use can.
        """
        if array.kind != "mac_array" or SUMS not in array.roles:
            return None
        emitting = (u for u in self.workers("vector") if EMIT in u.vector.functions)
        fitting = [u for u in emitting if all(u.roles.get(its) == array.roles[array_role] for array_role, its in EMITTED.items())]
        return fitting[array.number % len(fitting)] if fitting else None

    @property
    def dram(self) -> Memory:
        return self.spaces[DRAM].memory

    @property
    def sram(self) -> Memory:
        return self.spaces[SRAM].memory

    @property
    def array(self) -> MacArray:
        """The MAC array with most multipliers of those that programs use, the first of equal ones."""
        return max(self.workers("mac_array") or self.of_kind("mac_array"), key=lambda u: u.array.multipliers).array

    @property
    def functions(self) -> frozenset[str]:
        """The functions of all vector engines that programs use."""
        return frozenset(f for u in self.workers("vector") for f in u.vector.functions)

    @property
    def lanes(self) -> int:
        """The elements a cycle of the fastest vector function; 1 where there is none."""
        rates = [r.lanes for u in self.workers("vector") for r in u.vector.functions.values()]
        return max(rates, default=1)

    def key(self, kind: str) -> str:
        """Return the keys of the engines of a kind, as faults name them: 'engines.vector, engines.pooler'."""
        return ", ".join(f"engines.{n}" for n, e in sorted(self.engines.items()) if e.kind == kind) or f"engines (kind {kind})"

    @property
    def macs_per_cycle(self) -> float:
        """The peak of all arrays that programs use, by `peak_macs`."""
        return self.peak_macs(self.workers("mac_array"))

    def peak_macs(self, arrays: Iterable[Unit]) -> float:
        """Return the multiply-accumulates a cycle of these arrays together at best, with the machine's first operand
        types.
        """
        activation, weight = self.numerics_keys.activation, self.numerics_keys.weight
        return sum(u.array.multipliers * (u.array.rate_of(activation, weight) or 0.0) for u in arrays)

    @cached_property
    def channels(self) -> tuple[Unit, ...]:
        """The DMA channels that programs use, the fastest first, but the one that stores last.

        As many are used as leave a semaphore for each ordered pair of engines, and at least one for each memory that is
        filled. With small counts, each pair counts twice.
        """
        dma_units = self.workers("dma")
        others = len(self.workers("mac_array")) + (len(self.workers("vector")) if self.functions else 0)
        each = 2 if self.sync.max_count < 4 else 1
        fitting = (c for c in range(2, len(dma_units) + 1) if each * (others + c) * (others + c - 1) <= self.sync.semaphores)
        return choose_channels(dma_units, self.staging, max(fitting, default=1))

    def loaders(self, *spaces: int) -> tuple[Unit, ...]:
        """Return the channels in use that move between all of these memories; empty where none does.

        The channel that stores is among them only where no other does.
        """
        capable_units = [u for u in self.channels if u.reach.issuperset(spaces)]
        return tuple(u for u in capable_units if u is not self.channels[-1]) or tuple(capable_units)

    @property
    def dma_dimensions(self) -> int:
        """The strided counts that every channel in use can take."""
        return min(u.dma.dimensions for u in self.channels)

    @cached_property
    def code_types(self) -> tuple[CodeType, ...]:
        """The types of activations, by the numbers that operations name; the first is the default."""
        return tuple(CodeType(name) for name in (self.numerics_keys.activation, *self.numerics_keys.more_activations))

    @property
    def operand_types(self) -> tuple[CodeType, ...]:
        """The types of activations that can be multiplied and looked up: all but wide ones."""
        return tuple(codes for codes in self.code_types if not codes.is_wide)

    @cached_property
    def weight_types(self) -> tuple[CodeType, ...]:
        """The types of weights, by the numbers that operations name; the first is the default."""
        return tuple(CodeType(name) for name in (self.numerics_keys.weight, *self.numerics_keys.more_weights))

    @cached_property
    def pairs(self) -> frozenset[tuple[CodeType, CodeType]]:
        """The (activation, weight) types that some array in use takes together."""
        arrays = [u.array for u in self.workers("mac_array")]
        type_pairs = product(self.operand_types, self.weight_types)
        return frozenset(pair for pair in type_pairs if any(mac.rate_of(*pair) is not None for mac in arrays))

    @property
    def array_types(self) -> tuple[CodeType, ...]:
        """The types of activations that arrays multiply by constant weights."""
        return tuple(codes for codes in self.operand_types if any(codes == activation for activation, _ in self.pairs))

    def weights_for(self, codes: CodeType) -> tuple[CodeType, ...]:
        """Return the types of weights that arrays take with activations of this type, in the order of `weight_types`."""
        return tuple(weight for weight in self.weight_types if (codes, weight) in self.pairs)

    def type_number(self, dtype: str) -> int:
        """Return the number of a tensor's type.

        Raise ValueError where the machine has no such activations.
        """
        return self.code_types.index(CodeType(dtype))


def choose_channels(channels: Sequence[Unit], filled: Collection[int], most: int) -> tuple[Unit, ...]:
    """Return the `most` fastest channels, and at least one for each memory that programs fill.

    The fastest comes first; the last one stores, and reaches the sram. `channels`: DMA channels that reach the dram.
    `filled`: numbers of the memories that programs fill.
    """
    fastest_first = sorted(channels, key=lambda u: -u.dma.bytes_per_cycle)
    required_units: list[Unit] = []
    for space in sorted(filled):
        if not any(space in u.reach for u in required_units):
            required_units += [u for u in fastest_first if space in u.reach][:1]
    more = [u for u in fastest_first if u not in required_units][: max(0, most - len(required_units))]
    used = [u for u in fastest_first if u in required_units or u in more]
    store = [u for u in used if SRAM in u.reach][-1:]
    return (*(u for u in used if u not in store), *store)


def chip_schema() -> str:
    """Return the JSON schema of `hw_configs/*.yaml`: the text of `hw_configs/chip.schema.json`."""
    return schema_text(Chip, "machine", MACHINE_FORMAT)


def format_schema(newest: int) -> dict[str, Any]:
    """Return the schema of the key `format`, which is read before all others (`toolchain.hw.formats`)."""
    return {"description": "The format of this file; 1 where not given.", "type": "integer", "minimum": 1, "maximum": newest}


def schema_text(model: type[BaseModel], title: str, newest: int | None = None) -> str:
    """Return the JSON schema of a model. `newest`: the newest format of files that say theirs."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    schema["title"] = title
    if newest is not None:
        schema["properties"] = {**schema["properties"], "format": format_schema(newest)}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
