"""Programs with merged tiles leave the same bytes in the DRAM as their operations one by one, damaged programs too."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "bench"))
from mutate_programs import Subject, subjects_of  # type: ignore[import-not-found]

from simulator import DramRange, DramRangeKind, merge_program
from simulator.merging.merge_program import _Merger
from simulator.merging.tiles import COLUMN, ROW, Evaluation, Operand, Tile
from simulator.merging.value_numbers import box_of
from tests.cli.edit_programs import model
from tests.simulator.machine_programs import load, small_chip, store
from tests.simulator.merging_cases import compare_mutants, compare_regions, require_merged
from toolchain.api import BuildOptions, build
from toolchain.errors import InternalError
from toolchain.machine import Access, Convolution, Depthwise, End, Space, dispatch_program
from toolchain.runtime import Session, random_feeds
from toolchain.runtime.builtin_backends import Simulator

BODY = """h2 = Conv<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(h, k)
        h3 = Conv<kernel_shape=[1,1]>(h2, v)
        s = Add(h3, h2)
        e = Sigmoid(s)
        p = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(e)
        m = AveragePool<kernel_shape=[2,2], strides=[2,2]>(p)
        y = Concat<axis=1>(m, m)"""
MACHINES = ("edge16", "ethos_u55_256", "ws8_pow2", "nvdla_small")


pytestmark = pytest.mark.usefixtures("merge_always")


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    path = model(tmp_path_factory.mktemp("merging"), "float[1,8,32,32]", BODY)
    return [s for level in (0, 2) for s in subjects_of([path], list(MACHINES), level)]


def test_merged_tiles_leave_the_same_bytes(subjects: list[Subject]):
    require_merged(subjects)


def test_tiles_of_a_layer_are_one_operation(subjects: list[Subject]):
    """edge16 at level 0 cuts this network into more operations than it has layers."""
    subject = subjects[0]
    ((merged, _),) = compare_regions(subject.file(subject.program), 1)
    assert merged is not None
    arrays = [op for op in subject.program.ops if isinstance(op, Convolution | Depthwise)]
    steps = [step for step in merged.steps if isinstance(step.op, Convolution | Depthwise)]
    assert len(steps) <= 3 < len(arrays)


def test_mutants_leave_the_bytes_of_their_operations(subjects: list[Subject]):
    assert compare_mutants(subjects, 3, 160) > 20


def test_a_session_gives_the_same_in_later_runs(subjects: list[Subject]):
    for subject in subjects[:2]:
        data = subject.file(subject.program)
        merging, plain = Session(data, backend=Simulator()), Session(data, backend=Simulator(merges=False))
        for seed in range(4):
            feeds = random_feeds(merging.get_inputs(), seed)
            for ours, theirs in zip(merging.run(None, feeds), plain.run(None, feeds), strict=True):
                assert np.array_equal(ours, theirs)


def test_initial_values_change_places():
    """A state's halves are exchanged: each is read before the other is written over it."""
    ops = [load(0, 0, 64), load(64, 64, 64), store(64, 0, 64), store(0, 64, 64), End()]
    chip, image = small_chip(), np.arange(128, dtype=np.uint8)
    parts = [DramRange(DramRangeKind.STATE, "s", 0, 128)]
    merged = merge_program(chip, dispatch_program(chip, ops), range(4), parts, image)
    assert merged is not None
    assert merged.run(image)
    assert np.array_equal(image, np.roll(np.arange(128, dtype=np.uint8), 64))


def test_a_negative_stride_is_an_internal_error() -> None:
    """`check_program` refuses it before."""
    with pytest.raises(InternalError, match=r"an access at 48 has strides \(-16,\), and none may be negative"):
        box_of(Access(0, 48, (4,), (-16,), 16, write=False))


def tile(row: int, addend_row: int, step: int = ROW) -> Tile:
    addend = Operand((2 << 48) + addend_row * ROW, (ROW, COLUMN, 1))
    return Tile(0, End(), "kind", (Operand((1 << 48) + row * ROW, (step, COLUMN, 1)), addend), (2, 4, 8), 1)


def test_a_tile_with_another_addend_is_no_part():
    evaluation = Evaluation(3, tile(0, 0))
    first = evaluation.add(tile(0, 0))
    assert first is not None
    assert evaluation.add(tile(2, 2)) == first + 2 * ROW
    assert evaluation.add(tile(4, 5)) is None
    assert evaluation.add(tile(4, 4, step=2 * ROW)) is None
    assert [placed.at for placed in evaluation.tiles] == [(0, 0, 0), (2, 0, 0)]


def test_operands_begin_at_the_least_place():
    """The first tile is not the topmost one."""
    evaluation = Evaluation(3, tile(4, 4))
    assert all(evaluation.add(tile(row, row)) is not None for row in (4, 2))
    assert evaluation.low == (-2, 0, 0)
    assert evaluation.operands == tile(2, 2).operands


def test_constants_that_others_overlap_may_change():
    """A constant is known to stay where it touches an input or output, and unknown where they have a byte in common."""
    constants = [(64, 128), (192, 256), (300, 320)]
    parts = [DramRange(DramRangeKind.CONSTANT, "", *span) for span in constants]
    others = [DramRange(DramRangeKind.INPUT, "x", 128, 192), DramRange(DramRangeKind.OUTPUT, "y", 319, 400)]
    merger = _Merger(small_chip(), 512, [*parts, *others], {}, set(), frozenset())
    read = [merger.memories.read_constant(Space.DRAM, first, last - first) for first, last in constants]
    assert read == [64, 192, None]


def test_a_window_skips_rows_of_which_two_are_one_of_what_it_reads(tmp_path: Path) -> None:
    """A ConvTranspose makes two rows of one row of sums. The convolution behind it reads every second one."""
    path = tmp_path / "m.onnx"
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[8,8,8,1] x) => (float[8,18,8,1] y) '
        "{ t = ConvTranspose<strides=[2,2]>(x, w) y = Conv<strides=[2,3]>(t, v) }"
    )
    rng = np.random.default_rng(4)
    for name, shape in {"w": (8, 4, 2, 2), "v": (18, 4, 1, 1)}.items():
        values = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(proto, path)
    for merged, differs in compare_regions(build(path, BuildOptions("ethos_u55_256")).data, 3):
        assert merged is not None and not differs
