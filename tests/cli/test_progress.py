"""Progress where stderr is no terminal: a line at each interval, none for short work."""

from __future__ import annotations

import time

import pytest

from tests.support.example_networks import fill_network
from toolchain.api import BuildOptions, build
from toolchain.build_progress import TimeLeft, add_time_left
from toolchain.cli.progress import format_progress, make_progress_bar


def test_a_log_gets_a_line_at_each_interval_while_one_step_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress_bar(interval_s=0.05) as progress:
        progress("compile", 1, 3, None)
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert set(lines) == {"progress: 0 s, compile, 1 of 3 done"}


def test_short_work_writes_nothing_and_its_end_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    began_s = time.monotonic()
    with pytest.raises(KeyError), make_progress_bar() as progress:
        progress("load", 0, None, None)
        raise KeyError
    assert time.monotonic() - began_s < 5
    assert capsys.readouterr().err == ""


def test_a_stage_of_unknown_length_says_only_its_name() -> None:
    assert format_progress("check", 0, None, 12.4) == "progress: 12 s, check"


def test_a_line_says_the_layer_and_the_time_left() -> None:
    assert (
        format_progress("plan cascades", 17, 53, 20.2, 12.4) == "progress: 20 s, plan cascades, layer 17 of 53, about 12 s left"
    )


# Seconds at which stages began, in CPU time on an idle core, of four networks at -O2: load, first sample, compile, check, end.
BUILDS = {
    "mobilenet_v2_224": (0.06, 0.49, 0.74, 3.79, 4.83),
    "bert_tiny_relu_l2h128_s128": (0.04, 0.18, 0.25, 1.11, 1.32),
    "resnet50_224": (0.04, 1.74, 2.79, 11.95, 15.24),
    "yolov5n_silu_320": (0.05, 0.74, 1.06, 4.22, 5.67),
}


@pytest.mark.parametrize("network", BUILDS)
def test_the_time_left_is_right_within_a_factor_while_plans_are_searched(network: str) -> None:
    load_s, first_s, compile_s, check_s, end_s = BUILDS[network]
    now_s = 0.0
    estimate = TimeLeft(lambda: now_s)
    sample_s = (compile_s - first_s) / 7
    events = [(load_s, "load", 0), *((first_s + k * sample_s, "calibrate", k + 1) for k in range(8)), (compile_s, "compile", 0)]
    events += [
        (compile_s + share * (check_s - compile_s), "plan tilings", 1) for share in (0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    ]
    ratios: list[float] = []
    for now_s, stage, done in events:
        left_s = estimate.update(stage, done)
        if now_s < 0.25 * end_s:
            assert left_s is None
        if now_s > 0.4 * end_s:
            assert left_s is not None
        if left_s is not None:
            ratios.append(left_s / (end_s - now_s))
    assert ratios and 1 / 1.5 < min(ratios) <= max(ratios) < 1.5


def test_a_default_of_a_callback_is_kept_unless_it_is_none() -> None:
    calls: list[tuple[object, ...]] = []
    keep = calls.append
    add_time_left(lambda stage, done, total, keep=keep: keep((stage, done, total)))("load", 0, None)
    add_time_left(lambda stage, done, total, left_s=None: keep((stage, left_s)), FixedTime())("load", 0, None)
    add_time_left(lambda *args: keep(args), FixedTime())("load", 0, None)
    assert calls == [("load", 0, None), ("load", 7.0), ("load", 0, None, 7.0)]


class FixedTime(TimeLeft):
    """A build that always takes 7 seconds more."""

    def update(self, stage: str, done: int) -> float:
        """Return 7 seconds."""
        return 7.0


def test_a_callback_gets_the_layer_and_the_time_left_where_it_takes_them() -> None:
    stages: list[tuple[str, int, int | None]] = []
    lefts: list[float | None] = []

    def progress(stage: str, done: int, total: int | None, left_s: float | None) -> None:
        stages.append((stage, done, total))
        lefts.append(left_s)

    build(fill_network("dscnn_kws"), BuildOptions("edge16"), progress=progress)
    layers = [(done, total) for stage, done, total in stages if stage == "plan tilings"]
    assert layers[:2] == [(1, layers[0][1]), (2, layers[0][1])] and all(done <= (total or 0) for done, total in layers)
    assert lefts[0] is None and any(left_s is not None for left_s in lefts)
