"""Import an ONNX model: read it, bind its shapes, fold constants, and write every operator in one canonical form.

`load_model` does all of it; its result, a `NormalModel`, is what every later stage starts from (docs/frontend.md).
The package imports a module, and onnx with it, when one of its exported names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolchain.foundation.module_registry import export_lazily

if TYPE_CHECKING:
    from toolchain.frontend.bind_values import ModelData
    from toolchain.frontend.check_host_model import find_host_model_fault, find_way_out
    from toolchain.frontend.context_nodes import context_path, read_context_model
    from toolchain.frontend.decomposition_pass import apply_decompositions
    from toolchain.frontend.model import NormalModel, extract, load_model, to_graph
    from toolchain.frontend.model_source import ModelFile, model_file
    from toolchain.frontend.repeated_blocks import tie_block_ranges
    from toolchain.frontend.state_pairs import pair_states

__all__ = [
    "ModelData",
    "ModelFile",
    "NormalModel",
    "apply_decompositions",
    "context_path",
    "extract",
    "find_host_model_fault",
    "find_way_out",
    "load_model",
    "model_file",
    "pair_states",
    "read_context_model",
    "tie_block_ranges",
    "to_graph",
]

# onnx takes half a second to import; only those who load a model pay for it
__getattr__ = export_lazily(
    __name__,
    {
        "bind_values": ("ModelData",),
        "check_host_model": ("find_host_model_fault", "find_way_out"),
        "context_nodes": ("context_path", "read_context_model"),
        "decomposition_pass": ("apply_decompositions",),
        "model": ("NormalModel", "extract", "load_model", "to_graph"),
        "model_source": ("ModelFile", "model_file"),
        "repeated_blocks": ("tie_block_ranges",),
        "state_pairs": ("pair_states",),
    },
)
