"""Import the libraries of the optional extra `sweep`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from toolchain.errors import CompileError

INSTALL = "pip install 'npu-toolchain[sweep]'"


def import_extra(module: str, purpose: str) -> Any:
    """Import a module of the optional extra and return it.

    `purpose`: the option or command that needs it, which begins the message.
    Raise CompileError where its library is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as fault:
        library = module.partition(".")[0]
        if fault.name is None or fault.name.partition(".")[0] != library:
            raise
        raise CompileError(f"{purpose}: needs {library}, which is not installed; {INSTALL} brings it") from None
