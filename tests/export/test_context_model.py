"""EPContext models: written with onnxruntime's attributes, run with the bits of the compiled file, refused where not sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from toolchain.api import Build, BuildOptions, CompileError, ProgramError, Session, build
from toolchain.frontend.context_nodes import ATTRIBUTES
from toolchain.runtime import SOURCE

# Two parts on the chip; the host's nodes beside them read a weight, whole numbers and a condition.
GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,3,8,8] x, int64[1] n) => (float[1,3,8,8] y, float[1,4,8,8] z, int64[1] m) {
    a = Conv<pads=[1,1,1,1]>(x, w) b = Sin(a) z = Add(b, bias)
    c = Conv<pads=[1,1,1,1]>(z, v) y = Relu(c) m = Add(n, n) }"""
IMAGES = np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)
FEEDS = {"x": IMAGES[:1], "n": np.array([3])}


def make_model() -> onnx.ModelProto:
    proto, rng = parser.parse_model(GRAPH), np.random.default_rng(1)
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (3, 4, 3, 3)), ("bias", (1, 4, 1, 1))):
        proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return proto


@pytest.fixture(scope="module")
def built() -> Build:
    calibration = {"x": IMAGES, "n": np.zeros((4, 1), np.int64)}
    return build(make_model(), BuildOptions("edge16", calibration=calibration, host_nodes=("Sin",), level=1))


@pytest.fixture(scope="module")
def reference(built: Build) -> list[np.ndarray]:
    return Session(built).run(None, FEEDS)


def contexts(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "EPContext"]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def set_attributes(node: onnx.NodeProto, **values: Any) -> None:
    merged = {**attributes(node), **values}
    del node.attribute[:]
    node.attribute.extend(helper.make_attribute(name, value) for name, value in merged.items() if value is not None)


def equal(outputs: list[np.ndarray], reference: list[np.ndarray]) -> bool:
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(outputs, reference, strict=True))


def test_attributes_are_those_of_onnxruntimes_schema() -> None:
    schema = next(s for s in get_all_operator_schema() if (s.domain, s.name) == ("com.microsoft", "EPContext"))
    types = {name: getattr(onnx.AttributeProto, attribute.type.name) for name, attribute in schema.attributes.items()}
    assert types == ATTRIBUTES and len(ATTRIBUTES) == 10


def test_nodes_say_what_they_are(built: Build) -> None:
    model = onnx.ModelProto.FromString(built.context_model(None, "mine.onnx"))
    onnx.checker.check_model(model)
    first, second = (attributes(node) for node in contexts(model))
    assert first.keys() == {*ATTRIBUTES} and second.keys() == {*ATTRIBUTES} - {"ep_cache_context"}
    assert (first["main_context"], second["main_context"]) == (1, 0) and first["ep_cache_context"] == built.data
    assert (first["partition_name"], second["partition_name"]) == (b"model_0", b"model_1")
    assert (first["source"], first["hardware_architecture"], first["onnx_model_filename"]) == (
        b"npu-toolchain",
        b"edge16",
        b"mine.onnx",
    )
    assert "".join(node.op_type for node in model.graph.node).count("EPContext") == 2
    assert {t.name for t in model.graph.input} == {"x", "n"} and {t.name for t in model.graph.output} == {"y", "z", "m"}


def test_an_embedded_context_gives_the_same_bits(built: Build, reference: list[np.ndarray], tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(built.context_model())
    for model in (built.context_model(), str(tmp_path / "model.onnx"), tmp_path / "model.onnx"):
        session = Session(model)
        assert equal(session.run(None, FEEDS), reference)
        assert session.get_providers() == ["npu (simulator)", "CPUExecutionProvider"]
    assert equal(Session(built.context_model(), backend="reference").run(None, FEEDS), reference)


def test_a_context_in_a_file_gives_the_same_bits(built: Build, reference: list[np.ndarray], tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "m.npu").write_bytes(built.data)
    (tmp_path / "model.onnx").write_bytes(built.context_model("parts/m.npu"))
    assert (tmp_path / "model.onnx").stat().st_size < len(built.data)
    assert equal(Session(tmp_path / "model.onnx").run(None, FEEDS), reference)


def test_each_node_may_hold_its_context(built: Build, reference: list[np.ndarray]) -> None:
    model = onnx.ModelProto.FromString(built.context_model())
    set_attributes(contexts(model)[1], main_context=1, ep_cache_context=built.data)
    assert equal(Session(model.SerializeToString()).run(None, FEEDS), reference)


def test_the_main_node_need_not_be_the_first(built: Build, reference: list[np.ndarray]) -> None:
    model = onnx.ModelProto.FromString(built.context_model())
    set_attributes(contexts(model)[0], main_context=0, ep_cache_context=None)
    set_attributes(contexts(model)[1], main_context=1, ep_cache_context=built.data)
    assert equal(Session(model.SerializeToString()).run(None, FEEDS), reference)


def test_tensors_may_have_other_names_and_host_nodes_be_added(built: Build, reference: list[np.ndarray]) -> None:
    model = onnx.ModelProto.FromString(built.context_model())
    for node in model.graph.node:
        node.input[:] = ["other" if n == "x" else n for n in node.input]
        node.output[:] = ["inner" if n == "y" else n for n in node.output]
    next(t for t in model.graph.input if t.name == "x").name = "other"
    model.graph.value_info.append(helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, [1, 3, 8, 8]))
    model.graph.node.append(helper.make_node("Neg", ["inner"], ["y"], "negate"))
    outputs = Session(model.SerializeToString()).run(["y", "z"], {"other": FEEDS["x"], "n": FEEDS["n"]})
    assert np.array_equal(outputs[0], -reference[0]) and np.array_equal(outputs[1], reference[1])


