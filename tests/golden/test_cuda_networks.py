"""The example networks on the backend `cuda`: every region's bytes are the reference's, on a stand-in for CuPy and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from networks import NETWORKS, compile_network, drawn_codes
from test_golden import LARGE, SMALL

from tests.support.device_arrays import DeviceLibrary
from toolchain.codegen import Region
from toolchain.hw import list_shipped_names
from toolchain.runtime import write_port
from toolchain.runtime.backend import Program
from toolchain.runtime.builtin_backends import ArrayLibrary, ReferenceProgram
from toolchain.runtime.cuda_reference import import_cupy

# A machine for each kind of rounding and type; on the others the small network runs.
KINDS = ("edge16", "transformer64", "ws8_pow2")
LARGE_ON = {"yolov5n_silu_320": "edge16"}  # the large network that has Concat and Resize; another is exhaustive
PAIRS = [
    pytest.param(
        network,
        machine,
        marks=[pytest.mark.exhaustive] if network in LARGE and LARGE_ON.get(network) != machine else [],
    )
    for network in NETWORKS
    for machine in (list_shipped_names() if network == SMALL else KINDS)
]


def regions(network: str, machine: str) -> Iterator[tuple[Program, np.ndarray]]:
    """The regions of a network, each with a DRAM that holds drawn codes."""
    container = compile_network(network, machine, 0).container
    for region in (s for s in container.segments if isinstance(s, Region)):
        dram = np.zeros(region.dram_bytes, np.uint8)
        for port in region.inputs:
            write_port(dram, port, drawn_codes(port).astype(port.dtype))
        yield Program(container.machine, region, container.graph, is_in_process=True), dram


def check(network: str, machine: str, library: ArrayLibrary) -> None:
    for program, dram in regions(network, machine):
        expected = ReferenceProgram(program).run(dram.copy())
        done = ReferenceProgram(program, library).run(dram)
        np.testing.assert_array_equal(done.memory["dram"], expected.memory["dram"])
        softmax = {n.name for n in program.graph.nodes if type(n.op).__name__ == "IntegerSoftmax"}
        assert softmax.issuperset(done.on_cpu)


@pytest.mark.parametrize(("network", "machine"), PAIRS)
def test_networks_have_the_references_bits(network: str, machine: str) -> None:
    check(network, machine, DeviceLibrary())


@pytest.mark.cuda("backend")
@pytest.mark.parametrize("machine", list_shipped_names())
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_have_the_references_bits_on_a_gpu(network: str, machine: str) -> None:
    check(network, machine, import_cupy())
