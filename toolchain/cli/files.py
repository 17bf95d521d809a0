"""Name the input files of commands, which no command may overwrite, and read and write arrays in .npz files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from toolchain.cli.application import Paths
from toolchain.errors import NO_FILE, CompileError

if TYPE_CHECKING:
    import numpy as np

    from quant.array_files import StoredArray
    from toolchain.codegen import IoType


def model_inputs(*models: str | Path) -> dict[str, Paths]:
    """Return the files of ONNX models and of their external data, by what a message calls them.

    Raise CompileError where a file is no model.
    """
    from toolchain.frontend.read_onnx import model_files

    file_groups = [model_files(Path(model)) for model in models]
    return {"the model": [f[0] for f in file_groups], "the weights of the model": [w for f in file_groups for w in f[1:]]}


def machine_inputs(*machines: str | None) -> dict[str, Paths]:
    """Return the files of machines and of their instruction tables, by what a message calls them. A machine of None is left
    out.

    Raise ConfigError where a file does not exist or is no YAML.
    """
    from toolchain.hw import machine_files

    file_pairs = [machine_files(hw) for hw in machines if hw is not None]
    return {
        "--hw": [file for file, _ in file_pairs],
        "the instruction table of --hw": [table for _, table in file_pairs if table],
    }


def data_inputs(option: str, data: str | None) -> dict[str, Paths]:
    """Return the files of calibration data, by what a message calls them; empty where `data` is None.

    `data`: a path as `quant.calibration_data.open_data` takes it.
    """
    from quant.calibration_data import data_files

    if data is None:
        return {}
    files = data_files(data)
    return {option if len(files) == 1 else f"a file of {option}": files}


def read_feeds(
    path: Path | None,
    inputs: Sequence[IoType],
    states: Sequence[IoType] = (),
    bound: Mapping[str, np.ndarray] = MappingProxyType({}),
    loose: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz, checked against the inputs, the optional states, and the values that inputs are bound to.

    Without a path, return one random sample and no state.

    `bound`: values by input that need no array.
    `loose`: inputs that may hold NaN and infinity.
    Raise CompileError where an array is missing or does not fit; each line begins with the path.
    """
    from toolchain.runtime import random_feeds

    if path is None:
        return random_feeds(inputs)
    stored = npz_arrays(path, "--input takes an .npz with an array for each input")
    free = {name: array for name, array in stored.items() if name not in bound}
    _check(path, inputs, states, bound, loose, {name: array.blank() for name, array in free.items()})
    feeds = {name: array.read() for name, array in stored.items()}
    _check(path, inputs, states, bound, loose, feeds)
    return feeds


def _check(
    path: Path,
    inputs: Sequence[IoType],
    states: Sequence[IoType],
    bound: Mapping[str, np.ndarray],
    loose: Collection[str],
    feeds: Mapping[str, np.ndarray],
) -> None:
    """Raise CompileError where feeds do not fit the inputs; each line begins with the path."""
    from toolchain.runtime import check_feeds

    try:
        check_feeds(inputs, feeds, states, bound, loose)
    except CompileError as fault:
        raise CompileError("\n".join(f"{path}: {line}" for line in str(fault).splitlines())) from None


def npz_arrays(path: Path, expectation: str) -> dict[str, StoredArray]:
    """Return the arrays of an .npz by name; only their headers are read yet.

    `expectation`: what the option takes, for the message.
    Raise CompileError where there is no such file, or it is no .npz.
    """
    from quant.array_files import read_array_headers

    if not path.exists():
        raise CompileError(f"{path}: {NO_FILE}; {expectation}")
    if path.is_dir():
        raise CompileError(f"{path}: is a directory; {expectation}")
    return read_array_headers(path, lone=False)


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of an .npz with these arrays; equal arrays give equal bytes."""
    import numpy as np

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, value in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asanyarray(value), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
    return buffer.getvalue()
