"""A model for onnxruntime, ready to be opened: how the frontend hands float networks to those who run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class FloatSubmodel:
    """Serialized ONNX, or its file, that reads `inputs` and makes `outputs`; its external data lies in `folder`, and dimensions
    that it leaves open by name have `dims`. `weights` are initializers whose values are not in it; they are not copied. `given`:
    inputs beside those, and their values."""

    model: bytes | Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    folder: str = ""
    dims: tuple[tuple[str, int], ...] = ()
    weights: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    given: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
