"""Prints a first instruction table for a machine that has none yet; the table that its YAML names need not exist.

python -m toolchain.isa mine.yaml [descriptors|registers] [WORD_BITS] > isa/mine.yaml
"""

from __future__ import annotations

import sys

from toolchain.errors import ConfigError
from toolchain.hw import load_chip
from toolchain.isa.starter import starter_table


def main(arguments: list[str]) -> int:
    """The exit code: 2 where there is a fault."""
    file, kind, bits, *more = [*arguments, *[""] * (3 - len(arguments))]
    if not file or file.startswith("-") or more or not (bits or "0").isdigit():
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(starter_table(load_chip(file), kind or "descriptors", int(bits) if bits else None), end="")
    except ConfigError as broken:
        print(broken, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
