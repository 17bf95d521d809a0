"""Brings the examples into the wheel, where `npu-hw example` finds them; all else stands in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExamples(build_py):
    """Copies examples/ beside the command that hands them out."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "toolchain" / "cli" / "examples"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree("examples", target, ignore=shutil.ignore_patterns("__pycache__", ".*", "*.npu"))


setup(cmdclass={"build_py": BuildWithExamples})
