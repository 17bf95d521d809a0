#!/usr/bin/env python3
"""Measure the runs of a session: CPU seconds of the first, which decodes and checks the programs, and of the later ones.

    `python bench/bench_session.py OUT.npu [--runs N] [--backend simulator] [--entry NAME]`.

Each run has random inputs of its own. CPU seconds, of all threads, since others may share the machine.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from toolchain.cli.application import report_errors
from toolchain.runtime import Session, random_feeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path, help="a compiled .npu")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--backend", default="simulator")
    parser.add_argument("--entry")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error(f"--runs {args.runs}: must be 1 or more")
    with report_errors():
        start = time.process_time()
        session = Session(args.model, backend=args.backend, entry=args.entry)
        print(f"open: {time.process_time() - start:.2f} CPU s")
        for number in range(args.runs):
            feeds = random_feeds(session.get_inputs(), seed=number)
            start = time.process_time()
            session.run(None, feeds)
            print(f"run {number + 1}: {time.process_time() - start:.2f} CPU s")


if __name__ == "__main__":
    main()
