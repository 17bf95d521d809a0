"""Compile the eight example networks with fixed ranges, and run their regions on fixed codes.

Nothing here depends on this computer's float. The ranges of all tensors are in `ranges/` and weights are seeded. Each region gets
codes that are drawn for it, so that results of onnxruntime on a host subgraph reach no hash.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from quant.calibrate import calibrate
from quant.calibration_data import random_data
from quant.file import Parameters, read_parameters, write_parameters
from quant.observe import Range
from quant.repair.choices import Quantization
from quant.structural_ranges import adjust_ranges
from simulator import Simulation, StallCause, by_reason, simulate
from tests.support import example_networks
from toolchain.codegen import Port, Region
from toolchain.compiler import CompiledNetwork, compile_model, select_model
from toolchain.frontend import NormalModel, load_model, to_graph
from toolchain.hw import list_shipped_names
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Quant
from toolchain.isa import Machine, load_machine
from toolchain.passes.decompose import decompose_model
from toolchain.repair.network import Network
from toolchain.report.layer_breakdown import layer_cycles, most_macs, region_attribution
from toolchain.runtime import dram_image, dram_parts
from toolchain.runtime.backend import Program
from toolchain.schedule.goals import CYCLES

FOLDER = Path(__file__).parent
NETWORKS = tuple(sorted(p.name.removesuffix(".graph.onnx") for p in example_networks.FOLDER.glob("*.graph.onnx")))
HEX_DIGITS = 16  # of a SHA-256, enough to tell programs apart


@dataclass(frozen=True)
class Figures:
    """A record of what one network gives on one machine. `expected`: cycles of the cost model over those of the simulator."""

    program: str
    outputs: str
    cycles: int
    expected: float

    def __str__(self) -> str:
        ratio = f"{self.expected:.3f}"
        return f"program {self.program}  outputs {self.outputs}  cycles {self.cycles:>9}  expected/simulated {ratio}"


def figures(network: str, machine: str | Machine, level: int) -> Figures:
    compiled = compile_network(network, machine, level)
    regions = [s for s in compiled.container.segments if isinstance(s, Region)]
    cycles, outputs = simulate_network(compiled)
    expected = sum(plan.cycles for plan in compiled.plans) / cycles
    return Figures(program_digest(regions), hashlib.sha256(outputs).hexdigest()[:HEX_DIGITS], cycles, expected)


def simulate_network(compiled: CompiledNetwork) -> tuple[int, bytes]:
    """Cycles, and what the regions write where they are given `drawn_codes`."""
    cycles, outputs = 0, bytearray()
    most = most_macs(compiled.container)
    for region in (s for s in compiled.container.segments if isinstance(s, Region)):
        program = Program(compiled.container.machine, region, compiled.container.graph)
        dram = dram_image(region)
        for port in region.inputs:
            raw = drawn_codes(port).tobytes()
            dram[port.address : port.address + len(raw)] = np.frombuffer(raw, np.uint8)
        chip, width = program.machine.chip, program.machine.isa.word_bytes
        run = simulate(chip, program.flow, program.flow.words, dram, (), word_bytes=width, parts=dram_parts(region))
        cycles += run.cycles
        check_attribution(program.machine.chip, region, run, most)
        for port in region.outputs:
            outputs += run.dram[port.address : port.address + port.size_bytes].tobytes()
    return cycles, bytes(outputs)


def check_attribution(chip: Chip, region: Region, run: Simulation, most: Mapping[str, int]) -> None:
    """Check that every cycle of every unit has one cause and that the causes of all layers sum to the region.
    No array does more products in its useful cycles than it can.
    """
    causes = region_attribution(chip, region, run, most)
    assert causes is not None
    cycles = layer_cycles(region, run).tolist()
    assert sum(cycles) == run.cycles
    for unit in chip.units:
        layers = [_count_stalls(layer[unit.name]) for layer in causes.layers]
        assert [sum(layer.values()) for layer in layers] == cycles
        assert sum(layers, Counter[str]()) == _count_stalls(by_reason(chip, causes.totals[unit.name]))
    arrays = [unit.array for unit in chip.of_kind("mac_array")]
    best = max(array.multipliers * rate.rate for array in arrays for rate in array.types)
    useful = sum(layer[unit.name].get(StallCause.USEFUL, 0) for layer in causes.layers for unit in chip.of_kind("mac_array"))
    owners = region.layers_of(run.flow)
    macs = [int(run.op_macs[owners == layer].sum()) for layer in range(len(cycles))]
    assert useful * best >= sum(min(n, most.get(info.name, n)) for n, info in zip(macs, region.layers))


def _count_stalls(causes: Mapping[str, Any]) -> Counter[str]:
    """Cycles by cause and name."""
    cycles_by_cause = Counter[str]()
    for cause, stall_cycles in causes.items():
        for name, cycles in stall_cycles.items() if isinstance(stall_cycles, Mapping) else [("", stall_cycles)]:
            cycles_by_cause[f"{cause} {name}"] = cycles
    return cycles_by_cause


def program_digest(regions: Sequence[Region]) -> str:
    """Return the digest of every region's words, constants and addresses: everything that a chip receives."""
    digest = hashlib.sha256()
    for region in regions:
        ports = [(p.address, p.shape, p.dtype) for p in (*region.inputs, *region.outputs)]
        blocks = [(address, len(data)) for address, data in region.constants]
        digest.update(repr((len(region.program), region.dram_bytes, ports, blocks)).encode())
        digest.update(region.program)
        for _, data in region.constants:
            digest.update(data)
    return digest.hexdigest()[:HEX_DIGITS]


