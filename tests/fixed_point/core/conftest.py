from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# tflite_model.py and one_node_model.py lie one folder up
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from recorded import RECORDING, Oracle, Record

settings.register_profile("fixed_point", derandomize=True, deadline=None)
settings.load_profile("fixed_point")


@pytest.fixture(scope="session")
def record() -> Iterator[Record]:
    """The recorded outputs; written back at the end where RECORD_VECTORS is set."""
    record = Record()
    yield record
    if RECORDING:
        record.save()


@pytest.fixture
def oracle(record: Record, request: pytest.FixtureRequest) -> Oracle:
    """The comparisons of this test with a foreign implementation."""
    return Oracle(record, f"{request.node.path.stem}/{request.node.name}")
