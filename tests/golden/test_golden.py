"""Check programs, outputs and cycles of the example networks on the shipped machines against networks.txt, one line a pair.

After an intended change run `pytest -m '' tests/golden --update-golden`. The diff of networks.txt then shows the effect on
each pair.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from networks import NETWORKS, figures, ranges_file, update_ranges

from toolchain.foundation.atomic_files import write_atomically
from toolchain.hw import list_shipped_names
from toolchain.schedule.options import LEVELS

GOLDEN = Path(__file__).parent / "networks.txt"
LEVEL = 2  # what a build does unless told otherwise
LARGE = {  # and the machines on which they are built each time; every machine has smaller networks
    "mobilenet_v1_224": (),
    "mobilenet_v2_224": (),
    "resnet50_224": (),
    "yolov5n_silu_320": ("transformer64",),
}
SELDOM = {("bert_tiny_relu_l2h128_s128", "ethos_u65_512")}  # like ethos_u55_256
SMALL = "resnet8_cifar"  # a network of convolutions and sums that is cheap enough for every level
AT_EVERY_LEVEL = ("edge16", "transformer64")  # machines on which it is built each time at all levels
LARGEST_ERROR, MEAN_ERROR = 0.035, 0.003  # of the cost model's cycles against the simulator's
PAIRS = [(n, m, LEVEL) for n in NETWORKS for m in list_shipped_names()]
PAIRS += [(SMALL, m, level) for m in list_shipped_names() for level in range(len(LEVELS)) if level != LEVEL]


def label(network: str, machine: str, level: int) -> str:
    return f"{network:26}  {machine:13}  -O{level}  "


def read_golden() -> dict[str, str]:
    """The line of each pair by its label."""
    lines = GOLDEN.read_text().splitlines() if GOLDEN.exists() else []
    width = len(label("", "", LEVEL))
    return {line[:width]: line for line in lines}


def _make_case(network: str, machine: str, level: int) -> Any:
    marks = [pytest.mark.slow] if network in LARGE else []
    seldom = machine not in (LARGE.get(network, list_shipped_names()) if level == LEVEL else AT_EVERY_LEVEL)
    marks += [pytest.mark.exhaustive] if seldom or (network, machine) in SELDOM else []
    return pytest.param(network, machine, level, marks=marks)


def write_golden(lines: dict[str, str]) -> None:
    """Write the lines in the order of the names, without pairs that no longer exist."""
    ordered_lines = [lines[key] for pair in PAIRS if (key := label(*pair)) in lines]
    write_atomically(GOLDEN, ("\n".join(ordered_lines) + "\n").encode())


@pytest.mark.parametrize(("network", "machine", "level"), [_make_case(*pair) for pair in PAIRS])
def test_programs_outputs_and_cycles_are_the_golden_ones(network: str, machine: str, level: int, update_golden: bool) -> None:
    if update_golden:
        update_ranges(network)
    line = label(network, machine, level) + str(figures(network, machine, level))
    golden = read_golden()
    if update_golden:
        write_golden({**golden, label(network, machine, level): line})
        return
    assert golden.get(label(network, machine, level)) == line, (
        "where this is meant, renew the file: see the top of test_golden.py"
    )


def test_every_pair_has_its_line() -> None:
    assert list(read_golden()) == [label(*pair) for pair in PAIRS]


def test_the_cost_model_is_near_the_simulator() -> None:
    ratios = {key: float(line.rpartition(" ")[2]) for key, line in read_golden().items()}
    assert {key: ratio for key, ratio in ratios.items() if abs(ratio - 1) > LARGEST_ERROR} == {}
    assert sum(abs(ratio - 1) for ratio in ratios.values()) <= MEAN_ERROR * len(ratios)


def test_ranges_are_kept_for_each_network() -> None:
    assert all(ranges_file(n).exists() for n in NETWORKS)
