"""Check how values are put in the places of faults."""

from __future__ import annotations

from typing import Any

from toolchain.hw.fault_recovery import RecoveredFault, readings


def judge_ones(data: dict[str, Any]) -> Any:
    """Return the data where all values are 1 or 16, else a fault for each other value."""
    return [RecoveredFault((key,), "must be 1 or 16") for key, value in data.items() if value not in (1, 16)] or data


def test_the_most_faults_give_models() -> None:
    def judge(data: dict[str, Any]) -> Any:
        missing = [RecoveredFault((f"k{n}",), "is missing") for n in range(32) if f"k{n}" not in data]
        return missing or judge_ones(data)

    recovered = readings(judge, {f"k{n}": -1 for n in range(32)})
    assert (len(recovered.faults), [set(model.values()) for model in recovered.models]) == (32, [{1}, {16}])
    assert len(readings(judge, {f"k{n}": -1 for n in range(33)}).models) == 0
