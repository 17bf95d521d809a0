"""Merges the operations of a prepared program: tiles of one layer become one evaluation, copies between memories none."""

from simulator.merging.merge_program import merge_program
from simulator.merging.merged_program import MergedProgram

__all__ = ["MergedProgram", "merge_program"]
