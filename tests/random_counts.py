"""How often each key and value of a machine is drawn: python -m tests.random_counts [COUNT]. Exit code 1 where a value that is
drawn from a list comes less than once in a hundred machines."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from tests.random_cases import DrawnMachine, machines

FEWEST = 0.01  # of the machines


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(key, value) of everything in a chip as JSON; lists are values."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}" if path else key)
    else:
        yield path, str(value)


def drawn(count: int) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()

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
        chip = machine.machine.chip
        found.update(flat(chip.model_dump(mode="json", exclude={"description", "isa"})))
        found.update((f"units of {kind}", str(len(chip.of_kind(kind)))) for kind in ("mac_array", "vector", "dma"))

    note()
    return found


def main(count: int) -> int:
    found = drawn(count)
    for (key, value), times in sorted(found.items()):
        print(f"{times:7}  {key}: {value}{'  FEW' if times < FEWEST * count else ''}")
    return int(any(times < FEWEST * count for times in found.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000))
