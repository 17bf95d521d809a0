"""What layers in turns read once for all blocks of channels takes no less than is said before it is planned."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from bench.make_mobilenet_chain import bodies
from scripts.onnx_builder import build_model
from tests.support.machine_variants import with_sram
from toolchain.api import BuildOptions, build
from toolchain.machine import Space
from toolchain.schedule.cascade import CascadePlanner
from toolchain.schedule.cascade_candidates import BufferCounts, CandidateKey, CandidateSeed, CascadeCandidate
from toolchain.schedule.tile_buffers import staging_bytes


def _windows() -> onnx.ModelProto:
    """A convolution of large, strided windows, pooling, another of fewer rows than it strides over, and one of groups."""
    rng = np.random.default_rng(0)
    shapes = {"stem": (32, 3, 7, 7), "skip": (64, 32, 1, 1), "wide": (128, 64, 1, 1), "groups": (64, 64, 3, 3)}
    weights = {f"{n}_w": (0.1 * rng.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "stem_w"], ["stem"], "stem", pads=[3] * 4, strides=[2, 2]),
        helper.make_node("MaxPool", ["stem"], ["pool"], "pool", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Conv", ["pool", "skip_w"], ["skip"], "skip", strides=[2, 2]),
        helper.make_node("Conv", ["skip", "wide_w"], ["wide"], "wide"),
        helper.make_node("Conv", ["wide", "groups_w"], ["y"], "groups", pads=[1] * 4, group=2),
    ]
    return build_model(nodes, {"x": [1, 3, 192, 192]}, {"y": [1, 64, 24, 24]}, weights, opset=13)


@pytest.mark.parametrize(
    ("model", "name", "kib"), [(bodies, "edge16", 48), (bodies, "wide32_w4a16", 64), (_windows, "edge16", 48)]
)
def test_what_is_read_takes_at_least_as_much(model: Callable[[], onnx.ModelProto], name: str, kib: int, tmp_path: Path) -> None:
    drafts: list[tuple[CandidateSeed, CascadeCandidate]] = []
    drafted = CascadePlanner._find_candidate

    def noted(self: CascadePlanner, key: CandidateKey, start: CandidateSeed) -> CascadeCandidate | None:
        draft = drafted(self, key, start)
        if draft is not None and key.sweep.channels:
            drafts.append((start, draft))
        return draft

    onnx.save(model(), tmp_path / "model.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CascadePlanner, "_find_candidate", noted)
        build(tmp_path / "model.onnx", BuildOptions(with_sram(name, kib)))
    least = [(start.least_with_read, _least_bytes(draft)) for start, draft in drafts]
    assert all((predicted is None) == (least_read is None) for predicted, least_read in least)
    both = [(predicted, least_read) for predicted, least_read in least if predicted is not None and least_read is not None]
    assert any(predicted > 0.8 * least_read for predicted, least_read in both)
    assert all(predicted <= least_read for predicted, least_read in both)


def _least_bytes(draft: CascadeCandidate) -> int | None:
    """Of SRAM, with one slot for all but what is read; None where nothing is."""
    if not any(blocks.read for blocks in draft.blocks.values()):
        return None
    slots = draft.slots(BufferCounts(1, 1, stay=True), len(draft.layers)).values()
    chip = next(iter(draft.blocks.values()))._layer.chip
    return draft.rings_bytes + staging_bytes(chain.from_iterable(slots), chip).get(int(Space.SRAM), 0)
