"""Import the libraries of the optional extra `sweep`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from toolchain.errors import CompileError

INSTALL = "pip install 'npu-toolchain[sweep]'"


def import_extra(module: str, purpose: str) -> Any:
    """Return a module of the extra. `purpose`: what needs it, in words. Raises CompileError where it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as fault:
        library = module.partition(".")[0]
        if fault.name is None or fault.name.partition(".")[0] != library:
            raise
        raise CompileError(f"{purpose}: needs {library}, which is not installed; {INSTALL} brings it") from None
