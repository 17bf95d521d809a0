"""What no schedule of a network can do without on its machine: bytes of DRAM, cycles of units and ports."""
