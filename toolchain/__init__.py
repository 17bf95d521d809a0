"""The deployment toolchain: from an ONNX model and a machine's YAML to a program and its report."""

import sys
from pathlib import Path

# `python -m toolchain.reference` looks for modules in the caller's folder first: a quant.py there is none of ours.
if sys.argv[:1] == ["-m"] and Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    del sys.path[0]

__version__ = "0.2.0"
