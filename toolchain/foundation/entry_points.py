"""Write the sentences and figures about entry points: several sets of input shapes of one model, compiled into one file."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from toolchain.errors import CompileError, InternalError, ProgramError, format_count


@contextmanager
def entry_in_errors(entry: str | None) -> Generator[None]:
    """Make errors inside name the entry. With `entry` None there is only one, and no name is put before the message.

    A ProgramError becomes an InternalError in both cases: inside a build, programs are the toolchain's own.
    """
    try:
        yield
    except CompileError as fault:
        raise fault if entry is None else CompileError(f"entry {entry}: {fault}") from None
    except InternalError as fault:
        raise fault if entry is None else InternalError(f"entry {entry}: {fault}") from None
    except ProgramError as fault:
        raise InternalError(f"{'' if entry is None else f'entry {entry}: '}what was built is broken: {fault}") from fault


def label_sentences(entry: str, sentences: Sequence[str]) -> list[str]:
    """Return the sentences, each with the entry's name in front."""
    return [f"entry {entry}: {sentence}" for sentence in sentences]


def figures_of_entries(file_bytes: int, alone: Mapping[str, int], figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the JSON figures of a file of several entries: sizes, and the figures of each entry.

    `file_bytes`: of the file. `alone`: by entry, bytes of a file of that entry alone.
    `figures`: by entry, its figures, of which name and machine are the same in all.
    """
    first = next(iter(figures.values()))
    return {
        "name": first["name"],
        "machine": first["machine"],
        "entries": dict(figures),
        "file_bytes": file_bytes,
        "alone_bytes": dict(alone),
        "shared_bytes": sum(alone.values()) - file_bytes,
    }


def describe_states(entries: Sequence[str], shared: Sequence[str], separate: Sequence[str]) -> list[str]:
    """Return notes on which states the entries share, or that each has its own.

    `shared`: names of states that are one for all entries.
    `separate`: names of states that each entry has for itself.
    """
    shared_sentence = f"entries {', '.join(entries)}: {format_count(len(shared), 'state')} in common, as the last run leaves them"
    alone = [f"state {name}: each entry has its own, of another shape, type or scale" for name in separate]
    return [shared_sentence, *alone] if shared else alone


def sharing_text(figures: Mapping[str, Any], given_by: str | None) -> str:
    """Return the sentence on the bytes that entries share.

    `figures`: of `figures_of_entries`.
    `given_by`: the parameters file that says how all are quantized; None: the first entry's calibration does.
    """
    alone = figures["alone_bytes"]
    by = f"as {given_by} says" if given_by is not None else f"by the calibration of entry {next(iter(alone))}"
    sizes = ", ".join(f"{name} {size:,}" for name, size in alone.items())
    total, file_bytes = sum(alone.values()), figures["file_bytes"]
    return (
        f"{len(alone)} entries, all quantized {by}: {file_bytes:,} bytes, {100 * file_bytes / total:.0f} % of the {total:,} that "
        f"a file each has ({sizes}); {figures['shared_bytes']:,} bytes are shared"
    )
