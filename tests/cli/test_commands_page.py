"""docs/commands.md is what the commands say of themselves; --help has groups, --version the version."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from scripts.commands_page import page
from toolchain import __version__
from toolchain.cli.application import application
from toolchain.cli.build import EXAMPLES, build_command
from toolchain.cli.dis import app as dis_app
from toolchain.cli.hw import app as hw_app
from toolchain.cli.sim import sim_command

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"


def test_the_page_is_generated() -> None:
    assert PAGE.read_text() == page(), "run: python scripts/commands_page.py > docs/commands.md"


@pytest.mark.parametrize("app", [application(build_command), application(sim_command), dis_app, hw_app])
def test_every_command_tells_the_version(app: Typer) -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"npu-toolchain {__version__}\n")


def test_help_lists_options_by_group_with_an_example() -> None:
    lines = CliRunner().invoke(application(build_command, EXAMPLES), ["--help"]).output.splitlines()
    groups = [line.rstrip(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert groups == ["Arguments", *EXAMPLES, "Options"]
    assert [line.strip() for line in lines if "Example:" in line] == [f"Example: {line}" for line in EXAMPLES.values()]
