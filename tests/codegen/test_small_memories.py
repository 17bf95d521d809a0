"""Machines whose memories are too small for a network: each size is built for, or refused in one sentence that names the memory.

`bench/sweep_memories.py` does the same with every shipped machine, through its file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.support.machine_variants import with_keys
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.errors import CompileError
from toolchain.isa import Machine, load_machine

BODY = "a = Conv<pads=[1,1,1,1]>(x, k) b = Relu(a) c = Conv(b, l) d = Relu(c) y = Conv(d, m)"


@pytest.fixture(scope="module")
def two_wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tensors of 64 channels, each of 16 KiB, of which one comes from the other."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> wide (float[1,3,16,16] x) => (float[1,8,16,16] y) {{ {BODY} }}'
    proto, rng = parser.parse_model(text), np.random.default_rng(0)
    for name, shape in (("k", (64, 3, 3, 3)), ("l", (64, 64, 1, 1)), ("m", (8, 64, 1, 1))):
        proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    file = tmp_path_factory.mktemp("wide") / "wide.onnx"
    onnx.save(proto, file)
    return file


@cache
def _memories() -> dict[str, dict[str, int]]:
    return load_machine("edge16").chip.model_dump(mode="json")["memories"]


def _machine(**sizes: int) -> Machine:
    """edge16 with memories of so many bytes."""
    changed = {name: memory | ({"size": sizes[name]} if name in sizes else {}) for name, memory in _memories().items()}
    return with_keys(load_machine("edge16"), memories=changed)


def _built(network: Path, machine: Machine, level: int) -> Build:
    return build(network, BuildOptions(machine, level=level, samples=1))


def _dram_bytes(built: Build) -> int:
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    return region.dram_bytes


@pytest.mark.parametrize("level", [0, 1])
def test_tensors_that_fit_neither_memory_are_refused_in_one_sentence(level: int, two_wide: Path) -> None:
    """Constants and ports fit the DRAM, the tensors between them do not, as placed and as they lie behind each other."""
    required_bytes = _dram_bytes(_built(two_wide, _machine(sram=16 << 10), level))
    for size in (required_bytes - 64, 32 << 10, 16 << 10):
        with pytest.raises(CompileError) as refusal:
            _built(two_wide, _machine(sram=16 << 10, dram=size), level)
        message = str(refusal.value)
        assert "\n" not in message and f"bytes of DRAM, memories.dram.size is {size:,}: raise it, or" in message
        least = int(message.partition(" bytes")[0].rpartition(" ")[2].replace(",", ""))
        assert least == required_bytes, "who follows it must not be refused again"
    assert _dram_bytes(_built(two_wide, _machine(sram=16 << 10, dram=required_bytes), level)) == required_bytes


def test_what_no_plan_could_do_without_is_refused_before_one_is_made(two_wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.compiler.candidate_plans", None)
    monkeypatch.setattr("toolchain.compiler._QUICK_LAYERS", 1)
    with pytest.raises(CompileError, match=r"needs at least [0-9,]+ bytes of DRAM, memories\.dram\.size is 8,192: raise it"):
        _built(two_wide, _machine(dram=8 << 10), 1)


def test_the_largest_need_of_all_regions_is_told(two_wide: Path) -> None:
    """The second region reads the wide tensor, and needs more than the first one."""

    def build_at(size: int) -> Build:
        options = BuildOptions(_machine(sram=16 << 10, dram=size), level=1, samples=1, host_nodes=("b",), host_ports=False)
        return build(_name_nodes(two_wide), options)

    with pytest.raises(CompileError) as refusal:
        build_at(8 << 10)
    required_bytes = int(str(refusal.value).partition(" bytes")[0].rpartition(" ")[2].replace(",", ""))
    sizes = [s.dram_bytes for s in build_at(required_bytes).container.segments if isinstance(s, Region)]
    assert len(sizes) == 2 and max(sizes) == required_bytes == sizes[1] > sizes[0] > 8 << 10


def _name_nodes(file: Path) -> onnx.ModelProto:
    proto = onnx.load(file)
    for node in proto.graph.node:
        node.name = node.output[0]
    return proto


@pytest.mark.parametrize(("memory", "sizes"), [("dram", [1 << n for n in range(10, 17)]), ("sram", [512, 16 << 10])])
def test_every_size_is_built_for_or_refused(memory: str, sizes: list[int], two_wide: Path) -> None:
    refused = 0
    for size in sizes:
        try:
            _built(two_wide, _machine(**{"sram": 16 << 10, memory: size}), 1)
        except CompileError as refusal:
            refused += 1
            assert f"memories.{memory}.size" in str(refusal)
    assert 0 < refused < len(sizes)


@pytest.mark.parametrize("memory", ["sram", "dram"])
def test_the_least_size_is_one_that_the_machine_can_have(memory: str, two_wide: Path) -> None:
    """Sizes are multiples of all banks' words, tiles and constants are not."""

    def with_banks(size: int) -> Machine:
        keys = _memories()
        changed = {"size": size, "banks": 24, "bank_bytes": 8, "alignment_bytes": 16}
        return with_keys(load_machine("edge16"), memories=keys | {memory: keys[memory] | changed})

    with pytest.raises(CompileError) as refusal:
        _built(two_wide, with_banks(192), 1)
    (least,) = re.findall(r"network (?:is|needs) ([0-9,]+) bytes", str(refusal.value))
    assert _built(two_wide, with_banks(int(least.replace(",", ""))), 1).container.segments
