"""List the examples that come with the toolchain, and copy one into a folder."""

from __future__ import annotations

from pathlib import Path

from toolchain.atomic_files import write_files
from toolchain.errors import CompileError

ALL = "all"
DESCRIPTIONS = {
    "classifier": "a trained network with its data, to build and run at once",
    "decoder": "a decoder that keeps its caches on the chip",
    "interpreter": "a model of a machine, written from its manual alone",
    "networks": "standard networks without weights, and a script that fills them",
    "plugins": "operators of one's own: a function, a normalization, a pooling with its own machine operation",
    "rmsnorm": "a plug-in in four steps, with a machine",
    "schedules": "schedules written by hand, and their networks",
    "sweeps": "a sweep of arrays and memories for the classifier",
}
_WHEEL = Path(__file__).parent / "examples"
_CHECKOUT = Path(__file__).parents[2] / "examples"


def list_examples() -> list[str]:
    """Return the names of the folders of examples, sorted."""
    root = _root()
    return sorted(path.name for path in root.iterdir() if path.is_dir() and _list_files(path))


def describe_examples() -> str:
    """Return a line for each example: its name and what it is."""
    names = list_examples()
    width = max(len(name) for name in names)
    return "\n".join(f"{name:{width}}  {DESCRIPTIONS.get(name, '')}".rstrip() for name in names)


def copy_example(name: str, folder: Path) -> list[Path]:
    """Write the files of an example into a folder, all or none; return their paths.

    `name`: of an example, or `all`, which keeps the folders beside one another.
    Raises CompileError: there is no such example, or a file of its name stands in the folder.
    """
    if name != ALL and name not in list_examples():
        raise CompileError(f"{name}: is no example; there are {', '.join([*list_examples(), ALL])}")
    source = _root() if name == ALL else _root() / name
    contents: dict[str | Path, bytes] = {folder / path.relative_to(source): path.read_bytes() for path in _list_files(source)}
    existing = next((path for path in contents if Path(path).exists()), None)
    if existing is not None:
        raise CompileError(f"{existing}: is there already; give a new folder")
    write_files(contents, sorted({Path(path).parent for path in contents}))
    return [Path(path) for path in contents]


def _root() -> Path:
    """Return the folder of the examples: in the wheel, or beside the packages of a checkout."""
    root = next((path for path in (_WHEEL, _CHECKOUT) if path.is_dir()), None)
    if root is None:
        raise CompileError(f"{_WHEEL.parent}: has no examples beside it; install the toolchain again")
    return root


def _list_files(folder: Path) -> list[Path]:
    """Return the files below a folder, without those that running the examples leaves."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".") and path.suffix != ".npu"
    ]
