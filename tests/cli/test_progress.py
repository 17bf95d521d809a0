"""Progress where stderr is no terminal: a line at each interval, none for short work."""

from __future__ import annotations

import time

import pytest

from toolchain.cli.progress import format_progress, make_progress_bar


def test_a_log_gets_a_line_at_each_interval_while_one_step_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress_bar(interval_s=0.05) as progress:
        progress("compile", 1, 3)
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert set(lines) == {"progress: 0 s, compile, 1 of 3 done"}


def test_short_work_writes_nothing_and_its_end_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    began_s = time.monotonic()
    with pytest.raises(KeyError), make_progress_bar() as progress:
        progress("load", 0, None)
        raise KeyError
    assert time.monotonic() - began_s < 5
    assert capsys.readouterr().err == ""


def test_a_stage_of_unknown_length_says_only_its_name() -> None:
    assert format_progress("check", 0, None, 12.4) == "progress: 12 s, check"
