"""Define the machine operations: everything a machine can be asked to do, each a class in a file of this folder
with one meaning.

A machine's instruction table binds each operation's parameters to bits or registers; compiler and simulator
know only these.

Common to all: addresses and strides are bytes.
A feature map is channels-last with contiguous elements along channels unless a channel stride or a surface
stride says otherwise.
Activations are `chip.numerics.activation` (int16 little-endian). Rounding, overflow and table form are
`chip.numerics`.
Rows and columns outside the input, reached through `pad_top`/`pad_left` or beyond its far edge, read as the
input's zero point.
For a max pool they read as the least value.
"""
