"""Check a plug-in as the toolchain's own operators are checked (`npu-build --check-plugin`)."""

from toolchain.plugin_check.check import Finding, check_plugin

__all__ = ["Finding", "check_plugin"]
