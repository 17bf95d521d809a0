"""List the passes (`--list-passes`), and collect and write the dumps of stages and passes (`--dump-after`).

A dump is a text, beside it an ONNX view of a graph, and one file of arrays that all dumps of a folder share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from toolchain.cli.application import require_folder, say
from toolchain.errors import CompileError, ToolchainError
from toolchain.foundation.atomic_files import read_limited
from toolchain.input_limits import LISTING_BYTES

if TYPE_CHECKING:
    import numpy as np


def dump_files(name: str | None, directory: Path) -> dict[str, Path]:
    """Return the file of each dump by stage or pass: NN-NAME.txt, numbered as the stage that it leads to. Nothing is written.

    `name`: a stage, `all` stages, or a pass; None: no dump.
    Raise CompileError where there is no such stage or pass, or the folder cannot be written to.
    """
    from toolchain.compiler import STAGES
    from toolchain.passes.pipeline import PIPELINE

    if name is None:
        return {}
    dump_name_by_pass = {one.name: one.dump_name for one in PIPELINE}
    if name not in (*STAGES, *dump_name_by_pass, "all"):
        message = f"no such stage or pass; stages are {', '.join(STAGES)}, or all; --list-passes lists the passes"
        raise CompileError(f"--dump-after {name}: {message}")
    require_folder("--dump-dir", directory)
    if name == "all":
        return {stage: directory / f"{i:02d}-{stage}.txt" for i, stage in enumerate(STAGES)}
    dump_name = dump_name_by_pass.get(name, name)
    names = [one.dump_name for one in PIPELINE]
    stage = dump_name if dump_name in STAGES else next((n for n in names[names.index(dump_name) :] if n in STAGES), "schedule")
    return {dump_name: directory / f"{STAGES.index(stage):02d}-{dump_name}.txt"}


def list_passes(requested: bool) -> None:
    """Print the passes in order, one line each, and exit; return at once where `requested` is false."""
    from toolchain.compiler import REGION_STEPS
    from toolchain.passes.pipeline import PIPELINE
    from toolchain.report.report_text import table

    if not requested:
        return
    rows = [[one.name, one.needs, one.gives, "yes" if one.optional else "", one.stage, one.summary] for one in PIPELINE] + [
        [name, "integer", "program", "", "", summary] for name, summary in REGION_STEPS
    ]
    say(table(["pass", "needs", "gives", "skip", "stage", "what it does"], rows, right=[]))
    raise typer.Exit


def array_file(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of an .npz of these arrays, sorted by name."""
    import numpy as np

    file = BytesIO()
    named: dict[str, Any] = dict(sorted(arrays.items()))
    np.savez(file, **named)
    return file.getvalue()


_ARRAY_NAME = re.compile(rb"@([0-9a-f]{16})\b")  # of an array in a stage's text
_NO_TEXTS = (".npz", ".onnx", ".npu")


def read_arrays_of_earlier_dumps(file: Path, overwritten: Collection[Path]) -> dict[str, np.ndarray]:
    """Return the arrays of the shared file that texts of earlier dumps beside it still name; empty where it cannot be read.

    All arrays are returned where a text cannot be read.

    `overwritten`: files whose texts go away.
    """
    from toolchain.passes.stage_file import read_arrays

    try:
        arrays = read_arrays(file)
    except (ToolchainError, OSError):
        return {}
    array_names = _read_array_names(file.parent, overwritten) if arrays else set[str]()
    return arrays if array_names is None else {name: arrays[name] for name in arrays if name in array_names}


def _read_array_names(folder: Path, overwritten: Collection[Path]) -> set[str] | None:
    """Return the names of arrays that the texts in a folder have. None: a file cannot be read."""
    try:
        files = [f for f in folder.iterdir() if f.is_file() and f.suffix not in _NO_TEXTS and f not in overwritten]
        texts = (read_limited(file, LISTING_BYTES) for file in files)
        return {name.decode() for text in texts for name in _ARRAY_NAME.findall(text)}
    except OSError:
        return None


@dataclass(frozen=True)
class StageDumps:
    """The dumps of a build, held in memory until they are written together with whatever else a command writes.

    `files`: the file of each stage that is dumped, by name.
    `texts`, `arrays`, `views`: what was added: texts by stage, arrays by name, and ONNX views by stage and title.
    """

    files: Mapping[str, Path]
    texts: dict[str, str] = field(default_factory=dict[str, str])
    arrays: dict[str, np.ndarray] = field(default_factory=dict[str, "np.ndarray"])
    views: dict[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])

    def add(self, stage: str, text: Callable[[], str]) -> None:
        """Append a text to the dump of a stage; do nothing for a stage that has no file.

        `text`: makes the text. It is called only where the stage has a file. A graph adds an ONNX view and its arrays too.
        """
        from toolchain.export.onnx_view import onnx_view
        from toolchain.ir.text import GraphDump

        if stage not in self.files:
            return
        if isinstance(text, GraphDump):
            self.texts[stage] = self.texts.get(stage, "") + text.print_text(self.arrays)
            self.views[stage, text.head] = onnx_view(text.graph, text.stage).SerializeToString(deterministic=True)
        else:
            self.texts[stage] = self.texts.get(stage, "") + text()

    @property
    def places(self) -> dict[str, Path]:
        """Return every file that `contents` may hold, by what a message calls it."""
        from toolchain.passes.pipeline import PIPELINE

        texts = {f"the dump of {stage}": file for stage, file in self.files.items()}
        graphs = self.files.keys() & {"normal", *(one.dump_name for one in PIPELINE)}
        views = {f"the ONNX view of {stage}": self.files[stage].with_suffix(".onnx") for stage in sorted(graphs)}
        return {**texts, **views, **({"the arrays of the dumps": self._array_file} if graphs else {})}

    @property
    def contents(self) -> dict[Path, bytes]:
        """Return the bytes of each file of the stages that were reached: text, ONNX views, and one file of all arrays.

        Of several entries each has a view, numbered from the second on. Arrays that earlier dumps in the folder still name
        stay.
        """
        contents = {self.files[stage]: text.encode(errors="backslashreplace") for stage, text in self.texts.items()}
        for (stage, _), view in self.views.items():
            first = file = self.files[stage].with_suffix(".onnx")
            number = 1
            while file in contents:
                number += 1
                file = first.with_stem(f"{first.stem}-{number}")
            contents[file] = view
        if self.arrays:
            earlier = read_arrays_of_earlier_dumps(self._array_file, contents)
            contents[self._array_file] = array_file({**earlier, **self.arrays})
        return contents

    @property
    def _array_file(self) -> Path:
        from toolchain.passes.stage_file import ARRAYS

        return next(iter(self.files.values())).parent / ARRAYS

    @property
    def folders(self) -> list[Path]:
        """Return the folders of the files."""
        return list(dict.fromkeys(file.parent for file in self.contents))

    def write(self) -> None:
        """Write the files, all or none. Raise OSError where one cannot be written."""
        from toolchain.foundation.atomic_files import write_files

        write_files({**self.contents}, self.folders)
