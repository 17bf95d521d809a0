"""Bytes that a network itself drops are no fault of its program; what else nothing reads is a warning of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from edit_programs import edit_program, model, operations, region_of

from toolchain.api import Build, BuildOptions, build
from toolchain.machine import Copy, MachineOp, Space
from toolchain.runtime import Session, random_feeds

DROPPING = {
    "the last row and column of a pool": ("float[1,8,7,7]", "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(h)"),
    "pixels between strides": ("float[1,8,8,8]", "y = Conv<kernel_shape=[1,1], strides=[3,2]>(h, v)"),
    "pixels between dilations": ("float[1,8,5,5]", "y = Conv<kernel_shape=[2,2], dilations=[4,3]>(h, v2)"),
    "what a Slice leaves out": ("float[1,8,6,6]", "y = Slice(h, starts, ends, axes, steps)"),
    "a part of a Split": ("float[1,8,6,6]", "y, z = Split<axis=1>(h, sizes)\n w = Relu(y)"),
}


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("hardware", ["edge16", "ws8_pow2"])
@pytest.mark.parametrize("case", DROPPING)
def test_what_a_network_drops_is_no_warning(tmp_path, case, hardware, level):
    built = build(model(tmp_path, *DROPPING[case]), BuildOptions(hardware, level=level))
    assert built.figures["warnings"] == []


def warnings_of(built: Build, ops: list[MachineOp], layers: Sequence[int] | None = None) -> list[str]:
    session = Session(edit_program(built, ops, layers))
    run = session.run_detailed(random_feeds(session.get_inputs()))
    return [w for ran in run.segments for w in ran.warnings]


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Build:
    path = model(tmp_path_factory.mktemp("unread"), *DROPPING["the last row and column of a pool"])
    return build(path, BuildOptions("edge16"))


def test_a_layer_that_reads_less_than_the_network_is_a_warning(pooled):
    """The pool of a result that the network drops parts of already."""
    ops = operations(pooled)
    at = next(i for i, op in enumerate(ops) if op.NAME == "pool")
    smaller = replace(ops[at], kernel_width=1)
    warnings = warnings_of(pooled, [*ops[:at], smaller, *ops[at + 1 :]])
    (warning,) = (w for w in warnings if "nothing reads" in w)
    assert "of layer Conv_0 (Convolution) writes" in warning and "that nothing reads" in warning, warning


def test_a_load_of_more_than_is_read_is_a_warning(pooled):
    ops = operations(pooled)
    at = next(i for i, op in enumerate(ops) if isinstance(op, Copy) and op.destination_space == Space.SRAM)
    layers = region_of(pooled).op_layers
    (warning,) = warnings_of(pooled, [*ops[:at], ops[at], *ops[at:]], [*layers[:at], layers[at], *layers[at:]])
    assert warning.startswith(f"op {at} copy of layer Conv_0 (Convolution) writes "), warning


def test_a_constant_that_is_never_read_is_a_warning(pooled):
    region = region_of(pooled)
    end = max(address + len(data) for address, data in region.constants)
    more = replace(region, constants=(*region.constants, (end, bytes(8))), dram_bytes=end + 8)
    changed = replace(pooled, container=replace(pooled.container, segments=(more,)))
    assert warnings_of(changed, operations(pooled)) == [f"constants: 8 bytes of dram[{end:#x}..{end + 8:#x}) are never read"]
