"""Reads arrays from .npz and .npy files that may be damaged or hostile: headers first, then elements up to a bound.

Sizes are known from the headers before anything is unpacked. `StoredArray` checks them against the bytes that the file has
before it reads elements. Calibration data (`quant.calibration_data`) and the codes beside a parameters file are read by it.
"""

from __future__ import annotations

import io
import math
import sys
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from toolchain.errors import CompileError, first_line, format_count
from toolchain.input_limits import ARRAY_BYTES, ARRAY_MEMBERS

_MAX_RANK = 32  # numpy's own bound until 2.0
_HEADER_BYTES = 10_012  # of format 2.0 with as many characters as numpy reads of a header
_DEFLATE_RATIO = 1032  # by which DEFLATE makes a stream smaller at most: two bits stand for 258 bytes (zlib's technical notes)


@dataclass(frozen=True)
class StoredArray:
    """One array of a file, of which only the header was read.

    `name`: its name in the .npz; the file's stem for an .npy.
    `fortran`: elements lie in column-major order.
    `held_bytes`: upper bound of the bytes of elements that the file can hold.
    `_way_out`: how the file is made again, as in `read_array_headers`.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    held_bytes: int
    _open: Callable[[], IO[bytes]]
    _way_out: str | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes of its elements, by the header."""
        return math.prod(self.shape) * self.dtype.itemsize

    def blank(self) -> np.ndarray:
        """Return zeros of this shape and type that take no memory: a read-only broadcast."""
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    def require_complete(self) -> None:
        """Raise CompileError where the header claims more bytes than the file can hold, or elements of 0 bytes."""
        if not self.dtype.itemsize:
            raise CompileError(
                f"{self.path}: array {self.name!r} is {self.dtype.name} of 0 bytes; {self._way_out or 'save numbers'}"
            )
        missing = self.size_bytes - self.held_bytes
        if missing > 0:
            raise self._ends_early(missing)

    @contextmanager
    def stream(self) -> Generator[Callable[[int], bytes]]:
        """Open the elements as a context; the value is a function take(n) that returns their next n bytes.

        Raise CompileError: damaged, cut short. Other faults of the context's body pass.
        """
        self.require_complete()
        with _refusing(self.path, self._way_out):
            file = self._open()
        with file:

            def take(size_bytes: int) -> bytes:
                with _refusing(self.path, self._way_out):
                    data = file.read(size_bytes)
                if len(data) < size_bytes:
                    raise self._ends_early(size_bytes - len(data))
                return data

            yield take

    def read(self, limit_bytes: int = ARRAY_BYTES) -> np.ndarray:
        """Return the whole array, read-only.

        Raise CompileError: damaged, cut short, or more bytes than the limit.
        """
        if self.size_bytes > limit_bytes:
            raise CompileError(
                f"{self.path}: array {self.name!r} of shape {list(self.shape)} has {format_count(self.size_bytes, 'byte')}; "
                f"{limit_bytes:,} are the most that are read"
            )
        with self.stream() as take, _refusing(self.path, self._way_out):
            flat = np.frombuffer(take(self.size_bytes), self.dtype)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")

    def _ends_early(self, missing_bytes: int) -> CompileError:
        """Return the error that the file lacks its last bytes."""
        missing = format_count(missing_bytes, "byte")
        return CompileError(f"{self.path}: the file ends {missing} early; {self._way_out or 'save it again'}")


