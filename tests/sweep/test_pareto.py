"""The Pareto front, against its definition; objectives by name."""

import numpy as np
import pytest

from toolchain.errors import CompileError
from toolchain.sweep import find_front, find_objectives


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_what_no_point_dominates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 5, size=(rng.integers(1, 60), rng.integers(1, 4))).tolist()

    def is_dominated(point: list[int]) -> bool:
        return any(all(x <= y for x, y in zip(other, point)) and other != point for other in values)

    assert find_front(values) == [index for index, point in enumerate(values) if not is_dominated(point)]


def test_objectives_are_refused_by_name() -> None:
    assert [o.metric for o in find_objectives("cycles, energy,sram_bytes")] == ["cycles", "energy_pj", "sram_bytes"]
    with pytest.raises(CompileError, match=r'objectives cycle: there is no objective \'cycle\'; did you mean "cycles"\?'):
        find_objectives("cycle")
    with pytest.raises(CompileError, match="objectives cycles,cycles: cycles is given twice"):
        find_objectives("cycles,cycles")


def test_a_large_share_or_sqnr_is_good() -> None:
    (objective,) = find_objectives("sqnr_db")
    assert objective.of({"sqnr_db": 30.0}) == -30.0
    assert objective.of({"sqnr_db": None}) is None


def test_objectives_are_shown_with_their_units() -> None:
    titles = [one.title for one in find_objectives("cycles,energy,sram_bytes,latency_seconds,sqnr_db,mac_utilization")]
    assert titles == ["cycles", "energy (pJ)", "sram_bytes", "latency_seconds", "sqnr_db", "mac_utilization"]
