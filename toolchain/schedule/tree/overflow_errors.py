"""Why what a schedule holds in the memories of a chip has no place there."""

from __future__ import annotations

from toolchain.errors import CompileError
from toolchain.schedule.allocation import Allocation
from toolchain.schedule.tree.bind_tree import BoundTree, RegionFacts
from toolchain.schedule.tree.schedule_faults import Faults
from toolchain.schedule.tree.text import quote_name

_NAMED = 8  # tensors of a layer


def explain_overflow(given: BoundTree, facts: RegionFacts, allocation: Allocation) -> CompileError | None:
    """The layer beside which most lies in each memory that is too small, and by how many bytes; None where none is."""
    faults = Faults(given.tree)
    for space in facts.chip.staging:
        memory, buffers = facts.chip.spaces[space], allocation.buffers(space)
        live = [sum(b.size_bytes for b in buffers if b.start <= step < b.end) for step in range(len(facts.layers))]
        step = max(range(len(live)), key=lambda i: live[i], default=0)
        beyond = live[step] - memory.memory.size if live else 0
        if beyond <= 0:
            continue
        roots = [b for b in buffers if b.start <= step < b.end and b.name in facts.storages]
        names = ", ".join([*(quote_name(b.name) for b in roots[:_NAMED]), *(["..."] if len(roots) > _NAMED else [])])
        tensors = f" ({sum(b.size_bytes for b in roots):,} of them {names})" if roots else ""
        said = given.layers.get(step)
        faults.of(
            facts.layers[step],
            said.call.line if said is not None else given.tree.line,
            f"{live[step]:,} bytes{tensors} lie in {memory.name} while it runs, {beyond:,} more than memories.{memory.key}.size="
            f"{memory.memory.size:,}; take smaller steps or fewer slots, or let a tensor lie in dram",
        )
    return CompileError("\n".join(faults.told())) if faults else None


def explain_fragmentation(given: BoundTree) -> CompileError:
    """Where no memory is too small, and no addresses were found."""
    faults = Faults(given.tree)
    faults.add(
        given.tree.line,
        f"region {given.tree.region}: by its bytes it fits, and no addresses were found for all that lies in memory at once; "
        "take smaller steps or fewer slots, or let a tensor lie in dram",
    )
    return CompileError("\n".join(faults.told()))