def read_array_headers(path: Path, *, lone: bool = True, way_out: str | None = None) -> dict[str, StoredArray]:
    """Return the headers of the arrays in a file, by name; of equal names the last.

    The first bytes tell an .npy from an .npz, not the suffix. Sizes are checked only by `StoredArray.require_complete`.
    `lone`: an .npy will do as well; its array has the name of the file. Without it an .npy is refused.
    `way_out`: how the file is made again, for refusals of a damaged one; None: users save it with numpy.

    Raise CompileError where a header cannot be read, or the file holds too many arrays or Python objects. A file that is absent
    raises FileNotFoundError.
    """
    with _refusing(path, way_out), path.open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            if not lone:
                named = way_out or "save it with numpy.savez(path, name=array)"
                raise CompileError(f"{path}: is one array without a name, an .npy; {named}")
            size_bytes = file.seek(0, io.SEEK_END)
            file.seek(0)
            return {path.stem: _header(path, path.stem, file, size_bytes, lambda: path.open("rb"), way_out)}
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if len(members) > ARRAY_MEMBERS:
                raise ValueError(f"it holds {len(members):,} arrays, {ARRAY_MEMBERS:,} are the most")
            arrays = dict[str, StoredArray]()
            for member in members:
                with archive.open(member) as opened:
                    name, size_bytes = member.removesuffix(".npy"), _bound_unpacked_bytes(path, archive.getinfo(member))
                    arrays[name] = _header(path, name, opened, size_bytes, _opener(path, member), way_out)
            return arrays


def _bound_unpacked_bytes(path: Path, member: zipfile.ZipInfo) -> int:
    """Return the most bytes that a member can unpack to: what the directory says, or less where its packed bytes cannot hold
    that."""
    packed_bytes = min(member.compress_size, path.stat().st_size)
    return min(member.file_size, packed_bytes * (1 if member.compress_type == zipfile.ZIP_STORED else _DEFLATE_RATIO))


@contextmanager
def _refusing(path: Path, way_out: str | None) -> Generator[None]:
    """A context in which whatever a file makes numpy, zipfile and the decompressors raise becomes a CompileError.

    `way_out`: as in `read_array_headers`.
    FileNotFoundError, IsADirectoryError, PermissionError and MemoryError pass.
    """
    try:
        yield
    except (CompileError, FileNotFoundError, IsADirectoryError, PermissionError, MemoryError):
        raise
    except Exception as fault:
        way_out = way_out or "save it again with numpy.savez"
        raise CompileError(f"{path}: damaged, or no array file of numpy: {first_line(fault)}; {way_out}") from None


def _opener(path: Path, member: str) -> Callable[[], IO[bytes]]:
    """Return a function that opens a member of the archive anew."""
    return lambda: zipfile.ZipFile(path).open(member)


def _header(
    path: Path, name: str, file: IO[bytes], size_bytes: int, open_again: Callable[[], IO[bytes]], way_out: str | None
) -> StoredArray:
    """Return the header of an array. Raise ValueError where it is not valid.

    `size_bytes`: size of the header and the elements together.
    `way_out`: as in `read_array_headers`.
    """
    start = io.BytesIO(file.read(_HEADER_BYTES))  # a header that claims gigabytes unpacks none of them
    version = np.lib.format.read_magic(start)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"array {name!r} is of format {version[0]}.{version[1]}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = read(start)
    except (LookupError, SyntaxError, TypeError, ValueError, RecursionError) as fault:
        raise ValueError(f"the header of array {name!r} cannot be read: {first_line(fault)}") from None
    if not all(type(d) is int for d in shape):  # True is an int to numpy
        raise ValueError(f"array {name!r} has the shape {shape}")
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if len(shape) > _MAX_RANK:
        raise ValueError(f"array {name!r} has {len(shape)} dimensions, {_MAX_RANK} are the most")
    if min(shape, default=0) < 0:
        raise ValueError(f"array {name!r} has shape {list(shape)}")
    if math.prod(max(1, d) for d in shape) * max(1, dtype.itemsize) > sys.maxsize:
        raise ValueError(f"array {name!r} of shape {list(shape)} is larger than any memory")
    offset = start.tell()

    def elements() -> IO[bytes]:
        stream = open_again()
        stream.read(offset)
        return stream

    return StoredArray(path, name, shape, dtype, fortran, size_bytes - offset, elements, way_out)
