"""Options of a pipeline: the passes that it leaves out, and whether it verifies every graph."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.ir.parse_text import StageGraph


@dataclass(frozen=True)
class PassOptions:
    """Options of a pipeline.

    `skip`: names of optional passes that are left out.
    `verify`: whether every graph is verified behind its pass.
    `start`: the graph of a stage that takes the place of the one that the passes up to there give.
    """

    skip: frozenset[str] = frozenset()
    verify: bool = False
    start: StageGraph | None = None


EVERY_PASS = PassOptions()
