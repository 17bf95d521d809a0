"""Programs against the integer reference."""

from __future__ import annotations

import numpy as np

from toolchain.api import Build
from toolchain.runtime import Session, random_feeds, verify


def require_exact(built: Build) -> None:
    """The simulator's bytes and outputs equal the reference's on random feeds."""
    feeds = random_feeds(built.container.inputs, seed=7)
    reference = Session(built.data, backend="reference")
    got, difference = verify(Session(built.data, timing=True), reference, feeds)
    assert difference is None, difference
    for name, value in reference.run_detailed(feeds).outputs.items():
        np.testing.assert_array_equal(got.outputs[name], value)
