"""Check accumulators that are a memory, and the vector engines that emit sums from them.

It is a part of the rules between sections (`hw.cross_section_rules`). Sums need a memory of their own that is large
enough for all arrays in it, and a vector engine that takes them out. Nothing but sums may lie there. The memories of
_SHARED hold other data, so they cannot be one.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.hw.chip import Chip
from toolchain.hw.engines import MacArray, Vector
from toolchain.hw.section import write_bytes
from toolchain.hw.unit_map import EMIT, EMITTED, SUMS, operand_memories
from toolchain.hw.yaml_source import KeyPath

_SHARED = ("dram", "sram")


def broken_accumulators(chip: Chip) -> Iterator[tuple[KeyPath, str]]:
    """Yield (path of the key, reason) for each broken rule."""
    arrays = {name: e for name, e in chip.engines.items() if isinstance(e, MacArray)}
    vectors = {name: e for name, e in chip.engines.items() if isinstance(e, Vector)}
    array_by_memory = {
        mac.accumulators.memory: name for name, mac in arrays.items() if mac.accumulators.memory not in (None, *_SHARED)
    }
    for name, mac in arrays.items():
        yield from _array(name, mac, arrays, vectors, chip)
    for name, vector in vectors.items():
        path: KeyPath = ("engines", name)
        if EMIT in vector.functions and vector.memories.sums is None:
            yield (*path, "functions", EMIT), f"needs {'.'.join(path)}.memories.{SUMS}, the accumulators that it takes sums from"
        elif vector.memories.sums in chip.memories and vector.memories.sums not in array_by_memory:
            yield (*path, "memories", SUMS), f"no array has its accumulators in {vector.memories.sums}"
    for name, engine in {**arrays, **vectors}.items():
        for role, memory in operand_memories(engine).items():
            if role != SUMS and memory in array_by_memory:
                yield (
                    ("engines", name, "memories", role),
                    f"{memory} is the accumulators of {array_by_memory[memory]}: only sums lie there",
                )


def _array(
    name: str, mac: MacArray, arrays: dict[str, MacArray], vectors: dict[str, Vector], chip: Chip
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the broken rules of one array; its accumulators may have no memory."""
    accumulators, path = mac.accumulators, ("engines", name, "accumulators")
    memory = chip.memories.get(accumulators.memory or "")
    if accumulators.memory == "sram":
        yield (*path, "memory"), "sums lie in a memory of their own, not among activations in sram"
    if memory is None or accumulators.memory in _SHARED:
        return
    sharing = sum(other.count for other in arrays.values() if other.accumulators.memory == accumulators.memory)
    if sharing * accumulators.entries * accumulators.sum_bytes > memory.size:
        of = f", of {sharing} arrays" if sharing > 1 else ""
        yield (
            (*path, "entries"),
            f"{accumulators.entries} sums of {accumulators.sum_bytes} bytes{of} are more than the {write_bytes(memory.size)} of "
            f"memories.{accumulators.memory}",
        )
    batches = chip.limits.matrix_product.max_batches
    if batches > 1:
        reason = f"{batches}, and {name} has its sums in {accumulators.memory}, those of one product at a time: leave it at 1"
        yield ("limits", "matrix_product", "max_batches"), reason
    if not any(_emits(vector, mac) for vector in vectors.values()):
        yield (
            (*path, "memory"),
            f"no vector engine takes sums out of {accumulators.memory}: one needs functions.{EMIT}, memories.{SUMS} "
            f"{accumulators.memory}, and tables, input and output where {name} has parameters, input and output",
        )


def _emits(vector: Vector, mac: MacArray) -> bool:
    """Return whether the vector engine takes the sums of this array out, with all other operands in the array's
    memories.
    """
    its, array_memories = operand_memories(vector), operand_memories(mac)
    return EMIT in vector.functions and all(its.get(role) == array_memories[array_role] for array_role, role in EMITTED.items())
