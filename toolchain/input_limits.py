"""Define limits on everything that the readers accept. docs/security.md lists these figures; a test holds the page to them.

A stranger's file must not cost more than its size suggests: every reader stops at its bound with one sentence. The bounds stand
far above what models, machines and data need. The end of a name says the unit; numbers without one are counts. ONNX_NODES
counts with functions written out, ITERATIONS are of one Loop or Scan. CLAIMED_ELEMENTS bounds an input whose size the file
alone says. FOLDED_BYTES bounds how much larger computed constants may be than their sources. ARRAY_BYTES and FAULTS are of one
file, IMAGE_PIXELS of one picture. DISPATCHED_OPERATIONS are of one region with repeats and calls written out. STREAM_BYTES are
of a pipe or device.
"""

from __future__ import annotations

# Faults
FAULTS = 100  # told of one file, and lines of any message
MESSAGE_LINE = 1000  # characters

STREAM_BYTES = 1 << 28  # of a pipe or a device, whatever it is read as

# YAML: machines, instruction tables, parameters files, preprocess.yaml
YAML_BYTES = 4 << 20
ENCODINGS_BYTES = 1 << 26  # of weights too, a scale a channel
YAML_NODES = 100_000  # keys, values and sections, an alias counted as what it stands for
YAML_DEPTH = 32
NUMBER_CHARACTERS = 64  # of a number written in YAML, a listing or a buffer file

# ONNX
ONNX_BYTES = 1 << 31  # protobuf's own bound
ONNX_NODES = 100_000  # with the model's functions written out
ONNX_FUNCTIONS = 1000
ITERATIONS = 4096  # of one Loop or Scan, which are written out
TENSOR_ELEMENTS = 1 << 28  # of one tensor: 1 GiB of float32
CLAIMED_ELEMENTS = 1 << 24  # of an input whose size the file alone says; data or --shape confirm larger ones
FOLDED_BYTES = 1 << 29  # by which values computed from constants may be larger than the constants, all together

# Arrays (.npz, .npy)
ARRAY_MEMBERS = 1000  # arrays of one file
ARRAY_BYTES = 1 << 31  # of what is held at once; calibration data is streamed and may be longer

# Images
IMAGE_FORMATS = ("PNG", "JPEG", "BMP")
IMAGE_PIXELS = 1 << 26  # of the file, and of the picture scaled to the input

# Compiled models
PROGRAM_FILE_BYTES = 1 << 32
DISPATCHED_OPERATIONS = 1 << 22  # of one region's program, with repeats and calls written out
DRAM_BYTES = 1 << 31  # of the image that one region runs on
SRAM_BYTES = 1 << 30  # of a machine: the simulator holds all of it
ENTRIES = 64  # programs for so many sets of input shapes in one file
HEADER_RANK = 32  # dimensions of an input, an output or a port
LISTING_BYTES = 1 << 28
LISTING_LINES = 4_000_000
SCHEDULE_BYTES = 1 << 26
