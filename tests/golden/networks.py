"""The eight example networks with fixed ranges: compiled, and their regions run on fixed codes.

Nothing here depends on this computer's float: the ranges of all tensors are in `ranges/`, weights are seeded, and each region is
given codes that are drawn for it, so that what onnxruntime makes of an island reaches no hash.
"""

from __future__ import annotations

import hashlib
import importlib.util
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import numpy as np
import onnx

from quant.calibrate import calibrate
from quant.data import random_data
from quant.file import Parameters, read_parameters, write_parameters
from quant.observe import Range
from quant.repair.step import Quantization
from quant.structure import adjust_ranges
from simulator import simulate
from toolchain.codegen import Port, Region
from toolchain.compiling import Compiled, compile_model, select_model
from toolchain.frontend import NormalModel, load_model, to_graph
from toolchain.hw import shipped_names
from toolchain.isa import Machine, decode, load_machine
from toolchain.runtime import dram_image, dram_parts

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER.parent.parent / "examples/networks"
NETWORKS = tuple(sorted(p.name.removesuffix(".graph.onnx") for p in EXAMPLES.glob("*.graph.onnx")))
HEX_DIGITS = 16  # of a SHA-256, enough to tell programs apart


@dataclass(frozen=True)
class Figures:
    """What one network gives on one machine. `expected`: cycles of the cost model over those of the simulator."""

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
    cycles, outputs = simulated(compiled)
    expected = sum(plan.cycles for plan in compiled.plans) / cycles
    return Figures(program_digest(regions), hashlib.sha256(outputs).hexdigest()[:HEX_DIGITS], cycles, expected)


def simulated(compiled: Compiled) -> tuple[int, bytes]:
    """Cycles, and what the regions write where they are given `drawn_codes`."""
    cycles, outputs = 0, bytearray()
    for region in (s for s in compiled.container.segments if isinstance(s, Region)):
        decoded = decode(region.program, compiled.container.machine.isa)
        dram = dram_image(region)
        for port in region.inputs:
            raw = drawn_codes(port).tobytes()
            dram[port.address : port.address + len(raw)] = np.frombuffer(raw, np.uint8)
        run = simulate(compiled.container.machine.chip, decoded.ops, decoded.words, dram, (), parts=dram_parts(region))
        cycles += run.cycles
        for port in region.outputs:
            outputs += run.dram[port.address : port.address + port.size_bytes].tobytes()
    return cycles, bytes(outputs)


def program_digest(regions: Sequence[Region]) -> str:
    """Of every region's words, constants and addresses: all that a chip is given."""
    found = hashlib.sha256()
    for region in regions:
        ports = [(p.address, p.shape, p.dtype) for p in (*region.inputs, *region.outputs)]
        blocks = [(address, len(data)) for address, data in region.constants]
        found.update(repr((len(region.program), region.dram_bytes, ports, blocks)).encode())
        found.update(region.program)
        for _, data in region.constants:
            found.update(data)
    return found.hexdigest()[:HEX_DIGITS]


def drawn_codes(port: Port) -> np.ndarray:
    """Codes over the whole range of the port's type, little-endian, seeded by the tensor's name."""
    limits = np.iinfo(port.dtype)
    rng = np.random.default_rng(zlib.crc32(port.tensor.encode()))
    return rng.integers(limits.min, limits.max, port.shape, endpoint=True).astype(np.dtype(port.dtype).newbyteorder("<"))


def compile_network(network: str, machine: str | Machine, level: int) -> Compiled:
    model, found = normal_model(network), machine if isinstance(machine, Machine) else load_machine(machine)
    selection = select_model(model, found)
    tensors = {tensor for tensor, _ in selection.origins.values()}
    ranges = read_parameters(ranges_file(network), tensors=sorted(tensors), known=model.types, numerics=found.chip.numerics)
    wanted = {name: ranges.tensors[name] for name in sorted(tensors)}
    return compile_model(network, model, selection, found, Quantization(wanted), level)


@lru_cache(maxsize=1)
def normal_model(network: str) -> NormalModel:
    model = _fill_weights().filled(EXAMPLES / f"{network}.graph.onnx")
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{network}.onnx"
        onnx.save(model, path)
        return load_model(path)


def ranges_file(network: str) -> Path:
    return FOLDER / "ranges" / f"{network}.yaml"


def update_ranges(network: str) -> None:
    """Gives the file an entry for each tensor that any machine calibrates. Entries that are there stay as they are."""
    model, path = normal_model(network), ranges_file(network)
    tensors = {t for name in shipped_names() for t, _ in select_model(model, load_machine(name)).origins.values()}
    known = read_parameters(path).tensors if path.exists() else {}
    if tensors == set(known):
        return
    inputs = {name: model.types[name] for name in to_graph(model).inputs}
    calibrated = calibrate(model.proto, random_data(inputs), sorted(tensors), observer="minmax")
    adjusted = adjust_ranges(model.proto, calibrated).ranges
    rounded = {name: Range(float(f"{r.low:.6g}"), float(f"{r.high:.6g}")) for name, r in adjusted.items()}
    entries = {name: known.get(name, rounded[name]) for name in sorted(tensors)}
    write_parameters(path, Parameters(entries, model=network, data="random inputs"))


@lru_cache(maxsize=1)
def _fill_weights() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fill_weights", EXAMPLES / "fill_weights.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
