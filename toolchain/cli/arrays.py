"""Arrays in and out of .npz files for the commands."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from toolchain.codegen import IoType
from toolchain.errors import CompileError
from toolchain.runtime import check_feeds, random_feeds


def read_feeds(path: Path | None, inputs: Sequence[IoType]) -> dict[str, np.ndarray]:
    """The arrays of an .npz, checked against the inputs; without a path one random sample. Raises CompileError."""
    if path is None:
        return random_feeds(inputs)
    feeds = read_npz(path, "--input takes an .npz with an array for each input")
    try:
        check_feeds(inputs, feeds)
    except CompileError as fault:
        raise CompileError("\n".join(f"{path}: {line}" for line in str(fault).splitlines())) from None
    return feeds


def read_npz(path: Path, wanted: str) -> dict[str, np.ndarray]:
    """All arrays of an .npz. wanted: which option takes what, for where there is no file. Raises CompileError."""
    if not path.exists():
        raise CompileError(f"{path}: no such file; {wanted}")
    if path.is_dir():
        raise CompileError(f"{path}: is a directory; {wanted}")
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it is one array without a name, an .npy")
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as fault:
        reason = f"cannot be read as .npz: {_reason(fault)}"
        raise CompileError(f"{path}: {reason}; save it with numpy.savez(path, name=array)") from None


def _reason(fault: Exception) -> str:
    # numpy takes whatever it does not know for a pickle, and advises to allow those.
    return "it is no file of numpy's, or holds Python objects" if "pickle" in str(fault) else str(fault)


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """An .npz with these arrays; the same arrays give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, value in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asanyarray(value), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
    return buffer.getvalue()
