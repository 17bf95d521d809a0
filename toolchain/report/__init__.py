"""Judge and describe a finished build: its figures with their bounds, accuracy by part, layers to blame, and all of it as text.

What other packages use is exported here and imported on its first use.
"""

from typing import TYPE_CHECKING

from toolchain.foundation.module_registry import export_lazily

if TYPE_CHECKING:
    from toolchain.report.explain import explain_nodes
    from toolchain.report.frontend_check import check_frontend
    from toolchain.report.metrics import collect_metrics, get_untimed_figures
    from toolchain.report.requantized_weights import list_requantized_weights
    from toolchain.report.warnings import (
        calibration_warnings,
        few_values_warnings,
        host_warnings,
        idle_warnings,
        make_joined_range_warnings,
        make_skipped_warnings,
        not_finite_warnings,
        unseen_warnings,
    )

__all__ = [
    "calibration_warnings",
    "check_frontend",
    "collect_metrics",
    "explain_nodes",
    "few_values_warnings",
    "get_untimed_figures",
    "host_warnings",
    "idle_warnings",
    "list_requantized_weights",
    "make_joined_range_warnings",
    "make_skipped_warnings",
    "not_finite_warnings",
    "unseen_warnings",
]

__getattr__ = export_lazily(
    __name__,
    {
        "explain": ("explain_nodes",),
        "frontend_check": ("check_frontend",),
        "metrics": ("collect_metrics", "get_untimed_figures"),
        "requantized_weights": ("list_requantized_weights",),
        "warnings": (
            "calibration_warnings",
            "few_values_warnings",
            "host_warnings",
            "idle_warnings",
            "make_joined_range_warnings",
            "make_skipped_warnings",
            "not_finite_warnings",
            "unseen_warnings",
        ),
    },
)
