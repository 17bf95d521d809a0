"""Runs compiled models: chip regions on the simulator or the integer reference, islands in onnxruntime."""

from toolchain.runtime.session import Ran, Run, Session, check_feeds, host_providers, random_feeds
from toolchain.runtime.verify import verify

__all__ = ["Ran", "Run", "Session", "check_feeds", "host_providers", "random_feeds", "verify"]
