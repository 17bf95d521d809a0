"""Hold the user's options of the pass pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.ir.parse_text import StageGraph


@dataclass(frozen=True)
class PassOptions:
    """The user's options of the pass pipeline.

    `skip`: names of optional passes that are left out.
    `verify`: whether every graph is verified behind its pass.
    `start`: the graph of a stage, edited by the user, that replaces the one that the passes give there; None: none does.
    """

    skip: frozenset[str] = frozenset()
    verify: bool = False
    start: StageGraph | None = None


EVERY_PASS = PassOptions()
