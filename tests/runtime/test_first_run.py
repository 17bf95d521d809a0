"""Check the cost of the first run of a compiled file: no compiler is imported, no search for reference cycles begins."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from simulator import merging
from toolchain.api import BuildOptions, build
from toolchain.foundation.garbage_collection import pause_collection
from toolchain.foundation.module_registry import export_lazily
from toolchain.runtime import Session, builtin_backends, random_feeds
from toolchain.runtime import session as session_module

LAZY_PACKAGES = ("toolchain.codegen", "toolchain.frontend", "toolchain.report")
NOT_NEEDED = (
    "onnx",
    "toolchain.compiler",
    "toolchain.frontend",
    "toolchain.memory",
    "toolchain.passes",
    "toolchain.schedule.plan",
)
RUN = """
import sys
from toolchain.runtime import Session, random_feeds
session = Session(sys.argv[1])
session.run(None, random_feeds(session.get_inputs(), seed=0))
print(*(m for m in sys.modules if m.partition(".")[0] in ("onnx", "onnxruntime", "toolchain")))
"""


@pytest.fixture(scope="module")
def npu_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of six layers whose products are large enough for onnxruntime, without islands."""
    layers = " ".join(f"y{i + 1} = Conv<pads=[1,1,1,1]>(y{i}, w{i})" for i in range(6))
    text = f"g (float[1,32,16,16] y0) => (float[1,32,16,16] y6) {{ {layers} }}"
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    rng = np.random.default_rng(0)
    for i in range(6):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=(32, 32, 3, 3)).astype(np.float32), f"w{i}"))
    folder = tmp_path_factory.mktemp("first_run")
    onnx.save(proto, folder / "m.onnx")
    (folder / "m.npu").write_bytes(build(folder / "m.onnx", BuildOptions("edge16", repair="none")).data)
    return folder / "m.npu"


def test_a_run_imports_no_compiler(npu_file: Path) -> None:
    run = subprocess.run([sys.executable, "-c", RUN, npu_file], capture_output=True, text=True, check=True)
    modules = set(run.stdout.split())
    assert {"onnxruntime", "toolchain.runtime.session"} <= modules
    assert not modules & set(NOT_NEEDED)


def test_no_search_begins_while_objects_are_made(npu_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: dict[str, bool] = {}

    def note_searches(module: Any, name: str) -> None:
        function = getattr(module, name)

        def call(*args: Any, **options: Any) -> Any:
            searches[name] = gc.isenabled()
            return function(*args, **options)

        monkeypatch.setattr(module, name, call)

    note_searches(session_module, "read_container")
    note_searches(builtin_backends, "prepare_program")
    note_searches(merging, "merge_program")
    session = Session(npu_file)
    for _ in range(2):  # the second run merges
        session.run(None, random_feeds(session.get_inputs(), seed=0))
    assert searches == {"read_container": False, "prepare_program": False, "merge_program": False}
    assert gc.isenabled()


def test_a_pause_ends_as_it_began() -> None:
    with pytest.raises(KeyError), pause_collection():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with pause_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_pauses_of_threads_overlap() -> None:
    """The second may begin while the first ends: neither leaves the search off, nor on inside the other."""
    first, second = pause_collection(), pause_collection()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    was_on_inside = gc.isenabled()
    second.__exit__(None, None, None)
    assert (was_on_inside, gc.isenabled()) == (False, True)


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_every_export_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert all(hasattr(module, name) for name in module.__all__)


def test_an_unknown_export() -> None:
    get_export = export_lazily("toolchain.codegen", {"model": ("Port",)})
    with pytest.raises(AttributeError, match=r"^module 'toolchain.codegen' has no attribute 'Prt'$"):
        get_export("Prt")
