"""Read files up to a limit, and write files so that they appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from toolchain.errors import format_count
from toolchain.input_limits import STREAM_BYTES

_CHUNK_BYTES = 1 << 20


def read_limited(path: str | Path, limit_bytes: int) -> bytes:
    """Return the file's bytes. Raise OSError naming the file, also where it is longer than `limit_bytes`.

    A pipe or a device may hold at most `STREAM_BYTES` where that is less; no more than the limit is read.
    """
    with naming(path), open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            limit_bytes = min(limit_bytes, STREAM_BYTES)
        if status.st_size > limit_bytes:
            raise _too_long(limit_bytes)
        parts: list[bytes] = []
        size_bytes = 0
        while part := file.read(max(_CHUNK_BYTES, status.st_size - size_bytes)):
            size_bytes += len(part)
            if size_bytes > limit_bytes:
                raise _too_long(limit_bytes)
            parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_long(limit_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"holds more than {format_count(limit_bytes, 'byte')}, which are the most for such a file")


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write one file as `write_files` does: a reader never sees half of it, and a failure leaves the old one. Raise OSError."""
    write_files({path: data})


def write_files(files: Mapping[str | Path, bytes], folders: Iterable[Path] = ()) -> None:
    """Write all files or none. Raise OSError naming the target.

    Each is written to a temporary file in its folder. When all are complete they are renamed, in their order, so that the
    last one is new only where all others are. Pipes and devices such as /dev/stdout are written to directly, before the first
    is renamed.
    `folders`: created where they are missing, and removed again if writing fails.
    """
    streams = [path for path in files if is_stream(path)]
    new_folders: list[Path] = []
    staged: list[tuple[str, str | Path]] = []
    try:
        for folder in folders:
            with naming(folder):
                new_folders += _make_folders(folder)
        for path, data in files.items():
            if path not in streams:
                with naming(path):
                    staged.append((_write_beside(os.path.realpath(path), data), path))
        for path in streams:
            with naming(path):
                Path(path).write_bytes(files[path])
        for temporary, path in staged:
            with naming(path):
                os.replace(temporary, os.path.realpath(path))
    except BaseException:
        _remove(staged, new_folders)
        raise


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; return those that were not there, the outermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()][::-1]
    for path in missing:
        path.mkdir(exist_ok=True)
    return missing


def _remove(staged: Iterable[tuple[str, str | Path]], folders: Iterable[Path]) -> None:
    """Remove the temporary files, and the new folders as far as they are empty."""
    for temporary, _ in staged:
        Path(temporary).unlink(missing_ok=True)
    for folder in reversed([*folders]):
        with suppress(OSError):  # something was renamed into it
            folder.rmdir()


def is_stream(path: str | Path) -> bool:
    """Return whether the path exists and is no plain file: a pipe, a device such as /dev/stdout, or a directory."""
    return os.path.exists(path) and not os.path.isfile(path)


@contextmanager
def naming(path: str | Path) -> Generator[None]:
    """Make an OSError inside name `path`: the system names no file for a full disk, and a temporary one for others."""
    try:
        yield
    except OSError as fault:
        raise OSError(fault.errno, fault.strerror, str(path)) from None


def _write_beside(target: str, data: bytes) -> str:
    """Write `data` to a new temporary file in the target's folder, with the rights that a new file has, and return its path."""
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}")
    file = open(temporary, "xb")  # noqa: SIM115  # fails without a file to remove
    try:
        with file:
            file.write(data)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return temporary
