"""The decision search over items: arrays for the kernel, orders to try, and effort in nodes."""

from __future__ import annotations


