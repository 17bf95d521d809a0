"""The figures of a build have exactly the keys that docs/figures.md lists, with their types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser
from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from scripts.figures_page import page
from toolchain.api import BuildOptions, build
from toolchain.report import figure_types
from toolchain.report.figure_types import BuildFigures, EntriesFigures

PAGE = Path(__file__).parents[2] / "docs" / "figures.md"
GRAPH = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,3,8,8] x) => (float[N,6,8,8] y) {
    a = Conv<pads=[1,1,1,1], kernel_shape=[3,3]>(x, w) b = Sin(a) c = Relu(a) y = Concat<axis=1>(b, c) }"""
IMAGES = np.random.default_rng(0).normal(size=(20, 3, 8, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def no_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pydantic refuse keys that a type does not have, and numbers of another type."""
    for figure_type in filter(is_typeddict, vars(figure_types).values()):
        config = ConfigDict(extra="forbid", strict=True)
        monkeypatch.setattr(figure_type, "__pydantic_config__", config, raising=False)


def figures(**options: Any) -> Any:
    model = parser.parse_model(GRAPH.replace("(float[N,3,8,8] x)", "(float[N,3,8,8] x, float[3,3,3,3] w)"))
    model = type(model).FromString(model.SerializeToString())
    weights = np.random.default_rng(1).normal(size=(3, 3, 3, 3)).astype(np.float32)
    values = {"w": tuple(map(str, weights.ravel()))}
    return json.loads(json.dumps(build(model, BuildOptions("edge16", values=values, **options)).figures))


@pytest.mark.parametrize(
    "options",
    [
        {"calibration": {"x": IMAGES}, "host_nodes": ("Sin",), "sram_curve": True},
        {"calibration": {"x": IMAGES[:4]}, "repair": "none", "level": 0, "explain": True},
        {"level": 0},
        {"level": 0, "calibration": {"x": IMAGES[:4]}, "repair": "none", "judge": lambda: ({"x": x[None]} for x in IMAGES[:3])},
    ],
)
def test_the_keys_of_a_build_are_those_of_the_page(options: dict[str, Any]) -> None:
    TypeAdapter(BuildFigures).validate_python(figures(**options))


def test_a_key_that_the_page_lacks_is_seen() -> None:
    values = figures(level=0)
    values["layers"][0]["new"] = 1
    with pytest.raises(ValidationError, match="new"):
        TypeAdapter(BuildFigures).validate_python(values)
    del values["layers"][0]["new"], values["host"]
    with pytest.raises(ValidationError, match="host"):
        TypeAdapter(BuildFigures).validate_python(values)


def test_the_keys_of_entries_are_those_of_the_page() -> None:
    entries = {name: {"x": (n, 3, 8, 8)} for name, n in (("one", 1), ("two", 2))}
    TypeAdapter(EntriesFigures).validate_python(figures(entries=entries, level=0))


def test_the_page_is_generated() -> None:
    assert PAGE.read_text() == page(), "run: python scripts/figures_page.py > docs/figures.md"
