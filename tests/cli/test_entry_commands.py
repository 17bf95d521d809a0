"""Several sets of input shapes in one file, by the commands: what they print, and every fault by its exact text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import contents, run
from fix_checksum import parts, seal
from onnx import numpy_helper, parser

from toolchain import input_limits
from toolchain.api import BuildOptions, build
from toolchain.cli.option_values import shape_sets, values_by_entry
from toolchain.codegen import container_from_bytes, entries_to_bytes, read_container, read_entries
from toolchain.codegen.container import entries_from_bytes
from toolchain.errors import CompileError, ProgramError
from toolchain.runtime import Session, random_feeds

BODY = """a = Conv<pads=[1,1,1,1]>(x, k) s = MeanVarianceNormalization<axes=[1]>(a)
    b = Conv<pads=[1,1,1,1]>(s, l) y = GlobalAveragePool(b)"""
ENTRIES = "--entry small:x=1,4,8,8 --entry large:x=2,4,24,24"
ENTRY_LIST = "small (x [1, 4, 8, 8]); large (x [2, 4, 24, 24])"


def model(folder: Path, body: str = BODY) -> None:
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[N,4,H,W] x) => (float[N,48,P,Q] y) {{ {body} }}'
    )
    rng = np.random.default_rng(0)
    for name, shape in {"k": (64, 4, 3, 3), "l": (48, 64, 3, 3)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32) / 8, name))
    onnx.save(proto, folder / "m.onnx")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m.npu of two entries with its report, image and dumps."""
    folder = tmp_path_factory.mktemp("entries")
    model(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        printed = run(f"npu-build m.onnx --hw ws8_pow2 {ENTRIES} --json m.json --image image --dump-after select")
        assert printed.code == 0, printed.err
        (folder / "printed.txt").write_text(printed.out)
        (folder / "warned.txt").write_text(printed.err)
    return folder


@pytest.fixture
def in_shop(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shop)
    return shop


def test_the_report_says_what_is_shared(in_shop: Path) -> None:
    printed, figures = Path("printed.txt").read_text(), json.loads(Path("m.json").read_text())
    size, alone = Path("m.npu").stat().st_size, figures["alone_bytes"]
    assert (figures["file_bytes"], list(alone), list(figures["entries"])) == (size, ["small", "large"], ["small", "large"])
    total = sum(alone.values())
    assert figures["shared_bytes"] == total - size > 30_000
    assert figures["entries"]["large"]["cycles"] > figures["entries"]["small"]["cycles"] > 0
    assert printed.startswith("== entry small: x [1, 4, 8, 8]\n\n")
    assert "\n\n== entry large: x [2, 4, 24, 24]\n\n" in printed
    assert printed.endswith(
        f"\n\n2 entries, all quantized by the calibration of entry small: {size:,} bytes, {100 * size / total:.0f} % of "
        f"the {total:,} that a file each has (small {alone['small']:,}, large {alone['large']:,}); "
        f"{figures['shared_bytes']:,} bytes are shared\n\n"
        f"wrote m.npu: {size:,} bytes; of every entry the emitted program equals the integer reference bit for bit\n"
    )
    assert {line.partition(": ")[2][:12] for line in Path("warned.txt").read_text().splitlines()} == {
        "entry small:",
        "entry large:",
    }
    dumped = Path("dumps/02-select.txt").read_text()
    assert dumped.startswith("entry small\n") and "\nentry large\n" in dumped
    first, second = (onnx.load(f"dumps/02-select{number}.onnx") for number in ("", "-2"))
    assert first.graph.input[0].type != second.graph.input[0].type
    assert not Path("dumps/02-select-3.onnx").exists()


@pytest.mark.parametrize("entry", ["small", "large"])
def test_commands_take_an_entry(entry: str, in_shop: Path, tmp_path: Path) -> None:
    feeds = random_feeds(Session("m.npu", entry=entry).get_inputs())
    np.savez(tmp_path / "x.npz", x=feeds["x"])
    printed = run(f"npu-sim m.npu --entry {entry} --verify --input {tmp_path}/x.npz --output {tmp_path}/y.npz")
    assert printed.code == 0, printed.err
    assert "verified: every byte of every layer's tensor is the integer reference's" in printed.out
    assert run(f"reference m.npu --entry {entry} --input {tmp_path}/x.npz --output {tmp_path}/z.npz").code == 0
    one, other = np.load(tmp_path / "y.npz")["y"], np.load(tmp_path / "z.npz")["y"]
    assert np.array_equal(one, other) and one.std() > 0
    assert run(f"npu-sim m.npu --entry {entry} --dump-memory 0:3 --out {tmp_path}/memory").code == 0
    listed = run(f"npu-dis m.npu --entry {entry}").out
    assert f"; input x {[1, 8, 8, 4] if entry == 'small' else [2, 24, 24, 4]} int8" in listed


def test_an_edited_listing_changes_one_entry(in_shop: Path, tmp_path: Path) -> None:
    run(f"npu-dis m.npu --entry small -o {tmp_path}/l.txt")
    assert run(f"npu-dis m.npu --entry small --assemble {tmp_path}/l.txt -o {tmp_path}/same.npu").code == 0
    assert (tmp_path / "same.npu").read_bytes() == Path("m.npu").read_bytes()
    text = (tmp_path / "l.txt").read_text()
    assert text.count("CLAMP = 0x7f80") == 2
    (tmp_path / "l.txt").write_text(text.replace("CLAMP = 0x7f80", "CLAMP = 0x7f00"))
    assert run(f"npu-dis m.npu --entry small --assemble {tmp_path}/l.txt -o {tmp_path}/other.npu").code == 0
    before, after = (
        [read_container(file, name).segments for name in ("small", "large")] for file in ("m.npu", tmp_path / "other.npu")
    )
    assert before[0] != after[0] and before[1] == after[1]


def test_the_image_has_a_folder_for_each_entry_and_constants_once(in_shop: Path) -> None:
    assert sorted(str(p.relative_to("image")) for p in Path("image").rglob("*") if p.is_file()) == [
        "constants.bin",
        *(
            f"{e}/{f}"
            for e in ("large", "small")
            for f in ("island1.onnx", "ports.json", "region0.program.bin", "region2.program.bin")
        ),
    ]
    for entry in ("small", "large"):
        ports = json.loads(Path(f"image/{entry}/ports.json").read_text())
        for segment, region in zip(ports["segments"], read_container("m.npu", entry).segments, strict=True):
            if segment["kind"] == "island":
                continue
            data = Path("image", entry, segment["constants"]["file"]).read_bytes()
            dram, want = (np.zeros(segment["dram_bytes"], np.uint8) for _ in range(2))
            for block in segment["constants"]["blocks"]:
                piece = data[block["offset"] : block["offset"] + block["bytes"]]
                dram[block["address"] : block["address"] + block["bytes"]] = np.frombuffer(piece, np.uint8)
            for address, piece in region.constants:  # type: ignore[union-attr]
                want[address : address + len(piece)] = np.frombuffer(piece, np.uint8)
            assert np.array_equal(dram, want) and want.any()
    constants = [
        sum(len(d) for s in read_container("m.npu", e).segments for _, d in getattr(s, "constants", ()))
        for e in ("small", "large")
    ]
    assert len(data) < 1.1 * max(constants)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("npu-sim m.npu", f"--entry: m.npu has 2, say which: {ENTRY_LIST}"),
        ("npu-sim m.npu --entry wide", f"--entry wide: m.npu has no such entry; it has {ENTRY_LIST}"),
        ("npu-dis m.npu", f"--entry: m.npu has 2, say which: {ENTRY_LIST}"),
        ("npu-dis m.npu --entry wide", f"--entry wide: m.npu has no such entry; it has {ENTRY_LIST}"),
        ("reference m.npu --output z.npz", f"--entry: m.npu has 2, say which: {ENTRY_LIST}"),
        (
            "reference m.onnx --entry small --hw edge16 --output z.npz",
            "--entry small: goes with a compiled .npu; --shape binds dimensions of an ONNX model",
        ),
        (
            "npu-build m.onnx --hw edge16 --entry x=1,4,8,8",
            "--entry x=1,4,8,8: must be NAME:INPUT=D0,D1,..., for example --entry small:x=1,3,160,160",
        ),
        (
            "npu-build m.onnx --hw edge16 --entry a:x=1,4,8,b",
            "--entry a:x=1,4,8,b: must be NAME=D0,D1,..., for example --entry a:x=1,3,640,640",
        ),
        (
            "npu-build m.onnx --hw edge16 --entry a:x=1,4,8,8 --entry a:x=1,4,9,9",
            "--entry a:x=1,4,9,9: input 'x' of entry 'a' is given twice",
        ),
        (
            "npu-build m.onnx --hw edge16 --entry ../a:x=1,4,8,8",
            "--entry ../a: a name has 1 to 64 letters, digits, '_' and '-', and does not begin with '-'",
        ),
        (
            "npu-build m.onnx --hw edge16 --shape x=1,4,8,8 --shape x=1,4,9,9 --entry a:x=1,4,8,8",
            "--shape x=1,4,9,9: names its input again, which begins a set of shapes of its own; --entry does so by name: give "
            "one of them",
        ),
        (
            "npu-build m.onnx --hw edge16 --shape x=1,4,8,8 --entry a:x=1,4,8,8",
            "--entry a: input 'x' has a shape by --shape, which is for all entries; give one of them",
        ),
        (
            "npu-build m.onnx --hw edge16 " + " ".join(f"--entry e{i}:x=1,4,8,8" for i in range(65)),
            "--entry: 65 are given, a file holds 64 at most; make several files",
        ),
        (
            "npu-build m.onnx --hw edge16 --entry a:x=1,4,8,8 --entry b:x=1,3,8,8",
            "entry b: --shape x=1,3,8,8: dimension 1 is 4 in the model, it cannot become 3: [N, 4, H, W]",
        ),
    ],
)
def test_command_lines_that_are_refused(line: str, message: str, in_shop: Path) -> None:
    before = contents(in_shop)
    printed = run(line)
    assert (printed.code, printed.out, printed.err) == (2, "", f"{message}\n")
    assert contents(in_shop) == before


