"""Sessions of onnxruntime that compute what the model says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

# The rule that takes a Pad into a pool makes a model that does not load where the padding is as wide as the window, and
# loses windows of pools with ceil_mode (seen in onnxruntime 1.31).
WRONG_FUSIONS = ["Pad_Fusion"]


def open_session(model: bytes | str | Path, *, threads: int = 1, providers: Sequence[str] = ("CPUExecutionProvider",)) -> Any:
    """An onnxruntime.InferenceSession of a model or its file, on these providers alone.

    Raises what onnxruntime raises, which shares no base class.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what it logs it also raises
    return onnxruntime.InferenceSession(
        model, options, providers=list(providers), disabled_optimizers=WRONG_FUSIONS, enable_fallback=0
    )


def open_tapped(model: onnx.ModelProto, outputs: Sequence[str], *, threads: int = 1) -> Any:
    """A session of the model with these tensors of its nodes for outputs; what it declares no type of is float32."""
    import onnx

    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    declared = {v.name: v for v in (*model.graph.value_info, *model.graph.output)}
    del extended.graph.output[:]
    for name in outputs:
        # onnxruntime infers the shape itself; a type is all it asks for
        untyped = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        extended.graph.output.append(declared.get(name, untyped))
    serialized = extended.SerializeToString()
    del extended  # the weights need not be held once more
    return open_session(serialized, threads=threads)
