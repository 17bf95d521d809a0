"""One message on stderr and exit code 2 for every fault a user can cause; no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from toolchain.errors import ToolchainError


@contextmanager
def reported() -> Iterator[None]:
    """Turns a ToolchainError or an unreadable file into its message on stderr and exit code 2."""
    try:
        yield
    except ToolchainError as fault:
        print(fault, file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as fault:
        print(f"{fault.filename or 'file'}: {fault.strerror or fault}", file=sys.stderr)
        raise SystemExit(2) from None