def drawn_codes(port: Port) -> np.ndarray:
    """Codes over the whole range of the port's type, little-endian, seeded by the tensor's name."""
    limits = np.iinfo(port.dtype)
    rng = np.random.default_rng(zlib.crc32(port.tensor.encode()))
    return rng.integers(limits.min, limits.max, port.shape, endpoint=True).astype(np.dtype(port.dtype).newbyteorder("<"))


def compile_network(network: str, machine: str | Machine, level: int) -> CompiledNetwork:
    loaded_machine = machine if isinstance(machine, Machine) else load_machine(machine)
    model = decompose_model(normal_model(network), loaded_machine.chip, ())
    selection = select_model(model, loaded_machine)
    tensors = Network(model, selection, loaded_machine).tensors
    allowed = {*model.types, *read_parameters(ranges_file(network)).tensors}
    ranges = read_parameters(ranges_file(network), tensors=tensors, allowed=allowed, numerics=loaded_machine.chip.numerics)
    ranges_and_scales = {**{name: ranges.tensors[name] for name in tensors}, **selection.file_ranges}
    return compile_model(network, model, selection, loaded_machine, Quantization(ranges_and_scales), level, goal=CYCLES)


@lru_cache(maxsize=1)
def normal_model(network: str) -> NormalModel:
    model = example_networks.fill_network(network)
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{network}.onnx"
        onnx.save(model, path)
        return load_model(path)


def ranges_file(network: str) -> Path:
    return FOLDER / "ranges" / f"{network}.yaml"


def update_ranges(network: str) -> None:
    """Gives the file an entry for each tensor that any machine calibrates. Entries that are there stay as they are."""
    path = ranges_file(network)
    known_ranges = read_parameters(path).tensors if path.exists() else {}
    entries: dict[str, Range | Quant] = {}
    for name in list_shipped_names():
        machine = load_machine(name)
        model = decompose_model(normal_model(network), machine.chip, ())
        tensors = set(Network(model, select_model(model, machine), machine).tensors)
        entries.update({t: known_ranges[t] for t in tensors if t in known_ranges})
        if tensors - entries.keys():
            inputs = {n: model.types[n] for n in to_graph(model).inputs}
            observed_ranges = calibrate(
                model.proto, random_data(inputs), sorted(tensors), observer="minmax", decomposition=model.decomposition
            )
            adjusted = adjust_ranges(model.proto, observed_ranges, model.decomposition).ranges
            entries.update({t: _round_range(adjusted[t]) for t in tensors - entries.keys()})
    entries = {name: entries[name] for name in sorted(entries)}
    if entries.keys() == known_ranges.keys():
        return
    write_parameters(path, Parameters(entries, model=network, data="random inputs"))


def _round_range(r: Range) -> Range:
    return Range(float(f"{r.low:.6g}"), float(f"{r.high:.6g}"))
