"""Count how often each key and value of a machine is drawn: python -m tests.support.random_counts [COUNT].

Engines count by kind, lists by what they hold. The exit code is 1 where a value of a list occurs less than once in a
hundred machines.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from tests.support.random_cases import DrawnMachine, machines
from toolchain.hw.chip import Chip

FEWEST = 0.01  # of the machines


# These follow from others: what many arrays and semaphores need.
DERIVED = ("memories.acc.size", "sync.semaphores", "engines.mac_array.accumulators.entries")


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(key, value) of everything in a part of a chip as JSON; of a list each element, of one without any `[]`."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and not all(isinstance(one, int) for one in value):
        for one in value:
            yield path, str(one)
    else:
        yield path, str(value)


def of_machine(chip: Chip) -> set[tuple[str, str]]:
    data = chip.model_dump(mode="json", exclude={"description", "isa", "engines"})
    pairs = set(flat(data))
    for engine in chip.model_dump(mode="json", include={"engines"})["engines"].values():
        kind = f"engines.{engine['kind']}"
        functions = engine.pop("functions", {})
        pairs |= set(flat(engine, kind))
        pairs |= {(f"{kind}.functions", name) for name in functions}
        pairs |= {pair for rate in functions.values() for pair in flat(rate, f"{kind}.functions.NAME")}
    return pairs | {(f"units of {kind}", str(len(chip.of_kind(kind)))) for kind in ("mac_array", "vector", "dma")}


def drawn(count: int) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(machine=machines())
    def note(machine: DrawnMachine) -> None:
        counts.update(of_machine(machine.machine.chip))

    note()
    return counts


def main(count: int) -> int:
    counts = drawn(count)
    few = {pair for pair, times in counts.items() if times < FEWEST * count and pair[0] not in DERIVED}
    for (key, value), times in sorted(counts.items()):
        print(f"{times:7}  {key}: {value}{'  FEW' if (key, value) in few else ''}")
    print(f"{len(counts)} values, {len(few)} of them in fewer than {FEWEST:.0%} of {count} machines")
    return int(bool(few))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000))
