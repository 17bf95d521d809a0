"""The deployment toolchain: from an ONNX model and a machine's YAML to a program and its report."""

import sys
from pathlib import Path

from toolchain.package_check import find_hidden_package

_ROOT = Path(__file__).resolve().parents[1]
# `python -m toolchain.reference` looks for modules in the caller's folder first: a quant.py there is none of ours.
if sys.argv[:1] == ["-m"] and Path(sys.path[0]).resolve() != _ROOT:
    del sys.path[0]

if (_hidden := find_hidden_package(_ROOT)) is not None:
    if sys.argv and Path(sys.argv[0]).name.startswith("npu-"):  # a command, which ends in one sentence
        print(_hidden, file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(_hidden)

__version__ = "0.2.0"
