"""Layers whose operations do not do the work of their geometry are named, and correct programs are not accused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from tests.cli.edit_programs import edit_program, model, operations, region_of
from tests.support.machine_variants import with_keys
from toolchain.api import Build, BuildOptions, build
from toolchain.isa import load_machine
from toolchain.machine import Convolution, Elementwise, MachineOp, MatrixProduct, Pool
from toolchain.runtime import Session, random_feeds

BODY = """m = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(h)
        c = Conv<kernel_shape=[1,1]>(m, v)
        p = Mul(c, m)
        y = MatMul(p, c)"""
FIRST, OTHER = "layer Conv_0 (Convolution): its operations ", "; a size, a padding or a stride of one is wrong, or one is missing"
TERMS = " elements of the input into their windows, padding left out, its geometry has "


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build(model(tmp_path_factory.mktemp("geometry"), "float[1,8,16,16]", BODY), BuildOptions("edge16"))


def warnings(built: Build, ops: Sequence[MachineOp], layers: Sequence[int] | None = None) -> list[str]:
    session = Session(edit_program(built, ops, layers))
    run = session.run_detailed(random_feeds(session.container.inputs, 0))
    return [w for segment in run.segments for w in segment.warnings]


def change_operation(built: Build, kind: type[MachineOp], name: str, by: int) -> list[MachineOp]:
    """The program with this parameter of its first operation of that class moved."""
    ops = operations(built)
    at = next(i for i, op in enumerate(ops) if isinstance(op, kind))
    ops[at] = replace(ops[at], **{name: getattr(ops[at], name) + by})
    return ops


@pytest.mark.parametrize(
    ("kind", "name", "by"),
    [
        (Convolution, "pad_top", -1),
        (Convolution, "pad_left", 1),
        (Convolution, "input_height", -1),
        (Convolution, "kernel_width", -1),
        (Convolution, "input_channels", -1),
        (Pool, "pad_left", -1),
        (Pool, "kernel_width", -1),
        (Elementwise, "channels", -1),
        (MatrixProduct, "inner", -1),
    ],
)
def test_a_layer_of_other_sizes_or_pads_is_named(built: Build, kind: type[MachineOp], name: str, by: int) -> None:
    layer = next(
        region_of(built).layers[at].name for op, at in zip(operations(built), region_of(built).op_layers) if isinstance(op, kind)
    )
    (warning,) = [w for w in warnings(built, change_operation(built, kind, name, by)) if w.endswith(OTHER)]
    assert warning.startswith(f"layer {layer} (")


def test_the_sentences(built: Build) -> None:
    def get_warning(kind: type[MachineOp], name: str, by: int) -> str:
        (sentence,) = [w for w in warnings(built, change_operation(built, kind, name, by)) if w.endswith(OTHER)]
        return sentence.removesuffix(OTHER)

    pads = "have other elements of the kernel over padding than its geometry"
    assert get_warning(Convolution, "pad_top", -1) == FIRST + pads
    assert get_warning(Convolution, "input_height", -1) == FIRST + f"take {8 * 8 * 45 * 46}{TERMS}{8 * 8 * 46 * 46}"
    product = "layer Mul_3 (Binary): its operations write 448 elements, its tensor has 512"
    assert get_warning(Elementwise, "channels", -1) == product


def test_a_kernel_taken_in_parts_is_judged_by_its_terms(tmp_path: Path) -> None:
    """Parts do not say where in the kernel they lie."""
    proto = model(tmp_path, "float[1,8,16,16]", "y = Relu(h)")
    chip = load_machine("edge16")
    limits = chip.chip.model_dump(mode="json")["limits"]
    limits["convolution"]["max_kernel"] = [2, 2]
    built = build(proto, BuildOptions(with_keys(chip, limits=limits)))
    kernels = {(op.kernel_height, op.kernel_width) for op in operations(built) if isinstance(op, Convolution)}
    assert (3, 3) not in kernels and len(kernels) > 1
    assert warnings(built, operations(built)) == []
    (warning,) = [w for w in warnings(built, change_operation(built, Convolution, "pad_top", 1)) if w.endswith(OTHER)]
    assert TERMS in warning


def test_neighbouring_groups_in_one_operation(tmp_path: Path) -> None:
    """Check products by the zeros between groups, which do not belong to the layer."""
    path = tmp_path / "m.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,32,8,8] x) => (float[1,32,8,8] y) { y = Conv<group=8, kernel_shape=[3,3], pads=[1,1,1,1]>(x, k) }"""
    proto = onnx.parser.parse_model(text)
    k = np.random.default_rng(0).normal(size=(32, 4, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(k, "k"))
    onnx.save(proto, path)
    built = build(path, BuildOptions("edge16"))
    channels = {op.output_channels for op in operations(built) if isinstance(op, Convolution)}
    assert max(channels) > 4
    assert warnings(built, operations(built)) == []
    (warning,) = [w for w in warnings(built, change_operation(built, Convolution, "pad_top", 1)) if w.endswith(OTHER)]
    assert TERMS in warning


def test_correct_programs_are_not_accused(built: Build) -> None:
    assert warnings(built, operations(built)) == []


def test_without_the_layers_of_a_listing_nothing_is_said(built: Build) -> None:
    ops = change_operation(built, Convolution, "pad_top", -1)
    assert warnings(built, ops, [-1] * len(ops)) == []
