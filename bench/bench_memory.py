"""Print the memory planner's acceptance table: placement, order, and the time of easy placements.

    `bench_memory.py DIRECTORY [--effort N]`.

DIRECTORY holds A..K.1048576.csv, and where they are to be measured G_1.csv, resnet50.csv, pangu_2.6B.csv and swiftnet.json.
Times are CPU seconds of this process, the search's one-off compilation (numba) counted separately.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from toolchain.cli.application import report_errors
from toolchain.errors import CompileError
from toolchain.memory import (
    Buffer,
    DoesNotFit,
    InvalidCsv,
    Operator,
    Placement,
    concat_by_view,
    drop_no_ops,
    order_operators,
    peak_of_order,
    place,
    read_csv,
    validate,
)

CAPACITY = 1_048_576
EFFORT, EFFORT_FEW, FEW_BUFFERS = 400_000, 1_000_000, 500
PACKED = "ABCDEFGHIJK"
NETWORKS = Path(__file__).parents[1] / "tests" / "memory"


def main() -> None:
    """Print the table. Files that are missing or damaged end the command with one sentence."""
    parser = argparse.ArgumentParser(description="Print the memory planner's acceptance table.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--effort", type=int, help="nodes a placement (default 400,000; 1,000,000 to minimize up to 500 buffers)")
    parser.add_argument("--only", choices=["pack", "minimize", "large", "order", "easy"], help="one part of the table")
    options = parser.parse_args()
    with report_errors():
        require_files(options.directory, PACKED if options.only in (None, "pack") else PACKED[:1])
        try:
            run(options)
        except InvalidCsv as fault:
            raise CompileError(str(fault)) from None


def require_files(directory: Path, names: str) -> None:
    """Raises CompileError with every file that is not there."""
    if not directory.is_dir():
        raise CompileError(f"{directory}: no such directory; it must hold {PACKED[0]}..{PACKED[-1]}.1048576.csv of MiniMalloc")
    missing = [f"{name}.1048576.csv" for name in names if not (directory / f"{name}.1048576.csv").is_file()]
    if missing:
        raise CompileError(f"{directory}: lacks {', '.join(missing)}; copy them there from MiniMalloc's benchmarks")


def run(options: argparse.Namespace) -> None:
    """Print the parts of the table that the options name, all without `--only`."""
    parts: dict[str, Callable[[], None]] = {
        "easy": easy,
        "pack": lambda: pack(options.directory, EFFORT if options.effort is None else options.effort),
        "minimize": lambda: minimize(options.directory, PACKED, ".1048576", options.effort),
        "large": lambda: minimize(options.directory, ["G_1", "resnet50", "pangu_2.6B"], "", options.effort),
        "order": lambda: order(options.directory),
    }
    first = read_csv(options.directory / "A.1048576.csv")
    _, seconds = measure_time(lambda: place(first, CAPACITY, EFFORT))
    print(f"warm-up {seconds:.2f} CPU s")
    for name, part in parts.items():
        if options.only in (None, name):
            part()


def measure_time(task: Callable[[], Placement | None]) -> tuple[Placement | None, float]:
    """Return the placement and the CPU seconds of a task; None and a printed sentence where the buffers do not fit."""
    began = time.process_time()
    try:
        return task(), time.process_time() - began
    except DoesNotFit as fault:
        print(f"  {fault}")
        return None, time.process_time() - began


def easy() -> None:
    rng = random.Random(0)
    buffers = []
    for k in range(200):
        start = rng.randrange(200)
        buffers.append(Buffer(f"b{k}", start, start + rng.randint(1, 8), rng.randrange(64, 16384, 64), 64))
    seconds = sorted(measure_time(lambda: place(buffers, CAPACITY))[1] for _ in range(50))
    print(f"200 easy buffers: median {seconds[25] * 1e3:.2f} ms, smallest {seconds[0] * 1e3:.2f} ms")


def pack(directory: Path, effort: int) -> None:
    print(f"packing at capacity {CAPACITY}")
    total, valid = 0.0, 0
    for name in PACKED:
        buffers = read_csv(directory / f"{name}.1048576.csv")
        plan, seconds = measure_time(lambda buffers=buffers: place(buffers, CAPACITY, effort))
        total += seconds
        if plan is None:
            print(f"  {name}: none found, {seconds:.2f} s")
            continue
        faults = validate(buffers, plan, CAPACITY)
        valid += not faults
        print(f"  {name}: peak {plan.peak_bytes:>8} nodes {plan.nodes:>7} {seconds:6.2f} s {faults or 'valid'}")
    print(f"  {valid} of 11 valid, {total:.2f} CPU s in all")


def minimize(directory: Path, names: str | list[str], ending: str, effort: int | None) -> None:
    print("minimizing")
    for name in names:
        file = directory / f"{name}{ending}.csv"
        if not file.exists():
            print(f"  {name}: {file} is not there")
            continue
        buffers = read_csv(file)
        nodes = effort if effort is not None else (EFFORT_FEW if len(buffers) <= FEW_BUFFERS else EFFORT)
        plan, seconds = measure_time(lambda buffers=buffers, nodes=nodes: place(buffers, None, nodes))
        if plan is None:
            continue
        proof = "proved" if plan.proved else f"{plan.peak_bytes / plan.bound_bytes:.5f} x bound"
        faults = validate(buffers, plan)
        print(
            f"  {name:>10}: {len(buffers):>5} buffers, peak {plan.peak_bytes}, bound {plan.bound_bytes}, {proof}, "
            f"nodes {plan.nodes}, {seconds:.2f} s {faults[:3] or 'valid'}"
        )


def order(directory: Path) -> None:
    print("order")
    file = directory / "swiftnet.json"
    if file.exists():
        data = json.loads(file.read_text())
        operators = [Operator(str(k), tuple(map(str, o["ins"])), (str(o["out"]),)) for k, o in enumerate(data["ops"])]
        sizes, inputs = data["tensors"], [str(t) for t in data["inputs"]]
        outputs = tuple(str(t) for t in data["outputs"])
        concats = [str(k) for k, o in enumerate(data["ops"]) if o["type"] == "CONCATENATION"]
        no_op = drop_no_ops(operators, sizes, outputs, ["0"])
        views = concat_by_view(no_op.operators, sizes, no_op.graph_outputs, concats, scattered=True)
        _print_order("SwiftNet", operators, sizes, inputs, outputs)
        _print_order("  no-op dropped", no_op.operators, sizes, inputs, no_op.graph_outputs)
        _print_order("  concat in place", views.operators, views.tensor_sizes, inputs, views.graph_outputs)
    sys.path.insert(0, str(NETWORKS))
    import nas_networks as nas  # pyright: ignore[reportMissingImports]

    seconds = []
    for in_place in (False, True):
        note = " in place" if in_place else ""
        for name, network in (
            ("NASNet-A", nas.imagenet(nas.NASNET_A, 11, 4, in_place)),
            ("AmoebaNet-A", nas.imagenet(nas.AMOEBANET_A, 12.5, 4, in_place)),
            ("DARTS", nas.imagenet(nas.DARTS, 12, 4, in_place)),
            ("PNAS", nas.cifar(nas.PNAS, 32, 6, in_place)),
        ):
            seconds.append(_print_order(name + note, *network))
    for seed in range(3):
        seconds.append(_print_order(f"RandWire {seed}", *nas.randwire(seed)))
    print(f"  {sum(s < 10 for s in seconds)} of {len(seconds)} networks ordered in under 10 CPU s")


def _print_order(name: str, operators, sizes, inputs, outputs) -> float:
    began = time.process_time()
    result = order_operators(operators, sizes, inputs, outputs)
    seconds = time.process_time() - began
    given_peak = peak_of_order(operators, [op.name for op in operators], sizes, inputs, outputs)
    proof = "proved" if result.proved else f"bound {result.bound_bytes}"
    print(
        f"  {name:>22}: {len(operators):>4} operators, given order {given_peak}, found {result.peak_bytes} "
        f"({result.peak_bytes / 1024:.1f} KiB), {proof}, states {result.states}, {seconds:.2f} s"
    )
    return seconds


if __name__ == "__main__":
    main()
