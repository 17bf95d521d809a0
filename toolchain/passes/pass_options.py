"""Options of a pipeline: the passes that it leaves out, and whether it verifies every graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassOptions:
    """Options of a pipeline.

    `skip`: names of optional passes that are left out.
    `verify`: whether every graph is verified behind its pass.
    """

    skip: frozenset[str] = frozenset()
    verify: bool = False


EVERY_PASS = PassOptions()
