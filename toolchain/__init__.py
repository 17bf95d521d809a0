"""The deployment toolchain: from an ONNX model and a machine's YAML to a program and its report.

The import ends where a module of the user's hides a package of this project: their names are short, and Python takes the first.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("quant", "simulator", "hw_configs")
_ROOT = Path(__file__).resolve().parents[1]


def find_hidden_package(root: Path) -> str | None:
    """Return a sentence that names what hides a package, and how to go on; None where none is hidden.

    `root`: the folder in which this installation's packages lie.
    """
    for name in PACKAGES:
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # a module that was made by hand
            spec = None
        folders = [] if spec is None else [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
        if folders == [(root / name).resolve()]:
            continue
        place = "nothing" if spec is None else spec.origin or ", ".join(map(str, folders))
        if spec is None and name not in sys.modules:
            return f"npu-toolchain: its package {name!r} is missing in {root}; install it again"
        return (
            f"npu-toolchain: {place} hides its package {name!r}; rename that, take its folder out of PYTHONPATH, or keep Python "
            "from looking in the current folder (python -P, or PYTHONSAFEPATH=1)"
        )
    return None


# `python -m toolchain.reference` looks for modules in the caller's folder first: a quant.py there is none of ours.
if sys.argv[:1] == ["-m"] and Path(sys.path[0]).resolve() != _ROOT:
    del sys.path[0]

if (_hidden := find_hidden_package(_ROOT)) is not None:
    if sys.argv and Path(sys.argv[0]).name.startswith("npu-"):  # a command, which ends in one sentence
        print(_hidden, file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(_hidden)

__version__ = "0.2.0"
