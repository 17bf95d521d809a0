"""Arrays as pieces of the blocks that programs load: whatever is shared, they come back bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.codegen.constant_blocks import BlockReader, BlockWriter


def store_arrays(blocks: list[bytes], arrays: list[np.ndarray]) -> tuple[list[list], list[bytes]]:
    """Return the records of the arrays, and all blocks; each array is read back unchanged."""
    writer = BlockWriter()
    for block in blocks:
        writer.block(block)
    records = [writer.array(a) for a in arrays]
    reader = BlockReader(writer.blocks())
    for array, record in zip(arrays, records, strict=True):
        restored = reader.array(record)
        assert restored.dtype == array.dtype
        assert np.array_equal(restored, array)
    return records, writer.blocks()


def weights(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def test_tiles_with_parameters_behind_them() -> None:
    array = weights(0, (8, 3, 3, 16))
    tiles = [array[i : i + 2].tobytes() + bytes([i]) * 32 for i in range(0, 8, 2)]
    ((_, _, pieces),), blocks = store_arrays(tiles, [array])
    assert pieces == [[i, 0, 288] for i in range(4)]
    assert blocks[-1] == b""


def pack_codes(codes: np.ndarray) -> bytes:
    pairs = codes.reshape(-1, 2).astype(np.uint8) & 15
    return (pairs[:, 0] | pairs[:, 1] << 4).tobytes()


@pytest.mark.parametrize("shape", [(8, 3, 3, 16), (3, 5, 7), (1,), (0, 4)])
def test_codes_of_4_bits_are_two_a_byte(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(-8, 8, shape).astype(np.int8)
    writer = BlockWriter()
    record = writer.array(array, narrow=True)
    restored = BlockReader(writer.blocks()).array(record)
    assert record[:2] == ["int4", list(shape)] and sum(map(len, writer.blocks())) == -(-array.size // 2)
    assert restored.dtype == np.int8 and np.array_equal(restored, array)
    with pytest.raises(ValueError, match="array of 'int4'"):
        BlockReader(writer.blocks()).array(["int4", [*shape, 3], record[2]] if array.size else ["int4", [3], record[2]])


def test_codes_of_4_bits_are_pieces_of_what_programs_load() -> None:
    array = np.random.default_rng(0).integers(-8, 8, (8, 3, 3, 16)).astype(np.int8)
    writer = BlockWriter()
    for i in range(0, 8, 4):
        writer.block(pack_codes(array[i : i + 4]) + bytes([i]) * 32)
    record = writer.array(array, narrow=True)
    assert record[2] == [[0, 0, 288], [1, 0, 288]] and writer.blocks()[-1] == b""
    assert np.array_equal(BlockReader(writer.blocks()).array(record), array)


def test_parameters_that_happen_to_go_on_like_the_weights() -> None:
    """Three bytes behind the first tile are what the next tile begins with: the next is found all the same."""
    array = weights(0, (4, 512))
    tiles = [array[:2].tobytes() + array[2, :3].tobytes() + bytes(29), array[2:].tobytes() + bytes(32)]
    ((_, _, pieces),), _ = store_arrays(tiles, [array])
    assert pieces == [[0, 0, 1024], [1, 0, 1024]]


def test_what_stands_behind_a_tile_that_begins_early_is_whole() -> None:
    """Three bytes behind the first tile are what the next begins with; a third tile, or a block of its own, goes on behind it."""
    array = weights(0, (6, 512))
    tiles = [array[:2].tobytes() + array[2, :3].tobytes() + bytes(29), *(array[i : i + 2].tobytes() for i in (2, 4))]
    for loaded in (tiles, tiles[:2]):
        ((_, _, pieces),), _ = store_arrays(loaded, [array])
        assert pieces == [[0, 0, 1024], [1, 0, 1024], [2, 0, 1024]]


def test_what_no_program_loads_stands_in_the_last_block() -> None:
    array = weights(0, (2, 512))
    ((_, _, pieces),), blocks = store_arrays([array[0].tobytes()], [array])
    assert pieces == [[0, 0, 512], [1, 0, 512]]
    assert blocks[1] == array[1].tobytes()


def test_a_second_array_of_the_same_bytes_has_bytes_of_its_own() -> None:
    array = weights(0, (2, 512))
    records, blocks = store_arrays([array.tobytes()], [array, array])
    assert [pieces for *_, pieces in records] == [[[0, 0, 1024]], [[1, 0, 1024]]]
    assert len(blocks) == 2


def two_entries(first: list[bytes], second: list[bytes]) -> tuple[list, list[bytes]]:
    """Return the records of the second entry's constants, and all blocks; each constant is read back unchanged, once."""
    writer = BlockWriter()
    for data in first:
        writer.constant(data)
    writer.next_entry()
    records = [writer.constant(data) for data in second]
    reader = BlockReader(writer.blocks())
    hashable_records = [record if isinstance(record, int) else tuple(map(tuple, record)) for record in records]
    assert [reader.constant(record) for record in hashable_records] == second  # type: ignore[arg-type]
    pieced = {record for record in hashable_records if not isinstance(record, int)}
    assert sum(size for record in pieced for *_, size in record) <= sum(map(len, writer.blocks()))
    return records, writer.blocks()


