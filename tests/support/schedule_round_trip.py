"""Networks compiled as they are planned, and again by the schedule that was printed of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.golden import networks
from toolchain.codegen import Region
from toolchain.compiler import CompiledNetwork
from toolchain.isa import Machine
from toolchain.schedule.goals import CYCLES, Goal
from toolchain.schedule.nodes import RegionTree


def compiled(
    network: str, machine: str | Machine, level: int, schedule: Sequence[RegionTree] = (), goal: Goal = CYCLES
) -> CompiledNetwork:
    """One of the golden networks. schedule: as it is to be planned. goal: for what."""
    compile_model = networks.compile_model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "compile_model", lambda *given, **_: compile_model(*given, schedule=schedule, goal=goal))
        return networks.compile_network(network, machine, level)


def digest(made: CompiledNetwork) -> str:
    """Of its programs, constants and addresses."""
    return networks.program_digest([s for s in made.container.segments if isinstance(s, Region)])
