"""Plug-ins stay loaded for a process: each test ends without them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolchain.plugin import get_plugins
from toolchain.plugin_loading import unload_plugin


@pytest.fixture(autouse=True)
def unload_plugins() -> Iterator[None]:
    """Unload what a test has loaded."""
    yield
    for name in list(get_plugins()):
        unload_plugin(name)
