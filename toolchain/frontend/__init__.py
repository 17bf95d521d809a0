"""ONNX in: read, bind shapes, fold constants, one spelling for each thing. docs/frontend.md describes the normal form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolchain.frontend.alike import with_blocks_alike
    from toolchain.frontend.decompose import with_steps
    from toolchain.frontend.from_data import ModelData
    from toolchain.frontend.island import island_fault
    from toolchain.frontend.model import NormalModel, extract, load_model, to_graph
    from toolchain.frontend.states import with_states

__all__ = [
    "ModelData",
    "NormalModel",
    "extract",
    "island_fault",
    "load_model",
    "to_graph",
    "with_blocks_alike",
    "with_states",
    "with_steps",
]


def __getattr__(name: str) -> Any:
    """onnx takes half a second to import; only those who load a model pay for it."""
    if name in __all__:
        from toolchain.frontend import alike, decompose, island, model, states

        homes = {"island_fault": island, "with_blocks_alike": alike, "with_states": states, "with_steps": decompose}
        return getattr(homes.get(name, model), name)
    raise AttributeError(name)
