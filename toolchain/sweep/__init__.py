"""Build many points of machines, networks and options, store their results, and show the best of them (npu-sweep,
docs/sweeps.md)."""

from __future__ import annotations

from toolchain.sweep.engines import Engine, run_here, run_on_cluster
from toolchain.sweep.metrics import DEFAULT_OBJECTIVES, OBJECTIVES, Objective, find_objectives
from toolchain.sweep.page import sweep_page
from toolchain.sweep.pareto_picture import pareto_pictures
from toolchain.sweep.points import Point, list_grid
from toolchain.sweep.run_sweep import Evaluator, Row, SweepRun, find_front, run_grid, run_search
from toolchain.sweep.store import Store
from toolchain.sweep.sweep_file import Sweep, read_sweep
from toolchain.sweep.tables import csv_table, parquet_table

__all__ = [
    "DEFAULT_OBJECTIVES",
    "OBJECTIVES",
    "Engine",
    "Evaluator",
    "Objective",
    "Point",
    "Row",
    "Store",
    "Sweep",
    "SweepRun",
    "csv_table",
    "find_front",
    "find_objectives",
    "list_grid",
    "pareto_pictures",
    "parquet_table",
    "read_sweep",
    "run_grid",
    "run_here",
    "run_on_cluster",
    "run_search",
    "sweep_page",
]
