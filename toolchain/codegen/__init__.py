"""From plans to bytes: lowering, synchronisation, linking, the model.npu container."""

from toolchain.codegen.assemble import container_of, island, reference_container
from toolchain.codegen.calls import shortened
from toolchain.codegen.container import MAGIC, container_from_bytes, container_to_bytes, read_container
from toolchain.codegen.image import image_files
from toolchain.codegen.link import link_region
from toolchain.codegen.model import Container, DramArea, Held, IoType, Island, LayerInfo, Occupied, Port, Region, Result
from toolchain.codegen.relocate import relocated

__all__ = [
    "MAGIC",
    "Container",
    "DramArea",
    "Held",
    "IoType",
    "Island",
    "LayerInfo",
    "Occupied",
    "Port",
    "Region",
    "Result",
    "container_from_bytes",
    "container_of",
    "container_to_bytes",
    "image_files",
    "island",
    "link_region",
    "read_container",
    "reference_container",
    "relocated",
    "shortened",
]
