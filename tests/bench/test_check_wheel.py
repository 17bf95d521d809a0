"""bench/check_wheel.py: a command that fails ends the interpreter's line with its name and its message."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import check_wheel


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_program_that_fails_is_named_with_the_last_line_of_its_message(tmp_path: Path) -> None:
    for name in {command.split()[0] for command in check_wheel.COMMANDS}:
        write_program(tmp_path / name, "exit 0")
    assert tuple(check_wheel.try_programs(tmp_path, tmp_path)) == check_wheel.COMMANDS
    write_program(tmp_path / "npu-sim", "echo Traceback >&2; echo 'ImportError: no numpy' >&2; exit 1")
    with pytest.raises(check_wheel.FailedStep, match=r"npu-sim c\.npu --trace trace\.json: exit code 1: ImportError: no numpy$"):
        tuple(check_wheel.try_programs(tmp_path, tmp_path))


def test_an_interpreter_that_is_missing_or_hangs_is_a_failed_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(check_wheel.FailedStep, match=r"^no-such-python -m venv .*: .*No such file or directory"):
        check_wheel.install_wheel("no-such-python", tmp_path / "w.whl", tmp_path / "env")
    monkeypatch.setattr(check_wheel, "TIMEOUT_S", 0.1)
    with pytest.raises(check_wheel.FailedStep, match=r"^sleep 60: .* timed out after 0\.1 seconds$"):
        check_wheel.run_step(("sleep", "60"), tmp_path)


def test_a_wheel_that_cannot_be_built_ends_the_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_wheel, "ROOT", Path("/no/such/checkout"))
    assert check_wheel.main(["python3"]) == 1
    assert "pip wheel" in capsys.readouterr().out