def test_onnxruntime_names_our_source_in_its_refusal(built: Build) -> None:
    with pytest.raises(Exception, match=f"EPContext node generated by '{SOURCE}' is not compatible with any execution provider"):
        onnxruntime.InferenceSession(built.context_model(), providers=["CPUExecutionProvider"])


# --- refusals


Change = Callable[[onnx.ModelProto], None]


def change(index: int, **values: Any) -> Change:
    return lambda model: set_attributes(contexts(model)[index], **values)


def name_part_twice(model: onnx.ModelProto) -> None:
    set_attributes(contexts(model)[1], partition_name="model_0")


def drop_an_input(model: onnx.ModelProto) -> None:
    del contexts(model)[0].input[:]


def drop_types(model: onnx.ModelProto) -> None:
    del model.graph.value_info[:]


NODE = "model: EPContext node model_0: "
RELATIVE = "must be a path relative to the model, without '..'"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change(0, embed_mode=0, ep_cache_context="/etc/m.npu"), f"{NODE}its context '/etc/m.npu' {RELATIVE}"),
        (change(0, embed_mode=0, ep_cache_context="../m.npu"), f"{NODE}its context '../m.npu' {RELATIVE}"),
        (change(0, embed_mode=0, ep_cache_context="a/../../m"), f"{NODE}its context 'a/../../m' {RELATIVE}"),
        (change(0, embed_mode=0, ep_cache_context="a\\..\\m"), f"{NODE}its context 'a\\\\..\\\\m' {RELATIVE}"),
        (change(0, embed_mode=0, ep_cache_context="C:\\m.npu"), f"{NODE}its context 'C:\\\\m.npu' {RELATIVE}"),
        (change(0, embed_mode=0, ep_cache_context=None), f"{NODE}its context '' {RELATIVE}"),
        (
            change(0, embed_mode=0, ep_cache_context="m.npu"),
            f"{NODE}its context 'm.npu' lies in a file, and the model",
        ),
        (change(0, embed_mode=2), "model: node model_0: embed_mode is 2; it must be 0 or 1"),
        (change(0, main_context="1"), "model: node model_0: its attribute 'main_context' is not INT"),
        (change(0, extra=1), "model: node model_0: its attribute 'extra' is no attribute of EPContext"),
        (change(0, ep_cache_context=b"NPUMODEL"), f"{NODE}its context: holds 8 bytes, its prefix alone has"),
        (change(0, main_context=0), "model: has no EPContext node with main_context 1, which holds the parts"),
        (change(0, source="QNN"), f"{NODE}is of QNN, not of npu-toolchain; run it with the provider that wrote it"),
        (change(0, hardware_architecture="ws8_pow2"), f"{NODE}is for ws8_pow2, its context for edge16"),
        (change(1, partition_name="part"), "model: EPContext node model_1: its partition 'part' is in no context, or taken"),
        (name_part_twice, "model: EPContext node model_1: its partition 'model_0' is in no context, or taken by another node"),
        (drop_an_input, f"{NODE}has 0 inputs, its partition 1; write the model again"),
        (drop_types, "model: tensor 'a' has no type, which host nodes need"),
    ],
)
def test_models_that_are_not_sound_are_refused(edit: Change, message: str, built: Build) -> None:
    model = onnx.ModelProto.FromString(built.context_model())
    edit(model)
    with pytest.raises(ProgramError) as fault:
        Session(model.SerializeToString())
    assert str(fault.value).startswith(message) and "\n" not in str(fault.value)


def test_files_that_are_missing_or_lead_outside_are_refused(built: Build, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(built.context_model("m.npu"))
    with pytest.raises(ProgramError, match=r"EPContext node model_0: .*m\.npu: .*[Nn]o such file"):
        Session(folder / "model.onnx")
    (tmp_path / "m.npu").write_bytes(built.data)
    (folder / "m.npu").symlink_to(tmp_path / "m.npu")
    with pytest.raises(ProgramError, match=r"its context 'm\.npu' leads outside the folder of the model"):
        Session(folder / "model.onnx")


def test_contexts_of_two_builds_are_refused(built: Build) -> None:
    other = build(make_model(), BuildOptions("edge16", host_nodes=("Sin",), level=0))
    model = onnx.ModelProto.FromString(built.context_model())
    set_attributes(contexts(model)[1], main_context=1, ep_cache_context=other.data)
    with pytest.raises(ProgramError, match="model_1: its context is of another build than that of the first node"):
        Session(model.SerializeToString())


def test_what_no_node_can_say_is_refused() -> None:
    graph = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x, float[1,4] past) => (float[1,4] y, float[1,4] present) {
        present = Add(x, past) y = Relu(present) }"""
    stateful = build(parser.parse_model(graph), BuildOptions("edge16", states=("past=present",)))
    with pytest.raises(CompileError, match="EPContext: the state 'past' stays on the chip, which no node can say; build with"):
        stateful.context_model()
    host = build(parser.parse_model(graph), BuildOptions("edge16", states=("none",), host_nodes=("Add", "Relu")))
    with pytest.raises(CompileError, match="EPContext: no part of the model runs on the chip, so that there is no node"):
        host.context_model()
    entries = {"a": {"x": (1, 4)}, "b": {"x": (2, 4)}}
    several = build(
        parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"""),
        BuildOptions("edge16", entries=entries, level=0),
    )
    with pytest.raises(CompileError, match="EPContext: holds one set of input shapes, the build 2 entries"):
        several.context_model()
