"""Programs, outputs and cycles of the example networks on the shipped machines stand in networks.txt, one line a pair.

After a change that is meant to change them: `pytest tests/golden --update-golden`, and the diff of networks.txt says what
it did to each pair.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from networks import NETWORKS, figures, ranges_file, update_ranges

from toolchain.files import write_whole
from toolchain.hw import shipped_names

GOLDEN = Path(__file__).parent / "networks.txt"
COLUMNS = {"network": 26, "machine": 13}
LARGEST_ERROR = 0.25  # of the cost model's cycles against the simulator's
PAIRS = [(n, m) for n in NETWORKS for m in shipped_names()]


def label(network: str, machine: str) -> str:
    return f"{network:{COLUMNS['network']}}  {machine:{COLUMNS['machine']}}  "


def read_golden() -> dict[str, str]:
    """The line of each pair by its label."""
    lines = GOLDEN.read_text().splitlines() if GOLDEN.exists() else []
    width = len(label("", ""))
    return {line[:width]: line for line in lines}


def write_golden(lines: dict[str, str]) -> None:
    """In the order of the names, without pairs that are no more."""
    wanted = [lines[key] for n, m in PAIRS if (key := label(n, m)) in lines]
    write_whole(GOLDEN, ("\n".join(wanted) + "\n").encode())


@pytest.mark.parametrize(("network", "machine"), PAIRS)
def test_programs_outputs_and_cycles_are_the_golden_ones(network: str, machine: str, update_golden: bool) -> None:
    if update_golden:
        update_ranges(network)
    found = label(network, machine) + str(figures(network, machine))
    golden = read_golden()
    if update_golden:
        write_golden({**golden, label(network, machine): found})
        return
    assert golden.get(label(network, machine)) == found, "where this is meant, renew the file: see the top of test_golden.py"


def test_every_pair_has_its_line() -> None:
    assert list(read_golden()) == [label(n, m) for n, m in PAIRS]


def test_the_cost_model_is_near_the_simulator() -> None:
    ratios = {key: float(line.rpartition(" ")[2]) for key, line in read_golden().items()}
    assert {key: ratio for key, ratio in ratios.items() if abs(ratio - 1) > LARGEST_ERROR} == {}


def test_ranges_are_kept_for_each_network() -> None:
    assert all(ranges_file(n).exists() for n in NETWORKS)
