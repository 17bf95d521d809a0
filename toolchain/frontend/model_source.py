"""Accept a model as its owner holds it: a file, bytes, a ModelProto, or a model of onnx-ir or torch.export."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import onnx

from toolchain.errors import first_line, is_out_of_memory, system_cause
from toolchain.foundation.atomic_files import read_limited
from toolchain.frontend.errors import refuse
from toolchain.input_limits import ONNX_BYTES

IN_MEMORY = "model"  # the name of a model that has no file, in messages and in the compiled file


@dataclass(frozen=True)
class ModelFile:
    """A serialized ONNX model: the file at `path`, or the bytes `data` where `path` is None."""

    path: Path | None
    data: bytes = b""

    def __str__(self) -> str:
        """Return the name for messages: the path, or "model" for a model in memory."""
        return IN_MEMORY if self.path is None else str(self.path)

    @property
    def name(self) -> str:
        """Return the name of the network, which the compiled file holds: the file's stem, "model" in memory."""
        return IN_MEMORY if self.path is None else self.path.stem

    @property
    def folder(self) -> Path | None:
        """Return the folder of external data; None for a model in memory."""
        return None if self.path is None else self.path.resolve().parent

    def read(self) -> bytes:
        """Return the model's bytes. Raise CompileError where the file cannot be read or is empty."""
        if self.path is not None and self.path.is_dir():
            raise refuse(str(self), "is a directory, not an ONNX file")
        try:
            data = self.data if self.path is None else read_limited(self.path, ONNX_BYTES)
        except OSError as fault:
            raise refuse(str(self), system_cause(fault)) from fault
        if not data:
            raise refuse(str(self), "the file is empty" if self.path is not None else "holds no bytes")
        return data


def _is_path(model: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a model is the path of a file."""
    return isinstance(model, str | os.PathLike)


def _is_buffer(model: object) -> TypeGuard[bytes | bytearray | memoryview]:
    """Return whether a model is bytes."""
    return isinstance(model, bytes | bytearray | memoryview)


def model_file(model: Any) -> ModelFile:
    """Return what a user gives as a model as a `ModelFile`, which is read later.

    `model`: a path, bytes, a ModelProto, an onnx_ir.Model, an ONNXProgram of torch.onnx.export, or a `ModelFile`.
    An object's weights are part of the bytes; those of a path or of bytes stay where they are.
    Raise CompileError for anything else, and for a model that cannot be serialized.
    """
    if isinstance(model, ModelFile):
        return model
    if _is_path(model):
        return ModelFile(Path(model))
    if _is_buffer(model):
        return ModelFile(None, bytes(model))
    try:
        proto = _make_proto(model)
        data = b"" if proto is None else proto.SerializeToString()
    except Exception as fault:  # of onnx_ir, protobuf or torch, which share no base class
        if is_out_of_memory(fault):
            raise
        way_out = "save it with onnx.save(model, path, save_as_external_data=True) and give the path"
        raise refuse(IN_MEMORY, f"cannot be serialized: {first_line(fault)}", way_out) from fault
    if proto is None:
        kind = f"{type(model).__module__}.{type(model).__qualname__}".removeprefix("builtins.")
        raise refuse(IN_MEMORY, f"is {kind}; give a path, bytes, an onnx.ModelProto or an onnx_ir.Model")
    return ModelFile(None, data)


def _make_proto(model: Any) -> onnx.ModelProto | None:
    """Return the model as a protobuf with the weights that its owner's objects reach; None of a foreign object."""
    if isinstance(model, onnx.ModelProto):
        return model
    ir = sys.modules.get("onnx_ir")  # who has such a model has imported it
    program_model = getattr(model, "model", None)
    if ir is None:
        return None
    graph_model = next((m for m in (model, program_model) if isinstance(m, ir.Model)), None)
    if graph_model is None:
        return None
    copied = graph_model.clone() if hasattr(graph_model, "clone") else graph_model  # its weights may lie in other folders
    return ir.to_proto(ir.external_data.load_to_model(copied))
