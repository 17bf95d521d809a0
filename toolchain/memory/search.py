"""The decision search over items: arrays for the kernel, orders to try, and effort in nodes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from toolchain.memory import kernel
from toolchain.memory.greedy import bank_between
from toolchain.memory.items import Item
