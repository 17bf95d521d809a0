"""A remedy is named only where it was tried and saw the loss go, with dB and cycles before and after."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from toolchain.api import Build, BuildOptions, build
from toolchain.judging.try_advice import AdviceTrials
from toolchain.report.findings import Advice, RunCost, TriedAdvice, choose_trial, format_trials

GRAPH = "(float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv(x, w) b = Conv(a, w) y = Conv(b, w) }"


def built(folder: Path, graph: str, ranges: dict[str, tuple[float, float]]) -> Build:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {graph}')
    rng = np.random.default_rng(0)
    weights = np.linalg.qr(rng.standard_normal((4, 4)))[0].reshape(4, 4, 1, 1).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, folder / "m.onnx")
    np.savez(folder / "d.npz", x=rng.standard_normal((24, 4, 8, 8)).astype(np.float32))
    lines = (f"  {name}: {{low: {low}, high: {high}}}" for name, (low, high) in ranges.items())
    (folder / "p.yaml").write_text("\n".join(["version: 1", "tensors:", *lines, ""]))
    options = BuildOptions("edge16", str(folder / "d.npz"), parameters=str(folder / "p.yaml"), level=0)
    return build(folder / "m.onnx", options)


def test_what_advice_promises_is_reached_by_who_follows_it(tmp_path: Path) -> None:
    ranges = dict.fromkeys("xaby", (-6.0, 6.0)) | {"b": (-2000.0, 2000.0)}
    spoiled = built(tmp_path, GRAPH, ranges)
    (warning,) = [w for w in spoiled.warnings if "against float" in w]
    number = r"([-0-9.,]+)"
    start = "tried on 8 samples: low: "
    pattern = rf"{start}{number}, high: {number} for b in the file of --quant \({number} dB for {number}, {number} cycles for"
    promise = re.search(pattern, warning)
    assert promise is not None, warning
    low, high, after, before = (float(text) for text in promise.groups()[:4])
    followed = built(tmp_path, GRAPH, ranges | {"b": (low, high)})
    assert before < 1 and followed.figures["outputs"][0]["sqnr_db"] == pytest.approx(after, abs=2) and after > 30
    assert promise.group(5) == f"{followed.figures['cycles']:,}"


@pytest.mark.parametrize(
    ("on_eight", "named", "counts"),
    [
        ({"a": 24.0, "b": 22.0}, "a", (8, 2)),
        ({"a": 11.0, "b": 22.0}, "b", (8, 8)),  # the second best of two samples is the best of eight
        ({"a": 9.0, "b": 22.0}, "b", (8, 8)),
        ({"a": 9.0, "b": 8.0}, None, (8, 8)),
    ],
)
def test_what_is_named_is_the_best_of_more_samples(
    monkeypatch: pytest.MonkeyPatch, on_eight: dict[str, float], named: str | None, counts: tuple[int, int]
) -> None:
    def level(_: AdviceTrials, session: str, name: str, output: object, samples: list[int]) -> float:
        return {"": 8.0, "a": 25.0, "b": 18.0}[name] if len(samples) == 2 else {"": 7.0, **on_eight}[name]

    monkeypatch.setattr(AdviceTrials, "_level", level)
    trials = object.__new__(AdviceTrials)
    unchanged, a, b = (SimpleNamespace(model=name, session=lambda *_: "") for name in ("", "a", "b"))
    calibrated = SimpleNamespace(network=unchanged)
    trials.__dict__ |= {"_judges": list(range(8)), "_session": "", "_calibrated": calibrated, "_before": None}
    tried = [TriedAdvice(Advice(name), 8.0, after, 2) for name, after in (("a", 25.0), ("b", 18.0))]
    changed: list[Any] = [(a, None), (b, None)]
    confirmed = trials._confirm(None, tried, changed)  # type: ignore[arg-type]
    best = choose_trial(confirmed)
    assert (best and best.advice.text, tuple(t.samples for t in confirmed)) == (named, counts)
    assert best is None or (best.before_db, best.after_db) == (7.0, on_eight[best.advice.text])


def test_nothing_is_advised_of_a_good_network(tmp_path: Path) -> None:
    good = built(tmp_path, GRAPH, dict.fromkeys("xaby", (-6.0, 6.0)))
    assert len(good.figures["worst_layers"]) == 3 and all(w["remedy"] == "" for w in good.figures["worst_layers"])


def test_it_is_said_where_none_helps() -> None:
    first = TriedAdvice(Advice("--observer mse", observer="mse"), 8.7, 4.1, 2)
    assert format_trials([first]) == "tried on 2 samples, none of which helps: --observer mse (4.1 dB for 8.7)"
    more = replace(first, after_db=9.0, samples=8)
    assert format_trials([more, first]).startswith("tried on 2 to 8 samples, none of which helps: --observer mse (9.0 dB for")
    assert format_trials([]) == "" and choose_trial([first]) is None
    costs = RunCost(200, 1e9, 0.0), RunCost(100, 1e9, 0.0)
    second = replace(first, advice=Advice("--host-node a", host_nodes=("a",)), after_db=20.0, costs=costs)
    third = replace(second, advice=Advice("--host-node b", host_nodes=("b",)), after_db=23.0)
    assert format_trials([first, second, third]) == "tried on 2 samples: --host-node a (20.0 dB for 8.7, 100 cycles for 200)"


@pytest.mark.parametrize(
    ("before_db", "after_db", "text"),
    [
        (8.7, 20.0, "20.0 dB for 8.7"),
        (8.7, float("inf"), "exact for 8.7"),
        (-83.1, 20.0, "20.0 dB for an error of 14,288.9 times the worst part's signal"),
        (8.7, -3.0, "-3.0 dB for 8.7"),
        (-83.1, 0.0, "an error of 1.0 times the worst part's signal for 14,288.9 times"),
    ],
)
def test_an_error_beyond_the_signal_is_given_as_a_multiple_of_it(before_db: float, after_db: float, text: str) -> None:
    assert TriedAdvice(Advice("--observer mse", observer="mse"), before_db, after_db, 2).describe() == f"--observer mse ({text})"


def test_advice_that_loses_all_is_not_exact() -> None:
    assert format_trials([TriedAdvice(Advice("--observer mse"), 9.0, -np.inf, 4)]).endswith("--observer mse (-inf dB for 9.0)")
    assert format_trials([TriedAdvice(Advice("--observer mse"), 9.0, np.inf, 4)]).endswith("--observer mse (exact for 9.0)")
