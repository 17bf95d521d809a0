#!/usr/bin/env python3
"""Draws the plot of an error report: of the shipped classifier, in which one range is 20 times too wide.

python bench/draw_error_report.py docs/error_report.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import inject_faults
import numpy as np

from toolchain.cli.application import report_errors, require_writable
from toolchain.foundation.atomic_files import write_atomically
from toolchain.isa import load_machine
from toolchain.report.error_page import plot

CLASSIFIER = Path(__file__).resolve().parents[1] / "examples" / "classifier"


def drawing() -> str:
    """Return the plot as SVG text."""
    with np.load(CLASSIFIER / "calib.npz") as data:
        samples = [{"x": x[None].astype(np.float32)} for x in data["x"][:20]]
    subject = inject_faults.Subject(CLASSIFIER / "classifier.onnx", {"x": (1, 1, 28, 28)}, samples[:16], samples[16:])
    planted = inject_faults.wide(subject, load_machine("edge16"), np.random.default_rng(0))
    return plot(inject_faults.report_of(planted, subject.others).rows) + "\n"


def main() -> None:
    """Write the plot to the file of the command line."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    with report_errors():
        require_writable({"OUTPUT": options.output}, {})
        write_atomically(options.output, drawing().encode())


if __name__ == "__main__":
    main()
