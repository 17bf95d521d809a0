"""Figures with their bounds, fidelity by part, and both as text."""

from toolchain.report.agreement import agreed
from toolchain.report.explain import explained
from toolchain.report.fidelity import fidelity
from toolchain.report.figures import run_figures, untimed_figures
from toolchain.report.kept import rounded_anew_notes
from toolchain.report.warnings import (
    calibration_warnings,
    few_values_warnings,
    host_warnings,
    idle_warnings,
    joined_warnings,
    not_finite_warnings,
    skipped_warnings,
    unseen_warnings,
)

__all__ = [
    "agreed",
    "calibration_warnings",
    "explained",
    "few_values_warnings",
    "fidelity",
    "host_warnings",
    "idle_warnings",
    "joined_warnings",
    "not_finite_warnings",
    "rounded_anew_notes",
    "run_figures",
    "skipped_warnings",
    "unseen_warnings",
    "untimed_figures",
]
