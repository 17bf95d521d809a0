"""Merges the operations of a prepared program: tiles of one layer become one evaluation, copies between memories none.

A program has passed `check_program` before it is merged. So no access has a negative stride; `value_numbers.box_of` holds that.
"""

from simulator.merging.merge_program import merge_program
from simulator.merging.merged_program import MergedProgram

__all__ = ["MergedProgram", "merge_program"]
