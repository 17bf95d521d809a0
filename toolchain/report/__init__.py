"""Figures with their bounds, fidelity by part, and both as text."""

from toolchain.report.explain import explain_nodes
from toolchain.report.fidelity import fidelity
from toolchain.report.frontend_check import check_frontend
from toolchain.report.metrics import collect_metrics, untimed_figures
from toolchain.report.requantized_weights import list_requantized_weights
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
    "calibration_warnings",
    "check_frontend",
    "collect_metrics",
    "explain_nodes",
    "few_values_warnings",
    "fidelity",
    "host_warnings",
    "idle_warnings",
    "joined_warnings",
    "list_requantized_weights",
    "not_finite_warnings",
    "skipped_warnings",
    "unseen_warnings",
    "untimed_figures",
]
