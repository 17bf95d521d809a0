"""TOSA's TABLE, run by the TOSA reference model (tests only)."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np


def missing() -> str | None:
    """The reason why the reference model cannot run here, or None."""
    for module in ("tosa_serializer", "tosa_reference_model"):
        if importlib.util.find_spec(module) is None:
            return "tosa-tools is not installed (pip install --no-deps tosa-tools)"
    return None


def run_table(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return int8 for x: int8 and table int8[256], or int32 for x: int16 and table int16[513]."""
    tosa: Any = importlib.import_module("tosa_serializer")
    model: Any = importlib.import_module("tosa_reference_model")
    types = {"int8": tosa.DType.INT8, "int16": tosa.DType.INT16, "int32": tosa.DType.INT32}
    out = "int8" if x.dtype == np.int8 else "int32"
    graph = tosa.TosaSerializer()
    source = graph.addPlaceholder(list(x.shape), types[x.dtype.name], None)  # with values it would write a file
    entries = graph.addConst(list(table.shape), types[table.dtype.name], table)
    result = graph.addOutput(list(x.shape), types[out])
    attribute = tosa.TosaSerializerAttribute()
    attribute.TableAttribute()
    name = [getattr(t, "name", t) for t in (source, entries, result)]
    graph.addOperator(tosa.Op.TABLE, name[:2], name[2:], attribute)
    outputs, status = model.run(graph.serialize(), [x])
    if status != model.GraphStatus.TOSA_VALID:
        raise ValueError(f"the TOSA reference model says {status}")
    return np.array(outputs[0]).view(out).reshape(x.shape)
