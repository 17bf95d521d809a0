"""Machines whose arrays take weights in groups: programs are the reference bit for bit, and near the float network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from tests.schedule.test_buffers import built
from tests.support.run_in_process import run_script
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.hw import load_chip
from toolchain.hw.timing_terms import idealize_terms
from toolchain.isa import Machine, load_machine, make_default_table
from toolchain.machine import Convolution, MachineOp, accesses, demand, find_unsupported, weight_bytes
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.runtime import Session

Make = Callable[..., Machine]
ROWS, INNER, OUTPUTS = 5, 200, 72  # neither of whole groups nor of whole folds
LAYOUTS = ("blocks", "rows", "planes")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make_machine(
        name: str = "edge16",
        groups: str = "sizes: [32]",
        changes: Sequence[tuple[str, str]] = (),
        default: int = 32,
        own_table: bool = False,
    ) -> Machine:
        """A shipped machine with groups, on its table or on a first one; numerics.weight_group is `default`."""
        text = (files("hw_configs") / f"{name}.yaml").read_text()
        replacements = [("    kind: mac_array\n", f"    kind: mac_array\n    groups: {{{groups}}}\n")] if groups else []
        replacements += [("\nnumerics:\n", f"\nnumerics:\n  weight_group: {default}\n")] if default else []
        replacements += [("isa/descriptors1024.yaml", "isa/mine.yaml")] if own_table else []
        for old, new in [*replacements, *changes]:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (tmp_path / "mine.yaml").write_text(text)
        if own_table:
            (tmp_path / "isa").mkdir(exist_ok=True)
            (tmp_path / "isa/mine.yaml").write_text(make_default_table(load_chip(str(tmp_path / "mine.yaml"))))
        return load_machine(str(tmp_path / "mine.yaml"))

    return make_machine


def save_model(nodes: list[Any], constants: dict[str, np.ndarray], shape: list[int], path: Path) -> Path:
    onnx.save(build_model(nodes, {"x": shape}, {nodes[-1].output[0]: None}, constants, opset=21), path)
    return path


def uneven(o: int, k: int) -> np.ndarray:
    """float32[o, k]: groups of 32 of very different size, not around zero."""
    rng = np.random.default_rng(o)
    size = np.exp(rng.normal(0, 1.2, (o, -(-k // 32)))).repeat(32, 1)[:, :k]
    return ((rng.normal(0, 1, (o, k)) + 0.7) * size / 30).astype(np.float32)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A product with Relu, one with a residual sum, a 1x1 convolution and a depthwise one."""
    constants = {
        "w": uneven(OUTPUTS, INNER).T.copy(),
        "v": uneven(OUTPUTS, OUTPUTS).T.copy(),
        "b": np.linspace(-1, 1, OUTPUTS, dtype=np.float32),
        "to": np.array([1, OUTPUTS, ROWS, 1]),
        "p": uneven(40, OUTPUTS).reshape(40, OUTPUTS, 1, 1),
        "d": uneven(40, 9).reshape(40, 1, 3, 3),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("Relu", ["a"], ["r"], name="r"),
        helper.make_node("Gemm", ["r", "v", "b"], ["c"], name="c"),
        helper.make_node("Add", ["c", "a"], ["s"], name="s"),
        helper.make_node("Transpose", ["s"], ["t"], name="t", perm=[1, 0]),
        helper.make_node("Reshape", ["t", "to"], ["i"], name="i"),
        helper.make_node("Conv", ["i", "p"], ["q"], name="q"),
        helper.make_node("Conv", ["q", "d"], ["y"], name="y", group=40, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    return save_model(nodes, constants, [ROWS, INNER], tmp_path / "net.onnx")


def product(path: Path) -> Path:
    return save_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="y")], {"w": uneven(OUTPUTS, INNER).T.copy()}, [ROWS, INNER], path
    )


def list_grouped(ops: Sequence[MachineOp]) -> list[Convolution]:
    return [op for op in ops if isinstance(op, Convolution) and op.group]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("minima", ["", ", minimum_bits: 12", ", scale_bits: 12, minimum_bits: 16"])
@pytest.mark.parametrize("name", ["edge16", "wide32_w4a16"])
def test_programs_are_the_reference(make: Make, net: Path, name: str, minima: str, layout: str) -> None:
    machine = make(name, f"sizes: [32]{minima}, layout: {layout}")
    _, ops = built(net, machine)  # which holds the program against the reference
    assert {op.group for op in list_grouped(ops)} == {32}
    assert {n for op in ops if isinstance(op, Convolution) and not op.group for n in (op.kernel_height,)} <= {3}


