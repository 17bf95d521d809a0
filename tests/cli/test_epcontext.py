"""npu-build --epcontext: ONNX whose chip parts are EPContext nodes, beside the compiled file or with it inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import contents, run
from onnx import parser

MODEL = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,4] x, float[N,4] past) => (float[N,4] y, float[N,4] q) {
    a = Relu(x) b = Sin(a) y = Relu(b) q = Add(past, x) }""")
BUILD = "npu-build model.onnx --hw edge16 -O0 --host-node Sin --shape x=1,4 --shape past=1,4 -o out/m.npu"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(MODEL, tmp_path / "model.onnx")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("options", "embeds"), [("", False), (" --epcontext-embed", True)])
def test_what_is_written_runs_with_the_bits_of_the_compiled_file(options: str, embeds: bool, folder: Path) -> None:
    assert run(f"{BUILD} --epcontext ctx.onnx{options}").code == 0
    node = next(n for n in onnx.load("ctx.onnx").graph.node if n.op_type == "EPContext")
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    context = (folder / "out" / "m.npu").read_bytes() if embeds else b"out/m.npu"
    assert (values["embed_mode"], values["ep_cache_context"]) == (int(embeds), context)
    assert values["onnx_model_filename"] == b"model.onnx"
    np.savez("in.npz", x=np.ones((1, 4), np.float32), past=np.ones((1, 4), np.float32))
    for model in ("ctx.onnx", "out/m.npu"):
        printed = run(f"npu-sim {model} --input in.npz --output {Path(model).suffix[1:]}.npz")
        assert (printed.code, printed.err) == (0, "")
    assert Path("onnx.npz").read_bytes() == Path("npu.npz").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--epcontext-embed", "--epcontext-embed: goes with --epcontext FILE.onnx, which it is about\n"),
        ("--epcontext out/sub/c.onnx", "--epcontext out/sub/c.onnx: there is no directory out/sub; make it first\n"),
        ("--epcontext model.onnx", "--epcontext model.onnx: is the same file as the model; it would be overwritten\n"),
        (
            "--epcontext deep/c.onnx",
            "-o out/m.npu: is outside the folder of --epcontext deep/c.onnx, which names",
        ),
        ("--epcontext c.onnx --state past=q", "--epcontext c.onnx: EPContext nodes keep no state past=q; say --state none"),
        (
            "--epcontext c.onnx --shape x=2,4",
            "--epcontext c.onnx: holds one set of input shapes, not 2 entries; build each",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_build(options: str, message: str, folder: Path) -> None:
    (folder / "deep").mkdir()
    before = contents(folder)
    printed = run(f"{BUILD} {options}")
    assert printed.code == 2 and printed.err.startswith(message) and contents(folder) == before


def test_a_model_without_a_part_on_the_chip_leaves_nothing(folder: Path) -> None:
    before = contents(folder)
    printed = run(f"{BUILD} --host-node Relu --host-node Add --epcontext c.onnx")
    assert printed.code == 2 and printed.err.startswith("EPContext: no part of the model runs on the chip")
    assert contents(folder) == before


def test_entries_are_refused_where_a_model_has_context_nodes(folder: Path) -> None:
    assert run(f"{BUILD} --epcontext ctx.onnx").code == 0
    printed = run("npu-sim ctx.onnx --entry main")
    assert printed.code == 2 and "entry main: a model with EPContext nodes has one set of input shapes" in printed.err


def test_a_model_that_is_compiled_already_is_not_built_again(folder: Path) -> None:
    assert run(f"{BUILD} --epcontext ctx.onnx").code == 0
    printed = run("npu-build ctx.onnx --hw edge16 -o again.npu")
    way_out = "run the model as it is, with npu-sim or Session, or build the one that it was made from"
    assert printed.code == 2 and "(EPContext): holds what was compiled already" in printed.err and way_out in printed.err
    assert "export" not in printed.err
