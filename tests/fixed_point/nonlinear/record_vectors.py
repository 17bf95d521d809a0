"""Writes data/vectors.npz from the reference packages: python tests/fixed_point/nonlinear/record_vectors.py"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2])]
CASES = 6


def main() -> None:
    from kernels import KERNELS

    arrays: dict[str, np.ndarray] = {}
    index: dict[str, list] = {}
    for kernel in KERNELS:
        index[kernel.name] = []
        for case in range(CASES):
            parameters, inputs = kernel.draw(np.random.default_rng([2, case]))
            index[kernel.name].append(parameters)
            arrays |= {f"{kernel.name}/{case}/{i}": x for i, x in enumerate(inputs)}
            arrays[f"{kernel.name}/{case}/expected"] = kernel.reference(kernel.engines[0], parameters, *inputs)
    np.savez_compressed(HERE / "data" / "vectors.npz", index=np.array(json.dumps(index)), **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
