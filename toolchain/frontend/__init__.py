"""ONNX in: read, bind shapes, fold constants, one spelling for each thing. docs/frontend.md describes the normal form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolchain.frontend.bind_by_data import ModelData
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


def __getattr__(name: str) -> Any:
    """onnx takes half a second to import; only those who load a model pay for it."""
    if name in __all__:
        from toolchain.frontend import (
            check_host_model,
            context_nodes,
            decomposition_pass,
            model,
            model_source,
            repeated_blocks,
            state_pairs,
        )

        homes = {
            "context_path": context_nodes,
            "find_host_model_fault": check_host_model,
            "read_context_model": context_nodes,
            "find_way_out": check_host_model,
            "tie_block_ranges": repeated_blocks,
            "pair_states": state_pairs,
            "ModelFile": model_source,
            "model_file": model_source,
            "apply_decompositions": decomposition_pass,
        }
        return getattr(homes.get(name, model), name)
    raise AttributeError(name)
