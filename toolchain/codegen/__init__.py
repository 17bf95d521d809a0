"""From plans to bytes: lowering, synchronisation, linking, the model.npu container."""

from toolchain.codegen.assemble import container_of, island, reference_container
from toolchain.codegen.calls import shortened
from toolchain.codegen.container import MAGIC, MAIN, container_from_bytes, entries_from_bytes, read_container, read_entries
from toolchain.codegen.container_writer import container_to_bytes, entries_to_bytes
from toolchain.codegen.image import image_files, images_of_entries
from toolchain.codegen.link import link_region, require_dram
from toolchain.codegen.model import Container, DramArea, Held, IoType, Island, LayerInfo, Occupied, Port, Region, Result, State
from toolchain.codegen.relocate import relocated
from toolchain.codegen.states import StillRead

__all__ = [
    "MAGIC",
    "MAIN",
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
    "State",
    "StillRead",
    "container_from_bytes",
    "container_of",
    "container_to_bytes",
    "entries_from_bytes",
    "entries_to_bytes",
    "image_files",
    "images_of_entries",
    "island",
    "link_region",
    "read_container",
    "read_entries",
    "reference_container",
    "relocated",
    "require_dram",
    "shortened",
]
