"""npu-build --image: what its page says is enough to run the program without the compiled file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edit_programs import model
from typer.testing import CliRunner

from simulator import simulate
from toolchain.cli.application import application
from toolchain.cli.build import build_command
from toolchain.isa import decode, load_machine
from toolchain.runtime import Session, random_feeds

TWO_REGIONS = """t = MeanVarianceNormalization<axes=[1]>(h)
        y = Conv<kernel_shape=[1,1]>(t, v)"""


def image_of(tmp_path: Path, machine: str) -> tuple[Path, Path]:
    source = model(tmp_path, "float[1,8,6,5]", TWO_REGIONS)
    compiled, folder = tmp_path / "m.npu", tmp_path / "made" / "image"
    line = [str(source), "--hw", machine, "-o", str(compiled), "--image", str(folder)]
    ran = CliRunner().invoke(application(build_command), line)
    assert ran.exit_code == 0, ran.output
    return compiled, folder


@pytest.mark.parametrize("machine", ["edge16", "ethos_u55_256", "wide32_w4a16"])
def test_the_files_alone_run_the_model(machine: str, tmp_path: Path) -> None:
    import onnxruntime

    compiled, folder = image_of(tmp_path, machine)
    session = Session(compiled)
    feeds = random_feeds(session.get_inputs(), seed=3)
    real: dict[str, Any] = dict(feeds)
    image = json.loads((folder / "ports.json").read_text())
    assert [s["kind"] for s in image["segments"]] == ["region", "island", "region"]
    for segment in image["segments"]:
        if segment["kind"] == "island":
            island = onnxruntime.InferenceSession(folder / segment["file"])
            values = island.run(segment["outputs"], {n: real[n] for n in segment["inputs"]})
            real |= dict(zip(segment["outputs"], values))
        else:
            run_region(segment, folder, image, machine, real)
    (name,) = [t["name"] for t in image["outputs"]]
    assert np.array_equal(real[name], session.run(None, feeds)[0])


def run_region(segment: dict[str, Any], folder: Path, image: dict[str, Any], machine: str, real: dict[str, Any]) -> None:
    """Run a region as the page describes; the simulator stands for the chip."""
    words = (folder / segment["program"]["file"]).read_bytes()
    assert len(words) == segment["program"]["words"] * image["word_bytes"]
    loaded = load_machine(machine)
    program = decode(words, loaded.isa)
    dram, written = np.zeros(segment["dram_bytes"], np.uint8), []
    constants = (folder / segment["constants"]["file"]).read_bytes()
    for block in segment["constants"]["blocks"]:
        data = constants[block["offset"] : block["offset"] + block["bytes"]]
        put(dram, block["address"], data, written)
    for port in segment["inputs"]:
        x = real[port["tensor"]]
        x = x.transpose(0, 2, 3, 1) if port["layout"] == "nhwc" else x
        limits = np.iinfo(port["dtype"])
        codes = np.clip(np.rint(x / np.float32(port["scale"])) + port["zero_point"], limits.min, limits.max)
        put(dram, port["address"], codes.astype(port["dtype"]).tobytes(), written)
    after = simulate(loaded.chip, program.ops, program.words, dram, written).dram
    assert all((after[a:b] == dram[a:b]).all() for a, b in written)  # as it was: the program can run again
    for port in segment["outputs"]:
        codes = after[port["address"] : port["address"] + port["bytes"]].view(port["dtype"]).reshape(port["shape"])
        y = (codes.astype(np.float32) - np.float32(port["zero_point"])) * np.float32(port["scale"])
        real[port["tensor"]] = y.transpose(0, 3, 1, 2) if port["layout"] == "nhwc" else y


def put(dram: np.ndarray, address: int, data: bytes, written: list[tuple[int, int]]) -> None:
    dram[address : address + len(data)] = np.frombuffer(data, np.uint8)
    written.append((address, address + len(data)))


def test_the_version_is_that_of_the_page(tmp_path: Path) -> None:
    _, folder = image_of(tmp_path, "edge16")
    page = (Path(__file__).parents[2] / "docs" / "image.md").read_text()
    (version,) = re.findall(r"^\| `version` \| of this layout: (\d+) \|", page, re.MULTILINE)
    assert json.loads((folder / "ports.json").read_text())["version"] == int(version)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    _, folder = image_of(tmp_path, "edge16")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    ran = CliRunner().invoke(application(build_command), [str(tmp_path / "m.onnx"), "--hw", "edge16", "--image", str(folder)])
    assert ran.exit_code == 2
    assert f"--image {folder}: is not empty, and nothing in it is overwritten; give a new folder" in ran.output
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