@pytest.mark.parametrize("level", [0, 1, 3])
@pytest.mark.parametrize("flow", ["os", "ws", "is"])
def test_every_level_and_dataflow(make: Make, net: Path, flow: str, level: int) -> None:
    machine = make("edge16", "sizes: [32, 64]", [("    dataflow: os\n", f"    dataflow: {flow}\n")], 64)
    _, ops = built(net, machine, level)
    assert {op.group for op in list_grouped(ops)} == {64}


def test_sums_are_cut_between_groups(make: Make, net: Path) -> None:
    """Check an instruction limit of 90 channels.
    An instruction takes 32 or 64 channels, and only the last piece of a sum has a part of a group.
    """
    limit = ("\nlimits: {", "\nlimits: {convolution: {max_input_channels: 90}, ")
    _, ops = built(net, make("edge16", "sizes: [32], minimum_bits: 16", [limit]))
    pieces = [op.input_channels for op in list_grouped(ops)]
    assert INNER % 32 in pieces and set(pieces) <= {32, 64, INNER % 32, OUTPUTS} and max(pieces) == OUTPUTS <= 90
    ends = [op.emit for op in list_grouped(ops) if op.input_channels % 32]
    assert ends and all(ends)


def test_a_small_sram_cuts_them_too(make: Make, net: Path) -> None:
    small = ("    size: 512 KiB\n", "    size: 6 KiB\n")
    _, ops = built(net, make("edge16", "sizes: [32]", [small]))
    assert all(op.emit or op.input_channels % 32 == 0 for op in list_grouped(ops))


def test_accumulators_that_are_a_memory(make: Make, net: Path) -> None:
    changes = [
        ("engines:\n", "  acc: {size: 32 KiB, read_bytes_per_cycle: 64.0, write_bytes_per_cycle: 64.0}\nengines:\n"),
        ("{bits: 32, entries: 4096}", "{bits: 32, entries: 4096, memory: acc}"),
        ("    kind: vector\n", "    kind: vector\n    memories: {sums: acc}\n"),
        ("    functions:\n", "    functions:\n      emit: {lanes: 16}\n"),
    ]
    _, ops = built(net, make("edge16", "sizes: [32]", changes, own_table=True))
    assert list_grouped(ops) and not any(op.emit for op in list_grouped(ops))


def test_a_layer_of_groups_goes_to_an_array_that_has_them(make: Make, net: Path) -> None:
    plain = "  more: {kind: mac_array, rows: 32, columns: 32, dataflow: os, accumulators: {entries: 4096}, types: [TYPES]}\n"
    plain = plain.replace("TYPES", "{activation: int8, weight: int8}")
    _, ops = built(net, make("edge16", "sizes: [32]", [("  vector:\n", f"{plain}  vector:\n")]))
    assert {op.unit for op in list_grouped(ops)} == {0}
    assert {op.unit for op in ops if isinstance(op, Convolution) and not op.group} <= {0, 1}


def sqnr(net: Path, machine: Machine) -> float:
    """dB of the outputs to float, on one input."""
    import onnxruntime

    x = np.random.default_rng(4).normal(0, 1, (ROWS, INNER)).astype(np.float32)
    np.savez(net.with_name("calib.npz"), x=x[None])
    network_build = build(net, BuildOptions(machine, calibration=str(net.with_name("calib.npz"))))
    expected = np.asarray(onnxruntime.InferenceSession(str(net)).run(None, {"x": x})[0])
    (actual,) = Session(network_build.data).run(None, {"x": x})
    return float(10 * np.log10((expected**2).sum() / ((actual - expected) ** 2).sum()))


def test_groups_are_nearer_to_float_than_channels(make: Make, tmp_path: Path) -> None:
    """int4 weights and int16 activations: what is lost is the weights'."""
    net = product(tmp_path / "net.onnx")
    levels_db = {
        "channels": sqnr(net, make("wide32_w4a16", default=0)),
        "symmetric": sqnr(net, make("wide32_w4a16")),
        "minima": sqnr(net, make("wide32_w4a16", "sizes: [32], minimum_bits: 16")),
    }
    assert levels_db["channels"] + 3 < levels_db["symmetric"] and levels_db["symmetric"] + 1 < levels_db["minima"], levels_db


# --- what the operation says of itself


def one(**changes: int) -> Convolution:
    """Return an operation of 40 pixels of 576 channels and 64 outputs each; fields that must be at least 1 are 1 by default."""
    fields = {name: field_description.least or 0 for name, field_description in Convolution.get_descriptions().items()}
    fields |= {"input_height": 1, "input_width": 40, "output_width": 40, "input_channels": 576, "output_channels": 64, "emit": 1}
    return Convolution(**fields | changes)


