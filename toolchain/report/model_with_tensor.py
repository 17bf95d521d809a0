"""Run the float network with one tensor given beside its inputs, so that a change of this tensor shows at the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quant.producer_links import SHAPE_OPS
from toolchain.frontend import NormalModel
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.ir.graph import OnnxGraph


@dataclass(frozen=True)
class ModelWithTensor:
    """A float network with one tensor given beside its inputs."""

    model: NormalModel
    tensor: str

    @property
    def inputs(self) -> Sequence[str]:
        """Return the names of the inputs and of the tensor."""
        return (*self.model.inputs, self.tensor)

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        """Yield the model that computes these tensors."""
        yield self.model.normal_part(self.inputs, names)


def list_ends(graph: OnnxGraph) -> list[str]:
    """Return the float tensors that the outputs hold, in parts where they are joined: a part cannot hide behind a larger one."""
    producers, tensors, pending = graph.producers(), dict[str, None](), list(reversed(graph.outputs))
    while pending:
        name = pending.pop()
        node = producers.get(name)
        if node is None or node.op.op_type not in SHAPE_OPS:
            tensors[name] = None
        else:
            pending += [n for n in reversed(node.inputs[: None if node.op.op_type == "Concat" else 1]) if n]
    return [n for n in tensors if graph.types[n].dtype.startswith("float") and n not in graph.constants]
