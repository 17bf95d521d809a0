"""A model for onnxruntime, ready to be opened: how the frontend hands float networks to those who run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class FloatSubmodel:
    """A serialized ONNX model, or its file, that reads `inputs` and makes `outputs`.

    `folder`: where its external data lies.
    `dims`: values of dimensions that the model leaves open by name.
    `weights`: initializers whose values are not in the model; they are not copied.
    `extra_inputs`: inputs beside those, and their values.
    """

    model: bytes | Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    folder: str = ""
    dims: tuple[tuple[str, int], ...] = ()
    weights: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    extra_inputs: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
