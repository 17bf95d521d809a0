"""Parts of two plans are one for the cost model where they are the same objects but for their addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toolchain.schedule.plan import PlannedCascade
from toolchain.schedule.plan_walk import _is_same


def test_cascades_are_one_by_their_layers_stripes_and_steps() -> None:
    layers, stripes, visited = (object(), object()), object(), object()
    fields: dict[str, Any] = {"layers": layers, "stripes": stripes, "visited": visited}
    fields = {**dict.fromkeys(PlannedCascade.__dataclass_fields__), **fields}
    cascade = PlannedCascade(**fields)
    assert _is_same(cascade, cascade) and _is_same(cascade, replace(cascade, views={"t": object()}, moved_bytes=7))
    others: list[dict[str, Any]] = [
        {"layers": (layers[0], object())},
        {"layers": (object(), layers[1])},
        {"layers": layers[:1]},
        {"stripes": object()},
        {"visited": object()},
    ]
    assert not [changes for changes in others if _is_same(cascade, replace(cascade, **changes))]
