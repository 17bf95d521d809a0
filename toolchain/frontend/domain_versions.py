"""Check the versions of domains outside ONNX that a model imports against those that plug-ins and libraries know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from toolchain.frontend.errors import NodeFault
from toolchain.frontend.read_onnx import DOMAINS, FOREIGN
from toolchain.frontend.subgraphs import graphs_of
from toolchain.plugin import find_operator

_LIBRARY_VERSION = 1  # host models import it of each domain but ONNX's


def check_domain_versions(proto: onnx.ModelProto) -> None:
    """Raise CompileError where a model imports a version of a domain in which its operator may mean something else."""
    versions = {opset.domain: opset.version for opset in proto.opset_import}
    faults = [*_list_faults(proto.graph, versions)]
    if faults:
        raise NodeFault(faults)


def _list_faults(graph: onnx.GraphProto, versions: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the fault of each node of an unknown version, with the way out."""
    for index, node in enumerate(graph.node):
        definition, version = find_operator(node.domain, node.op_type), versions.get(node.domain, 1)
        thing = f"node {node.name or f'{node.op_type}_{index}'} ({node.op_type})"
        thing = f'{thing}: the model imports version {version} of "{node.domain}"'
        if definition is not None:
            loaded, operator = definition
            if version > operator.DOMAIN_VERSION:
                yield (
                    f"{thing}, plug-in {loaded.plugin.name} defines the operator of version {operator.DOMAIN_VERSION}",
                    f"write DOMAIN_VERSION = {version} into its class where it means the same, or export with the older version",
                )
        elif node.domain not in (*DOMAINS, *FOREIGN, "ai.onnx") and version != _LIBRARY_VERSION:
            yield (
                f"{thing}, libraries of --custom-ops run it as version {_LIBRARY_VERSION}",
                "export with that version, or give a plug-in that defines it (--plugin FILE.py)",
            )
        for subgraph in graphs_of(node):
            yield from _list_faults(subgraph, versions)
