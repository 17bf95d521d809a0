"""Check a plug-in as the toolchain's own operators are checked (`npu-build --check-plugin`).

A plug-in is a user's Python file that defines operators, and machine operations if it needs them (toolchain.plugin).
"""

from toolchain.plugin_check.check import Finding, check_plugin

__all__ = ["Finding", "check_plugin"]