def test_an_input_named_again_begins_the_next_entry(tmp_path: Path) -> None:
    """The next entry takes the shapes that it does not name from the entry before."""
    texts = ["x=1,4,8,8", "z=1,2", "x=1,4,9,9", "x=1,4,8,8", "z=1,3"]
    first, second, third = {"x": (1, 4, 8, 8), "z": (1, 2)}, {"x": (1, 4, 9, 9), "z": (1, 2)}, {"x": (1, 4, 8, 8), "z": (1, 3)}
    assert shape_sets(texts, ()) == ({}, {"1": first, "2": second, "3": third})
    assert shape_sets(texts[:2], ("a:y=1",)) == (first, {"a": {"y": (1,)}})
    model(tmp_path, "a = Conv<pads=[1,1,1,1]>(x, k) y = Relu(a)")
    printed = run(f"npu-build {tmp_path}/m.onnx --hw edge16 --shape x=1,4,8,8 --shape x=1,4,4,4 -o {tmp_path}/m.npu")
    assert printed.code == 0, printed.err
    shapes = {name: [t.shape for t in one.inputs] for name, one in read_entries(tmp_path / "m.npu").items()}
    assert shapes == {"1": [(1, 4, 8, 8)], "2": [(1, 4, 4, 4)]}


def test_a_value_may_be_of_one_entry() -> None:
    texts = ["k=1", "few:k=2", "few:x:0=3,4", "x:0=5"]  # names of TensorFlow have colons
    assert values_by_entry(texts, ("few", "many")) == ({"k": ("1",), "x:0": ("5",)}, {"few": {"k": ("2",), "x:0": ("3", "4")}})


