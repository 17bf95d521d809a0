"""Transposes beside matrix products, which read and write their operands in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.machine_variants import with_keys, with_sram
from toolchain.api import Build, BuildOptions, build
from toolchain.isa import Machine, load_machine

TOKENS, HEADS, WIDTH = 48, 3, 32
MACHINES = ("edge16", "ethos_u55_256", "nvdla_small", "wide32_w4a16", "ws8_pow2", "transformer64")


def attention(folder: Path, tokens: int = TOKENS) -> Path:
    """Heads as exporters cut them: each projection reshaped and transposed, what they mix transposed back; no softmax, so that
    all of it is one region of every machine."""
    rng, size = np.random.default_rng(3), HEADS * WIDTH
    drawn = rng.normal(size=(4, size, size)).astype(np.float32) / np.float32(np.sqrt(size))
    constants = {f"w{n}": w for n, w in zip("qkvo", drawn)}
    constants |= {"cut": np.array([1, tokens, HEADS, WIDTH]), "whole": np.array([1, tokens, size])}
    nodes = []
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            helper.make_node("MatMul", ["x", f"w{name}"], [name], f"{name}/product"),
            helper.make_node("Reshape", [name, "cut"], [f"{name}/cut"], f"{name}/reshape"),
            helper.make_node("Transpose", [f"{name}/cut"], [f"{name}/heads"], f"{name}/turn", perm=perm),
        ]
    nodes += [
        helper.make_node("MatMul", ["q/heads", "k/heads"], ["scores"], "scores/product"),
        helper.make_node("MatMul", ["scores", "v/heads"], ["mixed"], "mixed/product"),
        helper.make_node("Transpose", ["mixed"], ["mixed/rows"], "mixed/turn", perm=(0, 2, 1, 3)),
        helper.make_node("Reshape", ["mixed/rows", "whole"], ["joined"], "mixed/reshape"),
        helper.make_node("MatMul", ["joined", "wo"], ["y"], "o/product"),
    ]
    onnx.save(build_model(nodes, {"x": [1, tokens, size]}, {"y": [1, tokens, size]}, constants), folder / "heads.onnx")
    return folder / "heads.onnx"


def _turning(built: Build) -> dict[str, int]:
    """Cycles of each Transpose."""
    return {layer["name"]: layer["cycles"] for layer in built.figures["layers"] if layer["op"] == "Transpose"}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kib", [24, 512])
def test_transposes_of_heads_move_nothing(machine: str, kib: int, tmp_path: Path) -> None:
    """Resident tensors and tiles that pass through slots; the build compares its program with the integer reference."""
    moved_by_transpose = _turning(build(attention(tmp_path), BuildOptions(with_sram(machine, kib))))
    assert sorted(moved_by_transpose) == ["k/turn", "mixed/turn", "q/turn", "v/turn"]
    assert not any(moved_by_transpose[name] for name in ("q/turn", "v/turn", "mixed/turn"))


def test_they_are_moved_where_tensors_have_storages_of_their_own(tmp_path: Path) -> None:
    assert all(_turning(build(attention(tmp_path), BuildOptions("edge16", level=1))).values())


def _words(size_bytes: int, cycles: int) -> Machine:
    """edge16 whose SRAM has words of so many bytes, each so many cycles of its bank, in banks of 64 bytes together."""
    base = load_machine("edge16")
    memories = base.chip.model_dump(mode="json")["memories"]
    memories["sram"] |= {"banks": 64 // size_bytes, "bank_bytes": size_bytes, "bank_cycles": cycles}
    for port in ("read_bytes_per_cycle", "write_bytes_per_cycle"):
        memories["sram"][port] = min(memories["sram"][port], 64 / cycles)
    return with_keys(base, memories=memories)


@pytest.mark.parametrize(("word_bytes", "cycles", "moved"), [(8, 1, False), (64, 4, True)])
def test_keys_are_moved_where_reading_them_one_by_one_takes_longer(
    word_bytes: int, cycles: int, moved: bool, tmp_path: Path
) -> None:
    """288 rows are more than accumulators of 16 folds hold, so that each word is read twice."""
    moved_by_transpose = _turning(build(attention(tmp_path, 288), BuildOptions(_words(word_bytes, cycles))))
    assert (moved_by_transpose.pop("k/turn") > 0, any(moved_by_transpose.values())) == (moved, False)
