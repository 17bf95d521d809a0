"""Opens calibration data: files, directories, images, a user's generator or objects in memory become samples for a model.

A sample is {input name: array} with exactly the types and shapes of the model's inputs. `open_data` chooses the reader by the
form of its argument. `random_data` makes up samples where there are no data. Used by `quant.calibrate` and by what judges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from quant.array_files import StoredArray, read_array_headers
from quant.fit_sample import UNNAMED, MissingArray, Sample, count_samples, fit_array, fit_sample
from quant.generator import generator_samples
from quant.images import IMAGE_SUFFIXES, PREPROCESS_FILE, Preprocess, image_samples
from quant.memory_data import MemoryData
from quant.suggestion import suggestion
from toolchain.errors import NO_FILE, CompileError, format_count
from toolchain.ir.graph import TensorType

Types = Mapping[str, TensorType]
_WIDEST_BYTES = np.dtype(np.complex128).itemsize  # of one element


@dataclass(frozen=True)
class Samples:
    """An iterable of samples that starts afresh each time.

    `source`: where they are from, for messages.
    `count`: number of samples; None where only the end of the stream tells.
    `start`: opens the stream anew.
    `random`: the samples are made up, so the model's results on them may say nothing of the model.
    `notes`: sentences for the user on parts of the data that are not read.
    """

    source: str
    count: int | None
    start: Callable[[], Iterator[Sample]]
    random: bool = False
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Sample]:
        return self.start()


def open_data(
    path_or_spec: str | Path | MemoryData,
    inputs: Types,
    *,
    limit: int | None = None,
    preprocess: Preprocess | None = None,
    loose: Collection[str] = (),
) -> Samples:
    """Return the first `limit` samples (None: all) of a file, a directory or a generator function, whose elements are read only
    when iterated.

    `FILE.npz`: arrays under the input names. Where there is one input, one array without its own name (`arr_0`) will do. The
    leading dimension is samples x batch, or samples before the whole shape. Other arrays (labels) are not read. One sample is in
    memory at a time.
    `FILE.npy`: as an .npz of one array without a name, for a model of one input.
    `DIRECTORY`: holds .npy or .npz files (one sample each, by file name) or images (.png, .jpg, .jpeg, .bmp). For several inputs,
    .npy files lie in one directory for each, named like the input; one input may have such a directory, too. Images are prepared
    as `preprocess` says, else as preprocess.yaml in the directory. Hidden files are not read.
    `FILE.py:FUNCTION`: a generator function that yields {input name: array}, or arrays where there is one input.
    `MemoryData`: objects of a caller in this process.
    `inputs`: type and shape by input of the model.
    `loose`: inputs that may hold NaN and infinity.

    Raise CompileError at once where nothing is there, or names, shapes or numbers of samples in a file's header are wrong. Raise
    it for other faults at the sample: types, or what the generator raises. Raise NotFinite at a sample with NaN or infinity.
    """
    if limit is not None and limit < 1:
        raise CompileError(f"calibration data: limit {limit} leaves no samples; give at least 1")
    if not inputs:
        raise CompileError("calibration data: the model has no inputs, so there is nothing to feed; build it without data")
    if isinstance(path_or_spec, MemoryData):
        count, start, notes = path_or_spec.open(inputs, loose)
        samples = Samples(str(path_or_spec), count, start, notes=notes)
    else:
        samples = _open(str(path_or_spec), inputs, preprocess, loose)
    if limit is None:
        return samples
    count = None if samples.count is None else min(samples.count, limit)
    return Samples(samples.source, count, lambda: islice(samples.start(), limit), samples.random, samples.notes)


def _open(spec: str, inputs: Types, preprocess: Preprocess | None, loose: Collection[str]) -> Samples:
    """Return the samples of a path or of `file.py:function`."""
    generator = _generator(spec)
    if generator is not None:
        return Samples(spec, None, lambda: generator_samples(*generator, inputs, loose))
    path = Path(spec)
    if not path.exists():
        raise CompileError(f"{path}: {NO_FILE}; give an .npz, a directory of .npy or images, or file.py:function")
    if path.is_dir():
        return _open_directory(path, inputs, preprocess, loose)
    if path.suffix in (".npz", ".npy"):
        return _open_arrays(path, inputs, loose)
    if path.suffix == ".py":
        raise CompileError(f"{path}: which function yields the samples? Write {path}:FUNCTION")
    raise CompileError(
        f"{path}: {path.suffix or 'no'} suffix is no form of calibration data; "
        "give an .npz, a directory of .npy or images, or file.py:function"
    )


def data_files(path_or_spec: str | Path) -> list[Path]:
    """Return the files that `open_data` may read of this argument: itself, a Python file, or those of a directory."""
    spec = str(path_or_spec)
    generator = _generator(spec)
    path = Path(spec) if generator is None else generator[0]
    if not path.is_dir():
        return [path]
    candidates = [path / PREPROCESS_FILE, *path.iterdir(), *path.glob("*/*.npy")]
    return [f for f in candidates if f.name == PREPROCESS_FILE or f.suffix.lower() in (".npy", ".npz", *IMAGE_SUFFIXES)]


def _generator(spec: str) -> tuple[Path, str] | None:
    """Return (file, function) of `file.py:function`; None for any other text."""
    file, _, function = spec.rpartition(":")
    return (Path(file), function) if file.endswith(".py") else None


def repeat_data(samples: Samples, inputs: Types) -> Samples:
    """Return the samples in other shapes of the same rank: along each axis elements are repeated from the first on, or cut off.

    The notes of the samples are not kept. `inputs`: type and shape by input; each sample's arrays must be among them.
    Raise CompileError while they are read: an input of another rank, or without elements.
    """

    def shaped(name: str, value: np.ndarray) -> np.ndarray:
        shape = inputs[name].shape
        if len(shape) != value.ndim or 0 in value.shape:
            raise CompileError(f"input {name!r}: samples of shape {[*value.shape]} cannot be repeated to {[*shape]}")
        return value[np.ix_(*(np.arange(new_size) % size for new_size, size in zip(shape, value.shape, strict=True)))]

    def start() -> Iterator[Sample]:
        return ({name: shaped(name, value) for name, value in sample.items()} for sample in samples)

    return Samples(samples.source, samples.count, start, samples.random)


def random_data(inputs: Types, samples: int = 8, seed: int = 0, magnitude: float = 1.0) -> Samples:
    """Return made-up samples: normal floats, bytes over their whole range, other integers and bools 0 or 1.

    So numbers index any table of two rows. The same seed gives the same samples, each time they are read.

    `samples`: their number.
    `magnitude`: standard deviation of the floats.

    They say nothing about accuracy. They serve builds of which only bits and cycles matter.
    """

    def start() -> Iterator[Sample]:
        rng = np.random.default_rng(seed)
        for _ in range(samples):
            yield {name: _random(rng, t, magnitude) for name, t in inputs.items()}

    return Samples(f"random inputs (seed {seed})", samples, start, random=True)


def _random(rng: np.random.Generator, t: TensorType, magnitude: float) -> np.ndarray:
    """Return random values of one input, as `random_data` describes them."""
    dtype = np.dtype(t.dtype)
    if dtype.kind == "f":
        return (magnitude * rng.standard_normal(t.shape)).astype(dtype)
    if dtype.itemsize == 1 and dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, t.shape, dtype, endpoint=True)
    return rng.integers(0, 2, t.shape).astype(dtype)


# --- arrays in .npz and .npy


def _open_arrays(path: Path, inputs: Types, loose: Collection[str]) -> Samples:
    """Return the samples of an .npz or .npy. Raise CompileError where arrays are missing or numbers of samples differ or are
    0."""
    arrays = read_array_headers(path)
    if len(inputs) == 1 and (path.suffix == ".npy" or arrays.keys() == {UNNAMED}):
        chosen = {next(iter(inputs)): next(iter(arrays.values()))}
    else:
        _require_named(path, arrays, inputs)
        chosen = {name: arrays[name] for name in inputs}
    counts = {name: count_samples(path, name, array.shape, inputs[name]) for name, array in chosen.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{n!r} {c}" for n, c in counts.items())
        raise CompileError(f"{path}: the inputs have different numbers of samples ({listed}); give each as many")
    count = next(iter(counts.values()))
    if count == 0:
        raise CompileError(f"{path}: holds 0 samples; calibration needs at least 1")
    _require_held(path, count, chosen.values())

    def start() -> Iterator[Sample]:
        streams = {name: _stream(array, inputs[name], count) for name, array in chosen.items()}
        for i in range(count):
            where = f"{path}: sample {i}"
            yield {name: fit_array(next(streams[name]), name, inputs[name], where, loose) for name in inputs}

    return Samples(str(path), count, start)


def _require_named(path: Path, arrays: Mapping[str, StoredArray], names: Iterable[str]) -> None:
    """Raise MissingArray where an array for one of `names` is missing."""
    missing = [name for name in names if name not in arrays]
    if not missing:
        return
    name, listed = missing[0], ", ".join(map(repr, sorted(arrays))) or "none"
    way_out = f"save it as numpy.savez(path, **{{{name!r}: x}}){suggestion(name, arrays)}"
    raise MissingArray(f"{path}: no array for input {name!r} (arrays: {listed}); {way_out}", missing)


def _require_held(path: Path, count: int, arrays: Collection[StoredArray]) -> None:
    """Raise CompileError where the file cannot hold as many bytes or samples as its headers claim.

    Samples without bytes are bound by the file's size, since each costs time.
    """
    for array in arrays:
        array.require_complete()
    size_bytes = path.stat().st_size
    if count > size_bytes and not any(array.size_bytes for array in arrays):
        raise CompileError(f"{path}: claims {count:,} samples of no bytes and has {format_count(size_bytes, 'byte')}; give fewer")


def _stream(array: StoredArray, t: TensorType, count: int) -> Iterator[np.ndarray]:
    """Yield `count` arrays in the shape of `t` and in the stored type, read from the file one by one."""
    if array.fortran:  # the samples lie interleaved
        yield from array.read().reshape(count, *t.shape)
        return
    size_bytes = t.elements * array.dtype.itemsize
    with array.stream() as take:
        for _ in range(count):
            yield np.frombuffer(take(size_bytes), array.dtype).reshape(t.shape)


# --- directories


def _open_directory(path: Path, inputs: Types, preprocess: Preprocess | None, loose: Collection[str]) -> Samples:
    """Return the samples of a directory. Raise CompileError where it holds none, or files of several kinds.

    Raise MissingArray where only some of the inputs have a directory of their own.
    """
    files = _list_visible_files(path)
    images = [f for f in files if f.suffix.lower() in IMAGE_SUFFIXES]
    arrays = [f for f in files if f.suffix in (".npy", ".npz")]
    lone = len(inputs) == 1 and bool(images or arrays)  # samples beside a directory of that name
    if not lone and all((path / name).is_dir() for name in inputs):
        return _open_input_directories(path, inputs, loose)
    if images and arrays:
        raise CompileError(
            f"{path}: holds {len(images)} images and {len(arrays)} arrays; keep one kind, nothing says which are the samples"
        )
    if images:
        count, start = image_samples(path, images, inputs, preprocess)
        return Samples(str(path), count, start)
    if not arrays:
        _require_directories(path, inputs)
        raise CompileError(f"{path}: no .npy, .npz or images in this directory{_describe_others(path, files)}")
    if len({f.suffix for f in arrays}) > 1:
        raise CompileError(f"{path}: holds both .npy and .npz; keep one kind, since nothing says which are the samples")
    if arrays[0].suffix == ".npy" and len(inputs) > 1:
        problem = f"{path}: .npy files of one directory feed one input, the model has {len(inputs)} ({', '.join(inputs)})"
        raise MissingArray(f"{problem}; make a directory of .npy for each, named like the input, or .npz files", tuple(inputs))
    return Samples(str(path), len(arrays), lambda: (_file_sample(f, inputs, loose) for f in arrays))


def _require_directories(path: Path, inputs: Iterable[str]) -> None:
    """Raise MissingArray where some inputs have a directory of .npy files in `path`, and others have none."""
    missing = [name for name in inputs if not (path / name).is_dir()]
    available = [name for name in inputs if name not in missing and any((path / name).glob("*.npy"))]
    if missing and available:
        problem = f"{path}: no directory for input {missing[0]!r} (directories: {', '.join(map(repr, available))})"
        raise MissingArray(f"{problem}; make a directory of .npy for it, named like the input", missing)


def _describe_others(path: Path, files: Sequence[Path]) -> str:
    """Return what a directory without samples holds instead, as a clause with the way out.

    `files`: its files, none of which is a sample.
    """
    folders = sorted(f for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))
    with_images = [f for f in folders if any(one.suffix.lower() in IMAGE_SUFFIXES for one in f.iterdir())]
    if with_images:
        folder_count = format_count(len(with_images), "folder")
        return f", but images in {folder_count} of it, such as {with_images[0].name}; put them into one"
    suffixes = sorted({f.suffix or f.name for f in files})
    others = f", but {format_count(len(files), 'other file')} ({', '.join(suffixes[:3])})" if files else ""
    return f"{others}; save samples as .npy, or images as {', '.join(IMAGE_SUFFIXES)}"


def _list_visible_files(path: Path) -> list[Path]:
    """Return the files of a directory by name, without hidden ones, which systems leave in directories (`.DS_Store`)."""
    return sorted(f for f in path.iterdir() if f.is_file() and not f.name.startswith("."))


def _open_input_directories(path: Path, inputs: Types, loose: Collection[str]) -> Samples:
    """Return samples of one directory of .npy for each input; the files of the same place in sorted order are one sample."""
    files = {name: [f for f in _list_visible_files(path / name) if f.suffix == ".npy"] for name in inputs}
    counts = {name: len(paths) for name, paths in files.items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        listed = ", ".join(f"{n!r} {c}" for n, c in counts.items())
        raise CompileError(f"{path}: .npy files per input: {listed}; give each input as many, and at least 1")

    def start() -> Iterator[Sample]:
        for row in zip(*files.values(), strict=True):
            loaded = {name: _load(file, {name: inputs[name]}) for name, file in zip(files, row, strict=True)}
            yield fit_sample(loaded, inputs, " + ".join(map(str, row)), loose)

    return Samples(str(path), next(iter(counts.values())), start)


def _file_sample(path: Path, inputs: Types, loose: Collection[str]) -> Sample:
    """Return the sample of one .npy or .npz file."""
    return fit_sample(_load(path, inputs), inputs, str(path), loose)


def _load(path: Path, inputs: Types) -> Any:
    """Return the arrays of an .npz by name, or the one of an .npy. Raise CompileError for one larger than the widest possible
    sample."""
    limit_bytes = _WIDEST_BYTES * max(t.elements for t in inputs.values())
    arrays = {name: array.read(limit_bytes) for name, array in read_array_headers(path).items()}
    return arrays if path.suffix == ".npz" else next(iter(arrays.values()))