def test_a_tensor_that_only_a_later_entry_has(tmp_path: Path) -> None:
    """A Resize to 8 x 8 is folded away where the tensor has that size."""
    model(
        tmp_path, 'a = Conv<pads=[1,1,1,1]>(x, k) r = Resize<mode="nearest">(a, , , z) b = Conv<pads=[1,1,1,1]>(r, l) y = Relu(b)'
    )
    proto = onnx.load(tmp_path / "m.onnx")
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 64, 8, 8]), "z"))
    onnx.save(proto, tmp_path / "m.onnx")
    entries = {"whole": {"x": (1, 4, 8, 8)}, "half": {"x": (1, 4, 4, 4)}}
    reason = (
        "entry half: tensor 'r' is none of the entry's that was calibrated, since what is folded depends on the shapes; build it "
        "into a file of its own, or give --quant FILE with a range of it"
    )
    with pytest.raises(CompileError) as fault:
        build(tmp_path / "m.onnx", BuildOptions("edge16", entries=entries))
    assert str(fault.value) == reason


def test_data_of_other_shapes_are_said_not_to_be(in_shop: Path, tmp_path: Path) -> None:
    """An entry whose shapes the data have not is judged on them repeated; a batch of them on themselves."""
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(24, 4, 8, 8)).astype(np.float32))
    printed = run(
        f"npu-build m.onnx --hw edge16 --calib {tmp_path}/x.npz --observer auto --entry a:x=1,4,8,8 --entry b:x=2,4,8,8 "
        f"--entry c:x=1,4,9,9 -o {tmp_path}/m.npu --json {tmp_path}/m.json"
    )
    assert printed.code == 0, printed.err
    figures = json.loads((tmp_path / "m.json").read_text())
    assert [f["judged_on"] for f in figures["entries"].values()] == ["held out", "calibration", "repeated"]
    fault = f"{tmp_path}/x.npz: array for input 'x' has shape [24, 4, 8, 8]; the input takes [1, 4, 9, 9]"
    (note,) = [n for n in figures["notes"] if "the data do not fit" in n]
    how = "calibrated in the shapes of another entry, and judged on its data, repeated or cut"
    assert note.startswith(f"entry c: {how}: the data do not fit its shapes: {fault}")
    assert f"note: {note.partition(': ')[2]}" in printed.out