def test_time_and_bytes_of_groups(make: Make) -> None:
    """Check the closed forms: 18 groups of 32 of a sum of 576; 40 pixels, 64 channels on 16 x 16."""
    chip = idealize_terms(
        make("edge16", "sizes: [32, 64], scale_bits: 12, minimum_bits: 8, fold_cycles: 3").chip, ["fold_cycles"]
    )
    op = one()
    folds = 3 * 4
    assert demand(op, chip).compute_cycles == folds * (576 + 30)
    assert demand(replace(op, group=32), chip).compute_cycles == folds * 18 * (32 + 3 + 30)
    assert demand(replace(op, group=64), chip).compute_cycles == folds * 9 * (64 + 3 + 30)
    cut = replace(op, group=32, input_channels=560)  # the last group counts as a whole one
    assert demand(cut, chip).compute_cycles == folds * 18 * (32 + 3 + 30)
    weights = [
        next(a for a in accesses(replace(op, group=g), chip) if a.inner_bytes >= 64 * 576).inner_bytes for g in (0, 32, 64)
    ]
    assert weights == [64 * 576, 64 * (576 + 18 * 3), 64 * (576 + 9 * 3)]
    moved = [demand(replace(op, group=g), chip).at(1).read_bytes for g in (0, 32)]
    assert moved[1] - moved[0] == 64 * 18 * 3


def test_rows_of_a_weight_stationary_array_are_one_group(make: Make) -> None:
    chip = idealize_terms(make("wide32_w4a16", "sizes: [32]").chip, ["fold_cycles"])
    op = one(input_column_stride=2048, output_column_stride=128)
    assert op.output_channels * (weight_bytes(576, 0, chip) + 18) == replace(op, group=32).weight_bytes(chip)
    folds, stream = 18 * 2, 40
    assert demand(op, chip).compute_cycles == (folds - 1) * stream + stream + 94
    assert demand(replace(op, group=32), chip).compute_cycles == (folds - 1) * (stream + 1) + stream + 1 + 94


@pytest.mark.parametrize(
    ("groups", "group", "reason"),
    [
        ("sizes: [32, 64]", 48, "group=48, engines.mac.groups.sizes are 32, 64"),
        ("", 32, "group=32, engines.mac.groups is not given"),
        ("sizes: [32, 64]", 64, None),
    ],
)
def test_a_group_that_no_array_has(make: Make, groups: str, group: int, reason: str | None) -> None:
    chip = make("edge16", groups, default=0).chip
    assert find_unsupported(one(group=group), chip) == reason


def test_tables_have_bits_where_there_are_groups(make: Make, tmp_path: Path) -> None:
    make("edge16", "sizes: [32, 256]")
    assert "group: {bits: [" in make_default_table(load_chip(str(tmp_path / "mine.yaml")))
    make("edge16", "", default=0)
    assert "group:" not in make_default_table(load_chip(str(tmp_path / "mine.yaml")))


CALIBRATE = Path(__file__).parents[2] / "scripts" / "calibrate.py"


def count_scales(net: Path, machine: Machine, weights: str) -> dict[str, tuple[int, int]]:
    """Return the weights of a group and the number of scales of each layer, by a calibrated file with these lines on weights."""
    data, file = net.with_name("data.npz"), net.with_name("params.yaml")
    np.savez(data, x=np.random.default_rng(2).normal(0, 1, (2, ROWS, INNER)).astype(np.float32))
    run_script(CALIBRATE, net, "--data", data, "-o", file).check_returncode()
    file.write_text(file.read_text().replace("tensors:\n", f"weights:\n{weights}tensors:\n"))
    network_build = build(net, BuildOptions(machine, parameters=str(file)))
    layers = [(n.name, n.op) for n in network_build.container.graph.nodes if isinstance(n.op, IntegerConvolution)]
    return {name: (op.group, op.requant.channels) for name, op in layers}


def test_a_parameters_file_says_which_weights_share_a_scale(make: Make, net: Path) -> None:
    machine = make("edge16", "sizes: [32, 64]")
    scales_by_layer = count_scales(net, machine, "  a: {scales: 64}\n  c: {scales: channel}\n  y: {scales: tensor}\n")
    assert scales_by_layer == {"a": (64, OUTPUTS), "c": (0, OUTPUTS), "q": (32, 40), "y": (0, 1)}


def test_kernels_of_several_elements_have_no_groups(make: Make, net: Path) -> None:
    with pytest.raises(CompileError) as caught:
        count_scales(net, make("edge16", "sizes: [32, 64]"), "  y: {scales: 32}\n")
    assert str(caught.value) == (
        "y: groups of 32 weights are of 1x1 kernels over all channels, its kernel is 3x3 over 1 / 40 of them; "
        "give it `scales: channel`"
    )
