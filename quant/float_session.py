"""Sessions of onnxruntime that compute what the model says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
