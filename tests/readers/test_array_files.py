"""Array files that a stranger may send, as calibration data and as inputs of a simulation: refused before they are unpacked."""

from __future__ import annotations

import io
import resource
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from quant.array_files import read_array_headers
from quant.calibration_data import open_data
from toolchain.cli.files import read_feeds
from toolchain.codegen import IoType
from toolchain.errors import CompileError
from toolchain.ir.graph import TensorType

INPUTS = {"x": TensorType((1, 4), "float32")}
PORTS = [IoType("x", (1, 4), "float32")]


def npy(shape: object = (1, 4), descr: object = "<f4", data: bytes = bytes(16)) -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def npz(path: Path, member: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("x.npy", member)
    return path


def zeros_of(size_bytes: int, path: Path) -> Path:
    """An .npz whose array x[n] unpacks to so many bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w", force_zip64=True) as member:
        member.write(npy((size_bytes // 4,), data=b""))
        for _ in range(size_bytes >> 20):
            member.write(bytes(1 << 20))
    return path


def refusals(path: Path) -> set[str]:
    """Return the messages of calibration and simulation on it."""
    messages = set()
    for read in (lambda: list(open_data(path, INPUTS)), lambda: read_feeds(path, PORTS)):
        with pytest.raises(CompileError) as refused:
            read()
        messages.add(str(refused.value))
    return messages


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (npy(descr=()), "the header of array 'x' cannot be read: tuple index out of range"),
        (npy(descr="<f9"), "the header of array 'x' cannot be read: descr is not a valid dtype descriptor: '<f9'"),
        (npy(shape="wide"), "the header of array 'x' cannot be read: shape is not valid: 'wide'"),
        (
            npy((10, 4)).replace(b"(10, 4)", b"(2**9,)"),
            "the header of array 'x' cannot be read: malformed node or string on line 1: ast.BinOp",
        ),
        (npy(shape=(-1, -4)), "array 'x' has shape [-1, -4]"),
        (npy(shape=(True, 4)), "array 'x' has the shape (True, 4)"),
        (
            npy(shape=(1,) * 40),
            "array 'x' has 40 dimensions, 32 are the most",
        ),
        (npy(shape=(1, 1 << 64)), "array 'x' of shape [1, 18446744073709551616] is larger than any memory"),
        (npy(descr="|O"), "it holds Python objects"),
        (b"\x93NUMPY\x07\x00" + npy()[8:], "array 'x' is of format 7.0"),
        (
            npy(shape=(1 << 60,) * 9)[:40],
            "the header of array 'x' cannot be read: EOF: reading array header, expected 241 bytes got 30",
        ),
    ],
)
def test_headers(member: bytes, reason: str, tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", member)
    assert refusals(path) == {f"{path}: damaged, or no array file of numpy: {reason}; save it again with numpy.savez"}


def claiming(path: Path, samples: int, compression: int) -> Path:
    """An .npz whose header and directory claim so many samples of 16 bytes, and which holds one."""
    npz(path, npy((samples, 4)), compression)
    data, claimed = bytearray(path.read_bytes()), struct.pack("<I", min(16 * samples, (1 << 32) - 2))
    at = data.index(b"PK\x01\x02")
    data[22:26] = data[at + 24 : at + 28] = claimed  # the size of what is packed, in the member and in its entry
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_samples_that_a_file_only_claims_cost_nothing(compression: int, tmp_path: Path) -> None:
    path = claiming(tmp_path / "a.npz", 10**9, compression)
    before = time.process_time()
    with pytest.raises(CompileError, match=r"a\.npz: the file ends 15,999,\d{3},\d{3} bytes early; save it again$"):
        open_data(path, INPUTS)
    assert time.process_time() - before < 1


def test_samples_of_no_bytes_are_no_more_than_the_file_has(tmp_path: Path) -> None:
    path, empty = tmp_path / "a.npy", {"x": TensorType((0, 4), "float32")}
    path.write_bytes(npy((3, 0, 4), data=b""))
    assert open_data(path, empty).count == 3
    path.write_bytes(npy((10**9, 0, 4), data=b""))
    with pytest.raises(CompileError) as refused:
        open_data(path, empty)
    assert str(refused.value) == f"{path}: claims 1,000,000,000 samples of no bytes and has 80 bytes; give fewer"


def test_elements_of_no_bytes(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", npy((10**9, 4), descr="|S0", data=b""))
    with pytest.raises(CompileError) as refused:
        open_data(path, INPUTS)
    assert str(refused.value) == f"{path}: array 'x' is bytes of 0 bytes; save numbers"


def test_a_header_that_claims_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 27) + b" " * (1 << 27))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "EOF: reading array header" in refusals(tmp_path / "a.npz").pop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10  # KiB


def test_a_damaged_stream(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", npy((1, 4), data=np.random.default_rng(0).bytes(16)), zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(data)
    assert all(message.startswith(f"{path}: damaged, or no array file of numpy: ") for message in refusals(path))


def test_an_encrypted_archive(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", npy())
    data = bytearray(path.read_bytes())
    data[6] |= 1  # the flag of the member, and of its entry in the directory
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    reason = "File 'x.npy' is encrypted, password required for extraction"
    assert refusals(path) == {f"{path}: damaged, or no array file of numpy: {reason}; save it again with numpy.savez"}


def test_too_many_members(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for i in range(1001):
            archive.writestr(f"x{i}.npy", npy())
    reason = "it holds 1,001 arrays, 1,000 are the most"
    path = tmp_path / "a.npz"
    assert refusals(path) == {f"{path}: damaged, or no array file of numpy: {reason}; save it again with numpy.savez"}


def test_an_input_that_unpacks_to_a_gigabyte_is_refused_by_its_header(tmp_path: Path) -> None:
    path = zeros_of(1 << 28, tmp_path / "a.npz")
    assert path.stat().st_size < 1 << 19
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CompileError) as refused:
        read_feeds(path, PORTS)
    assert str(refused.value) == f"{path}: input 'x' has shape [67108864]; the model takes [1, 4]"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10  # KiB


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_sample_of_a_directory_is_refused_by_its_header(suffix: str, tmp_path: Path) -> None:
    if suffix == "npy":
        with open(tmp_path / "a.npy", "wb") as file:
            file.write(npy((1 << 28,), data=b""))
            file.truncate(1 << 30)  # a hole
    else:
        zeros_of(1 << 26, tmp_path / "a.npz")
    elements, name = (1 << 28, "a") if suffix == "npy" else (1 << 24, "x")
    with pytest.raises(CompileError) as refused:
        list(open_data(tmp_path, INPUTS))
    assert str(refused.value) == (
        f"{tmp_path}/a.{suffix}: array {name!r} of shape [{elements}] has {4 * elements:,} bytes; 64 are the most that are read"
    )


def test_arrays_are_read_as_numpy_wrote_them(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for version in ((1, 0), (2, 0), (3, 0)):
        for array in (x, np.asfortranarray(x), x.astype(">i2"), x[:0], np.float64(3.0)):
            with open(tmp_path / "a.npy", "wb") as file:
                np.lib.format.write_array(file, np.asanyarray(array), version)
            read = read_array_headers(tmp_path / "a.npy")["a"].read()
            assert read.shape == np.shape(array)
            np.testing.assert_array_equal(read, array)
    np.savez_compressed(tmp_path / "b.npz", x=x, y=x.T)
    with np.load(io.BytesIO((tmp_path / "b.npz").read_bytes())) as expected:
        for name, stored in read_array_headers(tmp_path / "b.npz").items():
            np.testing.assert_array_equal(stored.read(), expected[name])


def test_a_fault_of_whoever_reads_a_stream_is_not_the_files(tmp_path: Path) -> None:
    stored = read_array_headers(npz(tmp_path / "a.npz", npy()))["x"]
    with pytest.raises(ValueError, match=r"^mine$"), stored.stream() as take:
        take(4)
        raise ValueError("mine")
