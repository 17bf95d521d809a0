"""Movers that a schedule spares, or has moved by DMA after all: the same bits, the other figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontend.onnx_text import model, save
from toolchain.api import Build, BuildOptions, build
from toolchain.errors import CompileError
from toolchain.runtime import Session, random_feeds
from toolchain.schedule import transform
from toolchain.schedule.nodes import RegionTree
from toolchain.schedule.text import print_schedule

TEXT = """(float[1,16,12,12] x, float[16,16,3,3] w, float[8,16,1,1] w2, float[24,16,1,1] w3, float[2,9,24] q) =>
(float[a,b,c,d] y, float[e,f,g] s) {
  i = int64[1] {4} j = int64[1] {20} k = int64[1] {1}
  a = Conv<pads = [1,1,1,1]>(x, w) b = Conv(x, w2) c = Concat<axis = 1>(a, b)
  d = Slice(c, i, j, k) e = Conv(d, w3) y = Relu(e)
  t = Transpose<perm = [0,2,1]>(q) r = Relu(q) s = MatMul(r, t)
}"""
NAMES = {
    "Slice": "Slice",
    "Concat": "IntegerConcat",
    "Transpose": "Transpose",
    "Conv": "IntegerConvolution",
}  # as schedules call them


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inline")
    save(model(TEXT), path)
    return path


def _built(folder: Path, tree: RegionTree | None = None, level: int = 2) -> Build:
    path = folder / "given.sched"
    if tree is not None:
        path.write_text(print_schedule([tree]))
    return build(folder / "model.onnx", BuildOptions("edge16", level=level, schedule=str(path) if tree is not None else None))


def _layer(tree: RegionTree, kind: str) -> str:
    lines = print_schedule([tree]).splitlines()
    return next(line.split('"')[1] for line in lines if line.strip().startswith("layer") and f": {NAMES[kind]}" in line)


@pytest.mark.parametrize("kind", ["Slice", "Concat", "Transpose"])
def test_what_was_inline_is_moved_and_inline_again(kind: str, folder: Path) -> None:
    spared = _built(folder)
    (tree,) = spared.schedule
    name = _layer(tree, kind)
    moved = _built(folder, transform.move(tree, name))
    assert moved.figures["cycles"] > spared.figures["cycles"]
    feeds = random_feeds(spared.container.inputs, seed=1)
    for one, other in zip(Session(spared.data).run(None, feeds), Session(moved.data).run(None, feeds)):
        assert (one == other).all()
    assert _built(folder, transform.inline(transform.move(tree, name), name)).data == spared.data


@pytest.mark.parametrize(
    ("change", "level", "message"),
    [
        (
            lambda name: f'  layer "{name("Conv")}"\n    call inline\n',
            2,
            "it is computed, and inline is what would only be moved",
        ),
        (lambda name: f'  layer "{name("Slice")}"\n    call inline\n', 1, "below -O2 nothing at all does"),
        (lambda name: f'  layer "{name("Slice")}"\n    call inline on mac\n', 2, "too much; it is written call \\[inline\\]"),
    ],
)
def test_what_cannot_be_inline(change: Callable[[Callable[[str], str]], str], level: int, message: str, folder: Path) -> None:
    (tree,) = _built(folder).schedule
    (folder / "given.sched").write_text("region 0\n" + change(lambda kind: _layer(tree, kind)))
    with pytest.raises(CompileError, match=message):
        build(folder / "model.onnx", BuildOptions("edge16", level=level, schedule=str(folder / "given.sched")))


def test_of_a_single_layer_the_rest_is_searched(folder: Path) -> None:
    (tree,) = _built(folder).schedule
    name = _layer(tree, "Slice")
    (region,) = _built(folder, transform.only(transform.move(tree, name), [name])).schedule
    assert f'"{name}"' in print_schedule([region])
    assert [i.call.inline for i in region.layers if i.call.layer == name] == [False]


def test_only_data_movement_can_be_inline(folder: Path) -> None:
    (tree,) = _built(folder).schedule
    with pytest.raises(CompileError, match="it is computed, not moved"):
        transform.inline(tree, _layer(tree, "Conv"))
