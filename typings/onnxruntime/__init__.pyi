"""Types of what this project calls in onnxruntime, which ships none. Source: its Python API, 1.20 to 1.32."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

__version__: str

class GraphOptimizationLevel:
    ORT_DISABLE_ALL: GraphOptimizationLevel
    ORT_ENABLE_ALL: GraphOptimizationLevel

class OrtValue:
    @staticmethod
    def ortvalue_from_numpy(numpy_obj: np.ndarray) -> OrtValue: ...

class SessionOptions:
    intra_op_num_threads: int
    inter_op_num_threads: int
    log_severity_level: int
    graph_optimization_level: GraphOptimizationLevel
    optimized_model_filepath: str
    use_deterministic_compute: bool
    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    def register_custom_ops_library(self, path: str) -> None: ...
    def add_free_dimension_override_by_name(self, name: str, size: int) -> None: ...
    def add_session_config_entry(self, key: str, value: str) -> None: ...
    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None: ...

class RunOptions:
    terminate: bool

class NodeArg:
    name: str
    type: str
    shape: list[Any]  # of an int; a str names a dimension, None is an unknown one

class OrtEpAssignedNode:
    name: str
    op_type: str

class OrtEpAssignedSubgraph:
    ep_name: str
    def get_nodes(self) -> list[OrtEpAssignedNode]: ...

class InferenceSession:
    def __init__(
        self,
        path_or_bytes: str | bytes | PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[str, str]]] | None = None,
        *,
        disabled_optimizers: Sequence[str] | None = None,
        enable_fallback: int = ...,
    ) -> None: ...
    # an output is an array, or for other types of ONNX a list or a dict
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]: ...
    def get_inputs(self) -> list[NodeArg]: ...
    def get_outputs(self) -> list[NodeArg]: ...
    def get_providers(self) -> list[str]: ...
    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]: ...

def get_available_providers() -> list[str]: ...
def set_default_logger_severity(severity: int) -> None: ...
def preload_dlls() -> None: ...