def test_what_the_ranges_clip_in_other_shapes_is_said_of_the_entry(tmp_path: Path) -> None:
    """A sum over twelve numbers saturates where the range is that of sums over three."""
    text = "g (float[1,N] x) => (float[1,1] y) <int64[1] a = {1}> { r = Relu(x) y = ReduceSum(r, a) }"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).uniform(0, 1, (40, 3)).astype(np.float32))
    entries = {"short": {"x": (1, 3)}, "long": {"x": (1, 12)}}
    built = build(tmp_path / "m.onnx", BuildOptions("edge16", str(tmp_path / "x.npz"), entries=entries))
    clipped = [w for w in built.warnings if "lie outside the codes of: y" in w]
    assert len(clipped) == 1 and clipped[0].startswith("entry long: "), built.warnings


# --- files


def refusal(header: Any, body: bytes) -> str:
    with pytest.raises(ProgramError) as fault:
        container_from_bytes(seal(header, body), "model")
    return str(fault.value)


def twice(header: dict[str, Any]) -> None:
    header["entries"][1]["name"] = "small"


def none(header: dict[str, Any]) -> None:
    header["entries"].clear()


def many(header: dict[str, Any]) -> None:
    header["entries"] = [{**header["entries"][0], "name": str(i)} for i in range(65)]


def elsewhere(header: dict[str, Any]) -> None:
    header["entries"][1]["segments"][0]["ports"][0]["zero_point"] = 200


def mark_as_state(header: dict[str, Any]) -> None:
    header["entries"][1]["segments"][0]["ports"][0]["kind"] = "state"


