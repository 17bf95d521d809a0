"""Turn plans into compiled files: lowering, linking, synchronisation, outlining, and the `model.npu` container."""

from typing import TYPE_CHECKING

from toolchain.foundation.module_registry import export_lazily

if TYPE_CHECKING:
    from toolchain.codegen.container import MAGIC, MAIN, container_from_bytes, entries_from_bytes, read_container, read_entries
    from toolchain.codegen.container_builder import build_container, build_host_subgraph, reference_container
    from toolchain.codegen.container_writer import container_to_bytes, entries_to_bytes
    from toolchain.codegen.link import DramTooSmall, link_region, require_dram
    from toolchain.codegen.memory_images import image_files, images_of_entries
    from toolchain.codegen.model import (
        AreaContent,
        Container,
        DramArea,
        HostSubgraph,
        IoType,
        LayerInfo,
        LayerResult,
        MemoryUse,
        Port,
        Region,
        State,
    )
    from toolchain.codegen.outline import outline_region
    from toolchain.codegen.place_states import StillRead
    from toolchain.codegen.relocate import relocate_container
    from toolchain.codegen.verify_container import reading_layers

__all__ = [
    "MAGIC",
    "MAIN",
    "AreaContent",
    "Container",
    "DramArea",
    "DramTooSmall",
    "HostSubgraph",
    "IoType",
    "LayerInfo",
    "LayerResult",
    "MemoryUse",
    "Port",
    "Region",
    "State",
    "StillRead",
    "build_container",
    "build_host_subgraph",
    "container_from_bytes",
    "container_to_bytes",
    "entries_from_bytes",
    "entries_to_bytes",
    "image_files",
    "images_of_entries",
    "link_region",
    "outline_region",
    "read_container",
    "read_entries",
    "reading_layers",
    "reference_container",
    "relocate_container",
    "require_dram",
]

__getattr__ = export_lazily(
    __name__,
    {
        "container": ("MAGIC", "MAIN", "container_from_bytes", "entries_from_bytes", "read_container", "read_entries"),
        "container_builder": ("build_container", "build_host_subgraph", "reference_container"),
        "container_writer": ("container_to_bytes", "entries_to_bytes"),
        "link": ("DramTooSmall", "link_region", "require_dram"),
        "memory_images": ("image_files", "images_of_entries"),
        "model": (
            "AreaContent",
            "Container",
            "DramArea",
            "HostSubgraph",
            "IoType",
            "LayerInfo",
            "LayerResult",
            "MemoryUse",
            "Port",
            "Region",
            "State",
        ),
        "outline": ("outline_region",),
        "place_states": ("StillRead",),
        "relocate": ("relocate_container",),
        "verify_container": ("reading_layers",),
    },
)
