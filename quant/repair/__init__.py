"""Numerics of repair, which refines a quantized network: rounding of weights, biases and offsets from arrays alone.

`toolchain.repair` walks the network over samples and calls these functions (docs/repair.md). `choices` has the data types of its
results, and `file` their form in the parameters file.
"""
