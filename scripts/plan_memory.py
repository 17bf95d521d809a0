"""Place the buffers of a MiniMalloc CSV file and print the plan's certificate.

    `plan_memory.py FILE.csv --capacity N [--minimize] [--plot out.svg]`.

Exit code 0 means planned. Code 1: does not fit, with the live set at the peak.
Code 2: the input is malformed, or a buffer is larger than the capacity.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from toolchain.cli.application import report_errors, require_writable
from toolchain.errors import CompileError, system_cause
from toolchain.foundation.atomic_files import write_atomically
from toolchain.memory import Buffer, DoesNotFit, InvalidCsv, Placement, draw, live_at_peak, place, read_csv, validate

LARGEST_SHOWN = 20
EFFORT, EFFORT_FEW, FEW_BUFFERS = 400_000, 1_000_000, 500


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (None: the process's arguments) and return its exit code: 0, 1 or 2, as above."""
    options = _options(argv)
    try:
        require_writable({"--plot": options.plot}, {"the buffers": options.file})
        buffers = read_csv(options.file)
    except (CompileError, InvalidCsv) as fault:
        return _refuse(str(fault))
    except OSError as fault:
        return _refuse(f"{options.file}: {system_cause(fault)}")
    fault = _impossible(buffers, options.capacity)
    if fault:
        return _refuse(f"{options.file}: {fault}")
    capacity = None if options.minimize else options.capacity
    few = options.minimize and len(buffers) <= FEW_BUFFERS
    effort = options.effort if options.effort is not None else EFFORT_FEW if few else EFFORT
    began = time.process_time()
    try:
        plan = place(buffers, capacity, effort)
    except DoesNotFit as fault:
        print(f"does not fit: {fault}")
        _print_live(buffers)
        return 1
    _report(buffers, plan, time.process_time() - began)
    if options.plot:
        with report_errors():
            write_atomically(options.plot, draw(buffers, plan, options.capacity).encode())
    if options.addresses:
        for name, address in plan.addresses.items():
            print(f"{name},{address}")
    if options.capacity is not None and plan.peak_bytes > options.capacity:
        print(f"does not fit: the smallest peak found is above the capacity {options.capacity}")
        _print_live(buffers)
        return 1
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Place buffers in one arena, with a proof or the gap to the bound.")
    parser.add_argument("file", help="CSV with the columns id,lower,upper,size[,alignment]")
    parser.add_argument("--capacity", type=_bytes, metavar="N", help="bytes of the arena")
    parser.add_argument("--minimize", action="store_true", help="look for the smallest peak, not just any that fits")
    parser.add_argument("--plot", metavar="OUT.svg", help="write a picture: time to the right, addresses upwards")
    parser.add_argument("--effort", type=int, help="search nodes (default 400,000; 1,000,000 to minimize up to 500 buffers)")
    parser.add_argument("--addresses", action="store_true", help="print id,address lines")
    options = parser.parse_args(argv)
    if options.capacity is None and not options.minimize:
        parser.error("give --capacity N, or --minimize, or both")
    if options.capacity is not None and options.capacity < 0:
        parser.error(f"capacity {options.capacity} is negative")
    if options.effort is not None and options.effort < 0:
        parser.error(f"effort {options.effort} is negative; give 0 or more search nodes")
    return options


def _bytes(text: str) -> int:
    """Parse a number of bytes. Raise ArgumentTypeError."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes; write it out, for example 16384") from None


def _impossible(buffers: Sequence[Buffer], capacity: int | None) -> str | None:
    """Return why no plan can exist, that is, which buffer exceeds the capacity; None where none does or there is no capacity."""
    largest = max(buffers, key=lambda b: b.size_bytes)
    if capacity is not None and largest.size_bytes > capacity:
        return f"buffer {largest.name}: size {largest.size_bytes} is larger than the capacity {capacity}"
    return None


def _refuse(message: str) -> int:
    """Print the message to stderr and return exit code 2."""
    print("\n".join(f"plan_memory: {line}" for line in message.splitlines()), file=sys.stderr)
    return 2


def _report(buffers: Sequence[Buffer], plan: Placement, seconds: float) -> None:
    """Print the certificate of a valid plan: peak, lower bound, gap, search nodes and CPU time."""
    faults = validate(buffers, plan)
    assert not faults, faults
    proof = "proved optimal" if plan.proved else f"gap {plan.gap:.4%}"
    print(f"buffers {len(buffers)}")
    print(f"peak    {plan.peak_bytes} bytes")
    print(f"bound   {plan.bound_bytes} bytes ({proof})")
    print(f"nodes   {plan.nodes}")
    print(f"time    {seconds:.3f} CPU s")


def _print_live(buffers: Sequence[Buffer]) -> None:
    """Print the buffers that are live at the step of the largest live set, the largest first."""
    step, live, total = live_at_peak(buffers)
    print(f"live at step {step}: {len(live)} buffers, {total} bytes")
    print(f"{'id':>12} {'bytes':>12} {'share':>7}  steps")
    for b in sorted(live, key=lambda b: (-b.size_bytes, b.name))[:LARGEST_SHOWN]:
        print(f"{b.name:>12} {b.size_bytes:>12} {b.size_bytes / total:>7.2%}  [{b.start}, {b.end})")
    if len(live) > LARGEST_SHOWN:
        rest = sorted(b.size_bytes for b in live)[:-LARGEST_SHOWN]
        print(f"{f'{len(rest)} more':>12} {sum(rest):>12}")


if __name__ == "__main__":
    sys.exit(main())
