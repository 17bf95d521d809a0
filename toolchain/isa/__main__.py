"""Prints a first instruction table for a machine that has none yet; its YAML need not name one.

python -m toolchain.isa mine.yaml [descriptors|registers] [WORD_BITS] > isa/mine.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path

from toolchain.errors import ConfigError
from toolchain.hw import load_chip
from toolchain.isa.starter import starter_table, word_bits_rule


def main(arguments: list[str]) -> int:
    """The exit code: 2 where there is a fault."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(_table(*arguments), end="")
    except ConfigError as broken:
        print(broken, file=sys.stderr)
        return 2
    return 0


def _table(file: str, kind: str = "descriptors", bits: str | None = None, *surplus: str) -> str:
    if surplus:
        raise ConfigError([f"surplus argument {surplus[0]!r}: after the machine come a kind of table and a number of bits"])
    if bits is not None and not bits.isdecimal():
        raise ConfigError([f"{kind} of {bits!r} bits: {word_bits_rule(kind)}"])
    chip = load_chip(file, table=f"isa/{Path(file).name}")
    return starter_table(chip, kind, None if bits is None else int(bits))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
