"""Define the form in which the frontend hands float networks to calibration and reports, which run them in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class FloatSubmodel:
    """A float ONNX model that reads `inputs` and makes `outputs`, ready to be opened by onnxruntime.

    `model`: the serialized ModelProto, or the path of its file.
    `folder`: where external data of serialized bytes lies; "" where there is none.
    `dims`: (name, size) of dimensions that the model leaves open by name.
    `weights`: initializers by name whose values are not in `model`; the arrays are shared, not copied.
    `extra_inputs`: further inputs of the model, and the values to feed them in every run.
    """

    model: bytes | Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    folder: str = ""
    dims: tuple[tuple[str, int], ...] = ()
    weights: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    extra_inputs: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
