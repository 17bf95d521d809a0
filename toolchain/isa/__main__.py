"""Print a first instruction table for a machine that has none yet; its YAML need not name one.

Usage: python -m toolchain.isa mine.yaml [descriptors|registers] [WORD_BITS] -o isa/mine.yaml

`-o`: the file, which is written whole or not at all. Without it the table goes to standard output.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from toolchain.errors import ConfigError, system_cause
from toolchain.foundation.atomic_files import write_atomically
from toolchain.hw import load_chip
from toolchain.isa.default_table import make_default_table, word_bits_rule


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code: 0, or 2 where there is a fault or no machine, which is printed to
    stderr.
    """
    try:
        plain, output = _split_output(arguments)
        if not plain or plain[0].startswith("-"):
            print(__doc__, file=sys.stderr)
            return 2
        _write(_table(*plain), output)
    except ConfigError as broken:
        print(broken, file=sys.stderr)
        return 2
    except OSError as fault:
        print(f"{fault.filename or 'standard output'}: {system_cause(fault)}", file=sys.stderr)
        return 2
    return 0


def _split_output(arguments: list[str]) -> tuple[list[str], str | None]:
    """Return the arguments without -o FILE, and that file or None. Raise ConfigError where -o is misused."""
    if "-o" not in arguments:
        return arguments, None
    at = arguments.index("-o")
    if at + 1 == len(arguments) or "-o" in arguments[at + 1 :]:
        raise ConfigError(["-o: must be given once, with the name of the file for the table"])
    output, plain = arguments[at + 1], arguments[:at] + arguments[at + 2 :]
    folder = Path(output).parent
    if not folder.is_dir():
        raise ConfigError([f"-o {output}: there is no directory {folder}; make it first"])
    if plain and os.path.realpath(output) == os.path.realpath(plain[0]):
        raise ConfigError([f"-o {output}: is the machine itself, which would be overwritten; give another file"])
    return plain, output


def _write(table: str, output: str | None) -> None:
    """Write the table to a file, or to standard output where there is none."""
    if output is not None:
        write_atomically(output, table.encode())
        return
    print(table, end="")
    sys.stdout.flush()  # a full disk shows here, not behind the exit code


def _table(file: str, kind: str = "descriptors", bits: str | None = None, *surplus: str) -> str:
    """Return the text of the table. Raise ConfigError for surplus arguments, or a table or chip that is refused."""
    if surplus:
        raise ConfigError([f"surplus argument {surplus[0]!r}: after the machine come a kind of table and a number of bits"])
    if bits is not None and not bits.isdecimal():
        raise ConfigError([f"{kind} of {bits!r} bits: {word_bits_rule(kind)}"])
    chip = load_chip(file, table=f"isa/{Path(file).name}")
    return make_default_table(chip, kind, None if bits is None else int(bits))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
