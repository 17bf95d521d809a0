"""Merge the operations of a prepared program, so that later runs take fewer and larger numpy calls.

Tiles of one layer become one evaluation, an operation over their whole output; copies between memories become none.
`merge_program` steps through the program once, by the numbers of its values (`value_numbers`), and proves what it merges.
`MergedProgram.run` gives the same DRAM as the program, without times. The simulator's backend uses it from a second run on.

A program has passed `check_program` before it is merged. So no access has a negative stride; `value_numbers.box_of` holds that.
"""

from simulator.merging.merge_program import merge_program
from simulator.merging.merged_program import MergedProgram

__all__ = ["MergedProgram", "merge_program"]
