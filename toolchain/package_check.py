"""Find a module of the user's that hides a package of this project: their names are short, and Python takes the first."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("quant", "simulator", "hw_configs")


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
