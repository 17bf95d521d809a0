"""Check the model of ws8_pow2 that was written from its manual.

It runs the classifier and every instruction to the same bits, and each changed rule is noticed.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from toolchain.cli.application import application
from toolchain.cli.build import build_command
from toolchain.isa import load_machine
from toolchain.runtime import Session
from toolchain.vectors import write_instruction_cases

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = EXAMPLES / "interpreter" / "ws8_pow2.py"
IMAGES = 3

# One thing changed in the model: what is replaced, and by what.
CHANGED = {
    "results rounded down": ("np.sign(x) * (np.abs(x) >> right) << left", "(x >> right) << left"),
    "accumulators do not wrap": ("return (v + half) % (2 * half) - half", "return v"),
    "kernel's strides in another order": ('"stride_height": (10, 8', '"stride_height": (13, 11'),
    "dilations in another order": ('"dilation_height": (15, 14', '"dilation_height": (17, 16'),
    "a size without its bias": ('(at, 1, {"value": (16, 0, False, 1, 1)})', '(at, 1, {"value": (16, 0, False, 1, 0)})'),
    "parameters on other multiples": ('"PARAMETER_ADDRESS": (0x23, 1, {"value": (13, 0, False, 8, 0)})',
                                      '"PARAMETER_ADDRESS": (0x23, 1, {"value": (13, 0, False, 16, 0)})'),
    "padding of a max pool is 0": ("pool=True, padding=-128", "pool=True, padding=0"),
    "a difference the other way": ("ta - tb if kind", "tb - ta if kind"),
    "inner sums do not saturate": ("return requantize(x, np.int64(shift), *INT32)", "return round_shift(x, np.int64(shift))"),
    "wide registers' parts exchanged": ("<< 24 * part", "<< 24 * (count - 1 - part)"),
    "weights by input channel": (
        "reshape(outputs, *kernel, inputs)",
        "reshape(outputs, inputs, *kernel).transpose(0, 2, 3, 1)",
    ),
    "sums start anew": ("sums = sums + self.sums", "sums = sums.copy()"),
    "copies of the other memory": ("source = self.bytes_at(word >> 1 & 1", "source = self.bytes_at(word >> 2 & 1"),
}  # fmt: skip
SEEN_BY_CLASSIFIER = ("results rounded down", "a size without its bias", "wide registers' parts exchanged")


def model(changed: str | None = None) -> Any:
    """The interpreter as a module, with one thing in it changed."""
    source = SOURCE.read_text()
    if changed is not None:
        assert source.count(CHANGED[changed][0]) == 1, changed
        source = source.replace(*CHANGED[changed])
    module = types.ModuleType("ws8_pow2_model")
    exec(compile(source, str(SOURCE), "exec"), module.__dict__)
    return module


def test_it_is_small_and_imports_nothing_of_the_project() -> None:
    source = SOURCE.read_text()
    assert len(source.splitlines()) <= 500
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names if isinstance(node, ast.Import)}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert names == {"__future__", "collections.abc", "json", "numpy", "numpy.typing", "pathlib", "sys", "typing"}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """The image of the shipped classifier, some test images, and what the integer reference makes of them."""
    folder = tmp_path_factory.mktemp("classifier")
    compiled, image = folder / "c.npu", folder / "image"
    files = [str(EXAMPLES / "classifier" / name) for name in ("classifier.onnx", "calib.npz")]
    line = [files[0], "--calib", files[1], "--hw", "ws8_pow2", "-o", str(compiled), "--image", str(image)]
    ran = CliRunner().invoke(application(build_command), line)
    assert ran.exit_code == 0, ran.output
    with np.load(EXAMPLES / "classifier" / "test.npz") as data:
        x = data["x"][:IMAGES, None].astype(np.float32) / np.float32(255)
    session = Session(compiled, backend="reference")
    return image, x, np.concatenate([session.run(None, {"x": one[None]})[0] for one in x])


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases of all instructions."""
    folder = tmp_path_factory.mktemp("kit") / "kit"
    assert len(write_instruction_cases(folder, load_machine("ws8_pow2"))) > 200
    return folder


def wrong(changed: str | None, kit: Path) -> Iterator[str]:
    """Cases that the model has other memories for, or refuses."""
    run = model(changed)
    return (path.stem for path in sorted(kit.glob("*.npz")) if not _passes(run, path))


def _passes(run: Any, path: Path) -> bool:
    try:
        return run.run_case(path)
    except (run.Fault, ValueError, TypeError):
        return False


def test_it_runs_the_classifier_to_the_same_bits(classifier: tuple[Path, np.ndarray, np.ndarray]) -> None:
    image, x, expected = classifier
    run = model()
    actual = np.concatenate([run.run_image(image, one[None]) for one in x])
    assert actual.dtype == expected.dtype and actual.tobytes() == expected.tobytes()
    assert len(np.unique(actual)) > 5


def test_it_runs_every_instruction_to_the_same_bits(kit: Path) -> None:
    assert not list(wrong(None, kit))


@pytest.mark.slow
@pytest.mark.parametrize("changed", CHANGED)
def test_a_change_of_it_is_seen_by_the_instructions(changed: str, kit: Path) -> None:
    assert next(wrong(changed, kit), None)


@pytest.mark.parametrize("changed", SEEN_BY_CLASSIFIER)
def test_a_change_of_it_is_seen_by_the_classifier(changed: str, classifier: tuple[Path, np.ndarray, np.ndarray]) -> None:
    image, x, expected = classifier
    run = model(changed)
    try:
        actual = run.run_image(image, x[:1])
    except (run.Fault, ValueError):
        return
    assert actual.tobytes() != expected[:1].tobytes()


@pytest.mark.slow
def test_the_command(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert model().main(["--vectors", str(kit)]) == 0
    count = len(list(kit.glob("*.npz")))
    assert capsys.readouterr().out == f"{count} of {count} cases are as given\n"
    assert model("a difference the other way").main(["--vectors", str(kit)]) == 1
    assert "differs: elementwise.sub_plain\n" in capsys.readouterr().out
