"""Figures with their bounds, fidelity by part, and both as text."""

from toolchain.report.agreement import agreed
from toolchain.report.explain import explained
from toolchain.report.fidelity import fidelity
from toolchain.report.figures import run_figures

__all__ = ["agreed", "explained", "fidelity", "run_figures"]
