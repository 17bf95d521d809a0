"""Arrays in and out of .npz files for the commands."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from toolchain.codegen import IoType, write_whole
from toolchain.errors import CompileError
from toolchain.runtime import check_feeds, random_feeds


def read_feeds(path: str | None, inputs: Sequence[IoType]) -> dict[str, np.ndarray]:
    """The arrays of an .npz, checked against the inputs; without a path one random sample."""
    if path is None:
        return random_feeds(inputs)
    if not Path(path).is_file():
        raise CompileError(f"{path}: no such file; --input takes an .npz with an array for each input")
    try:
        with np.load(path, allow_pickle=False) as loaded:
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise ValueError("it is one array, not an .npz")
            feeds = {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as fault:
        raise CompileError(f"{path}: cannot be read as .npz: {fault}; save it with numpy.savez(path, name=array)") from None
    check_feeds(inputs, feeds)
    return feeds


def write_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """An .npz, whole or not at all."""
    buffer = io.BytesIO()
    np.savez(buffer, **dict(arrays))
    write_whole(path, buffer.getvalue())
