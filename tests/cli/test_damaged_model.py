"""Compiled files with bits flipped, cut short, or changed by hand under a new checksum: always refused, never a traceback."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from commands import contents, run
from fix_checksum import PREFIX_BYTES, VERSION, change_header, graph_changed, parts, seal
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from toolchain.api import BuildOptions, build
from toolchain.codegen import container_from_bytes
from toolchain.errors import ProgramError, ToolchainError
from toolchain.runtime import Session, random_feeds

NODE_KEYS = "a node has fields, inputs, name, operator, outputs, sources, version"
CHECKSUM = "model: its checksum does not match its contents; the file is damaged, build or copy it again"


def refusal(data: bytes) -> str:
    with pytest.raises(ProgramError) as fault:
        container_from_bytes(data, "model")
    return str(fault.value)


def flip_bit(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.fixture(scope="module")
def data(workshop: Path) -> bytes:
    return (workshop / "island.npu").read_bytes()


def test_a_flipped_bit_of_the_prefix(data: bytes) -> None:
    rest = len(data) - PREFIX_BYTES
    for bit in range(8 * PREFIX_BYTES):
        message = refusal(flip_bit(data, bit))
        if bit < 64:
            assert message == "model: not a compiled model (no NPUMODEL at its start); build one with npu-build"
        elif bit < 96:
            version = VERSION ^ 1 << bit - 64
            assert message == f"model: has format version {version}, this toolchain reads {VERSION}; build it again"
        elif bit < 160:
            length = rest ^ 1 << bit - 96
            assert message == f"model: holds {rest} bytes behind its prefix, which says {length}; it was cut or extended"
        else:
            assert message == CHECKSUM


def test_a_flipped_bit_of_anything_else(data: bytes) -> None:
    """Header, machine, program, constants, island, graph: places spread over the whole file."""
    for bit in range(8 * PREFIX_BYTES, 8 * len(data), 8 * len(data) // 499):
        assert refusal(flip_bit(data, bit)) == CHECKSUM


def test_cut_short_and_extended(data: bytes) -> None:
    body_bytes = len(data) - PREFIX_BYTES
    for size in range(0, len(data), len(data) // 97):
        message = refusal(data[:size])
        if size < 8:
            assert message == "model: not a compiled model (no NPUMODEL at its start); build one with npu-build"
        elif size < PREFIX_BYTES:
            assert message == f"model: holds {size} bytes, its prefix alone has 52; it was cut"
        else:
            remaining_bytes = size - PREFIX_BYTES
            assert (
                message
                == f"model: holds {remaining_bytes} bytes behind its prefix, which says {body_bytes}; it was cut or extended"
            )
    assert (
        refusal(data + b"\0")
        == f"model: holds {body_bytes + 1} bytes behind its prefix, which says {body_bytes}; it was cut or extended"
    )


@pytest.mark.parametrize("command", ["npu-sim", "npu-dis", "reference"])
def test_commands_refuse_a_flipped_bit(command: str, data: bytes, in_workshop: Path) -> None:
    (in_workshop / "flipped.npu").write_bytes(flip_bit(data, 8 * (len(data) // 2)))
    before = contents(in_workshop)
    printed = run(f"{command} flipped.npu" + (" --output z.npz" if command != "npu-dis" else " -o z.txt"))
    assert (printed.code, printed.out, printed.err) == (2, "", CHECKSUM.replace("model", "flipped.npu") + "\n")
    assert contents(in_workshop) == before


# --- changed by hand, with a checksum that fits


def test_the_unchanged_file_seals_to_itself(data: bytes) -> None:
    assert seal(*parts(data)) == data


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("machine", None, "header key machine: Field required"),
        (
            "entries.0.graph",
            [0, 10**9],
            "header: a section of 1000000000 bytes at 0 does not lie within the {body} bytes behind the header",
        ),
        (
            "entries.0.segments.0.program",
            [-1, 8],
            "header key entries.0.segments.0.program.0: Input should be greater than or equal to 0",
        ),
        (
            "entries.0.segments.0.ports.0.address",
            10**9,
            "header: segment 0: port 'x' of 192 bytes at 0x3b9aca00 lies outside the {dram}",
        ),
        (
            "entries.0.segments.0.constants.0.0",
            10**9,
            "header: segment 0: constants of {constants} bytes at 0x3b9aca00 lie outside the {dram}",
        ),
        (
            "entries.0.segments.0.ports.0.shape",
            [1, 8, 3, 8],
            "header: segment 0: port 'x' has another shape than the model's tensor of that name",
        ),
        ("entries.0.segments.0.ports.0.shape", [192], "header: segment 0: port 'x' is channels-last with 1 dimensions"),
        ("entries.0.segments.0.ports.0.zero_point", 200, "header: segment 0: port 'x' has zero point 200, no code of int8"),
        (
            "entries.0.segments.0.ports.0.dtype",
            "object",
            "header key entries.0.segments.0.ports.0.dtype: Input should be 'int8', 'uint8', 'int16' or 'int32'",
        ),
        (
            "entries.0.segments.0.ports.0.scale",
            0.0,
            "header key entries.0.segments.0.ports.0.scale: Input should be greater than 0",
        ),
        ("entries.0.segments.0.dram_bytes", 1 << 40, "header: 1099511627776 bytes of DRAM, edge16 has 1073741824"),
        (
            "entries.0.segments.0.constants.0.1",
            99,
            "header: segment 0: constants at {address:#x} are block 99, the file has {blocks}",
        ),
        ("entries.0.segments.0.layers", [], "layer table: names a layer outside the 0 of its region"),
        (
            "entries.0.segments.0.areas.1.base",
            0,
            "header: segment 0: the area at 0x0 begins before the one in front of it ends, at {first_area:#x}",
        ),
        (
            "entries.0.segments.0.areas.2.size_bytes",
            1 << 20,
            "header: segment 0: its areas end at {far:#x}, outside the {dram}",
        ),
        ("entries.0.segments.0.areas.0.base_register", 1, "header: an area with base register 1, edge16 has 0 of them"),
        ("entries.0.segments.0.nodes", ["ghost"], "graph: has no node 'ghost', which a region holds"),
        ("entries.0.segments.1.inputs", ["ghost"], "header: segment 1 reads tensor 'ghost', which nothing before it makes"),
        ("entries.0.outputs.0.name", "ghost", "header: no segment makes the output 'ghost'"),
        ("entries.0.inputs.0.dtype", "spam", "header key entries.0.inputs.0.dtype: 'spam' is no element type of ONNX"),
        ("machine_digest", "0" * 64, "machine: edge16 is not the one that the file was built for"),
        ("surprise", 1, "header key surprise: Extra inputs are not permitted"),
    ],
)
def test_a_header_changed_by_hand(path: str, value: Any, reason: str, data: bytes) -> None:
    header, body = parts(data)
    region = header["entries"][0]["segments"][0]
    sizes = {
        "body": len(body),
        "constants": header["blocks"][region["constants"][0][1]][1],
        "dram": f"{region['dram_bytes']} of its DRAM",
    }
    areas = region["areas"]
    sizes |= {"first_area": areas[0]["size_bytes"], "far": areas[2]["base"] + (1 << 20)}
    sizes |= {"address": region["constants"][0][0], "blocks": len(header["blocks"])}
    assert refusal(change_header(data, path, value)) == f"model: is not sound: {reason.format(**sizes)}; build it again"


@pytest.mark.parametrize(("machine", "code_bytes"), [("edge16", 1), ("wide32_w4a16", 2)])
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_port_across_the_end_of_its_dram(machine: str, code_bytes: int, side: str, workshop: Path) -> None:
    """The last byte of its last code may be the last of the DRAM."""
    data = build(workshop / "island.onnx", BuildOptions(machine)).data
    region = parts(data)[0]["entries"][0]["segments"][0]
    index = next(i for i, port in enumerate(region["ports"]) if port["kind"] == side)
    port, end = region["ports"][index], region["dram_bytes"]
    size = math.prod(port["shape"]) * code_bytes
    path = f"entries.0.segments.0.ports.{index}.address"
    container_from_bytes(change_header(data, path, end - size), "model")
    reason = f"port {port['model']!r} of {size} bytes at {end - size + 1:#x} lies outside the {end} of its DRAM"
    assert reason in refusal(change_header(data, path, end - size + 1))


def test_the_graph_is_written_in_one_way(data: bytes) -> None:
    """The keys are sorted: the same graph is the same bytes, whatever the order in which a version names its fields."""
    header, body = parts(data)
    start, size = header["entries"][0]["graph"]
    text = body[start : start + size].decode()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize("header", [b"", b"{", b"[]", b"null", b'{"name": "\xff"}', b"[" * 100_000])
def test_a_header_that_is_none(header: bytes, data: bytes) -> None:
    assert refusal(seal(header, b"")).startswith("model: is not sound: header")


def test_no_header_at_all() -> None:
    rest = b"abc"
    prefix = struct.pack("<8sIQ32s", b"NPUMODEL", VERSION, len(rest), hashlib.sha256(rest).digest())
    assert refusal(prefix + rest) == "model: is not sound: header: is missing; build it again"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda g: g.pop("nodes"), "lacks 'nodes'"),
        (lambda g: g["nodes"][0].pop("sources"), f"{NODE_KEYS}, not {{"),
        (lambda g: g["nodes"][0]["fields"].pop("requant"), "node 'Conv_0' (Convolution): lacks 'requant'"),
        (lambda g: g["nodes"][0]["fields"].update(spam=1), "node 'Conv_0' (Convolution): has 'spam', which it should not"),
        (lambda g: g["nodes"].__setitem__(0, 7), f"{NODE_KEYS}, not 7"),
        (lambda g: g["nodes"][0].update(inputs=[1]), "node 'Conv_0' (Convolution): is 1"),
        (lambda g: g["nodes"][0]["fields"].update(strides="wide"), "node 'Conv_0' (Convolution): strides is 'wide'"),
        (lambda g: g["nodes"][0]["fields"].update(strides="11"), "node 'Conv_0' (Convolution): strides is '11'"),
        (lambda g: g["nodes"][0]["fields"].update(strides=2), "node 'Conv_0' (Convolution): strides is 2"),
        (lambda g: g["nodes"][0]["fields"].update(strides=[1]), "node 'Conv_0' (Convolution): strides is [1]"),
        (lambda g: g["nodes"][0]["fields"].update(pads=[1] * 5), "node 'Conv_0' (Convolution): pads is [1, 1, 1, 1, 1]"),
        (
            lambda g: g["nodes"][0]["fields"]["requant"].update(rounding="up"),
            "node 'Conv_0' (Convolution): requant rounding is 'up'",
        ),
        (
            lambda g: g["nodes"][0]["inputs"].__setitem__(1, g["nodes"][0]["inputs"][0]),
            "node 'Conv_0' does not fit its tensors: lacks 'x@nhwc'",
        ),
        (lambda g: g["types"].pop("x@nhwc"), "node 'Conv_0' names 'x@nhwc', which has no type"),
        (lambda g: g["nodes"].clear(), "has no node 'Conv_0', which a region holds"),
        (lambda g: g["constants"].clear(), "node 'Conv_0' reads 'Conv_0.weights' before it is made"),
        (lambda g: g["types"].update(x=5), "tensor 'x': is 5"),
        (lambda g: g["origins"].update(x=["x"]), "tensor 'x': is ['x']"),
        (lambda g: g["origins"].update(x=["x", "rows"]), "tensor 'x': layout 'rows' is none of plain, nhwc, inner"),
        (lambda g: g["constants"].update(x=5), "tensor 'x': 5 is no array"),
        (
            lambda g: g["constants"].update(x={"array": ["int8", [4], [[99, 0, 4]]]}),
            "tensor 'x': a piece of 4 bytes at 0 of block 99, which does not have them",
        ),
        (lambda g: g["constants"].update(x={"array": ["int8", [5], [[0, 0, 4]]]}), "tensor 'x': array of 'int8' [5] in 4 bytes"),
    ],
)
def test_a_graph_changed_by_hand(change: Callable[[dict[str, Any]], Any], reason: str, data: bytes) -> None:
    message = refusal(graph_changed(data, change))
    assert message.startswith(f"model: is not sound: graph: {reason}")
    assert message.endswith("; build it again")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"operator": "Spam"},
            "node 'Conv_0' is an operator 'Spam', which this toolchain does not know: a newer one, or one with an operator of "
            "its own, wrote the file; read it with that, or build it again",
        ),
        (
            {"version": 4},
            "node 'Conv_0': operator Convolution has version 4, this toolchain reads 3; build the file again, or read it with "
            "the toolchain that wrote it",
        ),
    ],
)
def test_an_operator_of_another_toolchain(change: dict[str, Any], reason: str, data: bytes) -> None:
    assert refusal(graph_changed(data, lambda g: g["nodes"][0].update(change))) == f"model: {reason}"


def shorten_order(graph: dict[str, Any]) -> None:
    (node,) = (n for n in graph["nodes"] if n["operator"] == "Transpose")
    node["fields"]["perm"] = node["fields"]["perm"][:-1]


def flatten_input(graph: dict[str, Any]) -> None:
    node = next(n for n in graph["nodes"] if n["operator"] == "MaxPool")
    kind = graph["types"][node["inputs"][0]]
    kind["shape"] = [1, kind["shape"][1] * kind["shape"][2], kind["shape"][3]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [(shorten_order, "tuple index out of range"), (flatten_input, "not enough values to unpack (expected 4, got 3)")],
)
def test_figures_that_do_not_follow(change: Callable[[dict[str, Any]], None], reason: str, tmp_path: Path) -> None:
    """What figures and warnings ask of layers and tensors, while a run needs the program alone."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8,8] x) => (float[1,8,4,8] z) '
        "{ a = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(x) b = Transpose<perm = [0,2,1,3]>(a) z = Softmax(b) }"
    )
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "m.npu").write_bytes(graph_changed(build(tmp_path / "m.onnx", BuildOptions("edge16")).data, change))
    printed = run(f"npu-sim {tmp_path}/m.npu")
    assert (printed.code, printed.err) == (2, f"graph: its layers do not fit its tensors: {reason}; build it again\n")


