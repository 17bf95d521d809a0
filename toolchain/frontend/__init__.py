"""ONNX in: read, bind shapes, fold constants, one spelling for each thing. docs/frontend.md describes the normal form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolchain.frontend.island import island_fault
    from toolchain.frontend.model import NormalModel, extract, load_model, to_graph

__all__ = ["NormalModel", "extract", "island_fault", "load_model", "to_graph"]


def __getattr__(name: str) -> Any:
    """onnx takes half a second to import; only those who load a model pay for it."""
    if name in __all__:
        from toolchain.frontend import island, model

        return getattr(island if name == "island_fault" else model, name)
    raise AttributeError(name)
