"""The machine operations: one class for each, in the files of this folder, with one meaning on all machines.

A machine's instruction table binds each operation's parameters to bits or registers; compiler and simulator know only
these classes.

Common to all: addresses and strides are in bytes. A feature map is channels-last with contiguous channels, unless a
channel stride or surface stride says otherwise. Codes have the type that a parameter names, or the machine's only one;
they are little-endian. Rounding, overflow and table form are `chip.numerics`. Rows and columns outside the input are
padding: before its beginning by `pad_top` and `pad_left`, or beyond its far edge. They read as the input's zero point,
for a max pool as the least value.
"""