def set_pieces(pieces: Callable[[int], list[list[int]]]) -> Callable[[dict[str, Any]], None]:
    """Constants of the last region of the second entry; given the bytes of block 0."""

    def change(header: dict[str, Any]) -> None:
        region = header["entries"][1]["segments"][2]
        region["constants"] = [[0, pieces(header["blocks"][0][1])]]

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (twice, "header: has two entries of the name 'small'"),
        (none, "header: has no entries, nothing that could be run"),
        (many, "header: has 65 entries, 64 are the most"),
        (elsewhere, "header: entry 'large': segment 0: port 'x' has zero point 200, no code of int8"),
        (
            set_pieces(lambda size: [[0, 0, size], [99999, 0, 1]]),
            "header: entry 'large': segment 2: constants at 0x0 are block 99999, the file has {blocks}",
        ),
        (
            set_pieces(lambda size: [[0, 8, size]]),
            "header: entry 'large': segment 2: constants at 0x0 are {first} bytes at 8 of block 0, which has {first}",
        ),
        (
            set_pieces(lambda size: [[0, 0, size]] * 90_000),
            "header: entry 'large': segment 2: constants of {much} bytes at 0x0 lie outside the {dram} of its DRAM",
        ),
    ],
)
def test_files_that_are_refused(change: Callable[[dict[str, Any]], None], reason: str, in_shop: Path) -> None:
    header, body = parts(Path("m.npu").read_bytes())
    sizes = {"blocks": len(header["blocks"]), "first": header["blocks"][0][1], "much": 90_000 * header["blocks"][0][1]}
    sizes["dram"] = header["entries"][1]["segments"][2]["dram_bytes"]
    change(header)
    assert refusal(header, body) == f"model: is not sound: {reason.format(**sizes)}; build it again"


def test_as_many_entries_as_are_allowed(in_shop: Path) -> None:
    header, body = parts(Path("m.npu").read_bytes())
    many(header)
    header["entries"] = header["entries"][: input_limits.ENTRIES]
    assert len(entries_from_bytes(seal(header, body), "model")) == input_limits.ENTRIES


def test_pieces_that_are_more_than_the_file(in_shop: Path) -> None:
    """Different pieces of one block, apart in a DRAM that holds them all."""
    header, body = parts(Path("m.npu").read_bytes())
    region, block_bytes = header["entries"][1]["segments"][2], sum(size for _, size in header["blocks"])
    block = max(range(len(header["blocks"])), key=lambda n: header["blocks"][n][1])
    size = header["blocks"][block][1]
    count = block_bytes // (size - 64) + 2
    region["dram_bytes"] = max(region["dram_bytes"], (count + 1) * size)
    region["constants"] = [[i * size, [[block, i, size - 64]]] for i in range(count)]
    fault = f"entry 'large': its constants in pieces have {count * (size - 64)} bytes together, the blocks {block_bytes}"
    assert refusal(header, body) == f"model: is not sound: header: {fault}; build it again"


def test_a_port_that_is_kept_says_of_which_entry(in_shop: Path) -> None:
    header, body = parts(Path("m.npu").read_bytes())
    mark_as_state(header)
    assert refusal(header, body).startswith("model: is not sound: header: entry 'large': segment 0: port 'x' is of kind state")


def test_entries_that_are_none_of_a_file(in_shop: Path, tmp_path: Path) -> None:
    small = read_container("m.npu", "small")
    with pytest.raises(CompileError, match=r"^entry a: goes with a file; a Container holds the programs of one set of shapes$"):
        Session(small, entry="a")
    with pytest.raises(CompileError, match=r"^entry: m\.npu has 2, say which: small \(x \[1, 4, 8, 8\]\); large"):
        Session("m.npu")
    other = build("m.onnx", BuildOptions("edge16", shapes={"x": (1, 4, 8, 8)})).container
    with pytest.raises(
        CompileError, match=r"^entry b: was built for another machine than entry a; a file holds programs of one$"
    ):
        entries_to_bytes({"a": small, "b": other})
    (tmp_path / "n.onnx").write_bytes(Path("m.onnx").read_bytes())
    other = build(tmp_path / "n.onnx", BuildOptions("ws8_pow2", shapes={"x": (1, 4, 8, 8)})).container
    with pytest.raises(CompileError, match=r"^entry b: is of model 'n', entry a of 'm'; a file holds one$"):
        entries_to_bytes({"a": small, "b": other})
    with pytest.raises(CompileError, match=r"^entries: there are none; a file has one or more$"):
        entries_to_bytes({})
    with pytest.raises(CompileError, match=r"^entries: 65 are given, a file holds 64 at most; make several files$"):
        entries_to_bytes({str(i): small for i in range(65)})
