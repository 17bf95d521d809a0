"""Group the tensors of a float network whose factors depend on each other, for equalization (repair.equalize).

A group lies between nodes that take factors into their weights and nodes that take them out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from toolchain.ir.file_quantization import find_file_weights
from toolchain.ir.graph import OnnxNode, OnnxOp
from toolchain.ir.range_constraints import ClippedRange
from toolchain.repair.channels import Channels, Roles
from toolchain.repair.network import Network
from toolchain.repair.patterns import Array, clamp_bound

_ON_HOST = frozenset({"LayerNormalization", "Reshape"})  # need not be told of factors there, or take them for nothing
_FAR = float(np.finfo(np.float32).max)  # no end of a range


@dataclass
class Group:
    """A group of tensors whose factors depend on each other.

    `tensors`: their names, in the model's order.
    `makers`: nodes that take the factors into their weights.
    `takers`: nodes that take them out again, each with the tensor that it reads.
    `bounds`: bounds of the clamps between them.
    `host_reads`: nodes read a tensor that do not carry factors; they get it through a product without factors.
    `sound`: factors are possible at all; `find_groups` returns only such groups.
    `chip_makers`: a maker runs on the chip.
    `numbers`: int[c] by tensor, index of the group's factor of each channel.
    `powers`: power of the factor that each tensor carries.
    `shapes`: shape of each tensor's factors.
    `size`: number of factors.
    """

    tensors: list[str] = field(default_factory=list[str])
    makers: list[OnnxNode] = field(default_factory=list[OnnxNode])
    takers: list[tuple[OnnxNode, str]] = field(default_factory=list[tuple[OnnxNode, str]])
    bounds: list[float] = field(default_factory=list[float])
    host_reads: bool = False
    sound: bool = True
    chip_makers: bool = False
    numbers: Mapping[str, Array] = field(default_factory=dict[str, Array])
    powers: Mapping[str, float] = field(default_factory=dict[str, float])
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    size: int = 0

    def largest(self, each: Mapping[str, Array]) -> Array:
        """Return float64[size], the largest value of each factor's channels over some tensors, all brought to the power 1."""
        sizes = np.zeros(self.size)
        for name, values in each.items():
            np.maximum.at(sizes, self.numbers[name], values ** (1 / self.powers[name]))
        return sizes

    def peaks(self, peak_by_tensor: Mapping[str, Array]) -> Array:
        """Return float64[size], the largest of these peaks by channel of the group's tensors."""
        return self.largest({name: peak_by_tensor[name] for name in self.tensors if name in peak_by_tensor})

    def of(self, name: str, factors: Array) -> Array:
        """Return the factors of one tensor, float64[c], by those of the group."""
        return factors[self.numbers[name]] ** self.powers[name]

    def by_tensor(self, factors: Array) -> dict[str, Array]:
        """Return the factors of each tensor by those of the group."""
        return {name: self.of(name, factors) for name in self.tensors}


def find_groups(network: Network) -> list[Group]:
    """Return the groups whose factors may be chosen freely, in the order of the model's tensors.

    Left out are tensors whose scale is given, inputs and outputs, weights that keep the file's codes, and powers behind clamps.
    """
    graph, chip = network.model.graph, chip_nodes(network)
    channels = Channels(graph, lambda node: node.name in chip or node.op.op_type in _ON_HOST)
    groups: dict[str, Group] = {}
    producers, consumers = graph.producers(), graph.consumers()
    named = dict.fromkeys(n for node in graph.nodes for n in (*node.inputs, *node.outputs) if n and n not in graph.constants)
    for name in named:
        root, power = channels.find_root(name)
        group = groups.setdefault(root, Group())
        group.tensors.append(name)
        producer = producers.get(name)
        role = Roles() if producer is None else channels.roles[producer.name]
        has_fixed_scale = power is None or _is_given(name, network) or not graph.types[name].shape
        if producer is None or has_fixed_scale or not (role.makes or role.passes):
            group.sound = False
        elif role.makes:
            group.sound &= not find_file_weights(producer, network.model.stored)  # factors would take its codes from the file
            group.makers.append(producer)
            group.chip_makers |= producer.name in chip
        elif (bound := clamp_bound(producer, graph)) is not None:
            before = producers.get(producer.inputs[0])
            group.sound &= before is not None and channels.roles[before.name].makes  # else nobody says how far a channel reaches
            group.bounds.append(bound)
        for reader in consumers.get(name, ()):
            role = channels.roles[reader.name]
            if name in role.takes:
                group.sound &= not find_file_weights(reader, network.model.stored)
                group.takers.append((reader, name))
            elif name not in role.passes:
                group.sound &= reader.name not in chip
                group.host_reads = True
    sound_groups = [_number_channels(g, channels) for g in groups.values() if g.sound]
    return [g for g in sound_groups if not g.bounds or set(g.powers.values()) == {1.0}]


def _is_given(name: str, network: Network) -> bool:
    """Return whether a tensor's scale or its ends are fixed by something else than calibration."""
    graph, inner = network.model.graph, network.model.inner.get(name)
    ends = isinstance(inner, ClippedRange) and any(0 < abs(end) < _FAR for end in (inner.low, inner.high))
    has_fixed_range = name in network.selection.file_ranges or not isinstance(inner, ClippedRange | None) or ends
    return has_fixed_range or name in graph.outputs or graph.types[name].dtype != "float32"


def _number_channels(group: Group, channels: Channels) -> Group:
    """Return the group with its channels numbered; its factors are those of its first maker's output."""
    numbers, size = channels.numbers(group.tensors)
    powers = {name: channels.find_root(name)[1] or Fraction(1) for name in group.tensors}
    first = powers[group.makers[0].outputs[0]] if group.makers else Fraction(1)
    ratios = {name: float(power / first) for name, power in powers.items()}
    return replace(group, numbers=numbers, powers=ratios, shapes=channels.shapes(group.tensors), size=size)


def chip_nodes(network: Network) -> frozenset[str]:
    """Return the names of the nodes of the canonical form that the chip runs."""
    hosted = {s for n in network.selection.graph.nodes if isinstance(n.op, OnnxOp) for s in (n.name, *n.sources)}
    return frozenset(n.name for n in network.model.graph.nodes if hosted.isdisjoint((n.name, *n.sources)))