def test_a_port_that_is_kept_from_run_to_run(data: bytes) -> None:
    """A port of kind state lacks the present tensor here."""
    reason = "segment 0: port 'x' is of kind state; states have the keys made and output, nothing else does"
    refused = refusal(change_header(data, "entries.0.segments.0.ports.0.kind", "state"))
    assert refused == f"model: is not sound: header: {reason}; build it again"


def test_a_graph_that_computes_nothing_sensible(data: bytes) -> None:
    """The kinds are right, but the numbers do not fit each other: seen when the reference runs it."""
    broken = graph_changed(data, lambda g: g["nodes"][0]["fields"].update(groups=7))
    session = Session(broken, backend="reference")
    with pytest.raises(ProgramError, match=r"^segment 0: graph: node 'Conv_0' cannot be computed: .*; build it again$"):
        session.run(None, random_feeds(session.get_inputs()))


def test_an_island_that_is_no_model(data: bytes) -> None:
    header, body = parts(data)
    start, size = header["entries"][0]["segments"][1]["model"]
    session = Session(seal(header, body[:start] + b"\0" * size + body[start + size :]))
    with pytest.raises(ToolchainError, match=r"^host nodes .+: cannot be run: is no ONNX model; build the file again$"):
        session.run(None, random_feeds(session.get_inputs()))


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_program_garbage_is_refused_or_runs(data: st.DataObject, workshop: Path) -> None:
    """Bits of the program flipped under a new checksum: a message, or other outputs; never another exception."""
    header, body = parts((workshop / "good.npu").read_bytes())
    start, size = header["entries"][0]["segments"][0]["program"]
    damaged = bytearray(body)
    for bit in data.draw(st.lists(st.integers(8 * start, 8 * (start + size) - 1), min_size=1, max_size=4)):
        damaged[bit // 8] ^= 1 << bit % 8
    try:
        session = Session(seal(header, bytes(damaged)))
        session.run(None, random_feeds(session.get_inputs()))
    except ToolchainError as fault:
        assert str(fault)
