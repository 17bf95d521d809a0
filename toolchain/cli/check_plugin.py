"""Run the checks of `npu-build --check-plugin` and print what they find."""

from __future__ import annotations

from pathlib import Path

import typer

from toolchain.cli.application import report_errors, say
from toolchain.errors import CompileError


def check_plugin_option(file: Path | None) -> None:
    """Check a plug-in, print a line for each check, and exit: with 1 where one fails, with 2 where the file cannot be loaded."""
    if file is None:
        return
    with report_errors():
        from toolchain.plugin_check import check_plugin
        from toolchain.plugin_loading import load_plugin

        try:
            loaded = load_plugin(file)
        except CompileError as fault:
            raise CompileError(f"--check-{fault}") from None
        say(f"{loaded.label}: {', '.join(operator.DOMAIN + '.' + operator.__name__ for operator in loaded.plugin.operators)}")
        failures = 0
        for finding in check_plugin(loaded):
            say(f"{finding.verdict}  {finding.check}: {finding.text}")
            failures += not finding.passed
        say(f"{failures} of the checks failed" if failures else "all checks passed")
    raise typer.Exit(1 if failures else 0)
