"""Compiled files whose checksum is right and which claim more than they hold, or bring models that no build writes."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from fix_checksum import change_header, graph_changed, island_changed, parts, seal
from onnx import ModelProto, TensorProto, parser

from toolchain.codegen import container_from_bytes
from toolchain.codegen.header_keys import IoHeader
from toolchain.errors import ProgramError, ToolchainError
from toolchain.frontend.read_onnx import OLDEST_OPSET, newest_opset
from toolchain.input_limits import HEADER_RANK
from toolchain.runtime import Session, random_feeds

HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[1,4,8,8] a) => (float[1,4,8,8] b) '


@pytest.fixture(scope="module")
def data(workshop: Path) -> bytes:
    return (workshop / "island.npu").read_bytes()


def refusal(data: bytes) -> str:
    with pytest.raises(ProgramError) as refused:
        container_from_bytes(data, "model")
    return str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (
            "entries.0.inputs.0.shape",
            [1 << 31],
            "header key entries.0.inputs.0.shape: [2147483648] are more than 268,435,456 elements",
        ),
        (
            "entries.0.inputs.0.shape",
            [0, 1 << 40],
            "header key entries.0.inputs.0.shape: [0, 1099511627776] are more than 268,435,456 elements",
        ),
        ("entries.0.outputs.0.shape", [1] * 70, "header key entries.0.outputs.0.shape: has 70 dimensions, 32 are the most"),
    ],
)
def test_tensors_of_gigabytes(path: str, value: list[int], reason: str, data: bytes) -> None:
    assert refusal(change_header(data, path, value)) == f"model: is not sound: {reason}; build it again"


def test_as_many_dimensions_as_are_allowed() -> None:
    shape = (1,) * HEADER_RANK
    assert IoHeader(name="x", shape=shape, dtype="float32").shape == shape
    with pytest.raises(ValueError, match=f"has {HEADER_RANK + 1} dimensions, {HEADER_RANK} are the most"):
        IoHeader(name="x", shape=(1, *shape), dtype="float32")


def test_a_dram_of_gigabytes(data: bytes) -> None:
    header, body = parts(data)
    start, size = header["machine"]
    machine = body[start : start + size].replace(b'"size":1073741824', b'"size":8589934592')
    header["machine"] = [len(body), len(machine)]
    header["entries"][0]["segments"][0]["dram_bytes"] = 1 << 32
    del header["machine_digest"]
    from toolchain.isa import machine_digest, machine_from_json

    header["machine_digest"] = machine_digest(machine_from_json(machine.decode()))
    reason = "header: 4,294,967,296 bytes of DRAM, the simulator holds 2,147,483,648"
    assert refusal(seal(header, body + machine)) == f"model: is not sound: {reason}; build it again"


def test_one_section_named_many_times(data: bytes) -> None:
    """Every mention of the section would be a copy in memory."""
    header, body = parts(data)
    header["blocks"] *= 1000
    reason = f"header: its sections have more bytes together than the {len(body)} behind the header"
    assert refusal(seal(header, body)) == f"model: is not sound: {reason}; build it again"


def test_one_block_named_many_times(data: bytes) -> None:
    """Copies at addresses of their own are no more bytes than the region's DRAM; overlapping ones are refused."""
    header, body = parts(data)
    region = header["entries"][0]["segments"][0]
    (address, block), size = region["constants"][0], header["blocks"][region["constants"][0][1]][1]
    region["constants"] = [[address, block]] * 1000
    reason = f"segment 0: constants at {address:#x} begin before those in front of them end, at {address + size:#x}"
    assert refusal(seal(header, body)) == f"model: is not sound: header: {reason}; build it again"


def test_one_array_named_many_times(data: bytes) -> None:
    block_bytes = sum(size for _, size in parts(data)[0]["blocks"])

    def change(graph: dict) -> None:
        name, array = next(iter(graph["constants"].items()))
        graph["constants"] |= {f"{name}{i}": array for i in range(1000)}

    message = refusal(graph_changed(data, change))
    reason = f"its arrays have more bytes together than the {block_bytes} of the blocks"
    assert re.fullmatch(rf"model: is not sound: graph: tensor 'Conv_0\.\w+': {reason}; build it again", message)


def with_external_weight() -> ModelProto:
    proto = parser.parse_model(HEAD + "{ b = Add(a, w) }")
    weight = proto.graph.initializer.add(name="w", dims=[1], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="secret.bin")
    return proto


def of_opset(version: int) -> ModelProto:
    proto = parser.parse_model(HEAD + "{ b = Relu(a) }")
    proto.opset_import[0].version = version
    return proto


ENDLESS = (
    "{ n = Constant<value = int64 {9223372036854775807}>() t = Constant<value = bool {1}>() b = Loop(n, t, a) "
    "<body = l (int64 i, bool c, float[1,4,8,8] x) => (bool d, float[1,4,8,8] y) { d = Identity(c) y = Neg(x) }> }"
)
INSTALLED = "the newest that the installed onnx and onnxruntime read"
VAST = "{ s = Constant<value = int64[1] {1000000000000}>() z = ConstantOfShape(s) y = ReduceMax(z) b = Add(a, y) }"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (with_external_weight(), "weight w lies in another file; islands hold their weights"),
        (parser.parse_model(HEAD + ENDLESS), "node  (Loop) holds graphs of its own, which no node of an island has"),
        (parser.parse_model(HEAD + VAST), "tensor z has shape [1000000000000]; 268,435,456 elements are the most"),
        (
            parser.parse_model(HEAD.replace("]>", ', "com.microsoft" : 1]>') + "{ b = com.microsoft.Inverse(a) }"),
            'node Inverse_0 (Inverse): is no operator of "com.microsoft" that is read',
        ),
        (
            parser.parse_model(
                HEAD.replace("]>", ', "local" : 1]>')
                + '{ b = local.F(a) } <domain: "local", opset_import: ["" : 21]> F (x) => (y) { y = Relu(x) }'
            ),
            "holds functions, sparse weights or training, which no island has",
        ),
        (of_opset(2**62), f"its model: opset {2**62} is newer than {newest_opset()}, {INSTALLED}"),
        (of_opset(-(2**62)), f"its model: opset {-(2**62)} is older than {OLDEST_OPSET}, the oldest that is read"),
    ],
    ids=["external", "loop", "vast", "domain", "function", "newer", "older"],
)
def test_islands_that_no_build_writes(model: ModelProto, reason: str, data: bytes, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(4))
    monkeypatch.chdir(tmp_path)
    session = Session(island_changed(data, model.SerializeToString()))
    began = time.process_time()
    with pytest.raises(ToolchainError) as refused:
        session.run(None, random_feeds(session.get_inputs()))
    assert str(refused.value) == f"host nodes MeanVarianceNormalization_1: cannot be run: {reason}; build the file again"
    assert time.process_time() - began < 10
