"""Run compiled models: chip regions on a backend (the simulator, the integer reference, or others), host subgraphs in
onnxruntime."""

from toolchain.runtime.backend import GROUP, Backend, Execution, LoadedProgram, Program
from toolchain.runtime.binding import IoBinding
from toolchain.runtime.builtin_backends import dram_image, dram_parts, read_port, write_port
from toolchain.runtime.context_model import SOURCE, name_partitions
from toolchain.runtime.dump_memory import DumpPoint, memory_files, parse_stop
from toolchain.runtime.entry_dispatch import EntriesSession
from toolchain.runtime.feeds import check_feeds, random_feeds
from toolchain.runtime.ports import model_shape
from toolchain.runtime.session import ModelMetadata, Run, SegmentRun, Session
from toolchain.runtime.verify import verify

__all__ = [
    "GROUP",
    "SOURCE",
    "Backend",
    "DumpPoint",
    "EntriesSession",
    "Execution",
    "IoBinding",
    "LoadedProgram",
    "ModelMetadata",
    "Program",
    "Run",
    "SegmentRun",
    "Session",
    "check_feeds",
    "dram_image",
    "dram_parts",
    "memory_files",
    "model_shape",
    "name_partitions",
    "parse_stop",
    "random_feeds",
    "read_port",
    "verify",
    "write_port",
]
