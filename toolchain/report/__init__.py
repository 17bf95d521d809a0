"""Figures with their bounds, fidelity by part, and both as text."""

from toolchain.report.explain import explained
from toolchain.report.fidelity import fidelity
from toolchain.report.figures import run_figures

__all__ = ["explained", "fidelity", "run_figures"]