def test_a_larger_tile_is_pieces_of_the_smaller_ones() -> None:
    """Check a tile with the parameters of both smaller tiles after the weights of both; bytes that only it has are a new
    block."""
    array, parameters = weights(0, (4, 300)), weights(1, (4, 160))
    tiles = [array[i : i + 2].tobytes() + parameters[i : i + 2].tobytes() for i in (0, 2)]
    (record,), blocks = two_entries(tiles, [array.tobytes() + b"new" + parameters.tobytes()])
    assert record == [[0, 0, 600], [1, 0, 600], [2, 0, 3], [0, 600, 320], [1, 600, 320]]
    assert blocks == [*tiles, b"new", b""]


def test_a_smaller_tile_lies_within_a_larger_one() -> None:
    array = weights(0, (4, 301))
    records, blocks = two_entries([array.tobytes()], [array[i].tobytes() for i in range(4)])
    assert records == [[[0, 301 * i, 301]] for i in range(4)]
    assert len(blocks) == 2


def test_an_equal_block_is_that_block_and_another_one_is_new() -> None:
    one, other, short = weights(0, (500,)).tobytes(), weights(1, (500,)).tobytes(), weights(0, (127,)).tobytes()
    records, blocks = two_entries([one], [one, other, other, short])
    assert records == [0, 1, 1, 2]
    assert blocks == [one, other, short, b""]


def test_no_more_is_made_of_pieces_than_the_blocks_have() -> None:
    """Check constants that differ and nearly equal the one existing block; the others get their own blocks."""
    array = weights(0, (1000,)).tobytes()
    records, _ = two_entries([array], [array[i:] for i in range(1, 40)])
    assert records[:2] == [[[0, 1, 999]], 1]


def test_arrays_of_a_further_entry_are_those_of_the_first() -> None:
    """Check each array as often as the previous entry had it."""
    array, other = weights(0, (2, 512)), weights(1, (300,))
    writer = BlockWriter()
    for _ in range(2):
        writer.constant(array.tobytes())
        writer.next_entry()
    records = [writer.array(a) for a in (array, other)]
    writer.next_entry()
    again = [writer.array(a) for a in (other, array, array)]
    reader = BlockReader(writer.blocks())
    assert again[:2] == records[::-1] and again[2][2] == [[1, 300, 1024]]
    assert all(np.array_equal(reader.array(record), a) for record, a in zip(again, (other, array, array), strict=True))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_constants_of_two_entries_come_back(data: st.DataObject) -> None:
    """Cut anywhere out of few different bytes, so that everything looks like everything else."""
    size = st.integers(0, 900)
    few = np.random.default_rng(0).integers(0, 2, 900).astype(np.int8)
    first, second = (
        [few[i:j].tobytes() + bytes(k) for i, j, k in data.draw(st.lists(st.tuples(size, size, size), max_size=4))]
        for _ in range(2)
    )
    two_entries(first, second)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_blocks_and_arrays_come_back(data: st.DataObject) -> None:
    """Check blocks of few different bytes, so that everything resembles everything else."""
    size = st.integers(0, 900)
    few = st.builds(lambda n, seed: np.random.default_rng(seed).integers(0, 2, n).astype(np.int8), size, st.integers(0, 3))
    arrays = data.draw(st.lists(few, max_size=4))
    cuts = [
        a[i:j].tobytes() + bytes(k) for a in arrays for i, j, k in data.draw(st.lists(st.tuples(size, size, size), max_size=3))
    ]
    store_arrays(cuts, arrays)
    store_arrays(cuts, [a[: a.size // 8 * 8].view(np.int64) for a in arrays])


@pytest.mark.parametrize(
    "record",
    [["int8", [4], [[0, 0, 5]]], ["int8", [4], [[0, -1, 4]]], ["int8", [-1], []], ["object", [1], [[0, 0, 8]]],
     [">i2", [1], [[0, 0, 2]]]],
)  # fmt: skip
def test_arrays_that_are_none(record: list) -> None:
    with pytest.raises(ValueError, match=r"^(array of|a piece of)"):
        BlockReader([bytes(16)]).array(record)


def test_bytes_in_one_piece_are_not_copied() -> None:
    array = weights(0, (64, 64))
    writer = BlockWriter()
    record = writer.array(array)
    blocks = writer.blocks()
    restored = BlockReader(blocks).array(record)
    assert np.shares_memory(restored, np.frombuffer(blocks[-1], np.uint8))


@pytest.mark.parametrize(
    ("piece", "is_there"),
    [
        ((0, 0, 4), True),
        ((1, 2, 1), True),
        ((1, 3, 0), True),
        ((1, 2, 2), False),
        ((1, 4, 0), False),
        ((0, -1, 1), False),
        ((0, 0, -1), False),
        ((2, 0, 0), False),
        ((-1, 0, 1), False),
    ],
)
def test_a_piece_that_its_block_lacks_is_refused(piece: tuple[int, int, int], is_there: bool) -> None:
    blocks = [b"abcd", b"efg"]
    block, start, size = piece
    reader = BlockReader(blocks)
    if is_there:
        assert reader.constant((piece,)) == blocks[block][start : start + size]
    else:
        with pytest.raises(ValueError, match=f"a piece of {size} bytes at {start} of block {block}, which does not have them"):
            reader.constant((piece,))
