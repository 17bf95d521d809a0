"""Compute what no schedule of a network can avoid on its machine: bytes of DRAM, cycles of units and ports."""
